"""Chains of tiles with the loop over time in machine code, rows shared out among threads."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.ops.dense_chain.instructions import exp
from hmmlm.ops.machine_code import arrays, compiled, share
from hmmlm.ops.messages.scaled import lowest


def forward(
    message: Float[Tensor, "B K"],
    tiles: Float[Tensor, "U K K"],
    log_most: Float[Tensor, " U"],
    tile_of_step: Int[Tensor, "B C"],
    log_weights: Float[Tensor, "V K"],
    index: Int[Tensor, "B C"],
    initial: Float[Tensor, "R K"],
    start_of_step: Int[Tensor, "B C"],
    active: Bool[Tensor, "B C"],
    log_scales: Float[Tensor, "B C"],
    low: Bool[Tensor, " B"],
    messages: Float[Tensor, "B C K"],
    begin: Int[Tensor, " B"],
    end: Int[Tensor, " B"],
) -> Float[Tensor, "B K"]:
    """The forward recursion over the steps of each row from `begin` up to `end`: its last message.

    A step is message <- normalise(prediction * exp(log_weights[index])). The prediction is message
    @ tile, the tile over its largest entry, whose log is `log_most`; or initial[start_of_step]
    where that is not -1. The log of what was divided out goes into `log_scales`. Rows that are not
    active keep their message, at 0. Messages go into `messages` if it is not empty. Rows in which a
    possible state falls below `lowest` are marked in `low`.
    """
    last = message.clone(memory_format=torch.contiguous_format)
    assert all(array.is_contiguous() for array in (log_scales, low, messages))
    given = arrays(
        last,
        tiles,
        log_most,
        tile_of_step,
        log_weights,
        index,
        initial,
        start_of_step,
        active,
        log_scales,
        low,
        messages,
        begin,
        end,
    )
    least = given[0].dtype.type(lowest(last.dtype))
    _by_rows(last, lambda first, stop: _forward(*given, least, first, stop))
    return last


def backward(
    back: Float[Tensor, "B K"],
    tiles: Float[Tensor, "U K K"],
    tile_of_step: Int[Tensor, "B C"],
    log_weights: Float[Tensor, "V K"],
    index: Int[Tensor, "B C"],
    cut: Bool[Tensor, "B C"],
    previous: Float[Tensor, "B K"] | None,
    width_before: Int[Tensor, "B C"],
    messages: Float[Tensor, "B C K"],
    posteriors: Float[Tensor, "B C K"],
    totals: Float[Tensor, "B C"],
    low: Bool[Tensor, " B"],
    pairs: Float[Tensor, "B C K"],
    begin: Int[Tensor, " B"],
    end: Int[Tensor, " B"],
    *,
    counted: bool,
) -> Float[Tensor, "B K"]:
    """The backward recursion over the steps of each row from before `end` down to `begin`.

    `back` belongs to the last of them, and what comes back to the step before the first.

    If `counted`, message forward times backward over its sum goes into `posteriors`, and weight *
    back / (probability of the step before meeting it) into `pairs`: its outer product with the
    message before, times the tile, is the joint of two steps; at a first step without a `previous`
    message it is weight * back alone. If not, it is the backward messages that go into
    `posteriors`. Sums go into `totals`. `width_before` is the number of states of the step before.
    Where `cut`, a step says nothing of the one before it, whose message is all ones.
    """
    last = back.clone(memory_format=torch.contiguous_format)
    assert all(array.is_contiguous() for array in (posteriors, totals, low, pairs))
    before = torch.zeros_like(last) if previous is None else previous
    given = arrays(
        last,
        tiles,
        tile_of_step,
        log_weights,
        index,
        cut,
        before,
        width_before,
        messages,
        posteriors,
        totals,
        low,
        pairs,
        begin,
        end,
    )
    least = given[0].dtype.type(lowest(last.dtype))
    flags = (previous is not None, counted)
    _by_rows(last, lambda first, stop: _backward(*given, least, *flags, first, stop))
    return last


def add_outer(
    sums: Float[Tensor, "U K K"],
    tile_of_step: Int[Tensor, "B C"],
    counted: Bool[Tensor, "B C"],
    previous: Float[Tensor, "B K"],
    messages: Float[Tensor, "B C K"],
    pairs: Float[Tensor, "B C K"],
) -> None:
    """sums[tile] += (message before) x pairs for every step that counts, in the order of rows."""
    assert sums.is_contiguous()
    given = arrays(sums, tile_of_step, counted, previous, messages, pairs)
    width = sums.shape[1]
    threads = max(1, min(torch.get_num_threads(), width // 4))
    edges = [width * i // threads for i in range(threads + 1)]
    share(threads, lambda i: _add_outer(*given, edges[i], edges[i + 1]), threads)


def _by_rows(message: Tensor, work) -> None:
    rows, threads = len(message), torch.get_num_threads()
    share(rows, lambda row: work(row, row + 1), min(threads, rows))


@compiled
def _forward(
    message,
    tiles,
    log_most,
    tile_of_step,
    log_weights,
    index,
    initial,
    start_of_step,
    active,
    log_scales,
    low,
    messages,
    begin,
    end,
    least,
    first,
    stop,
):  # pragma: no cover
    size = message.shape[1]
    number = message.dtype.type
    tiny = np.finfo(message.dtype).tiny
    keep = messages.shape[1] > 0
    prediction = np.zeros(size, message.dtype)
    for row in range(first, stop):
        for step in range(begin[row], end[row]):
            if active[row, step]:
                fresh, taken = start_of_step[row, step], number(0)
                if fresh >= 0:
                    for j in range(size):
                        prediction[j] = initial[fresh, j]
                else:
                    tile = tile_of_step[row, step]
                    taken = log_most[tile]
                    for j in range(size):
                        prediction[j] = 0
                    for i in range(size):
                        value = message[row, i]
                        for j in range(size):
                            prediction[j] += value * tiles[tile, i, j]
                word = index[row, step]
                most = number(-np.inf)
                for j in range(size):
                    most = max(most, log_weights[word, j])
                most = most if most > -np.inf else number(0)
                scale, lost = number(0), False
                for j in range(size):
                    seen = log_weights[word, j]
                    value = prediction[j] * exp(seen - most)
                    message[row, j] = value
                    scale += value
                    lost |= (value < least) & (seen > -np.inf)
                log_scales[row, step] = np.log(scale) + most + taken
                low[row] |= lost
                inverse = 1 / scale if scale > tiny else number(1)
                for j in range(size):
                    message[row, j] *= inverse
            else:
                log_scales[row, step] = 0
            if keep:
                for j in range(size):
                    messages[row, step, j] = message[row, j]


@compiled
def _backward(
    back,
    tiles,
    tile_of_step,
    log_weights,
    index,
    cut,
    previous,
    width_before,
    messages,
    posteriors,
    totals,
    low,
    pairs,
    begin,
    end,
    least,
    has_previous,
    counted,
    first,
    stop,
):  # pragma: no cover
    size = back.shape[1]
    number = back.dtype.type
    tiny = np.finfo(back.dtype).tiny
    weight = np.zeros(size, back.dtype)
    for row in range(first, stop):
        for step in range(end[row] - 1, begin[row] - 1, -1):
            total = number(0)
            for j in range(size):
                total += messages[row, step, j] * back[row, j]
            totals[row, step] = total
            inverse = 1 / max(total, least)
            if counted:
                for j in range(size):
                    posteriors[row, step, j] = messages[row, step, j] * back[row, j] * inverse
            else:
                for j in range(size):
                    posteriors[row, step, j] = back[row, j]
            if cut[row, step]:
                if counted:
                    for j in range(size):
                        pairs[row, step, j] = 0
                for j in range(size):
                    back[row, j] = 1
                continue
            word, tile = index[row, step], tile_of_step[row, step]
            most = number(-np.inf)
            for j in range(size):
                most = max(most, log_weights[word, j])
            most = most if most > -np.inf else number(0)
            for j in range(size):
                weight[j] = back[row, j] * exp(log_weights[word, j] - most)
            if step == 0 and not has_previous:
                # The text begins here, from a belief that was carried in: the caller goes on.
                if counted:
                    for j in range(size):
                        pairs[row, step, j] = weight[j]
                continue
            lost, highest, met = False, number(0), number(0)
            width = width_before[row, step]
            for i in range(size):
                value = number(0)
                for j in range(size):
                    value += tiles[tile, i, j] * weight[j]
                back[row, i] = value
                highest = max(highest, value)
                lost |= (value < least) & (i < width)
                met += value * (messages[row, step - 1, i] if step > 0 else previous[row, i])
            low[row] |= lost
            if counted:
                low[row] |= met < least
                inverse = 1 / max(met, least)
                for j in range(size):
                    pairs[row, step, j] = weight[j] * inverse
            inverse = 1 / highest if highest > tiny else number(1)
            for i in range(size):
                back[row, i] *= inverse


@compiled
def _add_outer(
    sums, tile_of_step, counted, previous, messages, pairs, first, stop
):  # pragma: no cover
    size = sums.shape[2]
    for row in range(tile_of_step.shape[0]):
        for step in range(tile_of_step.shape[1]):
            if counted[row, step]:
                tile = tile_of_step[row, step]
                for i in range(first, stop):
                    value = messages[row, step - 1, i] if step > 0 else previous[row, i]
                    for j in range(size):
                        sums[tile, i, j] += value * pairs[row, step, j]
