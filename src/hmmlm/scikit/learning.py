"""Baum-Welch as hmmlearn does it: Dirichlet priors, some tables kept, all data or a batch."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hmmlm import inference
from hmmlm.errors import InputError, counted
from hmmlm.hmm import HMM
from hmmlm.params.scalar import Scalar
from hmmlm.scikit.sequences import Rows
from hmmlm.scikit.tables import FAINT
from hmmlm.train.em import maximise
from hmmlm.transitions import Dense

LETTERS = "ste"
"""p(z1), p(z' | z) and p(x | z), in the order of an HMM's fields."""


@dataclass
class Monitor:
    """How a fit went: log p(X) before each step, as hmmlearn's `monitor_` tells it.

    `converged` is also true where all `n_iter` steps were made, as it is there; `has_settled`
    only where the last step gained less than `tol`.
    """

    tol: float
    n_iter: int
    verbose: bool = False
    history: list[float] = field(default_factory=list)

    @property
    def iter(self) -> int:
        return len(self.history)

    @property
    def has_settled(self) -> bool:
        return self.iter >= 2 and self.history[-1] - self.history[-2] < self.tol

    @property
    def converged(self) -> bool:
        return self.iter == self.n_iter or self.has_settled

    def report(self, log_prob: float) -> None:
        if self.verbose:
            gain = f" ({log_prob - self.history[-1]:+.6f})" if self.history else ""
            print(f"step {self.iter + 1:,}: log p(X) {log_prob:.6f}{gain}", file=sys.stderr)
        self.history.append(log_prob)


class Counted(NamedTuple):
    """Expected counts by word, (V, Z) of emissions, in float64; and log p of all rows."""

    init: Float[Tensor, " Z"]
    trans: Float[Tensor, "Z Z"]
    emit: Float[Tensor, "V Z"]
    log_evidence: float

    def fields(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.init, self.trans, self.emit


class Priors(NamedTuple):
    """Dirichlet parameters of each cell, less one: what is added to counts. Emissions (V, Z)."""

    init: Tensor
    trans: Tensor
    emit: Tensor


def read_priors(start: Any, trans: Any, emit: Any, states: int, words: int, device: Any) -> Priors:
    """Numbers, or tables of the shape of what they are for."""
    named = {
        "startprob_prior": (start, (states,)),
        "transmat_prior": (trans, (states, states)),
        "emissionprob_prior": (emit, (states, words)),
    }
    found = []
    for name, (value, shape) in named.items():
        try:
            table = np.broadcast_to(np.asarray(value, dtype=np.float64), shape)
        except (ValueError, TypeError):
            raise InputError(
                f"{name} is {value!r} but must be a number or have shape {shape}."
            ) from None
        if not (np.isfinite(table) & (table >= 0)).all():
            raise InputError(
                f"{name} has {table.min()} but Dirichlet parameters are finite and at least 0; 1 "
                "changes nothing."
            )
        found.append(torch.from_numpy(table - 1.0).to(device))
    return Priors(found[0], found[1], found[2].T)


def tables_of(model: Scalar) -> HMM:
    """The HMM of a model whose logits are log tables, without a softmax."""
    return HMM(
        model.init_logits.detach(),
        Dense(model.trans_logits.detach()),
        model.emit_logits.detach(),
        model.support,
    )


def expect(hmm: HMM, batches: Iterable[Rows]) -> Counted:
    """Expected counts under an HMM; a sequence of probability zero is refused."""
    sums = [torch.zeros_like(table, dtype=torch.float64) for table in hmm.fields()]
    evidence, impossible, sequences = 0.0, 0, 0
    for rows in batches:
        found = inference.counts(
            hmm, rows.tokens.to(hmm.device), lengths=rows.lengths.to(hmm.device)
        )
        for total, table in zip(sums, found.fields(), strict=True):
            total += table
        impossible += int(torch.isneginf(found.log_evidence).sum())
        sequences += len(rows.lengths)
        evidence += float(found.log_evidence.sum())
    if impossible:
        raise InputError(
            f"The model gives probability zero to {impossible:,} of "
            f"{counted(sequences, 'sequence')} of X, from which nothing can be learnt; begin with "
            "tables without zeros, or take a prior above 1."
        )
    init, trans, emit = sums
    return Counted(init, trans, emit, evidence)


def learn(model: Scalar, counted: Counted, priors: Priors, params: str) -> None:
    """The M-step for the tables in `params`: max(counts + prior - 1, 0), normalised.

    As in hmmlearn a start or a transition of probability zero stays impossible whatever its
    prior. A distribution without counts stays as it is, and what is fainter than `FAINT` but not
    zero becomes that.
    """
    old = tables_of(model)
    moved = []
    for letter, table, count, prior in zip(
        LETTERS, old.fields(), counted.fields(), priors, strict=True
    ):
        if letter not in params:
            moved.append(table.double().exp())
            continue
        count = (count + prior).clamp_(min=0.0)
        if letter != "e":
            count.masked_fill_(torch.isneginf(table), 0.0)
        least = FAINT * count.sum(0 if letter == "e" else -1, keepdim=True)
        moved.append(torch.where(count > 0, count.maximum(least), 0.0))
    maximise(model, old, *moved)


@dataclass
class Stepwise:
    """Stepwise EM (Cappé & Moulines 2009): counts per symbol, moved towards each batch's.

    Batch k has weight (k + 1)^-decay; before the first the counts are those that the model itself
    expects of its own draws, so that no symbol becomes impossible because a batch lacks it.
    """

    init: Float[np.ndarray, " Z"]
    trans: Float[np.ndarray, "Z Z"]
    emit: Float[np.ndarray, "V Z"]
    batches: int = 0
    symbols: int = 0

    @staticmethod
    def begin(hmm: HMM, sequences_per_symbol: float) -> "Stepwise":
        use = hmm.long_run().double()
        init, trans, emit = (table.double().exp() for table in hmm.fields())
        rates = (init * sequences_per_symbol, use[:, None] * trans, use * emit)
        init, trans, emit = (rate.cpu().numpy() for rate in rates)
        return Stepwise(init, trans, emit)

    def take(self, counted: Counted, symbols: int, decay: float) -> Counted:
        """The counts of all batches so far, this one among them, as if all were weighed alike."""
        self.batches += 1
        self.symbols += symbols
        weight = (self.batches + 1) ** -decay
        moved = []
        for name, count in zip(("init", "trans", "emit"), counted.fields(), strict=True):
            rate = getattr(self, name)
            rate += weight * (count.cpu().numpy() / symbols - rate)
            moved.append(torch.from_numpy(rate * self.symbols).to(count.device))
        init, trans, emit = moved
        return Counted(init, trans, emit, counted.log_evidence)
