"""Expectation maximisation (Baum & Welch) of tables: a learner without gradients."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from hmmlm.data.batches import Batch
from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.params.scalar import Scalar
from hmmlm.support import Support
from hmmlm.train.expectation import Expectation
from hmmlm.train.loop import Step

TIES = ("none", "emit", "trans")


class Em:
    """Tables moved towards the normalised expected counts of each step's batches.

    theta becomes rate * normalised(counts + pseudocount) + (1 - rate) * theta. With all batches of
    an epoch in a step and rate 1 that is Baum-Welch: the evidence of the text never falls, with a
    `pseudocount` log p(text) + pseudocount * sum log theta does not. A distribution without counts
    stays as it is, and without a pseudocount what is impossible stays impossible.

    `tie`: all states of a block share their distribution over words ("emit") or over the next
    state ("trans"); the model is tied at once. O(Z^2 + V K) time beyond the expectation; memory of
    four of the tables.
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
        if tie != "none":
            check_tie(model.support, tie)
            hmm = self._hmm()  # tables are means over their block: counts of one each
            fields = [field.double().exp() for field in hmm.fields()]
            _write(model, maximise(hmm, *fields, tie=tie), hmm, 1.0)

    def step(self, batches: Iterable[Batch], rate: float, done: float) -> Step:
        if not 0 < rate <= 1:
            raise InputError(
                f"The learning rate of EM is the weight of the new tables, at most 1, not {rate}."
            )
        hmm = self._hmm()
        sums = self.expectation(hmm, batches)
        new = maximise(hmm, *sums[:3], pseudocount=self.pseudocount, tie=self.tie)
        _write(self.model, new, hmm, rate)
        return Step(sums.loss, int(sums.tokens), 0.0)

    def state(self) -> dict[str, Tensor]:
        return self.expectation.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.expectation.restore(state)

    def _hmm(self) -> HMM:
        with torch.no_grad():
            return self.model()


def check_tie(support: Support, tie: str) -> None:
    """Refuses a tie where there are no blocks."""
    if support.is_dense or not support.is_partition:
        rows = "shares states among words" if not support.is_partition else "has no blocks"
        raise InputError(
            f"tie is {tie!r}, which ties the states of a block, but this model {rows}; use "
            "model.blocks, or train.tie none."
        )


def maximise(
    hmm: HMM,
    init: Float[Tensor, " Z"],
    trans: Float[Tensor, "Z Z"],
    emit: Float[Tensor, "V K"],
    *,
    pseudocount: float = 0.0,
    tie: str = "none",
) -> tuple[Tensor, Tensor, Tensor]:
    """p(z1), p(z' | z) and p(x | z) that make the counts most probable; written over them.

    A pseudocount is added once to each number that can be learnt. What has no counts at all is as
    in `hmm`.
    """
    support = hmm.support
    old_init, old_trans, old_emit = hmm.fields()
    init = _normalise(init.add_(pseudocount)[None], old_init[None])[0]
    if tie == "trans":
        block = _block_of_state(support)
        sums = trans.new_zeros(len(support.rows), trans.shape[1]).index_add_(0, block, trans)
        first = support.rows[:, 0]  # all states of a block have the same old row
        trans = _normalise(sums.add_(pseudocount), old_trans[first])[block]
    else:
        trans = _normalise(trans.add_(pseudocount), old_trans)
    if support.is_dense:
        emit.add_(pseudocount)
        total = emit.sum(0)
        return init, trans, _over(emit, total, old_emit)
    cells = support.rows[support.row_of_word]  # (V, K)
    real = cells >= 0
    if tie == "emit":
        words = emit.sum(1).add_(pseudocount)  # (V,)
        total = words.new_zeros(len(support.rows)).index_add_(0, support.row_of_word, words)
        emit = words[:, None] * real
        return init, trans, _over(emit, total[support.row_of_word][:, None], old_emit)
    emit.add_(real, alpha=pseudocount)
    total = emit.new_zeros(hmm.num_states + 1)
    total.index_add_(0, cells.flatten() % len(total), emit.flatten())  # padding: the spare cell
    return init, trans, _over(emit, total[cells], old_emit)


def _normalise(counts: Float[Tensor, "N Z"], old: Float[Tensor, "N Z"]) -> Float[Tensor, "N Z"]:
    return _over(counts, counts.sum(1, keepdim=True), old)


def _over(counts: Tensor, total: Tensor, old: Tensor) -> Tensor:
    """counts / total in place; where the total is zero, what the old table has."""
    counts /= torch.where(total > 0, total, 1.0)
    empty = total == 0
    if bool(empty.any()):
        empty = empty.expand_as(counts)
        counts[empty] = old[empty].to(counts.dtype).exp()
    return counts


def _block_of_state(support: Support) -> Tensor:
    block = torch.empty(support.num_states, dtype=torch.long, device=support.rows.device)
    places, slots = (support.rows >= 0).nonzero(as_tuple=True)
    block[support.rows[places, slots]] = places
    return block


def _write(model: Scalar, tables: Sequence[Tensor], old: HMM, rate: float) -> None:
    """Moves the tables of a model towards new ones, in probability."""
    logits = (model.init_logits, model.trans_logits, model.emit_logits)
    with torch.no_grad():
        for parameter, table, before in zip(logits, tables, old.fields(), strict=True):
            if rate < 1:
                before = before.to(table.dtype, copy=True).exp_()
                table.mul_(rate).add_(before, alpha=1 - rate)
            parameter.copy_(table.log_())
