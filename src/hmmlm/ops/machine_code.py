"""Loops in machine code: compiled by numba, shared out among threads of our own."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numba
import numpy as np
from torch import Tensor


def arrays(*tensors: Tensor) -> list[np.ndarray]:
    """Tensors as contiguous arrays; those that are contiguous already share their memory."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="hmmlm")


def share(pieces: int, work: Callable[[int], None], threads: int) -> None:
    """Does all pieces, whoever is free taking the next.

    Threads of our own: numba's may not be entered by two Python threads at once.
    """
    if threads == 1:
        for piece in range(pieces):
            work(piece)
        return
    numbers = itertools.count()

    def take() -> None:
        while (piece := next(numbers)) < pieces:
            work(piece)

    jobs = [_pool(threads - 1).submit(take) for _ in range(threads - 1)]
    take()
    for job in jobs:
        if not job.cancel():  # one that never began has nothing left to do
            job.result()


# Any: checkers would take the functions for what they are before they are compiled.
def compiled(function: Any) -> Any:
    """The function in machine code, without the interpreter's lock, and kept on disk."""
    how = {"nogil": True, "fastmath": {"contract", "reassoc", "nsz"}, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **how)(function)
    except RuntimeError:  # nowhere to write a cache: neither beside this file nor at home
        return numba.njit(**how)(function)
