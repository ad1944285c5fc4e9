"""Loops of the ops in machine code, shared out among threads of our own."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np
from torch import Tensor

from hmmlm.machine_code import compile_loop


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


compiled = partial(compile_loop, fastmath={"contract", "reassoc", "nsz"})
"""Compiles a loop over messages, whose sums may be made in any order."""
