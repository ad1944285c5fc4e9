"""Pieces of text packed into rows: which piece goes into which row."""

from bisect import bisect_left, insort

import numpy as np


def best_fit(counts: np.ndarray, length: int) -> np.ndarray:
    """The row of each piece, longest pieces first; `counts[n]` pieces have length n.

    Every piece goes into the fullest row that still has room. Pieces of one length are placed
    together in all rows that are equally full, so the cost is in array operations, at most one for
    each length of a piece and each room that is left.
    """
    rooms: dict[int, np.ndarray] = {}  # the rows with so many places left
    levels: list[int] = []  # its keys, rising
    placed, num_rows = [], 0

    def put(room: int, rows: np.ndarray) -> None:
        if room not in rooms:
            insort(levels, room)
        elif len(rooms[room]):
            rows = np.concatenate([rooms[room], rows])
        rooms[room] = rows

    for size in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[size])
        while left:
            at = bisect_left(levels, size)
            if at == len(levels):
                opened = np.arange(num_rows, num_rows - (-left // (length // size)))
                num_rows += len(opened)
                put(length, opened)
            free = levels.pop(at)
            rows = rooms.pop(free)
            # Each row has a piece in turn, as many times as there is room or as pieces are left.
            turns, rest = divmod(min(left, len(rows) * (free // size)), len(rows))
            placed += [np.tile(rows, turns), rows[:rest]]
            left -= turns * len(rows) + rest
            free -= turns * size
            put(free, rows[rest:])
            if rest:
                put(free - size, rows[:rest])
    return np.concatenate(placed)


def row_loads(counts: np.ndarray, length: int) -> np.ndarray:
    """How many places of each row are taken."""
    sizes = np.repeat(np.arange(len(counts))[::-1], counts[::-1])
    return np.bincount(best_fit(counts, length), weights=sizes)
