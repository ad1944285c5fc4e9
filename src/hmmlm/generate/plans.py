"""What tokens lead to from the states of an automaton."""

from collections.abc import Sequence
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
    """What words lead to from a state of the automaton, by their columns; on the host.

    Goals of many words come first, then those of words that are weighed one by one.
    """

    goals: np.ndarray  # (G,)
    many: int
    which: np.ndarray  # (C,) of the first goals, from 1 on; 0 where a word leads to none of them
    far: np.ndarray  # (C,) tokens from each column's goal to an end, `<eos>` not counted
    words: np.ndarray  # (N,)
    places: np.ndarray  # (N,) of their goals


class Plans:
    """The plans of an automaton's states; those of the last states asked for are kept."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self._kept: dict[int, Plan] = {}

    def of(self, state: int) -> Plan:
        if state not in self._kept:
            if len(self._kept) >= KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[state] = self._make(state)
        return self._kept[state]

    def _make(self, state: int) -> Plan:
        goals = self.automaton.next[state]  # (C,)
        share = np.bincount(goals, self._sizes, self.automaton.num_states)[goals]
        far = self.automaton.distance[goals]
        is_open, is_many = far < NEVER, share * SHARE >= self.automaton.num_letters
        of_many, few = is_many & is_open, np.flatnonzero(~is_many & is_open)
        many, place = np.unique(goals[of_many], return_inverse=True)
        which = np.zeros(len(goals), np.int64)
        which[of_many] = 1 + place
        alone, place = np.unique(goals[few], return_inverse=True)
        words = np.concatenate([few[:0], *(self._by_column[column] for column in few.tolist())])
        places = np.repeat(len(many) + place, self._sizes[few])
        return Plan(np.concatenate([many, alone]), len(many), which, far, words, places)

    @cached_property
    def _sizes(self) -> np.ndarray:
        """How many words each column has."""
        return np.bincount(self.automaton.column, minlength=self.automaton.num_columns)

    @cached_property
    def _by_column(self) -> list[np.ndarray]:
        """The words of each column."""
        order = np.argsort(self.automaton.column, kind="stable")
        return np.split(order, np.cumsum(self._sizes)[:-1])


class Asked(NamedTuple):
    """The plans of several texts one after the other; R goals and C columns of all of them."""

    counts: list[int]  # goals of each text
    goals: Int[Tensor, " R"]
    rows: Int[Tensor, " R"]  # their texts
    scales: Int[Tensor, " R"]  # their places among the states of all automata
    many: Int[Tensor, " M"]  # the places of those that have many words
    places: Int[Tensor, " N"]  # the place of each single word's goal
    words: Int[Tensor, " N"]
    which: Int[Tensor, " C"]  # of `many`, from 1 on
    legal: Int[Tensor, " C"]
    columns: Int[Tensor, " B"]  # how many come before those of each text
    ends: Int[Tensor, " B"]  # whether it may end


def put_together(texts: Sequence[tuple[Plans, int, int]], device: torch.device) -> Asked:
    """Of texts with their state, and tokens left after the next; on the host, and sent at once."""
    counts, pieces = [], []
    goals = states = many = columns = 0
    for row, (plans, state, left) in enumerate(texts):
        plan, automaton = plans.of(state), plans.automaton
        # What cannot end in time any more is not weighed.
        near = automaton.distance[plan.goals[: plan.many]] <= left
        place = np.concatenate([[0], np.where(near, many + near.cumsum(), 0)])
        counts.append(len(plan.goals))
        pieces.append(
            (
                plan.goals,
                np.full(len(plan.goals), row),
                states + plan.goals,
                goals + np.flatnonzero(near),
                goals + plan.places,
                plan.words,
                place[plan.which],
                plan.far <= left,
                [columns],
                [automaton.accepting[state]],
            )
        )
        goals, many = goals + len(plan.goals), many + int(near.sum())
        states, columns = states + automaton.num_states, columns + automaton.num_columns
    parts = [np.concatenate(part) for part in zip(*pieces, strict=True)]
    sent = torch.from_numpy(np.concatenate(parts)).to(device)
    return Asked(counts, *sent.split([len(part) for part in parts]))
