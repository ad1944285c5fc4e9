"""How far a model is from the teacher whose text it learnt, in nats per token."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from hmmlm.clusters.counts import count_words
from hmmlm.data.shards import Corpus
from hmmlm.data.token_array import TokenArray
from hmmlm.distill.sampling import read_log_probs
from hmmlm.errors import InputError
from hmmlm.evaluate import token_log_probs
from hmmlm.lm import LanguageModel

RANKS = (100, 1_000, 10_000)
"""Where bands of frequency end: the most frequent 100 tokens, then those to 1,000, and so on."""


class Band(NamedTuple):
    """Some tokens, and the mean of -log p of each in nats: the model's, the teacher's, and the gap.

    `error` is the standard error of the gap, NaN for one text, and `share` the part that these
    tokens have in the gap of all.
    """

    name: str
    tokens: int
    model: float
    teacher: float
    gap: float
    error: float
    share: float


class Gap(NamedTuple):
    """All tokens of some texts together, by position in their text, and by frequency."""

    texts: int
    whole: Band
    by_position: list[Band]
    by_frequency: list[Band]


def measure_gap(
    model: LanguageModel,
    corpus: Corpus,
    *,
    split: str = "test",
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Gap:
    """The gap on a held-out split of a corpus that `sample_corpus` made."""
    tokens, teacher = corpus.split(split), read_log_probs(corpus, split)
    counts = count_words(corpus.split("train"), corpus.tokenizer.vocab_size)
    found = token_log_probs(model, tokens, eos_id=tokens.eos_id, device=device, progress=progress)
    return compare(found, teacher, tokens, counts)


def compare(
    model: Float[np.ndarray, " N"],
    teacher: Float[np.ndarray, " N"],
    tokens: TokenArray,
    counts: Int[np.ndarray, " V"],
) -> Gap:
    """The mean of log p_teacher(x) - log p_model(x) over tokens that the teacher drew.

    Over more and more texts, each read from a cold start, it becomes KL(teacher || model) per
    token. A teacher's log p of NaN is of a token that was not drawn: it was read, and does not
    count. `counts` are those of the training text.
    """
    drawn = ~np.isnan(teacher)
    if not drawn.any():
        raise InputError("No token of this text was drawn from the teacher; there is no gap.")
    starts = tokens.sentence_offsets()
    text = np.searchsorted(starts, np.arange(len(tokens)), side="right") - 1
    position = np.arange(len(tokens)) - starts[text] + 1
    nats = _Nats(-model[drawn].astype(np.float64), -teacher[drawn].astype(np.float64), text[drawn])
    ids = tokens[0 : len(tokens)][drawn]
    everything = np.ones(len(ids), dtype=bool)
    return Gap(
        len(np.unique(nats.text)),
        nats.band("all", everything),
        [nats.band(name, where) for name, where in _positions(position[drawn])],
        [nats.band(name, where) for name, where in _frequencies(ids, counts)],
    )


class _Nats(NamedTuple):
    """-log p of each token, of the model and the teacher, and the text that it is in."""

    model: Float[np.ndarray, " n"]
    teacher: Float[np.ndarray, " n"]
    text: Int[np.ndarray, " n"]

    def band(self, name: str, where: Bool[np.ndarray, " n"]) -> Band:
        count = int(where.sum())
        model, teacher = float(self.model[where].sum()), float(self.teacher[where].sum())
        whole = float(self.model.sum() - self.teacher.sum())
        gap = (model - teacher) / count
        share = (model - teacher) / whole if whole else math.nan
        return Band(name, count, model / count, teacher / count, gap, self._error(where), share)

    def _error(self, where: Bool[np.ndarray, " n"]) -> float:
        """The standard error of a ratio of two sums over texts that do not depend on each other."""
        _, text = np.unique(self.text, return_inverse=True)
        number = int(text.max()) + 1
        gaps = (self.model - self.teacher)[where]
        if number < 2 or not np.isfinite(gaps).all():
            return math.nan
        sums = np.bincount(text[where], gaps, minlength=number)
        sizes = np.bincount(text[where], minlength=number)
        rest = sums - sizes * (sums.sum() / sizes.sum())
        return float(np.sqrt(number / (number - 1) * (rest**2).sum()) / sizes.sum())


def _positions(position: Int[np.ndarray, " n"]) -> Iterator[tuple[str, Bool[np.ndarray, " n"]]]:
    """1, 2-3, 4-7 and so on, as far as there are any."""
    first = 1
    while first <= position.max():
        where = (position >= first) & (position < 2 * first)
        if where.any():
            yield _span(first, 2 * first - 1), where
        first *= 2


def _frequencies(
    ids: Int[np.ndarray, " n"], counts: Int[np.ndarray, " V"]
) -> Iterator[tuple[str, Bool[np.ndarray, " n"]]]:
    """By rank in the training text, and those that it does not have."""
    rank = np.empty(len(counts), dtype=np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(1, len(counts) + 1)
    seen, mine = counts[ids] > 0, rank[ids]
    first = 1
    for last in (*RANKS, None):
        where = seen & (mine >= first) & (last is None or mine <= last)
        if where.any():
            yield f"{first:,} on" if last is None else _span(first, last), where
        first = 1 if last is None else last + 1
    if not seen.all():
        yield "never seen", ~seen


def _span(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"
