"""The text in which use of states is counted: given, of the run's corpus, or drawn."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hmmlm import inference
from hmmlm.data.corpus import read_lines
from hmmlm.data.shards import Corpus, check_vocabulary
from hmmlm.data.token_array import TokenArray
from hmmlm.errors import InputError
from hmmlm.model import Model

MOST_TOKENS = 100_000
"""Tokens that are read at most: shares of use are right to a few digits by then."""

DRAWN_TOKENS = 20_000
LINE_TOKENS = 512
"""Tokens of a line that are read; longer ones are cut."""

LOOKED_AT = 10 * MOST_TOKENS
"""Tokens of a corpus among which lines are looked for."""


@dataclass(frozen=True)
class UseText:
    """Lines of ids, how many tokens they have at most, and where they come from, for people."""

    name: str
    tokens: int
    lines: Callable[[], Iterator[np.ndarray]]


def find_text(model: Model, path: Path | None) -> UseText:
    """The text at a path; else the validation text of the run's corpus; else one that is drawn."""
    if path is not None:
        return _given(model, path)
    training = model.config.get("training")
    data = training.get("data") if isinstance(training, dict) else None
    corpus = data.get("corpus") if isinstance(data, dict) else None
    if isinstance(corpus, str) and (Path(corpus) / "corpus.json").is_file():
        try:
            return _of_corpus(model, Path(corpus), "valid")
        except InputError:
            pass  # another corpus by now, or no validation text: said by what is used instead
    return _drawn(model)


def _given(model: Model, path: Path) -> UseText:
    if path.is_dir():
        return _of_corpus(model, path, None)
    lines: list[np.ndarray] = []
    tokens = 0
    for ids in model.encode(read_lines(path, empty_lines="skip")):
        ids = ids[:LINE_TOKENS]
        if tokens + len(ids) > MOST_TOKENS:
            break
        lines.append(ids)
        tokens += len(ids)
    return UseText(f"{path.name}, {tokens:,} tokens", tokens, lambda: iter(lines))


def _of_corpus(model: Model, folder: Path, split: str | None) -> UseText:
    corpus = Corpus.open(folder, verify=False)
    check_vocabulary(corpus, model.tokenizer)
    name = split or next((one for one in ("valid", "test") if one in corpus.splits), "train")
    text = corpus.split(name)
    text = text.head(min(len(text), LOOKED_AT)) if len(text) else text
    starts, ends = _cut(text)
    tokens = int((ends - starts).sum())
    what = {"valid": "validation text", "test": "test text", "train": "training text"}
    label = f"{what.get(name, name)} of {folder.absolute().name}, {tokens:,} tokens"
    places = list(zip(starts.tolist(), ends.tolist(), strict=True))
    return UseText(label, tokens, lambda: (text[start:end] for start, end in places))


def _cut(text: TokenArray) -> tuple[np.ndarray, np.ndarray]:
    """Where the lines that are read start and end, each as much of it as is read."""
    starts = text.sentence_offsets()
    ends = np.minimum(np.append(starts, len(text))[1:], starts + LINE_TOKENS)
    kept = np.cumsum(ends - starts) <= MOST_TOKENS
    return starts[kept], ends[kept]


def _drawn(model: Model) -> UseText:
    """Text of the model itself, the same each time."""

    def lines() -> Iterator[np.ndarray]:
        generator = torch.Generator(model.device).manual_seed(0)
        eos, tokens = model.tokenizer.eos_id, 0
        while tokens < DRAWN_TOKENS:
            drawn = inference.sample(
                model.hmm,
                length=100,
                num_samples=32,
                stop_id=eos,
                reset_id=eos,
                generator=generator,
            )
            for ids, size in zip(drawn.tokens.cpu().numpy(), drawn.lengths.tolist(), strict=True):
                yield ids[:size]
                tokens += size

    name = f"{DRAWN_TOKENS:,} tokens drawn from the model itself; --text FILE reads a text instead"
    return UseText(name, DRAWN_TOKENS, lines)
