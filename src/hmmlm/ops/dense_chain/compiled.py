"""Dense chains with the loop over time in machine code, rows shared out among threads.

Same functions as `scaled`. Compiled by numba at first use and cached on disk.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numba
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor


def forward(
    message: Float[Tensor, "B K"],
    probs: Float[Tensor, "K K"],
    emission: Float[Tensor, "B C K"],
    restart: Bool[Tensor, "B C"],
    active: Bool[Tensor, "B C"],
    initial: Float[Tensor, " K"],
    scales: Float[Tensor, "B C"],
    messages: Float[Tensor, "B C K"] | None,
    begin: int,
) -> Float[Tensor, "B K"]:
    """The forward recursion over the steps from `begin`; gives the message each row ends with."""
    last = message.clone(memory_format=torch.contiguous_format)
    keep, tiny = messages is not None, torch.finfo(emission.dtype).tiny
    kept = emission.new_empty(0, 0, 0) if messages is None else messages
    # Arrays that are written to must be contiguous already: a copy would be lost.
    assert scales.is_contiguous() and kept.is_contiguous()
    arrays = _arrays(last, probs, emission, restart, active, initial, kept, scales)
    _by_rows(len(last), lambda first, stop: _forward(*arrays, tiny, keep, begin, first, stop))
    return last


def backward(
    back: Float[Tensor, "B K"],
    probs: Float[Tensor, "K K"],
    emission: Float[Tensor, "B C K"],
    cut: Bool[Tensor, "B C"],
    backs: Float[Tensor, "B C K"],
) -> Float[Tensor, "B K"]:
    """C steps of the backward recursion; `back` belongs to the last of them."""
    last = back.clone(memory_format=torch.contiguous_format)
    tiny = torch.finfo(emission.dtype).tiny
    assert backs.is_contiguous()
    arrays = _arrays(last, probs.T.contiguous(), emission, cut, backs)
    _by_rows(len(last), lambda first, stop: _backward(*arrays, tiny, first, stop))
    return last


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [tensor.contiguous().numpy() for tensor in tensors]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="hmmlm")


def _by_rows(rows: int, work: Callable[[int, int], None]) -> None:
    # Threads of our own: numba's may not be entered by two Python threads at once.
    threads = min(torch.get_num_threads(), rows)
    if threads == 1:
        work(0, rows)
        return
    edges = [rows * i // threads for i in range(threads + 1)]
    jobs = [_pool(threads - 1).submit(work, edges[i], edges[i + 1]) for i in range(1, threads)]
    work(0, edges[1])
    for job in jobs:
        job.result()


@numba.njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")
def _product(vector, matrix, out):  # pragma: no cover
    """out = vector @ matrix, eight rows of the matrix at a time to spare loads of `out`."""
    size = vector.shape[0]
    out[:] = 0
    whole = size - size % 8
    for k in range(0, whole, 8):
        a0, a1, a2, a3 = vector[k], vector[k + 1], vector[k + 2], vector[k + 3]
        a4, a5, a6, a7 = vector[k + 4], vector[k + 5], vector[k + 6], vector[k + 7]
        for j in range(size):
            out[j] += (
                (a0 * matrix[k, j] + a1 * matrix[k + 1, j])
                + (a2 * matrix[k + 2, j] + a3 * matrix[k + 3, j])
            ) + (
                (a4 * matrix[k + 4, j] + a5 * matrix[k + 5, j])
                + (a6 * matrix[k + 6, j] + a7 * matrix[k + 7, j])
            )
    for k in range(whole, size):
        a0 = vector[k]
        for j in range(size):
            out[j] += a0 * matrix[k, j]


@numba.njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")
def _forward(
    message,
    probs,
    emission,
    restart,
    active,
    initial,
    messages,
    scales,
    tiny,
    keep,
    begin,
    first,
    stop,
):  # pragma: no cover
    steps, size = emission.shape[1], emission.shape[2]
    prediction = np.empty(size, message.dtype)
    for row in range(first, stop):
        current = message[row]
        for step in range(begin, steps):
            if active[row, step]:
                if restart[row, step]:
                    prediction[:] = initial
                else:
                    _product(current, probs, prediction)
                seen = emission[row, step]
                scale = prediction.dtype.type(0)
                for j in range(size):
                    prediction[j] *= seen[j]
                    scale += prediction[j]
                scales[row, step] = scale
                inverse = 1 / scale if scale > tiny else prediction.dtype.type(1)
                for j in range(size):
                    current[j] = prediction[j] * inverse
            else:
                scales[row, step] = 1
            if keep:
                messages[row, step] = current


@numba.njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")
def _backward(back, probs, emission, cut, backs, tiny, first, stop):  # pragma: no cover
    steps, size = emission.shape[1], emission.shape[2]
    weight = np.empty(size, back.dtype)
    for row in range(first, stop):
        current = back[row]
        for step in range(steps - 1, -1, -1):
            backs[row, step] = current
            if cut[row, step]:
                current[:] = 1
                continue
            seen = emission[row, step]
            for j in range(size):
                weight[j] = current[j] * seen[j]
            _product(weight, probs, current)
            most = current[0]
            for j in range(size):
                most = max(most, current[j])
            inverse = 1 / most if most > tiny else back.dtype.type(1)
            for j in range(size):
                current[j] *= inverse
