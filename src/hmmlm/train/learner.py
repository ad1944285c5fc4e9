"""The learner of a configuration."""

from jaxtyping import Int
from torch import Tensor, nn

from hmmlm.errors import InputError
from hmmlm.params.scalar import Scalar
from hmmlm.support import Support
from hmmlm.train.config import Config
from hmmlm.train.distributed import ONE, Ranks
from hmmlm.train.em import Em
from hmmlm.train.expectation import Expectation
from hmmlm.train.gem import GeneralisedEm
from hmmlm.train.loop import Learner
from hmmlm.train.loss import HmmLoss
from hmmlm.train.memory import check_tables
from hmmlm.train.sgd import Sgd


def make_learner(
    config: Config,
    model: nn.Module,
    support: Support,
    *,
    eos_id: int,
    label_of_state: Int[Tensor, " Z"] | None = None,
    ranks: Ranks = ONE,
) -> Learner:
    """What trains a model, by the configuration's optimiser."""
    learner, carry = config.learner, config.data.layout == "streams"
    reset_id = eos_id if config.data.reset else None
    if learner.optimiser == "adamw":
        loss = HmmLoss(
            model,
            support,
            dropout=config.dropout,
            carry=carry,
            reset_id=reset_id,
            seed=config.seed,
            ranks=ranks,
        )
        return Sgd(model, loss, config.train, ranks)
    if carry and ranks.ranks > 1:
        raise InputError(
            f"optimiser {learner.optimiser} carries belief on one rank only; use layout packed or "
            f"windows, or one rank."
        )
    check_tables(support, next(model.parameters()).device)
    expectation = Expectation(
        carry=carry,
        reset_id=reset_id,
        label_of_state=label_of_state,
        reduce=ranks.sum_tensors if ranks.ranks > 1 else None,
    )
    if learner.optimiser == "em":
        assert isinstance(model, Scalar)
        return Em(model, expectation, pseudocount=learner.pseudocount, tie=learner.tie)
    return GeneralisedEm(
        model,
        expectation,
        settings=config.train,
        gradient_steps=learner.gradient_steps,
        pseudocount=learner.pseudocount,
    )
