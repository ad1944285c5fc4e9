"""Scoring and filtering: the forward pass."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.hmm import HMM
from hmmlm.inference.chain import Chain, all_states
from hmmlm.inference.dispatch import (
    WITH_KERNEL,
    answer,
    recursion,
    stretches,
    widened,
)
from hmmlm.inference.gradients import refuse_belief, with_gradient, without_gradient
from hmmlm.inference.missing import Parted
from hmmlm.inference.scan import SCAN, Scan
from hmmlm.ops.links import gather
from hmmlm.results import Belief, LogProb, StateProbs

SLIGHT = 1e-9
"""Nats that the score of a text may lack before rows that lost digits are taken in log space."""


def log_prob(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    implementation: str = "auto",
) -> LogProb:
    """log p(x_t | x_<t) of every token, and log p(x_1..T).

    `log_evidence` is differentiable with respect to the tables of the HMM: its gradient is the
    expected counts; a carried belief is a constant. O(T K^2) time per row. Memory beyond the
    result: O(B K), and tiles of transitions between the states of two words, O(B K^2) or up to a
    fixed number of cells (`recursion.TILED`, and on a GPU `block_kernels.TILED`); for dense
    supports the transition probabilities, O(Z^2).
    """
    chain = Chain(hmm, tokens, lengths=lengths, belief=belief, reset_id=reset_id, restart=restart)
    offered = (*WITH_KERNEL, SCAN)
    with torch.no_grad():
        result, name = answer(implementation, offered, chain, partial(score_chain, chain))

    def gradients(grad: Tensor) -> tuple[Tensor, ...]:
        from hmmlm.inference.smoothing import chain_counts

        # As `answer` does: kernels that were not asked for may fail.
        how = name if implementation != "auto" else implementation
        run = partial(chain_counts, chain, weights=grad)
        return answer("scaled" if name == SCAN else how, WITH_KERNEL, chain, run)[0].fields()

    evidence = with_gradient(result.log_evidence, hmm, gradients)
    if belief is not None:
        evidence = refuse_belief(evidence, belief.log_probs)
    return without_gradient(result, "log_prob(...)", hmm)._replace(log_evidence=evidence)


def token_log_probs(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    implementation: str = "auto",
) -> Float[Tensor, "B T"]:
    """log p(x_t | x_<t) of every token, as `log_prob` has it, where nothing else is wanted.

    States that are far behind the others matter to the belief that is left at the end even where
    no token depends on them. Dense states are not taken in log space for their sake here.
    """
    chain = Chain(hmm, tokens, lengths=lengths, belief=belief, reset_id=reset_id, restart=restart)
    with torch.no_grad():
        run = partial(score_chain, chain, ends=True)
        result, _ = answer(implementation, (*WITH_KERNEL, SCAN), chain, run)
    return without_gradient(result, "token_log_probs(...)", hmm).token_log_probs


def filter(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    *,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    restart: Bool[Tensor, "B T"] | None = None,
    implementation: str = "auto",
) -> StateProbs:
    """p(z_t | x_1..t) at every step. O(T K^2) time per row; memory as `log_prob`."""
    chain = Chain(hmm, tokens, lengths=lengths, belief=belief, reset_id=reset_id, restart=restart)
    with torch.no_grad():
        result = empty_state_probs(chain)
        run = partial(score_chain, chain, record=result)
        scores, _ = answer(implementation, (*WITH_KERNEL, SCAN), chain, run)
    return without_gradient(with_scores(result, scores), "filter(...)", hmm)


def score_chain(
    chain: Chain, name: str, record: StateProbs | None = None, ends: bool = False
) -> LogProb:
    """The forward pass, with every filtered message written to `record` if there is one.

    If the text `ends` the belief is not wanted, and is not to be used.
    """
    if name == SCAN:
        doubt = torch.zeros(chain.batch, dtype=torch.bool, device=chain.hmm.device)
        return run_pieces(Scan(chain), _forward_rows, _forward_rows, doubt, record)
    return run_rows(chain, name, _forward_rows, record, ends)


@runtime_checkable
class Pass(Protocol):
    """A pass over a chain that fills in its arguments and gives the rows that lost digits.

    `rows` are the numbers of the chain's rows in the batch that the caller knows.
    """

    def __call__(
        self,
        chain: Chain,
        name: str,
        rows: Int[Tensor, " B"],
        scores: Float[Tensor, "B T"],
        final: "LastMessage",
        record: StateProbs | None,
    ) -> Bool[Tensor, " B"]: ...


def run_rows(
    chain: Chain, name: str, run: Pass, record: StateProbs | None, ends: bool = False
) -> LogProb:
    """Runs a pass over all rows, and again, in a wider arithmetic, over those that lost digits.

    If the text `ends`, over those whose scores could depend on them.
    """
    everything = torch.arange(chain.batch, device=chain.hmm.device)
    scores, final = _run_widening(chain, name, run, everything, record, ends)
    return LogProb(scores, scores.double().sum(1), final.belief())


def _run_widening(
    chain: Chain,
    name: str,
    run: Pass,
    rows: Int[Tensor, " B"],
    record: StateProbs | None,
    ends: bool,
) -> tuple[Float[Tensor, "B T"], "LastMessage"]:
    scores = torch.zeros(chain.active.shape, dtype=chain.hmm.dtype, device=chain.hmm.device)
    final = LastMessage(chain)
    low = run(chain, name, rows, scores, final, record)
    if ends and name != "reference" and low.any():
        low = low & _depends(chain, name, run, rows, scores, low)
    if name != "reference" and low.any():
        lost = low.nonzero().flatten()
        part, wider = widened(chain, name, lost)
        part_record = None if record is None else empty_state_probs(part)
        part_scores, part_final = _run_widening(part, wider, run, rows[lost], part_record, ends)
        scores[lost] = part_scores.to(scores.dtype)
        final.replace(lost, part_final)
        if record is not None and part_record is not None:
            replace_rows(chain, record, part_record, lost)
    return scores, final


def _depends(
    chain: Chain,
    name: str,
    run: Pass,
    rows: Int[Tensor, " B"],
    scores: Float[Tensor, "B T"],
    low: Bool[Tensor, " B"],
) -> Bool[Tensor, " B"]:
    """Whether the scores of rows that lost digits could be others without the loss.

    What is lost makes them too small. A pass over tables that lose nothing, and are nowhere
    smaller, makes them too large, so that the truth lies in between.
    """
    lost = low.nonzero().flatten()
    part = chain.select(lost).lifted()
    if part is None:
        return low
    above = torch.zeros_like(scores[lost])
    run(part, name, rows[lost], above, LastMessage(part), None)
    between = (above - scores[lost]).cumsum(1)
    depends = low.clone()
    depends[lost] = ~(between.abs() <= SLIGHT).all(1)  # so too where one is no number
    return depends


def run_pieces(
    scan: Scan, run: Pass, run_whole: Pass, doubt: Bool[Tensor, " B"], record: StateProbs | None
) -> LogProb:
    """Runs a pass over all pieces of a text at once, each from the belief at its start.

    Rows in doubt, and those where the products of matrices lost digits, run as a whole instead.
    """
    pieces, low = scan.forward()
    record_pieces = None if record is None else empty_state_probs(pieces)
    result = run_rows(pieces, "scaled", run, record_pieces)
    scores = scan.join(result.token_log_probs)
    belief = scan.last(result.belief)
    if record is not None and record_pieces is not None:
        scan.join_states(record_pieces, record)
    low = low | doubt
    if low.any():
        rows = low.nonzero().flatten()
        part = scan.chain.select(rows)
        part_record = None if record is None else empty_state_probs(part)
        redone = run_rows(part, "scaled", run_whole, part_record)
        scores[rows] = redone.token_log_probs
        belief.log_probs[rows] = redone.belief.log_probs
        if record is not None and part_record is not None:
            replace_rows(scan.chain, record, part_record, rows)
    return LogProb(scores, scores.double().sum(1), belief)


def _forward_rows(
    chain: Chain,
    name: str,
    rows: Int[Tensor, " B"],
    scores: Float[Tensor, "B T"],
    final: "LastMessage",
    record: StateProbs | None,
) -> Bool[Tensor, " B"]:
    passes = recursion(chain, name)
    low = torch.zeros(chain.batch, dtype=torch.bool, device=chain.hmm.device)
    message = None
    for start, stop in stretches(chain.steps, passes.stretch):
        # Rows that end in a stretch may do so with more states than its last step has.
        part = passes.forward(start, stop, message, keep=record is not None or any(chain.wide))
        message = part.last
        scores[:, start:stop] = part.log_probs
        low |= part.low
        if record is not None:
            write_states(chain, record, start, stop, part.messages, passes.arithmetic.leave)
        if any(chain.wide):
            final.visit_all(part.messages, passes.leave, start)
        else:
            final.visit(start, stop, message, passes.leave)
    return low


class LastMessage:
    """The log message at each row's last step, gathered while a pass goes by."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        last = chain.lengths - 1
        if chain.is_full:
            self.ends = {chain.steps - 1: torch.arange(chain.batch, device=last.device)}
        else:  # one wait for the device, however many ends there are
            sizes = sorted(Counter(last.tolist()).items())
            rows = last.argsort(stable=True).split([size for _, size in sizes])
            self.ends = {t: some for (t, _), some in zip(sizes, rows, strict=True)}
        wide = chain.dense or any(chain.wide[t] for t in self.ends)
        width = chain.hmm.num_states if wide else chain.hmm.support.width
        size = (chain.batch, width)
        self.states = torch.full(size, -1, device=chain.hmm.device)
        self.log_probs = chain.hmm.log_init.new_full(size, -torch.inf)

    def visit(
        self, start: int, stop: int, message: Tensor, leave: Callable[[Tensor], Tensor]
    ) -> None:
        """Takes the rows that end in this stretch; dense passes hold the message of ended rows."""
        for step in [t for t in self.ends if start <= t < stop]:
            rows = self.ends[step]
            states = self.chain.states(step)
            states = all_states(self.chain) if states is None else states
            if len(rows) == len(message) and states.shape == self.states.shape:
                self.states, self.log_probs = states.clone(), leave(message)
                continue
            self.states[rows, : states.shape[1]] = states[rows]
            self.log_probs[rows, : states.shape[1]] = leave(message[rows])

    def visit_all(
        self,
        messages: Sequence[Tensor] | Tensor | Parted,
        leave: Callable[[Tensor], Tensor],
        start: int = 0,
    ) -> None:
        """Takes the rows that end in a stretch whose messages were all kept."""
        size = messages.shape[1] if isinstance(messages, Tensor) else len(messages)
        for step in [t for t in self.ends if start <= t < start + size]:
            at = step - start
            message = messages[:, at] if isinstance(messages, Tensor) else messages[at]
            self.visit(step, step + 1, message, leave)

    def replace(self, rows: Tensor, other: "LastMessage") -> None:
        """Takes over what another pass found for some of the rows."""
        width = other.states.shape[1]
        self.states[rows], self.log_probs[rows] = -1, -torch.inf
        self.states[rows, :width] = other.states
        self.log_probs[rows, :width] = other.log_probs.to(self.log_probs.dtype)

    def belief(self) -> Belief:
        return self.chain.belief_at_end(self.states, self.log_probs)


def empty_state_probs(chain: Chain) -> StateProbs:
    """Room for a distribution over states at every step."""
    hmm = chain.hmm
    width = hmm.num_states if chain.dense else hmm.support.width
    like = hmm.log_init
    size = (*chain.active.shape, width)
    if chain.dense:
        states = hmm.global_states(torch.arange(width, device=hmm.device)).expand(size)
    else:
        states = torch.full(size, -1, device=hmm.device)
    nothing = Belief(chain.tokens[:, :0], like.new_empty(chain.batch, 0), chain.restart[:, 0])
    return StateProbs(
        like.new_full(size, -torch.inf),
        states,
        like.new_full((int(chain.missing_rows.sum()), hmm.num_states), -torch.inf),
        hmm.global_states(torch.arange(hmm.num_states, device=hmm.device)),
        chain.missing_rows,
        like.new_zeros(chain.active.shape),
        torch.zeros(chain.batch, dtype=torch.float64, device=hmm.device),
        nothing,
    )


def with_scores(record: StateProbs, scores: LogProb) -> StateProbs:
    """The record together with what the forward pass found."""
    return record._replace(
        token_log_probs=scores.token_log_probs,
        log_evidence=scores.log_evidence,
        belief=scores.belief,
    )


def write_states(
    chain: Chain,
    record: StateProbs,
    start: int,
    stop: int,
    messages: Sequence[Tensor] | Tensor | Parted,
    leave: Callable[[Tensor], Tensor],
) -> None:
    """Writes the messages of a stretch into a record of distributions over states."""
    if isinstance(messages, Parted):
        order = chain.missing_order[:, start:stop][messages.missing]
        record.missing_log_probs[order] = leave(messages.wide)
        messages = messages.narrow
    if isinstance(messages, Tensor):
        ended = ~chain.active[:, start:stop, None] | chain.missing_rows[:, start:stop, None]
        record.log_probs[:, start:stop] = leave(messages).masked_fill_(ended, -torch.inf)
        if not chain.dense:
            ids = chain.hmm.global_states(chain.hmm.support.states_of(chain.tokens[:, start:stop]))
            record.states[:, start:stop] = ids.masked_fill(ended, -1)
        return
    for step in range(start, stop):
        log_probs, active = leave(messages[step - start]), chain.active[:, step]
        states = chain.states(step)
        if chain.wide[step]:
            gone = chain.missing_rows[:, step]
            record.missing_log_probs[chain.missing_order[gone, step]] = log_probs[gone]
            states = chain.hmm.support.states_of(chain.tokens[:, step].clamp(min=0))
            log_probs = gather(log_probs, states, -torch.inf)
            active = active & ~gone
        record.log_probs[:, step] = torch.where(active[:, None], log_probs, -torch.inf)
        if states is not None:
            ids = chain.hmm.global_states(states)
            record.states[:, step] = torch.where(active[:, None], ids, -1)


def replace_rows(
    chain: Chain, record: StateProbs, part: StateProbs, rows: Int[Tensor, " N"]
) -> None:
    """Overwrites some rows of a record with those of another."""
    like = record.log_probs.dtype
    record.log_probs[rows] = part.log_probs.to(like)
    if record.missing_log_probs.numel():
        order = chain.missing_order[rows][part.missing]
        record.missing_log_probs[order] = part.missing_log_probs.to(like)
