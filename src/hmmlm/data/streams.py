"""Batches of a text as rows that go on from one to the next."""

import math

import numpy as np

from hmmlm.data.batches import Batch, Batches, stretch_rows
from hmmlm.data.token_array import TokenArray

_SHORT = 0.05  # of slices that vary, the share that is half as long


class Streams(Batches):
    """The text as `batch_size` contiguous rows, in consecutive slices of `length` (BPTT).

    Row b of a batch goes on where row b of the batch before ended; only the first batch of an
    epoch restarts. Rows differ by one token at most, the longer ones first: the last batch may
    have fewer rows, those that are over are missing at its end. With fewer tokens than rows there
    is one row per token.

    With `vary` slices are cut anew each epoch, drawn from (seed, epoch) as by Merity et al. 2017,
    section 5: around `length`, one in twenty around half of it. There are always as many. With
    `shuffle` the sentences come in another order each epoch, drawn likewise.
    """

    def __init__(
        self,
        tokens: TokenArray,
        batch_size: int,
        length: int,
        *,
        vary: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        labels: TokenArray | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.vary, self.shuffle, self.seed, self._made_for = vary, shuffle, seed, -1
        super().__init__(tokens, batch_size, length, labels=labels, rank=rank, ranks=ranks)

    def _lay_out(self) -> None:
        rows = min(self.batch_size, len(self.tokens))
        short, longer = divmod(len(self.tokens), rows)
        self._row_lengths = short + (np.arange(rows) < longer)
        self._row_starts = np.cumsum(self._row_lengths) - self._row_lengths
        self._text, self._marks = self.tokens, self.labels
        self._sentences = self.tokens.sentence_offsets() if self.shuffle else None
        longest = int(self._row_lengths[0])
        self.num_batches = -(-longest // self.length)
        if self.vary:
            mean = self.length * (1 - _SHORT / 2)
            self.num_batches = min(longest, math.ceil(longest / mean))

    def _begin(self, epoch: int) -> None:
        """What is drawn anew: the order of the sentences, and where slices begin."""
        if self._sentences is not None:
            random = np.random.default_rng((self.seed, epoch, 1))
            order = random.permutation(len(self._sentences))
            self._text = self.tokens.reordered(self._sentences, order)
            if self.labels is not None:
                self._marks = self.labels.reordered(self._sentences, order)
        if self.vary:
            self._cut(epoch)
        self._made_for = epoch

    def _cut(self, epoch: int) -> None:
        """Where the slices of an epoch begin and end: each has a token, and chance has the rest."""
        random, count = np.random.default_rng((self.seed, epoch)), self.num_batches
        usual = np.where(random.random(count) < _SHORT, self.length / 2, self.length)
        sizes = np.maximum(random.normal(usual, self.length / 14), self.length / 14)
        share = np.cumsum(sizes) / sizes.sum()
        rest = int(self._row_lengths[0]) - count
        self._cuts = np.append(0, np.arange(1, count + 1) + np.round(share * rest).astype(np.int64))

    def _batch(self, epoch: int, index: int) -> Batch:
        if epoch != self._made_for:
            self._begin(epoch)
        done, size = index * self.length, self.length
        if self.vary:
            done, size = int(self._cuts[index]), int(self._cuts[index + 1] - self._cuts[index])
        lengths = np.minimum(self._row_lengths - done, size)
        lengths = lengths[lengths > 0][self._own]
        starts = self._row_starts[self._own][: len(lengths)] + done
        return stretch_rows(self._text, self._marks, starts, lengths, restart=index == 0)
