"""Compiled loops that several threads run together, meeting many times a second.

`barrier` and `take` are for the loops, `run` starts them. The caller is one of the threads.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from hmmlm.errors import InputError

# Two callers at once would each wait for threads that the other holds.
_one_at_a_time = threading.Lock()


def available_threads(wanted: int | None = None) -> int:
    """As many threads as are wanted, or as there are processors that this process may use."""
    if wanted is None:
        has = getattr(os, "sched_getaffinity", None)  # not on every system
        return max(1, len(has(0)) if has is not None else os.cpu_count() or 1)
    if wanted < 1:
        raise InputError(f"threads is {wanted:,} but must be at least 1.")
    return wanted


def run(work: Callable[[int, np.ndarray], object], threads: int) -> None:
    """Calls `work(thread, shared)` in every thread at once, and returns when all have.

    `shared` are zeros for `barrier` and `take`. The work must release the interpreter, make no
    arrays and raise nothing: the others would wait for ever.
    """
    shared = np.zeros(64, np.int64)
    if threads == 1:
        work(0, shared)
        return
    with _one_at_a_time:
        jobs = [_pool(threads - 1).submit(work, i, shared) for i in range(1, threads)]
        work(0, shared)
        for job in jobs:
            job.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="hmmlm-clusters")
