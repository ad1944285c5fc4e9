"""A model you can keep: an HMM, its tokenizer and what is known of its making, in one folder."""

import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hmmlm import __version__, inference
from hmmlm.data.labels import GAP
from hmmlm.data.shards import TokenArray
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.evaluate import Evaluation, HmmLM, evaluate
from hmmlm.hmm import HMM
from hmmlm.hmm_file import FORMAT, read_hmm, write_hmm
from hmmlm.results import StateProbs
from hmmlm.storage import json_line, new_file, new_folder

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
    """The tokens of a line, `<eos>` last, and a state for each.

    `tags` are the labels that own the states, `_` where a state is -1; None where the model was
    not trained with labels.
    """

    tokens: list[str]
    states: list[int]
    tags: list[str] | None = None


@dataclass(frozen=True)
class Model:
    """An HMM over the tokens of a tokenizer.

    Every line of text is read from p(z1) and ends in `<eos>`; an empty one is only `<eos>`.
    """

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
        parts = self._parts()
        with new_folder(folder) as temporary:
            for name, write in parts.items():
                write(temporary / name)
            with (temporary / METRICS).open("w", encoding="utf-8") as file:
                file.writelines(json_line(line) for line in metrics)

    def write_into(self, folder: Path) -> None:
        """Writes weights, tokenizer and config into a folder that is there, each file whole."""
        for name, write in self._parts().items():
            with new_file(folder / name) as temporary:
                write(temporary)

    def _parts(self) -> dict[str, Callable[[Path], object]]:
        """The files of a model's folder, and what writes each."""
        if self.hmm.state_ids is not None or self.hmm.source_ids is not None:
            raise InputError(
                f"This HMM has {self.hmm.num_states:,} states of a larger one and cannot be saved "
                f"as a model; save the whole one."
            )
        facts = {
            "format": FORMAT,
            "hmmlm_version": __version__,
            "num_states": self.hmm.num_states,
            "vocab_size": self.hmm.vocab_size,
            "vocabulary_hash": self.tokenizer.hash,
        }
        # What is true of this model stands over what was loaded with another one.
        config = json.dumps({**facts, **self.config, **facts}, indent=1) + "\n"
        return {
            WEIGHTS: lambda path: write_hmm(path, self.hmm),
            TOKENIZER: lambda path: path.write_text(self.tokenizer.as_json(), encoding="utf-8"),
            CONFIG: lambda path: path.write_text(config, encoding="utf-8"),
        }

    @staticmethod
    def load(folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> "Model":
        """Reads a folder written by `save` and checks all of it. No pickle is ever loaded."""
        folder = Path(folder)
        config = read_model_config(folder)
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        if tokenizer.hash != config.get("vocabulary_hash"):
            raise InputError(
                f"{folder / TOKENIZER} is not the vocabulary this model was trained with; copy the "
                f"folder again as a whole."
            )
        hmm = read_hmm(folder / WEIGHTS)
        if (hmm.num_states, hmm.vocab_size) != (config.get("num_states"), config.get("vocab_size")):
            raise InputError(
                f"{folder / WEIGHTS} has {hmm.num_states:,} states and {hmm.vocab_size:,} words "
                f"but {CONFIG} says {config.get('num_states')} and {config.get('vocab_size')}; "
                f"copy the folder again as a whole."
            )
        model = Model(hmm.to(device), tokenizer, config)
        if model.tag_names is None and "labels" in config:
            raise InputError(
                f"{folder / CONFIG} has labels that cannot be shared equally by {hmm.num_states:,} "
                f"states; copy the folder again as a whole."
            )
        return model

    @property
    def tag_names(self) -> list[str] | None:
        """The label that owns each state, of a model that was trained with labels."""
        match self.config.get("labels"):
            case {"tags": [*tags], "states_per_tag": int(size)}:
                fits = len(tags) * size == self.hmm.num_states
                if fits and all(isinstance(tag, str) for tag in tags):
                    return [tag for tag in tags for _ in range(size)]
        return None

    def encode(self, lines: str | Iterable[str]) -> Iterator[np.ndarray]:
        """The ids of each line, `<eos>` last. A text is cut at its newlines, as a file would be."""
        if isinstance(lines, str):
            cut = lines.removesuffix("\n").split("\n") if lines else []
            lines = [line.removesuffix("\r") for line in cut]
        return self.tokenizer.encode_lines(_utf8(line) for line in lines)

    def score(self, lines: str | Iterable[str]) -> list[ScoredLine]:
        """log p of every token of each line, given the line so far."""
        found = []
        for ids, log_probs in self.score_ids(self.encode(lines)):
            tokens = [self.tokenizer.token(int(i)) for i in ids]
            found.append(ScoredLine(tokens, log_probs.tolist()))
        return found

    def score_ids(self, lines: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The ids of each line and their log-probabilities, in order. Memory: a group of lines."""
        model = HmmLM(self.hmm)
        for group in _groups(lines):
            tokens, lengths = _pad(group)
            scored = model.score_tokens(tokens, lengths=lengths, reset_id=self._reset_id(group))
            scores = scored.token_log_probs.cpu().numpy()
            for ids, row in zip(group, scores, strict=True):
                yield ids, row[: len(ids)]

    def perplexity(self, lines: str | Iterable[str], *, mode: str = "sentence") -> float:
        """exp of the mean nats per token, `<eos>` counted; modes as in docs/evaluation.md."""
        return self.evaluate(self.encode(lines), mode=mode).perplexity

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
        group = [self._ids(line)]
        tokens, _ = _pad(group)
        return inference.smooth(
            self.hmm, tokens.to(self.hmm.device), reset_id=self._reset_id(group)
        )

    def viterbi(self, lines: str | Iterable[str]) -> list[TaggedLine]:
        """The most probable path of states through each line; -1 where its probability is zero."""
        return list(self.tag_lines(lines))

    def tag(self, lines: str | Iterable[str]) -> list[TaggedLine]:
        """The most probable state of each token, given its line; -1 where that is impossible."""
        return list(self.tag_lines(lines, posterior=True))

    def tag_lines(
        self, lines: str | Iterable[str], *, posterior: bool = False
    ) -> Iterator[TaggedLine]:
        """As `viterbi`, or with `posterior` as `tag`, one by one. Memory: a group of lines."""
        best, names = _best_states if posterior else _best_paths, self.tag_names
        for group in _groups(self.encode(lines)):
            tokens, lengths = _pad(group)
            found = best(
                self.hmm,
                tokens.to(self.hmm.device),
                lengths.to(self.hmm.device),
                self._reset_id(group),
            )
            rows = found.tolist()
            for ids, row in zip(group, rows, strict=True):
                words = [self.tokenizer.token(int(i)) for i in ids]
                states = row[: len(ids)]
                tags = names and [GAP if state < 0 else names[state] for state in states]
                yield TaggedLine(words, states, tags)

    def sample(
        self, count: int = 1, *, prompt: str = "", length: int = 100, seed: int | None = None
    ) -> list[str]:
        """Lines drawn from the model, each after the prompt, up to `<eos>` or `length` tokens."""
        for name, value in (("count", count), ("length", length)):
            if value < 1:
                raise InputError(f"{name} is {value:,} but must be at least 1.")
        generator = torch.Generator(self.hmm.device)
        if seed is None:
            generator.seed()
        elif 0 <= seed < 1 << 63:
            generator.manual_seed(seed)
        else:
            raise InputError(f"seed is {seed:,} but must lie between 0 and 2^63 - 1.")
        ids = self._ids(prompt)[:-1] if prompt.strip() else None
        drawn = inference.sample(
            self.hmm,
            None if ids is None else torch.from_numpy(ids)[None].to(self.hmm.device),
            length=length,
            num_samples=count,
            stop_id=self.tokenizer.eos_id,
            reset_id=self.tokenizer.eos_id,
            generator=generator,
        )
        start = [] if ids is None else ids.tolist()
        rows = zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True)
        return [self.tokenizer.decode([*start, *row[:n]]) for row, n in rows]

    def next(self, prompt: str = "", *, k: int = 10) -> list[tuple[str, float]]:
        """The k most probable tokens after a prompt (all, if there are fewer), and p of each."""
        if k < 1:
            raise InputError(f"k is {k:,} but must be at least 1.")
        state = inference.start(self.hmm, reset_id=self.tokenizer.eos_id)
        if prompt.strip():
            ids = torch.from_numpy(self._ids(prompt)[:-1])[None]
            state = inference.advance(state, ids.to(self.hmm.device))
            if torch.isneginf(state.log_evidence).any():
                raise InputError(
                    f"The prompt {prompt!r} has probability zero under this model, so nothing can "
                    f"follow it; give another."
                )
        log_probs, words = inference.next_log_probs(state)[0].topk(min(k, self.hmm.vocab_size))
        pairs = zip(words.tolist(), log_probs.exp().tolist(), strict=True)
        return [(self.tokenizer.token(word), prob) for word, prob in pairs]

    def top_words(self, state: int, *, k: int = 10) -> list[tuple[str, float]]:
        """The k words that a state emits most often (all, if there are fewer), and p of each."""
        if k < 1:
            raise InputError(f"k is {k:,} but must be at least 1.")
        if not 0 <= state < self.hmm.num_states:
            raise InputError(
                f"There is no state {state:,}; this model has states 0 to "
                f"{self.hmm.num_states - 1:,}."
            )
        cells = self.hmm.support.state_words
        span = slice(int(cells.offsets[state]), int(cells.offsets[state + 1]))
        log_probs = self.hmm.log_emit[cells.words[span], cells.slots[span]]
        best = log_probs.topk(min(k, len(log_probs)))
        words = cells.words[span][best.indices].tolist()
        pairs = zip(words, best.values.exp().tolist(), strict=True)
        return [(self.tokenizer.token(word), prob) for word, prob in pairs]

    def _reset_id(self, group: Sequence[np.ndarray]) -> int | None:
        """`<eos>` if a line has one inside: what follows it starts from p(z1), as in training."""
        eos = self.tokenizer.eos_id
        return eos if any((ids[:-1] == eos).any() for ids in group) else None

    def _ids(self, line: str) -> np.ndarray:
        return next(self.encode([line]))


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


def _best_paths(hmm: HMM, tokens: Tensor, lengths: Tensor, reset_id: int | None) -> Tensor:
    return inference.viterbi(hmm, tokens, lengths=lengths, reset_id=reset_id).states


def _best_states(hmm: HMM, tokens: Tensor, lengths: Tensor, reset_id: int | None) -> Tensor:
    found = inference.smooth(hmm, tokens, lengths=lengths, reset_id=reset_id)
    log_probs, slots = found.log_probs.max(2)
    states = found.states.gather(2, slots[:, :, None])[:, :, 0]
    return states.masked_fill(torch.isneginf(log_probs), -1)


def _utf8(line: str) -> str:
    try:
        line.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{line[:40]!r} has {line[error.start]!r} at {error.start:,}, which UTF-8 cannot "
            f"write; give text that was read as UTF-8."
        ) from None
    return line


def read_model_config(folder: Path) -> dict[str, Any]:
    """What a model's folder says of the model; a folder of something else is an error."""
    path = folder / CONFIG
    if not folder.exists():
        raise InputError(f"{folder} does not exist; give a model's folder.")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file but must be a model's folder.")
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        way_out = "train one with hmmlm train"
        if (folder / "run.json").exists():
            name = shlex.quote(str(folder))
            way_out = f"its training is not over; hmmlm train --resume {name} goes on"
        raise InputError(f"{folder} is not a model: it has no {CONFIG}; {way_out}.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise InputError(
            f"{path} is not json, or only part of a file; copy the model's folder again."
        ) from None
    found = config.get("format") if isinstance(config, dict) else None
    if found != FORMAT:
        raise InputError(
            f"{path} has the format {found!r} but this version reads {FORMAT!r}; give a folder "
            f"written by hmmlm."
        )
    return config
