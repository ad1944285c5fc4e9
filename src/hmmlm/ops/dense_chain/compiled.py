"""Dense chains with the loop over time in machine code, rows shared out among threads.

Same functions as `scaled`. Up to eight rows go through a step together, so that every number of
the matrix that is loaded serves all of them. Compiled by numba at first use and cached on disk.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.ops.dense_chain.instructions import ROWS, VECTOR, exp, tile1, tile2, tile4, tile8
from hmmlm.ops.machine_code import arrays, compiled, share
from hmmlm.ops.messages.scaled import lowest

DEPTH = 16
"""States are padded with zeros to a multiple of this."""


SHARED_UP_TO = 512
"""States up to which rows are handed out four at a time: the matrix is near enough to be read twice
as often, and a thread that is held up leaves more to the others."""


def pack(log_probs: Float[Tensor, "K K"], *, turned: bool = False) -> Float[Tensor, "N P W"]:
    """The matrix as panels of W columns each, padded with zeros: in the order a step reads it.

    Here and below torch's own threads are left alone: after work they keep a core busy for
    milliseconds, waiting for more.
    """
    width = VECTOR // log_probs.element_size()
    panels = -(-log_probs.shape[0] // DEPTH) * (DEPTH // width)
    packed = log_probs.new_empty(panels, panels * width, width)
    source, goal = arrays(log_probs, packed)
    threads = max(1, min(torch.get_num_threads(), packed.numel() >> 15))
    edges = [panels * i // threads for i in range(threads + 1)]
    share(threads, lambda i: _pack(source, goal, turned, edges[i], edges[i + 1]), threads)
    return packed


def least(log_probs: Float[Tensor, "..."]) -> float:
    """The smallest probability that is not zero; 0 where one is too small for a number."""
    smallest = float(_least(*arrays(log_probs.reshape(-1))))
    return math.exp(smallest) if smallest > math.log(torch.finfo(log_probs.dtype).tiny) else 0.0


def forward(
    message: Float[Tensor, "B K"],
    packed: Float[Tensor, "N P W"],
    log_weights: Float[Tensor, "V K"],
    index: Int[Tensor, "B C"],
    restart: Bool[Tensor, "B C"],
    active: Bool[Tensor, "B C"],
    initial: Float[Tensor, " K"],
    log_scales: Float[Tensor, "B C"],
    low: Bool[Tensor, " B"],
    messages: Float[Tensor, "B C K"] | None,
    *,
    begin: int,
    exact_zeros: bool,
) -> Float[Tensor, "B K"]:
    """The forward recursion over the steps from `begin`; gives the message each row ends with."""
    last = message.clone(memory_format=torch.contiguous_format)
    keep = messages is not None
    kept = last.new_empty(0, 0, 0) if messages is None else messages
    # Arrays that are written to must be contiguous already: a copy would be lost.
    assert all(array.is_contiguous() for array in (log_scales, low, kept))
    given = arrays(
        last, packed, log_weights, index, restart, active, initial, log_scales, low, kept
    )
    limits = _limits(last.dtype, exact_zeros)
    _by_rows(last, lambda first, stop: _forward(*given, *limits, keep, begin, first, stop))
    return last


def backward(
    back: Float[Tensor, "B K"],
    packed: Float[Tensor, "N P W"],
    log_weights: Float[Tensor, "V K"],
    index: Int[Tensor, "B C"],
    cut: Bool[Tensor, "B C"],
    messages: Float[Tensor, "B C K"],
    log_scales: Float[Tensor, "B C"],
    counted: Bool[Tensor, "B C"] | None,
    posteriors: Float[Tensor, "B C K"],
    totals: Float[Tensor, "B C"],
    low: Bool[Tensor, " B"],
    pairs: Float[Tensor, "B C K"] | None,
    *,
    exact_zeros: bool,
) -> Float[Tensor, "B K"]:
    """C steps of the backward recursion; `back` belongs to the last of them."""
    last = back.clone(memory_format=torch.contiguous_format)
    keep = pairs is not None
    kept = last.new_empty(0, 0, 0) if pairs is None else pairs
    used = cut if counted is None else counted
    assert all(array.is_contiguous() for array in (posteriors, totals, low, kept))
    given = arrays(
        last,
        packed,
        log_weights,
        index,
        cut,
        messages,
        log_scales,
        used,
        posteriors,
        totals,
        low,
        kept,
    )
    limits = _limits(last.dtype, exact_zeros)
    _by_rows(last, lambda first, stop: _backward(*given, *limits, keep, first, stop))
    return last


def add_rows(
    table: Float[Tensor, "V K"],
    index: Int[Tensor, "B C"],
    rows: Float[Tensor, "B C K"],
    counted: Bool[Tensor, "B C"],
) -> None:
    """table[index] += rows where counted, in the order of the rows."""
    assert table.is_contiguous()
    given = arrays(table, index, rows, counted)
    threads = max(1, min(torch.get_num_threads(), table.shape[1] // 32))
    edges = [table.shape[1] * i // threads for i in range(threads + 1)]
    share(threads, lambda i: _add_rows(*given, edges[i], edges[i + 1]), threads)


def log(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The natural logarithm, of not very many numbers."""
    logs = torch.empty_like(values, memory_format=torch.contiguous_format)
    _log(*arrays(values.reshape(-1), logs.view(-1)))
    return logs


def _limits(dtype: torch.dtype, exact_zeros: bool) -> tuple[np.floating, np.floating]:
    """What a number must reach to have kept its digits, and what it must be above to need them."""
    number = np.float64 if dtype == torch.float64 else np.float32
    return number(lowest(dtype)), number(0 if exact_zeros else -1)


def _by_rows(message: Tensor, work: Callable[[int, int], None]) -> None:
    rows, threads = len(message), torch.get_num_threads()
    most = ROWS if message.shape[1] > SHARED_UP_TO or threads == 1 else ROWS // 2
    size = min(most, -(-rows // threads))
    groups = -(-rows // size)
    share(groups, lambda i: work(i * size, min((i + 1) * size, rows)), min(threads, groups))


@compiled
def _pack(log_probs, packed, turned, first, stop):  # pragma: no cover
    states = log_probs.shape[0]
    depth, width = packed.shape[1:]
    line = np.zeros(depth, packed.dtype)
    for panel in range(first, stop):
        start = panel * width
        if turned:
            for column in range(width):
                at = start + column
                for k in range(states):
                    line[k] = exp(log_probs[at, k]) if at < states else 0
                for k in range(depth):
                    packed[panel, k, column] = line[k]
            continue
        for k in range(depth):
            for column in range(width):
                inside = k < states and start + column < states
                value = log_probs[k, start + column] if inside else -np.inf
                packed[panel, k, column] = exp(packed.dtype.type(value))


@compiled
def _log(values, logs):  # pragma: no cover
    for i in range(values.shape[0]):
        logs[i] = np.log(values[i])


@compiled
def _least(values):  # pragma: no cover
    """The smallest finite value; 0 if there is none below."""
    smallest = values.dtype.type(0)
    for i in range(values.shape[0]):
        value = values[i]
        smallest = value if (value < smallest) & (value > -np.inf) else smallest
    return smallest


@compiled
def _product(left, packed, out, rows):  # pragma: no cover
    """out = left @ matrix for the first `rows` rows, or a few more."""
    panels, depth, width = packed.shape
    size = left.itemsize
    like = left[0, 0]
    start, source, goal = left.ctypes.data, packed.ctypes.data, out.ctypes.data
    for _ in range(panels):
        if rows > 4:
            tile8(start, depth, source, goal, depth, like)
        elif rows > 2:
            tile4(start, depth, source, goal, depth, like)
        elif rows > 1:
            tile2(start, depth, source, goal, depth, like)
        else:
            tile1(start, depth, source, goal, depth, like)
        source += depth * width * size
        goal += width * size


@compiled
def _forward(
    message,
    packed,
    log_weights,
    index,
    restart,
    active,
    initial,
    log_scales,
    low,
    messages,
    least,
    zero,
    keep,
    begin,
    first,
    stop,
):  # pragma: no cover
    steps, size = index.shape[1], message.shape[1]
    number = message.dtype.type
    tiny = np.finfo(message.dtype).tiny
    current = np.zeros((ROWS, packed.shape[1]), message.dtype)
    prediction = np.zeros((ROWS, packed.shape[1]), message.dtype)
    # Cells are named by row and column throughout: a view of a row is counted, which costs more
    # than the arithmetic on it where states are few.
    for row in range(first, stop):
        for j in range(size):
            current[row - first, j] = message[row, j]
    for step in range(begin, steps):
        onward = False
        for row in range(first, stop):
            onward = onward or (active[row, step] and not restart[row, step])
        if onward:
            _product(current, packed, prediction, stop - first)
        for row in range(first, stop):
            i, word = row - first, index[row, step]
            if active[row, step]:
                if restart[row, step]:
                    for j in range(size):
                        prediction[i, j] = initial[j]
                scale, lost = number(0), False
                if word >= 0:
                    for j in range(size):
                        source, seen = prediction[i, j], log_weights[word, j]
                        value = source * exp(seen)
                        current[i, j] = value
                        scale += value
                        lost |= (value < least) & (source > zero) & (seen > -np.inf)
                else:
                    for j in range(size):
                        value = prediction[i, j]
                        current[i, j] = value
                        scale += value
                        lost |= (value < least) & (value > zero)
                log_scales[row, step] = np.log(scale)
                low[row] |= lost
                inverse = 1 / scale if scale > tiny else number(1)
                for j in range(size):
                    current[i, j] *= inverse
            else:
                log_scales[row, step] = 0
            if keep:
                for j in range(size):
                    messages[row, step, j] = current[i, j]
    for row in range(first, stop):
        for j in range(size):
            message[row, j] = current[row - first, j]


@compiled
def _backward(
    back,
    packed,
    log_weights,
    index,
    cut,
    messages,
    log_scales,
    counted,
    posteriors,
    totals,
    low,
    pairs,
    least,
    zero,
    keep,
    first,
    stop,
):  # pragma: no cover
    steps, size = index.shape[1], back.shape[1]
    number = back.dtype.type
    tiny = np.finfo(back.dtype).tiny
    current = np.zeros((ROWS, packed.shape[1]), back.dtype)
    weight = np.zeros((ROWS, packed.shape[1]), back.dtype)
    for row in range(first, stop):
        for j in range(size):
            current[row - first, j] = back[row, j]
    for step in range(steps - 1, -1, -1):
        onward = False
        for row in range(first, stop):
            i, word = row - first, index[row, step]
            total = number(0)
            for j in range(size):
                value = messages[row, step, j] * current[i, j]
                posteriors[row, step, j] = value
                total += value
            totals[row, step] = total
            inverse = 1 / max(total, least)
            for j in range(size):
                posteriors[row, step, j] *= inverse
            if not keep:
                for j in range(size):
                    posteriors[row, step, j] = current[i, j]
            if cut[row, step]:
                if keep:
                    for j in range(size):
                        pairs[row, step, j] = 0
                continue
            onward, lost = True, False
            if word >= 0:
                for j in range(size):
                    source, seen = current[i, j], log_weights[word, j]
                    value = source * exp(seen)
                    weight[i, j] = value
                    lost |= (value < least) & (source > zero) & (seen > -np.inf)
            else:
                for j in range(size):
                    weight[i, j] = current[i, j]
            low[row] |= lost
            if keep:
                factor = exp(-log_scales[row, step]) * inverse if counted[row, step] else number(0)
                for j in range(size):
                    pairs[row, step, j] = weight[i, j] * factor
        if onward:
            _product(weight, packed, current, stop - first)
        for row in range(first, stop):
            i = row - first
            if cut[row, step]:
                for j in range(size):
                    current[i, j] = 1
                continue
            most, lost = number(0), False
            for j in range(size):
                value = current[i, j]
                most = max(most, value)
                lost |= (value < least) & (value > zero)
            low[row] |= lost
            inverse = 1 / most if most > tiny else number(1)
            for j in range(size):
                current[i, j] *= inverse
    for row in range(first, stop):
        for j in range(size):
            back[row, j] = current[row - first, j]


@compiled
def _add_rows(table, index, rows, counted, first, stop):  # pragma: no cover
    for row in range(index.shape[0]):
        for step in range(index.shape[1]):
            if counted[row, step]:
                goal = index[row, step]
                for j in range(first, stop):
                    table[goal, j] += rows[row, step, j]
