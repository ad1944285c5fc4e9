"""What tokens lead to from the states of an automaton."""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from hmmlm.generate.automata import NEVER, Automaton

KEPT = 64
SHARE = 16
"""Words that lead to one state are weighed together with all others where they are more than one
in so many of the vocabulary, and one by one where they are fewer."""


class Plan(NamedTuple):
    """What words lead to from a state of the automaton: goals of many words, and words of few."""

    goals: Int[Tensor, " G"]
    which: Int[Tensor, " V"]  # of the goals, from 1 on; 0 where a word leads to none of them
    far: Int[Tensor, " V"]  # tokens from each word's goal to an end, `<eos>` not counted
    words: Int[Tensor, " N"]
    their_goals: Int[Tensor, " N"]


class Plans:
    """The plans of an automaton's states; those of the last states asked for are kept.

    `column` is the automaton's, on the device where plans are used.
    """

    def __init__(self, automaton: Automaton, eos_id: int, column: Int[Tensor, " V"]) -> None:
        self.automaton, self.eos_id, self.column = automaton, eos_id, column
        self._kept: dict[int, Plan] = {}

    def of(self, state: int) -> Plan:
        if state not in self._kept:
            if len(self._kept) >= KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[state] = self._make(state)
        return self._kept[state]

    def _make(self, state: int) -> Plan:
        """On the host but for what is of every word: one copy, one lookup."""
        goals = self.automaton.next[state]  # (C,)
        share = np.bincount(goals, self._sizes, self.automaton.num_states)[goals]
        far = self.automaton.distance[goals]
        is_open, is_many = far < NEVER, share * SHARE >= self.automaton.num_letters
        many, kinds = np.unique(goals[is_many & is_open]), np.zeros(len(goals), np.int64)
        kinds[is_many & is_open] = 1 + np.searchsorted(many, goals[is_many & is_open])
        few = np.flatnonzero(~is_many & is_open)
        words = [self._by_column[column] for column in few.tolist()]
        theirs = np.repeat(goals[few], self._sizes[few])
        found = np.concatenate([kinds, far, many, *words, theirs])
        sizes = [2 * len(goals), len(many), len(theirs), len(theirs)]
        table, *rest = torch.from_numpy(found).to(self.column.device).split(sizes)
        which, far = table.view(2, -1)[:, self.column]
        far[self.eos_id] = -1 if self.automaton.accepting[state] else NEVER
        return Plan(rest[0], which, far, *rest[1:])

    @cached_property
    def _sizes(self) -> np.ndarray:
        """How many words each column has."""
        return np.bincount(self.automaton.column, minlength=self.automaton.num_columns)

    @cached_property
    def _by_column(self) -> list[np.ndarray]:
        """The words of each column."""
        order = np.argsort(self.automaton.column, kind="stable")
        return np.split(order, np.cumsum(self._sizes)[:-1])
