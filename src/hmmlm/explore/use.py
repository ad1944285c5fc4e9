"""How much each state is used in a text, and where: sums of posteriors, and the best examples."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from hmmlm import inference
from hmmlm.hmm import HMM
from hmmlm.text_model import groups, pad

SLOTS = 1 << 20
"""Cells of posteriors, padding included, that are made together."""

LEAST = 0.01
"""Posteriors below this are no example of a state."""


class Use(NamedTuple):
    """Shares of the tokens read so far, and the best examples of each state, best first.

    `onward` is the share of tokens that have a next one in their line and a state z: what arrives
    anywhere comes from there, or from the beginning of a line, `starts`. Examples are (line,
    position, posterior), line -1 where there is none; each of a state's is another line.
    """

    share: Float[np.ndarray, " Z"]
    onward: Float[np.ndarray, " Z"]
    starts: float
    tokens: int
    nats: float
    lines: int
    example_line: Int[np.ndarray, "Z n"]
    example_at: Int[np.ndarray, "Z n"]
    example_prob: Float[np.ndarray, "Z n"]

    @property
    def perplexity(self) -> float:
        """Of the lines read so far, each from a cold start, `<eos>` counted."""
        return math.exp(self.nats / max(1, self.tokens))


@dataclass
class UseReader:
    """Reads lines of ids group by group; `use()` says what they came to so far."""

    hmm: HMM
    eos_id: int
    examples: int = 5

    def __post_init__(self) -> None:
        states, shape = self.hmm.num_states, (self.hmm.num_states, self.examples)
        self._share, self._onward = np.zeros(states), np.zeros(states)
        self.tokens = self._starts = 0
        self._nats = 0.0
        self._lines = np.full(shape, -1, np.int64)
        self._at, self._probs = np.zeros(shape, np.int64), np.zeros(shape)
        self.texts: list[np.ndarray] = []
        self._seen: dict[bytes, int] = {}

    def groups(self, lines: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
        """Neighbouring lines whose posteriors are not too many at a time."""
        return groups(lines, SLOTS // self.hmm.support.width)

    def read(self, group: list[np.ndarray]) -> None:
        """Adds the posteriors of some lines; those of probability zero add nothing."""
        tokens, lengths = pad(group)
        device = self.hmm.device
        found = inference.smooth(
            self.hmm, tokens.to(device), lengths=lengths.to(device), reset_id=self.eos_id
        )
        possible = torch.isfinite(found.log_evidence)
        probs = found.log_probs.double().exp()  # (B, T, K), 0 past the end
        states = found.states.clamp(min=0)
        steps = torch.arange(tokens.shape[1], device=device)
        lengths = lengths.to(device)
        next_too = (steps < lengths[:, None] - 1) & (tokens.to(device) != self.eos_id)
        for total, kept in ((self._share, None), (self._onward, next_too)):
            weights = probs if kept is None else probs * kept[:, :, None]
            sums = torch.zeros(len(total), dtype=torch.float64, device=device)
            total += sums.index_add(0, states.flatten(), weights.flatten()).cpu().numpy()
        self.tokens += int(lengths[possible].sum())
        self._nats -= float(found.log_evidence[possible].sum())
        begins = (tokens.to(device) == self.eos_id) & (steps < lengths[:, None] - 1)
        self._starts += int(possible.sum()) + int(begins[possible].sum())
        row, step, slot = (probs > LEAST).nonzero(as_tuple=True)
        cells = (states[row, step, slot], step, probs[row, step, slot])
        numbers = np.array([self._number(ids) for ids in group])
        self._merge(numbers[row.cpu().numpy()], *(cell.cpu().numpy() for cell in cells))

    def _number(self, ids: np.ndarray) -> int:
        """The number of a line; lines that are the same have one."""
        number = self._seen.setdefault(ids.tobytes(), len(self.texts))
        if number == len(self.texts):
            self.texts.append(ids)
        return number

    def _merge(
        self, lines: np.ndarray, states: np.ndarray, at: np.ndarray, probs: np.ndarray
    ) -> None:
        """Keeps the best examples of each state among those kept and new ones."""
        touched = np.unique(states)
        kept = self._lines[touched] >= 0
        old = np.broadcast_to(touched[:, None], kept.shape)[kept]
        states = np.concatenate([old, states])
        lines = np.concatenate([self._lines[touched][kept], lines])
        at = np.concatenate([self._at[touched][kept], at])
        probs = np.concatenate([self._probs[touched][kept], probs])
        # The best one of each line first, then the best lines of each state.
        order = np.lexsort((at, -probs, lines, states))
        new = np.ones(len(order), bool)
        pairs = np.stack([states[order], lines[order]])
        new[1:] = (pairs[:, 1:] != pairs[:, :-1]).any(0)
        order = order[new]
        order = order[np.lexsort((lines[order], -probs[order], states[order]))]
        first = np.searchsorted(states[order], states[order])
        place = np.arange(len(order)) - first
        order, place = order[place < self.examples], place[place < self.examples]
        self._lines[touched] = -1
        cells = (states[order], place)
        self._lines[cells], self._at[cells] = lines[order], at[order]
        self._probs[cells] = probs[order]

    def use(self) -> Use:
        """What the lines read so far came to."""
        tokens = max(1, self.tokens)
        return Use(
            self._share / tokens,
            self._onward / tokens,
            self._starts / tokens,
            self.tokens,
            self._nats,
            len(self.texts),
            self._lines.copy(),
            self._at.copy(),
            self._probs.copy(),
        )
