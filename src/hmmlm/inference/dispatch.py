"""Which implementation answers, and why."""

from collections.abc import Iterator

import torch
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.inference.chain import Chain
from hmmlm.inference.recursion import DenseScaled, Stepwise
from hmmlm.ops.messages import reference, scaled

RECURSIONS = ("reference", "scaled")


def choose(implementation: str, offered: tuple[str, ...] = RECURSIONS) -> tuple[str, str]:
    """The implementation that will run, and the reason."""
    if implementation == "auto":
        if "scaled" in offered:
            return "scaled", "matrix products; rows that underflow are redone in log space"
        return offered[0], "the only implementation"
    if implementation not in offered:
        raise InputError(
            f"implementation is {implementation!r} but this function offers "
            f"{', '.join(offered)} and auto."
        )
    return implementation, "asked for"


def recursion(chain: Chain, name: str) -> Stepwise | DenseScaled:
    """The forward-backward passes of an implementation over a chain."""
    if name == "reference":
        return Stepwise(chain, reference)
    if chain.dense and chain.table.is_resident:
        return DenseScaled(chain)
    return Stepwise(chain, scaled)


def stretches(steps: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of consecutive stretches of at most `size` steps."""
    for start in range(0, steps, size):
        yield start, min(start + size, steps)


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, name, *fields):  # type: ignore[override]
        ctx.name = name
        return value.clone()

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[override]
        raise NotImplementedError(
            f"{ctx.name} has no gradient; differentiate log_prob(...).log_evidence, or use counts."
        )


def no_gradient(value: Tensor, name: str, chain: Chain) -> Tensor:
    """The value, raising when somebody asks for its gradient instead of giving none."""
    fields = [field for field in chain.hmm.fields() if field.requires_grad]
    if not fields or not torch.is_grad_enabled():
        return value
    return _NoGradient.apply(value, name, *fields)
