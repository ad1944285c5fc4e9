"""Drawing many documents side by side from tables that are small enough to be summed up."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.hmm import HMM, emission_rows


class Document(NamedTuple):
    """A text that ends in `<eos>`, the state behind each token, and the concept it was drawn from.

    Without its `<eos>` it has at least one token.
    """

    tokens: Int[np.ndarray, " T"]
    states: Int[np.ndarray, " T"]
    concept: int


class Dice:
    """Rows of probabilities, to draw a column of any of them in O(log cells)."""

    def __init__(self, probs: Float[Tensor, "N M"]) -> None:
        sums = probs.double().cpu().numpy().cumsum(1)
        sums /= sums[:, -1:]
        self._sums = (sums + np.arange(len(sums))[:, None]).ravel()
        self._columns = sums.shape[1]

    def throw(
        self, rows: Int[np.ndarray, " B"], generator: torch.Generator
    ) -> Int[np.ndarray, " B"]:
        """A column for each row; none of probability zero."""
        chance = torch.rand(len(rows), generator=generator, dtype=torch.float64).numpy()
        # Rounded, the sum could reach the row that follows.
        place = np.minimum(rows + chance, np.nextafter(rows + 1.0, 0.0))
        return self._sums.searchsorted(place, side="right") - rows * self._columns


class Drawing:
    """The tables of an HMM as dice. Memory: Z (Z + V) numbers."""

    def __init__(self, hmm: HMM, *, eos_id: int) -> None:
        self._start = Dice(hmm.log_init.exp()[None])
        self._moves = Dice(hmm.transitions.rows(0, hmm.num_states).exp())
        self._words = Dice(emission_rows(hmm).exp())
        self._eos_id = eos_id

    def documents(
        self, count: int, generator: torch.Generator
    ) -> list[tuple[Int[np.ndarray, " T"], Int[np.ndarray, " T"]]]:
        """The tokens and states of documents, each up to its `<eos>`."""
        rows, steps = np.arange(count), []
        states = self._start.throw(np.zeros(count, dtype=np.int64), generator)
        while len(rows):
            tokens = self._words.throw(states, generator)
            steps.append(np.stack([rows, tokens, states]))
            going = tokens != self._eos_id
            rows = rows[going]
            states = self._moves.throw(states[going], generator)
        row, token, state = np.concatenate(steps, 1)
        order = np.argsort(row, kind="stable")  # of a document, still in the order of time
        cuts = np.cumsum(np.bincount(row))[:-1]
        parts = (np.split(each[order], cuts) for each in (token, state))
        return list(zip(*parts, strict=True))
