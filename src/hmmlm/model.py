"""A model you can keep: an HMM, its tokenizer and what is known of its making, in one folder."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hmmlm import __version__, inference
from hmmlm.data.shards import TokenArray
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.evaluate import Evaluation, HmmLM, evaluate
from hmmlm.hmm import HMM
from hmmlm.results import StateProbs
from hmmlm.storage import new_folder
from hmmlm.support import Support
from hmmlm.transitions import Dense, Factored

FORMAT = "hmmlm-model-1"
WEIGHTS, CONFIG, TOKENIZER, METRICS = (
    "model.safetensors",
    "config.json",
    "tokenizer.json",
    "metrics.jsonl",
)
GROUP_TOKENS = 1 << 14
"""Tokens, padding included, of a batch of lines."""


class ScoredLine(NamedTuple):
    """The tokens of a line, `<eos>` last, and log p of each given those before it."""

    tokens: list[str]
    log_probs: list[float]


class TaggedLine(NamedTuple):
    """The tokens of a line, `<eos>` last, and a state for each."""

    tokens: list[str]
    states: list[int]


@dataclass(frozen=True)
class Model:
    """An HMM over the tokens of a tokenizer. Every line of text is read from p(z1), `<eos>` last."""

    hmm: HMM
    tokenizer: Tokenizer
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.hmm.vocab_size != self.tokenizer.vocab_size:
            raise InputError(
                f"The HMM emits {self.hmm.vocab_size:,} words but the tokenizer has "
                f"{self.tokenizer.vocab_size:,}; use the tokenizer that the model was trained with."
            )

    def save(
        self, folder: str | os.PathLike[str], *, metrics: Iterable[dict[str, Any]] = ()
    ) -> None:
        """Writes a new folder, whole or not at all: weights, config, tokenizer and metrics."""
        with new_folder(folder) as temporary:
            save_file(_tensors(self.hmm), temporary / WEIGHTS, metadata={"format": FORMAT})
            config = {
                "format": FORMAT,
                "hmmlm_version": __version__,
                "num_states": self.hmm.num_states,
                "vocab_size": self.hmm.vocab_size,
                "vocabulary_hash": self.tokenizer.hash,
                **self.config,
            }
            (temporary / CONFIG).write_text(json.dumps(config, indent=1) + "\n")
            self.tokenizer.save(temporary / TOKENIZER)
            lines = (json.dumps(line) + "\n" for line in metrics)
            (temporary / METRICS).write_text("".join(lines))

    @staticmethod
    def load(folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> "Model":
        """Reads a folder written by `save` and checks all of it. No pickle is ever loaded."""
        folder = Path(folder)
        config = _read_config(folder)
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        if tokenizer.hash != config.get("vocabulary_hash"):
            raise InputError(
                f"{folder / TOKENIZER} is not the vocabulary this model was trained with; copy the "
                f"folder again as a whole."
            )
        tensors = _read_tensors(folder / WEIGHTS)
        hmm = _hmm_from(folder / WEIGHTS, tensors)
        if (hmm.num_states, hmm.vocab_size) != (config.get("num_states"), config.get("vocab_size")):
            raise InputError(
                f"{folder / WEIGHTS} has {hmm.num_states:,} states and {hmm.vocab_size:,} words but "
                f"{CONFIG} says {config.get('num_states')} and {config.get('vocab_size')}; copy "
                f"the folder again as a whole."
            )
        return Model(hmm.to(device), tokenizer, config)

    def score(self, lines: str | Iterable[str]) -> list[ScoredLine]:
        """log p of every token of each line, given the line so far; a text is cut at its newlines."""
        found = []
        for ids, log_probs in self.score_ids(self._encode(lines)):
            tokens = [self.tokenizer.token(int(i)) for i in ids]
            found.append(ScoredLine(tokens, log_probs.tolist()))
        return found

    def score_ids(
        self, lines: Iterable[np.ndarray]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The ids of each line and their log-probabilities, in order. Memory: a group of lines."""
        model = HmmLM(self.hmm)
        for group in _groups(lines):
            tokens, lengths = _pad(group)
            scores = model.score_tokens(tokens, lengths=lengths).token_log_probs.cpu().numpy()
            for ids, row in zip(group, scores, strict=True):
                yield ids, row[: len(ids)]

    def perplexity(self, lines: str | Iterable[str], *, mode: str = "sentence") -> float:
        """exp of the mean nats per token, `<eos>` counted; modes as in docs/evaluation.md."""
        return self.evaluate(self._encode(lines), mode=mode).perplexity

    def evaluate(
        self, lines: Iterable[np.ndarray] | TokenArray, *, mode: str = "sentence"
    ) -> Evaluation:
        """Perplexity, and what it was computed from, of lines of ids."""
        if not isinstance(lines, TokenArray):
            ids = np.concatenate([np.empty(0, np.int64), *lines])
            lines = TokenArray.from_ids(ids, eos_id=self.tokenizer.eos_id)
        return evaluate(
            HmmLM(self.hmm),
            lines,
            mode=mode,
            eos_id=self.tokenizer.eos_id,
            device=self.hmm.device,
        )

    def posterior(self, line: str) -> StateProbs:
        """p(z_t | the whole line) at every token of one line, `<eos>` last."""
        tokens, _ = _pad([self._encode_line(line)])
        return inference.smooth(self.hmm, tokens)

    def viterbi(self, lines: str | Iterable[str]) -> list[TaggedLine]:
        """The most probable path of states through each line."""
        return self._tag(lines, lambda *args: inference.viterbi(self.hmm, args[0], lengths=args[1]).states)

    def tag(self, lines: str | Iterable[str]) -> list[TaggedLine]:
        """The most probable state of each token on its own, given its whole line."""

        def best(tokens: Tensor, lengths: Tensor) -> Tensor:
            found = inference.smooth(self.hmm, tokens, lengths=lengths)
            return found.states.gather(2, found.log_probs.argmax(2, keepdim=True))[:, :, 0]

        return self._tag(lines, best)

    def sample(
        self, count: int = 1, *, prompt: str = "", length: int = 100, seed: int | None = None
    ) -> list[str]:
        """Lines drawn from the model, each after the prompt, up to `<eos>` or `length` tokens."""
        generator = torch.Generator(self.hmm.device)
        generator.manual_seed(seed) if seed is not None else generator.seed()
        ids = self._encode_line(prompt)[:-1] if prompt.strip() else None
        drawn = inference.sample(
            self.hmm,
            None if ids is None else torch.from_numpy(ids)[None].to(self.hmm.device),
            length=length,
            num_samples=count,
            stop_id=self.tokenizer.eos_id,
            generator=generator,
        )
        start = [] if ids is None else ids.tolist()
        rows = zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True)
        return [self.tokenizer.decode([*start, *row[:n]]) for row, n in rows]

    def next(self, prompt: str = "", *, k: int = 10) -> list[tuple[str, float]]:
        """The k most probable tokens after a prompt, with their probabilities."""
        if not 1 <= k <= self.hmm.vocab_size:
            raise InputError(f"k is {k:,} but must lie between 1 and {self.hmm.vocab_size:,} words.")
        state = inference.start(self.hmm)
        if prompt.strip():
            ids = torch.from_numpy(self._encode_line(prompt)[:-1])[None]
            state = inference.advance(state, ids.to(self.hmm.device))
        log_probs, words = inference.next_log_probs(state)[0].topk(k)
        pairs = zip(words.tolist(), log_probs.exp().tolist(), strict=True)
        return [(self.tokenizer.token(word), prob) for word, prob in pairs]

    def top_words(self, state: int, *, k: int = 10) -> list[tuple[str, float]]:
        """The words that a state emits most often, with their probabilities."""
        if not 0 <= state < self.hmm.num_states:
            raise InputError(
                f"There is no state {state:,}; this model has states 0 to {self.hmm.num_states - 1:,}."
            )
        cells = self.hmm.support.state_words
        span = slice(int(cells.offsets[state]), int(cells.offsets[state + 1]))
        log_probs = self.hmm.log_emit[cells.words[span], cells.slots[span]]
        best = log_probs.topk(min(k, len(log_probs)))
        words = cells.words[span][best.indices].tolist()
        pairs = zip(words, best.values.exp().tolist(), strict=True)
        return [(self.tokenizer.token(word), prob) for word, prob in pairs]

    def _encode(self, lines: str | Iterable[str]) -> Iterator[np.ndarray]:
        lines = lines.splitlines() if isinstance(lines, str) else lines
        yield from self.tokenizer.encode_lines(lines)

    def _encode_line(self, line: str) -> np.ndarray:
        return next(iter(self.tokenizer.encode_lines([line])))

    def _tag(self, lines: str | Iterable[str], states) -> list[TaggedLine]:
        found = []
        for group in _groups(self._encode(lines)):
            tokens, lengths = _pad(group)
            rows = states(tokens.to(self.hmm.device), lengths.to(self.hmm.device)).tolist()
            for ids, row in zip(group, rows, strict=True):
                words = [self.tokenizer.token(int(i)) for i in ids]
                found.append(TaggedLine(words, row[: len(ids)]))
        return found


def _groups(lines: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Neighbouring lines whose rectangle is at most GROUP_TOKENS; a longer line stands alone."""
    group: list[np.ndarray] = []
    longest = 0
    for ids in lines:
        if group and max(longest, len(ids)) * (len(group) + 1) > GROUP_TOKENS:
            yield group
            group, longest = [], 0
        group.append(ids)
        longest = max(longest, len(ids))
    if group:
        yield group


def _pad(group: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    lengths = [len(ids) for ids in group]
    tokens = np.zeros((len(group), max(lengths)), np.int64)
    for row, ids in zip(tokens, group, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(tokens), torch.tensor(lengths)


def _tensors(hmm: HMM) -> dict[str, Tensor]:
    tensors = {"log_init": hmm.log_init, "log_emit": hmm.log_emit}
    if isinstance(hmm.transitions, Dense):
        tensors["log_trans"] = hmm.transitions.log_trans
    else:
        names = ("trans_left", "trans_right", "trans_log_norm")
        tensors |= dict(zip(names, hmm.transitions.fields(), strict=True))
    tensors["support_rows"] = hmm.support.rows.int()
    tensors["support_row_of_word"] = hmm.support.row_of_word.int()
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _hmm_from(path: Path, tensors: dict[str, Tensor]) -> HMM:
    common = {"log_init", "log_emit", "support_rows", "support_row_of_word"}
    dense = common | {"log_trans"}
    factored = common | {"trans_left", "trans_right", "trans_log_norm"}
    if set(tensors) not in (dense, factored):
        raise InputError(
            f"{path} holds {', '.join(sorted(tensors)) or 'nothing'}, but a model of this library "
            f"holds {', '.join(sorted(dense))}, or factors instead of log_trans."
        )
    if "log_trans" in tensors:
        transitions = Dense(tensors["log_trans"])
    else:
        names = ("trans_left", "trans_right", "trans_log_norm")
        transitions = Factored(*(tensors[name] for name in names))
    support = Support(
        tensors["support_rows"].long(),
        tensors["support_row_of_word"].long(),
        tensors["log_init"].shape[0],
    )
    try:
        return HMM(tensors["log_init"], transitions, tensors["log_emit"], support).validate()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist or is not a folder; give a model's folder.")
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(
            f"{folder} is not a model: it has no {CONFIG}; train one with hmmlm train."
        ) from None
    except ValueError:
        raise InputError(f"{path} is not json, or only part of a file; copy it again.") from None
    found = config.get("format") if isinstance(config, dict) else None
    if found != FORMAT:
        raise InputError(f"{path} has the format {found!r} but this version reads {FORMAT!r}.")
    return config


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        raise InputError(f"{path} does not exist; copy the model's folder again as a whole.")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(
            f"{path} is not a whole safetensors file ({error}); copy or train the model again."
        ) from error
