"""The E-step: expected counts of a model's tables over batches, labels obeyed where there are any.

Their sums are all that an M-step reads.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.data.batches import Batch
from hmmlm.hmm import HMM
from hmmlm.inference import counts
from hmmlm.inference.labelled import labelled
from hmmlm.train.loop import Diverged
from hmmlm.transitions import Dense


class Sums(NamedTuple):
    """Expected starts, transitions and emissions, log p and the number of tokens.

    In float64, but for the tables of counts of a single batch, which are in the model's type.
    """

    init: Float[Tensor, " Z"]
    trans: Float[Tensor, "Z Z"]
    emit: Float[Tensor, "V K"]
    log_evidence: Float[Tensor, ""]
    tokens: Float[Tensor, ""]

    @property
    def loss(self) -> float:
        """Nats per token."""
        return float(-self.log_evidence / self.tokens)


Reduce = Callable[[list[Tensor]], None]
"""Adds up tensors over all processes, in place."""


class Expectation:
    """Expected counts, summed over batches in float64. Memory: two of the tables, and a batch.

    Every row is a text of its own: carried forward only, belief would count the transition from
    one batch to the next without what comes after it, and the evidence could fall. After
    `reset_id` the chain starts afresh. Tokens that a batch labels may come from the states of their
    label only: those that `label_of_state` gives it. `reduce` is called once a step with the sums
    of this process.
    """

    def __init__(
        self,
        *,
        reset_id: int | None = None,
        label_of_state: Int[Tensor, " Z"] | None = None,
        reduce: Reduce | None = None,
    ) -> None:
        self.reset_id, self.reduce = reset_id, reduce
        self.label_of_state = label_of_state

    def __call__(self, hmm: HMM, batches: Iterable[Batch]) -> Sums:
        """The sums under an HMM with a table of transitions.

        Raises where a row of tokens has probability zero.
        """
        assert isinstance(hmm.transitions, Dense)
        sums: list[Tensor] = []
        evidence, tokens, impossible = torch.zeros(3, dtype=torch.float64, device=hmm.device)
        for batch in batches:
            if batch.num_tokens == 0:  # a rank without rows; its missing token would be counted
                continue
            fields, log_evidence = self._count(hmm, batch)
            sums = [total.double() for total in sums]
            for total, field in zip(sums, fields, strict=bool(sums)):
                total += field
            sums = sums or list(fields)
            gone = torch.isneginf(log_evidence)
            evidence += log_evidence[~gone].sum()
            impossible += gone.sum()
            tokens += batch.num_tokens
        sums = sums or [torch.zeros_like(field) for field in hmm.fields()]
        sums += [evidence, tokens, impossible]
        if self.reduce is not None:
            sums = [total.double() for total in sums]
            self.reduce(sums)
        if (rows := int(sums.pop())) > 0:
            raise Diverged(
                f"Training stopped: the model gives probability zero to {rows:,} of the rows of "
                "text. Words, transitions or labels of theirs had no counts in earlier steps, or "
                "the model it started from rules them out; use a train.pseudocount above 0, or a "
                "train.learning_rate below 1."
            )
        return Sums(*sums)

    def _count(self, hmm: HMM, batch: Batch) -> tuple[tuple[Tensor, ...], Float[Tensor, " B"]]:
        tokens, fold = batch.tokens.to(hmm.device), None
        if batch.labels is not None and self.label_of_state is not None:
            marks = batch.labels.to(hmm.device)
            hmm, tokens, fold = labelled(hmm, tokens, marks, self.label_of_state)
        found = counts(
            hmm,
            tokens,
            lengths=batch.lengths.to(hmm.device),
            restart=batch.restart.to(hmm.device),
            reset_id=self.reset_id,
        )
        found = found if fold is None else fold(found)
        return found.fields(), found.log_evidence
