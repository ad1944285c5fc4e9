"""The learner of a configuration."""

from collections.abc import Iterable

from jaxtyping import Int
from torch import Tensor, nn

from hmmlm.params.scalar import Scalar
from hmmlm.support import Support
from hmmlm.train.config import Config
from hmmlm.train.distributed import ONE, Ranks
from hmmlm.train.em import Em
from hmmlm.train.expectation import Expectation
from hmmlm.train.gem import GeneralisedEm
from hmmlm.train.loop import Learner
from hmmlm.train.loss import HmmLoss
from hmmlm.train.next_token import NextTokenLoss
from hmmlm.train.sgd import Sgd


def make_learner(
    config: Config,
    model: nn.Module,
    support: Support | None,
    *,
    eos_id: int,
    label_of_state: Int[Tensor, " Z"] | None = None,
    given: Iterable[nn.Parameter] = (),
    ranks: Ranks = ONE,
) -> Learner:
    """What trains a model, by the configuration's optimiser; one without a support is no HMM.

    `given` are the parameters that a teacher has given what they begin with.
    """
    learner, data = config.learner, config.data
    reset_id, carry = eos_id if data.reset else None, data.layout == "streams"
    if learner.is_descent:
        if support is None:
            loss = NextTokenLoss(model, carry=carry, reset_id=reset_id, seed=config.seed)
        else:
            loss = HmmLoss(
                model,
                support,
                dropout=config.dropout,
                carry=carry,
                reset_id=reset_id,
                reset_at_ends=data.reset_at_ends,
                joint=bool(data.states),
                seed=config.seed,
                ranks=ranks,
            )
        full = data.batch_size * data.length if data.vary_length else 0
        return Sgd(
            model,
            loss,
            config.train,
            ranks,
            optimiser=learner.optimiser,
            full_tokens=full,
            frozen=given,
            thaw=learner.frozen,
        )
    expectation = Expectation(
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
        share=ranks.share_tensors if ranks.ranks > 1 else None,
    )
