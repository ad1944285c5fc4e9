"""Smoothing and expected counts: the forward pass and the backward pass."""

from functools import partial
from math import isqrt

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.hmm import HMM
from hmmlm.inference.chain import Chain
from hmmlm.inference.dispatch import WITH_KERNEL, answer, recursion, stretches, widened
from hmmlm.inference.evidence import (
    LastMessage,
    empty_state_probs,
    run_pieces,
    run_rows,
    with_scores,
    write_states,
)
from hmmlm.inference.gradients import without_gradient
from hmmlm.inference.missing import Parted
from hmmlm.inference.recursion import SUMMED, Backward, Forward, Passes
from hmmlm.inference.scan import SCAN, Scan
from hmmlm.ops.kernels import room
from hmmlm.ops.links import CountSums, gather
from hmmlm.results import Belief, Counts, FactoredCounts, LogProb, StateProbs

KEPT = 1 << 24
"""Cells of the forward messages that `counts` keeps at a time, unless sqrt(T) steps need more."""

KEPT_ON_GPU = 1 << 27
"""The same on a GPU, unless a sixty-fourth of its memory holds fewer."""


def smooth(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    implementation: str = "auto",
) -> StateProbs:
    """p(z_t | x_1..T) at every step. O(T K^2) time and O(T K) memory per row."""
    chain = Chain(hmm, tokens, lengths=lengths, belief=belief, reset_id=reset_id, restart=restart)
    with torch.no_grad():
        result = empty_state_probs(chain)

        def run(name: str) -> LogProb:
            if name != SCAN:
                return run_rows(chain, name, _smooth_rows, result)
            scan = Scan(chain)
            ends, doubt = scan.backward()
            return run_pieces(scan, partial(_smooth_rows, ends=ends), _smooth_rows, doubt, result)

        scores, _ = answer(implementation, (*WITH_KERNEL, SCAN), chain, run)
        result = _erase_impossible(chain, with_scores(result, scores))
    return without_gradient(result, "smooth(...)", hmm)


def counts(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    implementation: str = "auto",
) -> Counts:
    """Expected counts of starts, transitions and emissions given the tokens, summed over rows.

    They are constants, and the gradient of the summed log evidence with respect to
    `hmm.fields()`. O(T K^2) time per row; O(sqrt(T) K) memory per row, in which forward messages
    are made a second time from checkpoints, or all of them where that is little. Summed in
    float64 where there are many; kernels sum the steps of a stretch in float32 first.
    """
    chain = Chain(hmm, tokens, lengths=lengths, belief=belief, reset_id=reset_id, restart=restart)
    with torch.no_grad():
        result, _ = answer(implementation, WITH_KERNEL, chain, partial(chain_counts, chain))
    return result._replace(
        log_evidence=without_gradient(result.log_evidence, "counts(...).log_evidence", hmm),
        belief=without_gradient(result.belief, "counts(...).belief", hmm),
    )


def _smooth_rows(
    chain: Chain,
    name: str,
    rows: Int[Tensor, " B"],
    scores: Float[Tensor, "B T"],
    final: LastMessage,
    record: StateProbs | None,
    ends: Float[Tensor, "R K"] | None = None,
) -> Bool[Tensor, " B"]:
    """Forward and backward; `ends` are backward messages at the last step, if not all ones."""
    assert record is not None
    passes = recursion(chain, name, back=True)
    forward = passes.forward(0, chain.steps, None, keep=True)
    scores.copy_(forward.log_probs)
    final.visit_all(forward.messages, passes.leave)
    back = None if ends is None else passes.arithmetic.enter(ends[rows].log().to(chain.hmm.dtype))
    backward = passes.backward(0, chain.steps, None, forward, back)
    write_states(chain, record, 0, chain.steps, backward.posteriors, lambda logs: logs)
    return forward.low | backward.low


def _erase_impossible(chain: Chain, result: StateProbs) -> StateProbs:
    """A row of probability zero has no posterior: -inf at all of its steps."""
    impossible = torch.isneginf(result.log_evidence)
    if impossible.any():
        result.log_probs[impossible] = -torch.inf
        gone = impossible[:, None] & result.missing
        result.missing_log_probs[chain.missing_order[gone]] = -torch.inf
    return result


def chain_counts(chain: Chain, name: str, weights: Float[Tensor, " B"] | None = None) -> Counts:
    """Expected counts of a chain, each row taken so many times; by default once.

    In one implementation; rows that lose digits go to a wider arithmetic.
    """
    if weights is None:
        weights = torch.ones(chain.batch, dtype=torch.float64, device=chain.hmm.device)
    result, final = _counts(chain, name, weights)
    trans = [total.to(chain.hmm.dtype) for total in result.fields()[1:-1]]
    return Counts(
        result.init.to(chain.hmm.dtype),
        trans[0] if isinstance(result.trans, Tensor) else FactoredCounts(*trans),
        result.emit[: chain.vocab_size].to(chain.hmm.dtype),
        result.log_evidence,
        final.belief(),
    )


def _counts(chain: Chain, name: str, weights: Float[Tensor, " B"]) -> tuple[Counts, LastMessage]:
    """The counts in the type they were summed in."""
    passes = recursion(chain, name, back=True)
    whole = chain.dense or any(chain.wide)
    width = chain.hmm.num_states if whole else chain.hmm.support.width
    kept = room(chain.hmm.device, 64, KEPT_ON_GPU) if chain.hmm.device.type == "cuda" else KEPT
    size = max(isqrt(chain.steps - 1) + 1, kept // (chain.batch * width), 1)
    checkpoints: list[Tensor | None] = [None]
    scores = torch.zeros(chain.active.shape, dtype=chain.hmm.dtype, device=chain.hmm.device)
    low = torch.zeros(chain.batch, dtype=torch.bool, device=chain.hmm.device)
    final = LastMessage(chain)
    parts = list(stretches(chain.steps, size))
    forward: Forward | None = None
    for start, stop in parts:
        forward = passes.forward(start, stop, checkpoints[-1], keep=True)
        checkpoints.append(forward.last)
        scores[:, start:stop] = forward.log_probs
        low |= forward.low
        final.visit_all(forward.messages, passes.leave, start)
    assert forward is not None
    possible = torch.isfinite(scores).all(1)
    while True:
        times = torch.where(possible & ~low, weights, 0.0).to(chain.hmm.dtype)
        sums, lost = _backward_counts(chain, passes, parts, checkpoints, forward, times)
        if name == "reference" or not (lost & ~low).any():
            break
        # A row lost digits on the way back, with some of its counts added already: begin again.
        low |= lost
    evidence = scores.double().sum(1)
    if name != "reference" and low.any():
        rows = low.nonzero().flatten()
        redone, final_redone = _counts(*widened(chain, name, rows), weights[rows])
        for total, more in zip(sums.fields(), redone.fields(), strict=True):
            total += more.to(total.dtype)
        evidence[rows] = redone.log_evidence
        final.replace(rows, final_redone)
    return sums._replace(log_evidence=evidence), final


def _backward_counts(
    chain: Chain,
    passes: Passes,
    parts: list[tuple[int, int]],
    checkpoints: list[Tensor | None],
    forward: Forward | None,
    times: Float[Tensor, " B"],
) -> tuple[Counts, Bool[Tensor, " B"]]:
    """The backward pass over all stretches, last first, adding up each row so many times."""
    # In float32 a count stands still once it is 2^24 times what is added to it.
    dtype = torch.float64 if chain.active.numel() > 2 * SUMMED else chain.hmm.dtype
    sums = CountSums(chain.hmm.transitions, dtype)
    init = torch.zeros_like(chain.hmm.log_init, dtype=torch.float64)
    emit = torch.zeros(chain.hmm.log_emit.shape, dtype=dtype, device=chain.hmm.device)
    low = torch.zeros_like(times, dtype=torch.bool)
    back = None
    for number in range(len(parts) - 1, -1, -1):
        (start, stop), before = parts[number], checkpoints[number]
        if forward is None:
            forward = passes.forward(start, stop, before, keep=True)
        backward = passes.backward(start, stop, before, forward, back, sums, times)
        forward, back = None, backward.back
        low |= backward.low & (times != 0)
        _add_states(chain, passes, start, stop, backward, times, init, emit)
    empty = torch.empty(0)
    nothing = Belief(chain.tokens[:, :0], empty, chain.restart[:, 0])
    return Counts(init, sums.result(), emit, empty, nothing), low


def _add_states(
    chain: Chain,
    passes: Passes,
    start: int,
    stop: int,
    backward: Backward,
    times: Float[Tensor, " B"],
    init: Float[Tensor, " Z"],
    emit: Float[Tensor, "V K"],
) -> None:
    """Adds the posteriors of a stretch to the counts of starts and emissions."""
    counted = chain.active[:, start:stop] & (times != 0)[:, None]
    weighted = bool(((times != 0) & (times != 1)).any())
    seen = counted & ~chain.missing[:, start:stop]
    starts = counted & chain.restart[:, start:stop]
    posteriors = backward.posteriors
    if isinstance(posteriors, Parted):
        gone = posteriors.missing
        first = starts[gone]
        each = times.repeat_interleave(gone.sum(1))[first]
        init += (posteriors.wide[first].double() * each[:, None]).sum(0)
        posteriors, starts = posteriors.narrow, starts & ~gone
    if isinstance(posteriors, Tensor):
        if weighted:
            posteriors.mul_(times[:, None, None])
        passes.add_emissions(emit, start, posteriors, seen)
        fresh = posteriors[starts].double()
        if chain.dense:
            init += fresh.sum(0)
        else:
            states = chain.hmm.support.states_of(chain.tokens[:, start:stop][starts])
            init.index_add_(0, states.clamp(min=0).flatten(), fresh.flatten())
        return
    for step in range(start, stop):
        posterior = posteriors[step - start].to(emit.dtype)
        if weighted:
            posterior = posterior * times[:, None]
        states, tokens = chain.states(step), chain.tokens[:, step].clamp(min=0)
        here, fresh = seen[:, step - start], starts[:, step - start]
        # Masks are filled with zeros: as indices they would wait for the device at every step.
        if chain.any_restart[step]:
            if states is None:
                init += posterior[fresh].sum(0, dtype=init.dtype)
            else:
                values = posterior.masked_fill((states < 0) | ~fresh[:, None], 0.0)
                init.index_add_(0, states.clamp(min=0).flatten(), values.flatten().double())
        if states is None and not chain.dense:
            posterior = gather(posterior, chain.hmm.support.states_of(tokens), 0.0)
        emit.index_add_(0, tokens, posterior.to(emit.dtype).masked_fill(~here[:, None], 0.0))
