"""Expected counts by Triton kernels, without waiting for the device once."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.hmm import HMM
from hmmlm.ops.kernels import product
from hmmlm.products import full_products
from hmmlm.transitions import Dense, Factored


class KernelCounts(NamedTuple):
    """Counts in the order of `HMM.fields`, float32; rows that are `low` lost digits.

    `log_scales` sum to the log evidence of a row; of dense chains a single one need not be exact.
    With a `first`, those of it come last, and `log_last` is log p(z | all words) of the states of
    each row's last word.
    """

    log_scales: Float[Tensor, "B T"]
    fields: tuple[Tensor, ...]
    low: Bool[Tensor, " B"]
    log_last: Float[Tensor, "B K"] | None = None


@full_products()
def count(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    restart: Bool[Tensor, "B T"],
    ends: Int[Tensor, " B"],
    times: Float[Tensor, " B"],
    first: Float[Tensor, "B K"] | None = None,
    wide: bool = False,
) -> KernelCounts:
    """Expected counts, each row taken so many times, of rows whose first step starts afresh.

    Unless `first` is given: where `restart` does not say so, the first step's states then have
    these log-probabilities. `ends` are the numbers of steps, 0 for a row that is none. Nothing is
    checked: the caller knows that sources are the states and that the ids are those of words.
    `wide` messages are float64. Dense chains know no `first`.
    """
    tokens, restart = tokens.contiguous(), restart.contiguous()
    if hmm.support.is_dense:
        assert first is None
        return _dense(hmm, tokens, restart, ends, times, wide)
    messages = torch.float64 if wide else torch.float32
    return _blocks(hmm, tokens, restart, ends, times, first, messages)


def _blocks(
    hmm: HMM,
    tokens: Tensor,
    restart: Tensor,
    ends: Tensor,
    times: Tensor,
    first: Tensor | None,
    messages: torch.dtype,
) -> KernelCounts:
    from hmmlm.ops.row_sums.kernel import sum_ordered, sum_rows
    from hmmlm.ops.tile_chain import counts_kernel, kernel, tiles_kernel

    support, table = hmm.support, hmm.transitions
    rows, here = support.rows, support.row_of_word[tokens]  # (B, T)
    overlaps = not support.is_partition
    if overlaps and here.numel() < len(rows):  # fewer steps than rows: each step has its own
        rows = rows[here].flatten(0, 1)
        here = torch.arange(len(rows), device=tokens.device).view_as(here)
    active = torch.arange(tokens.shape[1], device=tokens.device) < ends[:, None]
    through = active & ~restart
    through[:, 0] = False
    before = torch.where(through, here.roll(1, 1), tiles_kernel.NONE)
    where = tiles_kernel.Map(rows, here, before, overlaps=overlaps)
    if isinstance(table, Factored):
        dtype, precision = table.operand
        left, right = table.left.to(dtype), table.right.to(dtype)
        squares = tiles_kernel.squares_of_factors(
            left, right, table.log_norm, where, precision, dtype=messages, marks=table.marks
        )
    else:
        squares = tiles_kernel.squares_of_table(table.log_trans, where, dtype=messages)
    emissions = kernel.emissions_of(hmm.log_emit, tokens, ends, dtype=messages)
    start, shift = None, None
    if first is not None:
        states = rows[here[:, 0]]
        initial = hmm.log_init[states.clamp(min=0)]
        start = torch.where(restart[:, :1], initial, first).masked_fill(states < 0, -torch.inf)
        shift = start.amax(1)
        start = start - shift[:, None]
    passed = kernel.run(squares, where, hmm.log_init, emissions, ends, both=True, start=start)
    met = kernel.meet(squares, emissions, passed, where, ends, times)
    log_scales = met.log_scales
    if shift is not None:
        log_scales[:, 0] += torch.where(active[:, 0], shift, 0.0)
    flat = met.posteriors.flatten(0, 1).float()
    # Of starts, and of steps that another follows: their transitions are as many as they are.
    followed = torch.zeros_like(through)
    followed[:, :-1] = through[:, 1:]
    kinds = torch.stack([restart & active, followed]).flatten(1).to(flat.dtype)  # (2, N)
    if overlaps:
        by_row, emit = None, sum_rows(tokens.flatten(), flat, hmm.vocab_size)
        starts, leaving = _by_state(rows[here.flatten()], flat, kinds, hmm.num_states)
    else:
        # One order serves rows of the map and words, which are parts of them.
        ordered, order = support.word_keys[tokens].flatten().sort()
        offsets, keys = torch.searchsorted(ordered, support.row_keys), support.word_keys
        begin, end = (torch.searchsorted(ordered, keys, right=right) for right in (False, True))
        by_row, emit = (order, offsets), sum_ordered(order, begin, end, flat)
        both = (flat[:, None, :] * kinds.T[:, :, None]).flatten(1)  # (N, 2 K)
        both = sum_ordered(order, offsets[:-1], offsets[1:], both).unflatten(1, (2, -1))
        by_state = flat.new_zeros(2, hmm.num_states + 1)  # the last is for padding
        by_state[:, support.places] = both.transpose(0, 1).flatten(1)
        starts, leaving = by_state[:, :-1]
    low = passed.low.any(0) | (emissions.low > 0)
    if isinstance(table, Dense):
        counts = counts_kernel.table_counts(
            squares, where, passed.joints, met.pairs, hmm.num_states
        )
        trans = (counts.float(),)
    else:
        to_left, to_right = counts_kernel.factor_counts(
            squares, where, passed.joints, met.pairs, left, right, precision, by_row
        )
        trans = to_left, to_right, leaving.neg_()
    fields, log_last = (starts, *trans, emit), None
    if first is not None:
        is_entered = active[:, :1] & ~restart[:, :1]
        fields += (met.posteriors[:, 0].float().masked_fill(~is_entered, 0.0),)
        row = torch.arange(len(ends), device=ends.device)
        log_last = (passed.joints[row, ends] / passed.totals[row, ends, None]).log()
    return KernelCounts(log_scales, fields, low, log_last)


def _by_state(
    states: Int[Tensor, "N K"],
    posteriors: Float[Tensor, "N K"],
    kinds: Float[Tensor, "2 N"],
    num_states: int,
) -> Float[Tensor, "2 Z"]:
    """Posteriors of steps of two kinds, summed by the states in their slots."""
    from hmmlm.ops.row_sums.kernel import sum_rows

    both = (posteriors[:, :, None] * kinds.T[:, None, :]).flatten(0, 1)  # (N K, 2)
    return sum_rows(states.masked_fill(states < 0, num_states).flatten(), both, num_states).T


def _rows(table: Factored) -> Float[Tensor, "Z Z"]:
    """log p(to | from), whose factors are exact in the type of the operand."""
    dtype = table.operand.dtype
    logits = product(table.left.to(dtype), table.right.to(dtype).T)
    return table.with_zeros(logits.sub_(table.log_norm[:, None]))


def _dense(
    hmm: HMM, tokens: Tensor, restart: Tensor, ends: Tensor, times: Tensor, wide: bool
) -> KernelCounts:
    from hmmlm.ops.dense_chain import counts_kernel, kernel
    from hmmlm.ops.row_sums.kernel import sum_rows

    table, dtype = hmm.transitions, hmm.transitions.operand.dtype
    log_rows = table.rows(0, hmm.num_states) if isinstance(table, Dense) else _rows(table)
    matrix = kernel.Matrix.of(log_rows, torch.float64 if wide else dtype)
    given = hmm.log_emit, tokens, restart, ends
    initial = hmm.log_init.to(matrix.sums.dtype).exp()
    passed = kernel.run(matrix, initial, *given, exact_zeros=False)
    met = counts_kernel.meet(passed, *given, times)
    counts = counts_kernel.pair_counts(matrix, met).float()
    flat = met.posteriors.flatten(0, 1).float()
    emit = sum_rows(tokens.flatten(), flat, hmm.vocab_size)
    starts = restart.flatten().to(flat.dtype) @ flat
    fields = (counts,)
    if not isinstance(table, Dense):
        left, right, narrow = (part.to(dtype) for part in (table.left, table.right, counts))
        fields = (product(narrow, right), product(narrow.T, left), -counts.sum(1))
    return KernelCounts(met.log_scales, (starts, *fields, emit), met.low > 0)
