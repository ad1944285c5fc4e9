"""Generalised expectation maximisation: AdamW on expected counts, for any parameterisation."""

from collections.abc import Callable, Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hmmlm.data.batches import Batch
from hmmlm.errors import InputError, check_count
from hmmlm.hmm import HMM
from hmmlm.train.expectation import Expectation, Sums
from hmmlm.train.loop import Step
from hmmlm.train.schedule import TrainSettings
from hmmlm.train.sgd import decayed
from hmmlm.transitions import Dense, Factored

TRIES = 6
"""How often the rate is halved where a step made things worse."""


class GeneralisedEm:
    """A few steps of AdamW towards Q(theta) = sum of expected counts * log tables(theta).

    Counts are those of the tables before the step, all of them in memory, Z x Z of transitions
    too. If Q did not rise, the weights go back and it is tried again at half the rate; in the end
    they stay as they were. So with all batches in a step the evidence never falls (with a
    `pseudocount` log p(text) + pseudocount * sum log tables does not). `share` is called after a
    step with the weights, to give all processes those of one: rounding may differ between them.
    O(gradient_steps Z^2 H) time beyond the expectation.
    """

    def __init__(
        self,
        model: nn.Module,
        expectation: Expectation | None = None,
        *,
        settings: TrainSettings,
        gradient_steps: int = 10,
        pseudocount: float = 0.0,
        share: Callable[[Iterable[Tensor]], None] | None = None,
    ) -> None:
        check_count("gradient_steps", gradient_steps)
        if not pseudocount >= 0:
            raise InputError(f"pseudocount is {pseudocount} but must be at least 0.")
        self.model, self.settings = model, settings
        self.expectation = expectation or Expectation()
        self.gradient_steps, self.pseudocount, self.share = gradient_steps, pseudocount, share

    can_be_left = True

    def step(self, batches: Iterable[Batch], rate: float, done: float) -> Step:
        with torch.no_grad():
            hmm = self.model()
            tables = with_table(hmm)
            sums = Sums(*(total.double() for total in self.expectation(tables, batches)))
            if self.pseudocount:
                for total, table in zip(sums[:3], tables.fields(), strict=True):
                    total.add_(torch.isfinite(table), alpha=self.pseudocount)
            del tables
            before = float(expected_log_prob(hmm, sums))
        old = {name: value.clone() for name, value in self.model.state_dict().items()}
        for _ in range(TRIES):
            self._climb(sums, rate)
            with torch.no_grad():
                if float(expected_log_prob(self.model(), sums)) >= before:
                    break
            self.model.load_state_dict(old)
            rate /= 2
        if self.share is not None:
            self.share([parameter.detach() for parameter in self.model.parameters()])
        return Step(sums.loss, int(sums.tokens), 0.0)

    def _climb(self, sums: Sums, rate: float) -> None:
        betas = (self.settings.beta1, self.settings.beta2)
        optimiser = torch.optim.AdamW(decayed(self.model, self.settings), rate, betas)
        for _ in range(self.gradient_steps):
            optimiser.zero_grad()
            (-expected_log_prob(self.model(), sums) / sums.tokens).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
            optimiser.step()
        optimiser.zero_grad()

    def state(self) -> dict[str, Tensor]:
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        pass


def with_table(hmm: HMM) -> HMM:
    """The same HMM, its transitions one table."""
    if isinstance(hmm.transitions, Dense):
        return hmm
    table = Dense(hmm.transitions.rows(0, hmm.num_states))
    return HMM(hmm.log_init, table, hmm.log_emit, hmm.support)


def expected_log_prob(hmm: HMM, sums: Sums) -> Float[Tensor, ""]:
    """Q = sum of counts * log tables, in float64, differentiable in the tables.

    Of factored transitions no table is made: O(Z^2 H) time, O(Z H) memory.
    """
    value = _product(sums.init, hmm.log_init) + _product(sums.emit, hmm.log_emit)
    if isinstance(hmm.transitions, Factored):
        left, right, log_norm = (field.double() for field in hmm.transitions.fields())
        return value + ((sums.trans @ right) * left).sum() - sums.trans.sum(1) @ log_norm
    return value + _product(sums.trans, hmm.transitions.log_trans)


def _product(counts: Tensor, log_probs: Tensor) -> Float[Tensor, ""]:
    """What never happened counts nothing, however impossible it is: 0 * -inf would be NaN."""
    seen = torch.where(counts > 0, log_probs.to(counts.dtype), 0.0)
    return (counts * seen).sum()
