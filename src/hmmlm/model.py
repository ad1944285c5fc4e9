"""A model you can keep: an HMM, its tokenizer and how it was made, in one folder."""

import json
import math
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hmmlm import __version__, filling, inference
from hmmlm.data.labels import GAP
from hmmlm.data.spelling import Spelling
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.devices import find_device
from hmmlm.errors import InputError, check_count, counted
from hmmlm.evaluate import HmmLM
from hmmlm.filling import FilledLine
from hmmlm.generate import Constraint, Lookahead, sample_met
from hmmlm.generate.constraints import check_constraint
from hmmlm.hmm import HMM
from hmmlm.hmm_file import FORMAT, read_hmm, write_hmm
from hmmlm.hugging_face import MODEL_TYPE
from hmmlm.inference.streaming import next_state_log_probs
from hmmlm.results import StateProbs
from hmmlm.text_model import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    TextModel,
    check_prompt,
    groups,
    pad,
    read_model_config,
    read_tokenizer,
)
from hmmlm.transitions import Factored


class TaggedLine(NamedTuple):
    """The tokens of a line, `<eos>` last, and a state for each.

    `tags` are the labels that own the states, `_` where a state is -1; None where the model was
    not trained with labels.
    """

    tokens: list[str]
    states: list[int]
    tags: list[str] | None = None


def sizes_of(hmm: HMM) -> dict[str, int]:
    """The sizes of an HMM's tables; `factors` is 0 where transitions are not factored."""
    table = hmm.transitions
    return {
        "num_states": hmm.num_states,
        "vocab_size": hmm.vocab_size,
        "states_per_word": hmm.support.width,
        "support_rows": len(hmm.support.rows),
        "factors": table.left.shape[1] if isinstance(table, Factored) else 0,
    }


@dataclass(frozen=True)
class Model(TextModel):
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

    def __repr__(self) -> str:
        return f"Model({self.hmm.num_states:,} states, {self.hmm.vocab_size:,} words)"

    def _parts(self) -> dict[str, Callable[[Path], object]]:
        """The files of a model's folder, and what writes each."""
        if self.hmm.state_ids is not None or self.hmm.source_ids is not None:
            raise InputError(
                f"This HMM has {self.hmm.num_states:,} states of a larger one and cannot be saved "
                f"as a model; save the whole one."
            )
        if self.hmm.num_soft:
            raise InputError(
                f"This HMM has {counted(self.hmm.num_soft, 'piece')} of soft evidence and cannot "
                f"be saved as a model; save the one without."
            )
        facts = {
            "format": FORMAT,
            "hmmlm_version": __version__,
            **sizes_of(self.hmm),
            "vocabulary_hash": self.tokenizer.hash,
            # What Hugging Face's transformers looks for (`hf`).
            "model_type": MODEL_TYPE,
            "architectures": ["HmmForCausalLM"],
            "eos_token_id": self.tokenizer.eos_id,
        }
        # `facts` first for their order, and last because a loaded config may have others.
        config = json.dumps({**facts, **self.config, **facts}, indent=1) + "\n"
        return {
            WEIGHTS: lambda path: write_hmm(path, self.hmm),
            TOKENIZER: lambda path: path.write_text(self.tokenizer.as_json(), encoding="utf-8"),
            CONFIG: lambda path: path.write_text(config, encoding="utf-8"),
        }

    @staticmethod
    def load(
        folder: str | os.PathLike[str],
        *,
        device: str | torch.device = "cpu",
        check_rows: bool = True,
    ) -> "Model":
        """Reads a folder written by `save` and checks all of it. No pickle is ever loaded.

        `device` may be "auto": a GPU if there is one. `check_rows=False` leaves it to the caller
        (`hmm.validate()`) to check that factored transitions sum to one, which takes a while where
        there are many states.
        """
        folder, place = Path(folder), find_device(device)
        config = read_model_config(folder)
        if "kind" in config:
            name, kind = shlex.quote(str(folder)), config["kind"]
            ways = f"hmmlm evaluate, score, next, sample and info {name} work"
            if kind == "topics":
                raise InputError(
                    f"{folder} is an HMM with topics, which has an HMM for each; {ways}, and "
                    f"TopicModel.load({name!r}).part(N) is the model of lines of topic N."
                )
            raise InputError(
                f"{folder} is a model of kind {kind}, which has no hidden states of an HMM to ask "
                f"for; {ways}, or train an HMM."
            )
        tokenizer = read_tokenizer(folder, config)
        hmm = read_hmm(folder / WEIGHTS, check_rows=check_rows)
        if (hmm.num_states, hmm.vocab_size) != (config.get("num_states"), config.get("vocab_size")):
            raise InputError(
                f"{folder / WEIGHTS} has {hmm.num_states:,} states and {hmm.vocab_size:,} words "
                f"but {CONFIG} says {config.get('num_states')} and {config.get('vocab_size')}; "
                f"copy the folder again as a whole."
            )
        model = Model(hmm.to(place), tokenizer, config)
        if model.tag_names is None and "labels" in config:
            raise InputError(
                f"{folder / CONFIG} has labels that cannot be shared equally by {hmm.num_states:,} "
                f"states; copy the folder again as a whole."
            )
        return model

    @property
    def lm(self) -> HmmLM:
        """The HMM as `evaluate` and others read language models."""
        return HmmLM(self.hmm)

    @property
    def device(self) -> torch.device:
        return self.hmm.device

    @property
    def tag_names(self) -> list[str] | None:
        """The label that owns each state, of a model that was trained with labels."""
        match self.config.get("labels"):
            case {"tags": [*tags], "states_per_tag": int(size)}:
                fits = len(tags) * size == self.hmm.num_states
                if fits and all(isinstance(tag, str) for tag in tags):
                    return [tag for tag in tags for _ in range(size)]
        return None

    def posterior(self, line: str) -> StateProbs:
        """p(z_t | the whole line) at every token of one line, `<eos>` last: B = 1, T tokens.

        O(T K^2) time.
        """
        group = [self._ids(line)]
        tokens, _ = pad(group)
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
        """What `viterbi` finds, or with `posterior` what `tag` does, line by line.

        Memory: that of a group of lines.
        """
        best, names = _best_states if posterior else _best_paths, self.tag_names
        for group in groups(self.encode(lines)):
            tokens, lengths = pad(group)
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
        self,
        count: int = 1,
        *,
        prompt: str = "",
        length: int = 100,
        seed: int | None = None,
        constraint: Constraint | Lookahead | None = None,
    ) -> list[str]:
        """Lines drawn from the model, each after the prompt, up to `<eos>` or `length` tokens.

        A constraint is on what follows the prompt. With one, lines are drawn exactly from p(line |
        the constraint is met and the line ends within `length` tokens).
        """
        generator = self._generator(count, length, seed)
        if constraint is not None:
            return self._sample_met(count, prompt, length, generator, constraint)
        ids = self._ids(prompt)[:-1] if check_prompt(prompt).strip() else None
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

    def _sample_met(
        self,
        count: int,
        prompt: str,
        length: int,
        generator: torch.Generator,
        constraint: Constraint | Lookahead,
    ) -> list[str]:
        ids, state = self._read_prompt(prompt)
        look = self.look_ahead(constraint, length=length)
        drawn = sample_met(look, state, num_samples=count, generator=generator)
        rows = zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True)
        return [self.tokenizer.decode([*ids, *row[:n]]) for row, n in rows]

    def probability(
        self, constraint: Constraint | Lookahead, *, prompt: str = "", length: int = 100
    ) -> float:
        """p(what follows the prompt meets the constraint and ends within `length` tokens)."""
        return math.exp(self.log_probability(constraint, prompt=prompt, length=length))

    def log_probability(
        self, constraint: Constraint | Lookahead, *, prompt: str = "", length: int = 100
    ) -> float:
        """The logarithm of `probability`, however small that is."""
        _, state = self._read_prompt(prompt)
        look = self.look_ahead(constraint, length=length)
        if look.log_weights is not None:
            raise InputError(
                "Words have weights here, so that this is no probability; look.log_met has the log "
                "of what is expected of their product."
            )
        place = torch.zeros(1, dtype=torch.long, device=self.device)
        return min(0.0, float(look.log_met(next_state_log_probs(state), place, length)))

    def look_ahead(
        self,
        constraint: Constraint | Lookahead,
        *,
        length: int,
        weights: Mapping[str, float] | None = None,
    ) -> Lookahead:
        """p(the constraint is met | state, tokens left), as a table that can be used again.

        `probability` and `sample` take it in place of the constraint, which they would make it of.
        `weights` are factors of tokens, spelt as in the vocabulary; other tokens have 1. Memory:
        `length` times the states of the automaton times Z numbers.
        """
        check_count("length", length)
        if isinstance(constraint, Lookahead):
            ours, theirs = (hmm.fields() for hmm in (self.hmm, constraint.hmm))
            if any(a.data_ptr() != b.data_ptr() for a, b in zip(ours, theirs, strict=False)):
                raise InputError("This looks ahead with another HMM; make it with this model.")
            if weights:
                raise InputError("This has been made; give weights with the constraint itself.")
            if constraint.budget != length:
                raise InputError(
                    f"length is {length:,} but this was made to look {constraint.budget:,} tokens "
                    f"ahead; give the same."
                )
            return constraint
        log_weights = None
        if weights:
            log_weights = torch.zeros(self.hmm.vocab_size, dtype=torch.float64)
            for token, weight in weights.items():
                if not 0 < weight < float("inf"):
                    raise InputError(f"The weight of {token!r} is {weight} but must be over 0.")
                log_weights[self.tokenizer.id(token)] = math.log(weight)
            log_weights = log_weights.to(self.device)
        return Lookahead.build(
            self.hmm,
            check_constraint(constraint).compile(self.spelling),
            eos_id=self.tokenizer.eos_id,
            budget=length,
            log_weights=log_weights,
        )

    @cached_property
    def spelling(self) -> Spelling:
        """The text that each token stands for."""
        return Spelling.of(self.tokenizer)

    def _read_prompt(self, prompt: str) -> tuple[list[int], inference.State]:
        """The ids of a prompt, and the state after it."""
        state = inference.start(self.hmm, reset_id=self.tokenizer.eos_id)
        if not check_prompt(prompt).strip():
            return [], state
        ids = self._ids(prompt)[:-1]
        state = inference.advance(state, torch.from_numpy(ids)[None].to(self.device))
        if torch.isneginf(state.log_evidence).any():
            raise InputError(
                f"The prompt {prompt!r} has probability zero under this model, so nothing can "
                f"follow it; give another."
            )
        return ids.tolist(), state

    def next(self, prompt: str = "", *, k: int = 10) -> list[tuple[str, float]]:
        """The k most probable tokens after a prompt (all, if there are fewer), and p of each."""
        check_count("k", k)
        _, state = self._read_prompt(prompt)
        log_probs, words = inference.next_log_probs(state)[0].topk(min(k, self.hmm.vocab_size))
        pairs = zip(words.tolist(), log_probs.exp().tolist(), strict=True)
        return [(self.tokenizer.token(word), prob) for word, prob in pairs]

    def fill(
        self,
        pattern: str,
        n: int = 5,
        *,
        length: tuple[int, int] = (0, 5),
        seed: int | None = None,
    ) -> list[FilledLine]:
        r"""n lines drawn from p(line | pattern): `?` is one word, `*` is `length` = (a, b) words.

        Each comes with p(the words in its gaps | the rest). There may be one `*`. No gap holds
        `<eos>`, which ends the line. Where tokens are pieces of words, `?` is one token. `\?` and
        `\*` are the marks themselves, as words.
        """
        check_count("n", n)
        generator = self._generator(1, 1, seed)
        return filling.fill(self.hmm, self.tokenizer, pattern, n, length, generator)

    def gap_words(
        self, pattern: str, k: int = 10, *, length: tuple[int, int] = (0, 5)
    ) -> list[list[tuple[str, float]]]:
        """The k most probable words of each `?` of a pattern, and p of each given the rest."""
        check_count("k", k)
        return filling.gap_words(self.hmm, self.tokenizer, pattern, k, length)

    def span(
        self, pattern: str, words: str | Iterable[str], *, length: tuple[int, int] = (0, 5)
    ) -> float:
        """p(the gaps of a pattern are these words | the rest).

        Words go into the gaps in order: one into each `?`, the others into the `*`.
        """
        return filling.span(self.hmm, self.tokenizer, pattern, words, length)

    def top_words(self, state: int, *, k: int = 10) -> list[tuple[str, float]]:
        """The k words that a state emits most often (all, if there are fewer), and p of each."""
        check_count("k", k)
        if not 0 <= state < self.hmm.num_states:
            raise InputError(
                f"There is no state {state:,}; this model has states 0 to "
                f"{self.hmm.num_states - 1:,}."
            )
        if self.hmm.support.is_dense:  # whose inverse map would be as large as the table
            words = torch.arange(self.hmm.vocab_size, device=self.device)
            log_probs = self.hmm.log_emit[:, state]
        else:
            cells = self.hmm.support.state_words
            span = slice(int(cells.offsets[state]), int(cells.offsets[state + 1]))
            words, slots = cells.words[span], cells.slots[span]
            log_probs = self.hmm.log_emit[words, slots]
        best = log_probs.topk(min(k, len(log_probs)))
        found = words[best.indices].tolist()
        pairs = zip(found, best.values.exp().tolist(), strict=True)
        return [(self.tokenizer.token(word), prob) for word, prob in pairs]


def _best_paths(hmm: HMM, tokens: Tensor, lengths: Tensor, reset_id: int | None) -> Tensor:
    return inference.viterbi(hmm, tokens, lengths=lengths, reset_id=reset_id).states


def _best_states(hmm: HMM, tokens: Tensor, lengths: Tensor, reset_id: int | None) -> Tensor:
    found = inference.smooth(hmm, tokens, lengths=lengths, reset_id=reset_id)
    log_probs, slots = found.log_probs.max(2)
    states = found.states.gather(2, slots[:, :, None])[:, :, 0]
    return states.masked_fill(torch.isneginf(log_probs), -1)
