"""Expectation maximisation (Baum & Welch) of tables: a learner without gradients."""

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hmmlm.data.batches import Batch
from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.params.scalar import Scalar
from hmmlm.support import Support
from hmmlm.train.expectation import Expectation
from hmmlm.train.loop import Step
from hmmlm.transitions import Dense

TIES = ("none", "emit", "trans")

CELLS = 1 << 18
"""Cells of a table that are written together: they stay in the cache from one pass to the next."""


class Em:
    """Tables moved towards the normalised expected counts of each step's batches.

    theta becomes rate * normalised(counts + pseudocount) + (1 - rate) * theta. With all batches of
    an epoch in a step and rate 1 that is Baum-Welch: the evidence of the text never falls, with a
    `pseudocount` log p(text) + pseudocount * sum log theta does not. A distribution without counts
    stays as it is, and without a pseudocount what is impossible stays impossible.

    `tie`: all states of a block share their distribution over words ("emit") or over the next
    state ("trans"); the model is tied at once. O(Z^2 + V K) time beyond the expectation, and no
    memory worth mentioning.
    """

    def __init__(
        self,
        model: Scalar,
        expectation: Expectation | None = None,
        *,
        pseudocount: float = 0.0,
        tie: str = "none",
    ) -> None:
        if not pseudocount >= 0:
            raise InputError(f"pseudocount is {pseudocount} but must be at least 0.")
        if tie not in TIES:
            raise InputError(f"tie is {tie!r} but must be one of {', '.join(TIES)}.")
        self.model, self.pseudocount, self.tie = model, pseudocount, tie
        self.expectation = expectation or Expectation()
        self.written: list[int] = []  # versions of the logits that are log tables
        if tie != "none":
            check_tie(model.support, tie)
            hmm = self._hmm()  # the mean over a block: each of its states counts once
            maximise(model, hmm, *(field.double().exp() for field in hmm.fields()), tie=tie)

    can_be_left = True

    def step(self, batches: Iterable[Batch], rate: float, done: float) -> Step:
        if not 0 < rate <= 1:
            raise InputError(
                f"The learning rate of EM is the weight of the new tables, at most 1, not {rate}."
            )
        hmm = self._hmm()
        sums = self.expectation(hmm, batches)
        maximise(self.model, hmm, *sums[:3], pseudocount=self.pseudocount, tie=self.tie, rate=rate)
        self.written = self._versions()
        return Step(sums.loss, int(sums.tokens), 0.0)

    def state(self) -> dict[str, Tensor]:
        """Whether the logits are log tables."""
        return {"tables": torch.tensor(self._versions() == self.written)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.written = self._versions() if bool(state["tables"]) else []

    def _versions(self) -> list[int]:
        return [logits._version for logits in _logits(self.model)]

    @torch.no_grad()
    def _hmm(self) -> HMM:
        """The model's tables; they need no softmax if nobody wrote to them since the last step."""
        init, trans, emit = _logits(self.model)
        if self._versions() != self.written:
            return self.model()
        return HMM(init.detach(), Dense(trans.detach()), emit.detach(), self.model.support)


def check_tie(support: Support, tie: str) -> None:
    """Refuses a tie where there are no blocks."""
    if support.is_dense or not support.is_partition:
        rows = "shares states among words" if not support.is_partition else "has no blocks"
        raise InputError(
            f"tie is {tie!r}, which ties the states of a block, but this model {rows}; use "
            "model.blocks, or train.tie none."
        )


@torch.no_grad()
def maximise(
    model: Scalar,
    old: HMM,
    init: Float[Tensor, " Z"],
    trans: Float[Tensor, "Z Z"],
    emit: Float[Tensor, "V K"],
    *,
    pseudocount: float = 0.0,
    tie: str = "none",
    rate: float = 1.0,
) -> None:
    """The M-step: logits are the logs of old tables moved towards what the counts say.

    A pseudocount is added once to each number that can be learnt. `old` may share the logits; the
    counts are written over.
    """
    support, tables = old.support, old.fields()
    parts = (
        _transitions(support, init[None], pseudocount, "none"),
        _transitions(support, trans, pseudocount, tie),
        _emissions(support, emit, pseudocount, tie),
    )
    for logits, table, part in zip(_logits(model), tables, parts, strict=True):
        _move(logits.view(-1, table.shape[-1]), table.view(-1, table.shape[-1]), rate, part)


Part = Callable[[slice], tuple[Tensor, Tensor]]
"""Counts of some rows of a table, and what each is to be divided by; 0 where there is nothing."""


def _transitions(
    support: Support, counts: Float[Tensor, "N Z"], pseudocount: float, tie: str
) -> Part:
    if tie == "trans":
        block = support.row_of_state
        tied = counts.new_zeros(len(support.rows), counts.shape[1]).index_add_(0, block, counts)
        totals = tied.add_(pseudocount).sum(1, keepdim=True)
        return lambda rows: (tied[block[rows]], totals[block[rows]])
    totals = _plus(counts, pseudocount).sum(1, keepdim=True)
    return lambda rows: (counts[rows], totals[rows])


def _emissions(
    support: Support, counts: Float[Tensor, "V K"], pseudocount: float, tie: str
) -> Part:
    if support.is_dense:
        totals = _plus(counts, pseudocount).sum(0, keepdim=True)
        return lambda rows: (counts[rows], totals)
    row_of_word, cells = support.row_of_word, support.rows[support.row_of_word]  # (V, K)
    if tie == "emit":
        tied = counts.sum(1, keepdim=True).add_(pseudocount)  # (V, 1)
        totals = tied.new_zeros(len(support.rows), 1).index_add_(0, row_of_word, tied)
        return lambda rows: (tied[rows] * (cells[rows] >= 0), totals[row_of_word[rows]])
    _plus(counts, pseudocount).masked_fill_(cells < 0, 0.0)
    totals = counts.new_zeros(support.num_states + 1)  # padding: the spare cell, also [-1]
    totals.index_add_(0, cells.flatten() % len(totals), counts.flatten())
    return lambda rows: (counts[rows], totals[cells[rows]])


def _plus(counts: Tensor, pseudocount: float) -> Tensor:
    return counts.add_(pseudocount) if pseudocount else counts


def _move(logits: Float[Tensor, "N W"], old: Float[Tensor, "N W"], rate: float, part: Part) -> None:
    """log(rate * counts / total + (1 - rate) * old), old where the total is zero."""
    step = max(1, CELLS // logits.shape[1])
    for start in range(0, len(logits), step):
        rows = slice(start, start + step)
        counts, total = part(rows)
        some = total > 0
        new = counts / torch.where(some, total, 1.0)
        if rate < 1 or not bool(some.all()):
            before = old[rows].to(new.dtype).exp()
            new = torch.where(some, rate * new + (1 - rate) * before, before)
        # The log of 0 takes ten times as long as others, so it is made of the least number.
        least = torch.finfo(new.dtype).tiny
        log_new = torch.threshold_(new.clamp_(min=least).log_(), math.log(least) + 0.5, -torch.inf)
        logits[rows] = log_new


def _logits(model: Scalar) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
    return model.init_logits, model.trans_logits, model.emit_logits
