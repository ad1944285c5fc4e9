"""N-gram models to compare with: the unigram and the interpolated Kneser-Ney bigram."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.lm import Scores

_CHUNK = 1 << 22


class Unigram:
    """p(w) = c(w) / N, the share of the training tokens that are w, `<eos>` among them.

    If some word of the vocabulary never occurs in training, one is added to the count of every
    word, so that a text with that word has a perplexity. Memory: some megabytes.
    """

    precision = "float64"

    def __init__(self, tokens: Any, vocab_size: int) -> None:
        counts = np.zeros(vocab_size, dtype=np.int64)
        for start in range(0, max(1, len(tokens)), _CHUNK):  # an empty text is refused too
            ids = training_ids(tokens[start : start + _CHUNK], vocab_size)
            counts += np.bincount(ids, minlength=vocab_size)
        if counts.min() == 0:
            counts = counts + 1
        self.vocab_size = vocab_size
        self.log_probs = torch.from_numpy(np.log(counts / counts.sum()))  # (V,)

    def score_tokens(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        lengths: Int[Tensor, " B"] | None = None,
        carry: Any = None,
        reset_id: int | None = None,
        ends: bool = False,
    ) -> Scores:
        """log p(x_t) of each token; nothing is carried."""
        scores = self.log_probs[check_tokens(tokens, self.vocab_size)]
        return Scores(until(scores, lengths).to(tokens.device), None)

    def row_error(self, rows: int, seed: int) -> float:
        """|sum of all probabilities - 1|."""
        return abs(float(self.log_probs.exp().sum()) - 1)


class KneserNeyBigram:
    """Interpolated Kneser-Ney (Kneser & Ney 1995; Chen & Goodman 1999) over pairs of words:

    p(w | h) = max(c(h w) - D, 0) / c(h) + D N(h .) / c(h) * p(w), where N(h .) counts the
    different words after h, and p(w) is the same with continuation counts,
    max(N(. w) - E, 0) / N(. .) + E W / N(. .) / V, where W counts the words with N(. w) > 0.
    Each discount is n1 / (n1 + 2 n2), from how many (continuation) counts are one and two; where
    no count is one, 1/2, so that every word keeps some mass. A context never seen gives p(w).

    A text that starts cold, or after a reset, has the start of a sentence as its context; that is
    also the context after `eos_id`, where there is one. Memory is that of the different pairs.
    """

    precision = "float64"

    def __init__(self, tokens: Any, vocab_size: int, *, eos_id: int | None = None) -> None:
        words = training_ids(tokens, vocab_size)
        self.vocab_size = vocab_size
        # Without <eos> the start is a context of its own, seen once.
        self.start = vocab_size if eos_id is None else eos_id
        contexts = np.concatenate([[self.start], words[:-1]])
        keys, counts = np.unique(contexts * vocab_size + words, return_counts=True)

        self.discount = _discount(counts)
        sizes = np.bincount(contexts, minlength=vocab_size + 1)
        kinds = np.bincount(keys // vocab_size, minlength=vocab_size + 1)
        weights = self.discount * kinds / np.maximum(sizes, 1)
        seen = (counts - self.discount) / sizes[keys // vocab_size]

        before = np.bincount(keys % vocab_size, minlength=vocab_size)
        self.continuation_discount = _discount(before[before > 0])
        kept = np.maximum(before - self.continuation_discount, 0)
        spare = self.continuation_discount * (before > 0).sum()

        self._keys = torch.from_numpy(keys)
        self._seen = torch.from_numpy(seen)  # the first term, of every pair seen
        self._backoff = torch.from_numpy(np.where(sizes > 0, weights, 1.0))  # (V + 1,)
        self._continuation = torch.from_numpy((kept + spare / vocab_size) / len(keys))  # (V,)

    def score_tokens(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        lengths: Int[Tensor, " B"] | None = None,
        carry: Int[Tensor, " B"] | None = None,
        reset_id: int | None = None,
        ends: bool = False,
    ) -> Scores:
        """log p(x_t | x_t-1) of each token; the carry is the context of the next one."""
        words = check_tokens(tokens, self.vocab_size)
        first = torch.full((len(words),), self.start) if carry is None else carry.cpu()
        after = words if reset_id is None else words.masked_fill(words == reset_id, self.start)
        contexts = torch.cat([first[:, None], after], 1)  # (B, T + 1), the last for the carry
        scores = self._probs(contexts[:, :-1], words).log()
        last = torch.full((len(words),), words.shape[1]) if lengths is None else lengths.cpu()
        carried = contexts.gather(1, last[:, None])[:, 0]
        return Scores(until(scores, lengths).to(tokens.device), carried)

    def next_log_probs(self, contexts: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
        """log p(. | h) for some contexts; `start` is the start of a sentence. O(B V)."""
        words = torch.arange(self.vocab_size)
        return self._probs(*torch.broadcast_tensors(contexts.cpu()[:, None], words)).log()

    def row_error(self, rows: int, seed: int) -> float:
        """Largest |sum of p(. | h) - 1| over random contexts h."""
        generator = torch.Generator().manual_seed(seed)
        contexts = torch.randperm(self.vocab_size + 1, generator=generator)[:rows]
        totals = [self.next_log_probs(part).exp().sum(1) for part in contexts.split(16)]
        return float((torch.cat(totals) - 1).abs().max())

    def _probs(self, contexts: Tensor, words: Tensor) -> Tensor:
        keys = contexts * self.vocab_size + words
        place = torch.searchsorted(self._keys, keys).clamp(max=len(self._keys) - 1)
        seen = torch.where(self._keys[place] == keys, self._seen[place], 0.0)
        return seen + self._backoff[contexts] * self._continuation[words]


def _discount(counts: np.ndarray) -> float:
    ones, twos = int((counts == 1).sum()), int((counts == 2).sum())
    return ones / (ones + 2 * twos) if ones else 0.5


def training_ids(tokens: Any, vocab_size: int) -> np.ndarray:
    """A text to count, checked."""
    words = np.asarray(tokens[:], dtype=np.int64)
    if len(words) == 0:
        raise InputError("There are no training tokens to count; the text is empty.")
    _check_ids(int(words.min()), int(words.max()), vocab_size)
    return words


def check_tokens(tokens: Tensor, vocab_size: int) -> Tensor:
    """Tokens to score, on the CPU; ids outside the vocabulary are refused."""
    _check_ids(int(tokens.min()), int(tokens.max()), vocab_size)
    return tokens.cpu()


def _check_ids(least: int, most: int, vocab_size: int) -> None:
    if least < 0 or most >= vocab_size:
        raise InputError(
            f"tokens has id {least if least < 0 else most:,} but this vocabulary runs from 0 to "
            f"{vocab_size - 1:,}; re-encode the corpus with this vocabulary."
        )


def until(scores: Tensor, lengths: Tensor | None) -> Tensor:
    """Scores, 0 past the end of each row."""
    if lengths is None:
        return scores
    past = torch.arange(scores.shape[1]) >= lengths.cpu()[:, None]
    return scores.masked_fill(past, 0.0)
