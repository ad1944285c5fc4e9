"""Compiled loops in which other threads help, thousands of times a second.

One thread, the caller's, leads: it announces pieces of work (`instructions.announce`), does pieces
itself and waits until all are done. The others do what pieces they get. A helper that the system
holds up between two pieces holds up nobody.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from hmmlm.errors import check_count

# Two leaders at once would wait for helpers that the other has.
_one_at_a_time = threading.Lock()


def available_threads(wanted: int | None = None) -> int:
    """As many threads as are wanted, or as there are processors that this process may use."""
    if wanted is None:
        ask = getattr(os, "sched_getaffinity", None)  # not on every system
        return max(1, len(ask(0)) if ask is not None else os.cpu_count() or 1)
    check_count("threads", wanted)
    return wanted


def run(
    lead: Callable[[np.ndarray], object],
    help: Callable[[int, np.ndarray], object],
    threads: int,
) -> None:
    """Calls `lead(board)` here and `help(thread, board)` in others, until the leader returns.

    `board` is where work is announced. Helpers must release the interpreter and raise nothing:
    the leader would wait for ever.
    """
    board = np.zeros(64, np.int64)
    if threads == 1:
        lead(board)
        return
    with _one_at_a_time:
        jobs = [_pool(threads - 1).submit(help, i, board) for i in range(1, threads)]
        try:
            lead(board)
        finally:
            board[STOP] = 1
            for job in jobs:
                job.result()


STOP = 48
"""The place on the board that tells helpers to return."""


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="hmmlm-clusters")
