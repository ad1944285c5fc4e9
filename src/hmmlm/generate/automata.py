"""Finite automata over letters (tokens, or bytes), as tables, and their algebra."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hmmlm.errors import InputError, counted

MOST = 1 << 20
"""Cells of a table; what would need more is refused."""

NEVER = np.iinfo(np.int64).max // 2
"""How far the end is from a state that has none."""


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic automaton that begins in state 0; in `accepting` states it may end.

    Letters that no state tells apart share a column: after letter a, state s is
    `next[s, column[a]]`. Every column is some letter's.
    """

    column: np.ndarray  # (letters,)
    next: np.ndarray  # (S, C)
    accepting: np.ndarray  # (S,)

    @property
    def num_letters(self) -> int:
        return len(self.column)

    @property
    def num_states(self) -> int:
        return len(self.next)

    @property
    def num_columns(self) -> int:
        return self.next.shape[1]

    def run(self, letters: Iterable[int], state: int = 0) -> int:
        """The state after some letters."""
        for letter in letters:
            state = int(self.next[state, self.column[letter]])
        return state

    def accepts(self, letters: Iterable[int]) -> bool:
        return bool(self.accepting[self.run(letters)])

    @cached_property
    def distance(self) -> np.ndarray:
        """The fewest letters from each state to an accepting one, `NEVER` where there is none."""
        return _distance(self.next, self.accepting)

    @property
    def is_empty(self) -> bool:
        """Whether no string is accepted."""
        return int(self.distance[0]) == NEVER

    def __and__(self, other: "Automaton") -> "Automaton":
        return _product(self, other, np.logical_and)

    def __or__(self, other: "Automaton") -> "Automaton":
        return _product(self, other, np.logical_or)

    def __invert__(self) -> "Automaton":
        return Automaton(self.column, self.next, ~self.accepting)

    def then(self, other: "Automaton") -> "Automaton":
        """A string of this one followed by one of the other."""
        columns, pairs = _columns(self, other)
        start: tuple[int, frozenset[int]] = (0, frozenset({0} if self.accepting[0] else ()))
        numbers: dict[tuple[int, frozenset[int]], int] = {start: 0}
        waiting: list[tuple[int, frozenset[int]]] = [start]
        table = []
        for place, inside in waiting:
            row = []
            for ours, theirs in pairs:
                after = int(self.next[place, ours])
                begun = {int(other.next[state, theirs]) for state in inside}
                both = (after, frozenset(begun | ({0} if self.accepting[after] else set())))
                if both not in numbers:
                    numbers[both] = len(numbers)
                    waiting.append(both)
                    _check_size(len(numbers), len(pairs))
                row.append(numbers[both])
            table.append(row)
        accepting = [any(other.accepting[state] for state in inside) for _, inside in waiting]
        return Automaton(columns, np.array(table), np.array(accepting)).reduced()

    def reduced(self) -> "Automaton":
        """The smallest automaton of the same language, its states in the order they are met.

        States begin apart where the nearest end or non-end is not as far; O(S C log S) for each
        round that tells more of them apart. Two automata of one language have the same tables.
        """
        seen = self._reached()
        names = np.full(self.num_states, -1)
        names[seen] = np.arange(len(seen))
        table, accepting = names[self.next[seen]], self.accepting[seen]
        first, inverse = alike(table.T)
        table, column = table[:, first], inverse[self.column]
        ways = np.stack([_distance(table, ends) for ends in (accepting, ~accepting)], 1)
        block = alike(ways)[1]
        while True:
            _, finer = alike(np.concatenate([block[:, None], block[table]], 1))
            if finer.max() == block.max():
                break
            block = finer
        _, chosen = np.unique(block, return_index=True)
        merged = Automaton(column, block[table[chosen]], accepting[chosen])
        return merged._numbered(int(block[0]))

    def _reached(self) -> np.ndarray:
        seen = np.zeros(self.num_states, bool)
        seen[0] = True
        front = np.array([0])
        while len(front):
            front = np.unique(self.next[front])
            front = front[~seen[front]]
            seen[front] = True
        return np.flatnonzero(seen)

    def _numbered(self, start: int) -> "Automaton":
        """The same with states, and then columns, in the order they are first met."""
        # Columns of equal tables, then by the first letter that has them.
        index, inverse = alike(self.next.T)
        column = inverse[self.column]
        place = np.full(len(index), len(column))
        place[column[::-1]] = np.arange(len(column))[::-1]  # the last to be written is the first
        used = np.argsort(place)[: int((place < len(column)).sum())]
        rank = np.full(len(index), -1)
        rank[used] = np.arange(len(used))
        table = self.next[:, index[used]]
        numbers, waiting = {start: 0}, [start]
        for state in waiting:
            for after in table[state].tolist():
                if after not in numbers:
                    numbers[after] = len(numbers)
                    waiting.append(after)
        names = np.full(len(table), -1)
        names[waiting] = np.arange(len(waiting))
        return Automaton(rank[column], names[table[waiting]], self.accepting[waiting])


def alike(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first of each kind of equal rows, and the kind of each row.

    Rows are told apart by random sums, and then compared.
    """
    draw = np.random.default_rng(0)
    keys = draw.integers(1, 1 << 63, rows.shape[1], dtype=np.uint64) | np.uint64(1)
    marks = rows.astype(np.uint64) @ keys
    _, first, kind = np.unique(marks, return_index=True, return_inverse=True)
    if not (rows[first][kind.ravel()] == rows).all():  # two kinds have one sum
        _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, kind.ravel()


def distinct(codes: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers under `size` that occur, in order, and the place of each code among them."""
    if size > MOST:
        return np.unique(codes, return_inverse=True)
    found = np.flatnonzero(np.bincount(codes, minlength=size))
    places = np.zeros(size, np.int64)
    places[found] = np.arange(len(found))
    return found, places[codes]


def _distance(table: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The fewest letters from each state to one of `ends`, `NEVER` where there is none."""
    size, columns = table.shape
    sources = np.argsort(table.ravel(), kind="stable") // columns
    begins = np.searchsorted(np.sort(table.ravel()), np.arange(size + 1))
    found = np.where(ends, 0, NEVER)
    front, steps = np.flatnonzero(ends), 0
    while len(front):
        steps += 1
        before = np.concatenate([sources[begins[state] : begins[state + 1]] for state in front])
        front = np.unique(before[found[before] == NEVER])
        found[front] = steps
    return found


def from_steps(
    num_letters: int,
    start: Any,
    step: Callable[[Any, int], Any],
    accepts: Callable[[Any], bool],
    column: np.ndarray | None = None,
) -> Automaton:
    """An automaton whose states are any values, told by where each letter leads from them.

    With `column` (letters,) `step` is asked once for each of its numbers instead of each letter.
    """
    column = np.arange(num_letters) if column is None else column
    numbers, waiting, table = {start: 0}, [start], []
    for state in waiting:
        row = []
        for letter in range(int(column.max()) + 1):
            after = step(state, letter)
            if after not in numbers:
                numbers[after] = len(numbers)
                waiting.append(after)
                _check_size(len(numbers), int(column.max()) + 1)
            row.append(numbers[after])
        table.append(row)
    return Automaton(column, np.array(table), np.array([accepts(s) for s in waiting])).reduced()


def _columns(one: Automaton, other: Automaton) -> tuple[np.ndarray, np.ndarray]:
    """For each letter its pair of columns by number, and the pairs."""
    if one.num_letters != other.num_letters:
        raise InputError(
            f"One automaton reads {one.num_letters:,} letters and the other "
            f"{other.num_letters:,}; compile both for the same vocabulary."
        )
    codes = one.column.astype(np.int64) * other.num_columns + other.column
    codes, column = distinct(codes, one.num_columns * other.num_columns)
    return column, np.stack(np.divmod(codes, other.num_columns), 1)


def _product(
    one: Automaton, other: Automaton, how: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> Automaton:
    """Both side by side, of the pairs of states that are reached."""
    column, pairs = _columns(one, other)
    width = other.num_states
    known = np.array([0])  # codes of pairs, in the order of their numbers
    place = {0: 0}
    rows, front = [], known
    while len(front):
        ours, theirs = np.divmod(front, width)
        codes = one.next[ours][:, pairs[:, 0]] * width + other.next[theirs][:, pairs[:, 1]]
        rows.append(codes)
        new = [code for code in np.unique(codes).tolist() if code not in place]
        for code in new:
            place[code] = len(place)
        _check_size(len(place), len(pairs))
        front = np.array(new, dtype=np.int64)
        known = np.concatenate([known, front])
    order = np.argsort(known)
    codes = np.concatenate(rows)
    table = order[np.searchsorted(known[order], codes)]
    ours, theirs = np.divmod(known, width)
    accepting = how(one.accepting[ours], other.accepting[theirs])
    return Automaton(column, table, accepting).reduced()


def _check_size(states: int, columns: int) -> None:
    if states * columns > MOST:
        raise InputError(
            f"This constraint needs more than {counted(states - 1, 'state')} of {columns:,} kinds "
            f"of letters, over the limit of {MOST:,} cells; ask for fewer things at once, or for "
            f"shorter ones."
        )
