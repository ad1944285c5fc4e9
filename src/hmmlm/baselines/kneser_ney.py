"""Modified Kneser-Ney of any order: n-grams of words, interpolated, three discounts per order."""

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.baselines.ngram import check_tokens, training_ids, until
from hmmlm.errors import check_count
from hmmlm.lm import Scores

FALLBACK = (0.5, 1.0, 1.5)
"""Discounts of an order with too few n-grams to estimate them."""

NONE = -1
"""Where a context has no word, or was never seen."""


class _Order(NamedTuple):
    """What is known of the contexts of one length, and of the words after them.

    A context's key is (context without its oldest word) * (V + 1) + oldest word, a gram's is
    context * V + word; both are sorted, and places in them are ids.
    """

    contexts: np.ndarray
    grams: np.ndarray
    seen: np.ndarray  # (c - D(c)) / C(h) of each gram
    backoff: np.ndarray  # what is left of each context for shorter ones
    discounts: tuple[float, float, float]


class KneserNey:
    """Interpolated modified Kneser-Ney (Chen & Goodman 1999, section 5), without cut-offs:

    p(w | h) = (c(h w) - D(c(h w))) / C(h) + g(h) p(w | h without its oldest word), where D is one
    of three discounts for counts of one, two, and three or more, from how many n-grams of that
    order have counts of one to four; g(h) is the mass they leave. Orders below the highest count
    the different words before h w, and where h begins at the start of a text, how often. The
    shortest is mixed with the uniform distribution. A context never seen leaves it to shorter ones.

    Contexts end at the start of a text, which is one word of them: a cold start, a reset, and
    after every `eos_id` where there is one. Then `sentence` and `streaming` perplexities are equal;
    with None contexts run on through the whole text.

    Time O(order N log N) for N tokens; memory some tens of bytes for each different n-gram.
    """

    precision = "float64"

    def __init__(
        self, tokens: Any, vocab_size: int, *, order: int = 5, eos_id: int | None = None
    ) -> None:
        check_count("order", order)
        words = training_ids(tokens, vocab_size)
        self.vocab_size, self.order = vocab_size, order
        self.start = vocab_size if eos_id is None else eos_id
        before = np.concatenate([[self.start], words[:-1]])
        self.orders = self._count(words, before)

    @property
    def discounts(self) -> list[tuple[float, float, float]]:
        """Those of one, two and more, by order from unigrams up."""
        return [order.discounts for order in self.orders]

    @property
    def num_grams(self) -> list[int]:
        """How many different n-grams there are, by order."""
        return [len(order.grams) for order in self.orders]

    def score_tokens(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        lengths: Int[Tensor, " B"] | None = None,
        carry: Int[Tensor, "B N"] | None = None,
        reset_id: int | None = None,
        ends: bool = False,
    ) -> Scores:
        """log p(x_t | the words before) of each token; the carry is the context of the next one."""
        words = check_tokens(tokens, self.vocab_size).numpy()
        rows, length = words.shape
        first = self._cold(rows) if carry is None else carry.cpu().numpy()
        after = words if reset_id is None else np.where(words == reset_id, self.start, words)
        past = np.concatenate([first, after], 1)  # (B, N + T)
        width = max(1, self.order - 1)
        steps = np.lib.stride_tricks.sliding_window_view(past, width, axis=1)  # (B, T + 1, N)
        flat = self._probs(steps[:, :-1].reshape(-1, width), words.flatten())
        scores = torch.from_numpy(np.log(flat).reshape(words.shape))
        last = np.full(rows, length) if lengths is None else lengths.cpu().numpy()
        carried = torch.from_numpy(steps[np.arange(rows), last].copy())
        return Scores(until(scores, lengths).to(tokens.device), carried)

    def next_log_probs(self, contexts: Int[Tensor, "B N"]) -> Float[Tensor, "B V"]:
        """log p(. | h) for contexts of the last words, oldest first; -1 is no word. O(B V)."""
        found = self._contexts(contexts.cpu().numpy())
        table = np.full((len(contexts), self.vocab_size), 1 / self.vocab_size)
        for order, ids in zip(self.orders, found, strict=True):
            for row, one in zip(table, ids, strict=True):
                if one >= 0:
                    edges = np.array([one, one + 1]) * self.vocab_size
                    first, last = np.searchsorted(order.grams, edges)
                    row *= order.backoff[one]
                    row[order.grams[first:last] % self.vocab_size] += order.seen[first:last]
        return torch.from_numpy(np.log(table))

    def row_error(self, rows: int, seed: int) -> float:
        """Largest |sum of p(. | h) - 1| over random contexts h of all lengths that were seen."""
        rng = np.random.default_rng(seed)
        lengths = rng.integers(0, len(self.orders), rows)
        contexts = np.full((rows, max(1, self.order - 1)), NONE)
        for row, length in zip(contexts, lengths, strict=True):
            place = int(rng.integers(len(self.orders[length].contexts)))
            for back in range(length, 0, -1):
                place, oldest = divmod(int(self.orders[back].contexts[place]), self.vocab_size + 1)
                row[-back] = oldest
        parts = torch.from_numpy(contexts).split(16)
        totals = torch.cat([self.next_log_probs(part).exp().sum(1) for part in parts])
        return float((totals - 1).abs().max())

    def _cold(self, rows: int) -> np.ndarray:
        context = np.full((rows, max(1, self.order - 1)), NONE, dtype=np.int64)
        context[:, -1] = self.start
        return context

    def _count(self, words: np.ndarray, before: np.ndarray) -> list[_Order]:
        """Counts of all orders, from the shortest contexts to the longest and back."""
        size = self.vocab_size
        contexts, grams = [np.zeros(1, np.int64)], []
        ids = np.zeros(len(words), np.int64)  # of the context of each word that has one
        places = np.arange(len(words))
        ended: list[np.ndarray] = []  # grams whose context begins at the start, once each time
        for back in range(self.order):
            if back:
                # Contexts end at the start, which is the oldest word they can have.
                keep = ~ended[-1]
                places, ids = places[keep], ids[keep]
                if not len(places):  # no text is that long
                    break
                keys = ids * (size + 1) + before[places - back + 1]
                found, ids = np.unique(keys, return_inverse=True)
                contexts.append(found)
            grams.append(ids * size + words[places])
            is_start = before[places - back + 1] == self.start if back else places < 0
            ended.append(is_start)
        orders: list[_Order] = []
        longer: np.ndarray | None = None  # grams of one word more, without that word
        for back in range(len(contexts) - 1, -1, -1):
            if longer is None:
                keys, counts = np.unique(grams[back], return_counts=True)
            else:
                counted = np.concatenate([longer, grams[back][ended[back]]])
                keys, counts = np.unique(counted, return_counts=True)
            orders.append(_order(contexts[back], keys, counts, size))
            if back:
                longer = contexts[back][keys // size] // (size + 1) * size + keys % size
        return orders[::-1]

    def _contexts(self, past: np.ndarray) -> list[np.ndarray]:
        """The ids of the last 0, 1, ... words of each row, -1 where they were never seen."""
        ids = np.zeros(len(past), np.int64)
        found, goes_on = [ids], np.ones(len(past), bool)
        for back in range(1, len(self.orders)):
            oldest = past[:, -back]
            goes_on = goes_on & (oldest != NONE) & (ids != NONE)
            keys = np.where(goes_on, ids * (self.vocab_size + 1) + oldest, NONE)
            ids = _find(self.orders[back].contexts, keys)
            found.append(ids)
            goes_on &= oldest != self.start
        return found

    def _probs(self, past: np.ndarray, words: np.ndarray) -> np.ndarray:
        probs = np.full(len(words), 1 / self.vocab_size)
        for order, ids in zip(self.orders, self._contexts(past), strict=True):
            gram = _find(order.grams, np.where(ids >= 0, ids * self.vocab_size + words, NONE))
            probs *= np.where(ids >= 0, order.backoff[ids], 1.0)
            probs += np.where(gram >= 0, order.seen[gram], 0.0)
        return probs


def _order(contexts: np.ndarray, grams: np.ndarray, counts: np.ndarray, size: int) -> _Order:
    discounts = _discounts(counts)
    taken = np.array(discounts)[np.minimum(counts, 3) - 1]
    of_gram = grams // size
    totals = np.bincount(of_gram, counts, minlength=len(contexts))
    left = np.bincount(of_gram, taken, minlength=len(contexts)) / totals
    return _Order(contexts, grams, (counts - taken) / totals[of_gram], left, discounts)


def _discounts(counts: np.ndarray) -> tuple[float, float, float]:
    """D1, D2, D3+ = k - (k + 1) Y n_k+1 / n_k with Y = n1 / (n1 + 2 n2)."""
    one, two, three, four = (int((counts == count).sum()) for count in (1, 2, 3, 4))
    if not (one and two and three and four):
        return FALLBACK
    share = one / (one + 2 * two)
    found = (
        1 - 2 * share * two / one,
        2 - 3 * share * three / two,
        3 - 4 * share * four / three,
    )
    return found if all(0 < d <= k for k, d in enumerate(found, 1)) else FALLBACK


def _find(sorted_keys: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Where each key stands, -1 if it is not there."""
    places = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return np.where(sorted_keys[places] == keys, places, NONE)
