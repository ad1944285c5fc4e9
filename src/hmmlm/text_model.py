"""A language model with its tokenizer in a folder: what all kinds share."""

import json
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hmmlm.data.token_array import TokenArray
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError, check_count
from hmmlm.evaluate import Evaluation, evaluate
from hmmlm.hmm_file import FORMAT
from hmmlm.hugging_face import MODEL_TYPE
from hmmlm.lm import LanguageModel
from hmmlm.storage import json_line, new_file, new_folder

WEIGHTS, CONFIG, TOKENIZER, METRICS = (
    "model.safetensors",
    "config.json",
    "tokenizer.json",
    "metrics.jsonl",
)
GROUP_TOKENS = 1 << 14
"""Tokens of a batch of lines, padding included."""


class ScoredLine(NamedTuple):
    """The tokens of a line, `<eos>` last, and log p of each given those before it."""

    tokens: list[str]
    log_probs: list[float]


class TextModel(ABC):
    """A language model over the tokens of a tokenizer.

    Every line of text is read from a cold start and ends in `<eos>`; an empty one is only `<eos>`.
    """

    tokenizer: Tokenizer
    config: dict[str, Any]

    @property
    @abstractmethod
    def lm(self) -> LanguageModel:
        """The model of token ids, without the text."""

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @abstractmethod
    def _parts(self) -> dict[str, Callable[[Path], object]]:
        """The files of a model's folder, and what writes each."""

    @abstractmethod
    def sample(
        self, count: int = 1, *, prompt: str = "", length: int = 100, seed: int | None = None
    ) -> list[str]:
        """Lines drawn from the model, each after the prompt, up to `<eos>` or `length` tokens."""

    @abstractmethod
    def next(self, prompt: str = "", *, k: int = 10) -> list[tuple[str, float]]:
        """The k most probable tokens after a prompt (all, if there are fewer), and p of each."""

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
        """Writes weights, tokenizer and config into an existing folder, each file whole or not."""
        for name, write in self._parts().items():
            with new_file(folder / name) as temporary:
                write(temporary)

    def encode(self, lines: str | Iterable[str]) -> Iterator[np.ndarray]:
        """The ids of each line, `<eos>` last. A string is cut at its newlines, as a file is."""
        if isinstance(lines, str):
            cut = lines.removesuffix("\n").split("\n") if lines else []
            lines = [line.removesuffix("\r") for line in cut]
        return self.tokenizer.encode_lines(check_utf8(line) for line in lines)

    def score(self, lines: str | Iterable[str]) -> list[ScoredLine]:
        """log p of every token of each line, given the line so far."""
        found = []
        for ids, log_probs in self.score_ids(self.encode(lines)):
            tokens = [self.tokenizer.token(int(i)) for i in ids]
            found.append(ScoredLine(tokens, log_probs.tolist()))
        return found

    def score_ids(
        self, lines: Iterable[np.ndarray], *, goes_on: bool = False
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The ids of each line and their log-probabilities, in order. Memory: a group of lines.

        After an `<eos>` within a line the model starts cold, unless the line `goes_on`.
        """
        model = self.lm
        for group in groups(lines):
            tokens, lengths = pad(group)
            reset_id = None if goes_on else self._reset_id(group)
            scored = model.score_tokens(tokens, lengths=lengths, reset_id=reset_id)
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
        return evaluate(self.lm, lines, mode=mode, eos_id=self.tokenizer.eos_id, device=self.device)

    def _reset_id(self, group: Sequence[np.ndarray]) -> int | None:
        """`<eos>` if a line has one inside: what follows it starts cold, as in training."""
        eos = self.tokenizer.eos_id
        return eos if any((ids[:-1] == eos).any() for ids in group) else None

    def _ids(self, line: str) -> np.ndarray:
        return next(self.encode([line]))

    def _generator(self, count: int, length: int, seed: int | None) -> torch.Generator:
        """The generator of a sample, its numbers checked."""
        if isinstance(count, str):
            raise InputError(
                f"count is {count!r} but must be a number; a text to go on after is given as "
                f"prompt={count!r}."
            )
        check_count("count", count)
        check_count("length", length)
        generator = torch.Generator(self.device)
        if seed is None:
            generator.seed()
        elif 0 <= seed < 1 << 63:
            generator.manual_seed(seed)
        else:
            raise InputError(f"seed is {seed:,} but must lie between 0 and 2^63 - 1.")
        return generator


def check_prompt(prompt: str) -> str:
    """The prompt, if it is one text."""
    if not isinstance(prompt, str):
        raise InputError(
            f"The prompt is a {type(prompt).__name__} but must be one string; join words with "
            f"spaces, and ask for several texts one by one."
        )
    return prompt


def groups(lines: Iterable[np.ndarray], most: int = GROUP_TOKENS) -> Iterator[list[np.ndarray]]:
    """Consecutive lines that make at most `most` tokens, padded; a longer line stands alone."""
    group: list[np.ndarray] = []
    longest = 0
    for ids in lines:
        if group and max(longest, len(ids)) * (len(group) + 1) > most:
            yield group
            group, longest = [], 0
        group.append(ids)
        longest = max(longest, len(ids))
    if group:
        yield group


def pad(group: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Lines as rows of one tensor (B, T), padded with 0, and the length of each (B,)."""
    lengths = [len(ids) for ids in group]
    tokens = np.zeros((len(group), max(lengths)), np.int64)
    for row, ids in zip(tokens, group, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(tokens), torch.tensor(lengths)


def check_utf8(line: str) -> str:
    """The line, if UTF-8 can write it."""
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
        if (folder / "corpus.json").exists():
            raise InputError(f"{folder} is a corpus; a model is needed here.") from None
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
        if found is None and isinstance(config, dict) and config.get("model_type") == MODEL_TYPE:
            raise InputError(
                f"{folder} was saved by transformers; hmmlm convert {shlex.quote(str(folder))} "
                f"--to hmmlm --out NEW makes a model of it."
            )
        raise InputError(
            f"{path} has the format {found!r} but this version reads {FORMAT!r}; give a folder "
            f"written by hmmlm."
        )
    return config


def read_tokenizer(folder: Path, config: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a model's folder, which must be the one it was trained with."""
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    if tokenizer.hash != config.get("vocabulary_hash"):
        raise InputError(
            f"{folder / TOKENIZER} is not the vocabulary this model was trained with; copy the "
            f"folder again as a whole."
        )
    return tokenizer
