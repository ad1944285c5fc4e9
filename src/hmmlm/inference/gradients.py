"""Gradients that are known without differentiating the recursion, and those that do not exist."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from hmmlm.hmm import HMM

Gradients = Callable[[Tensor], Sequence[Tensor]]
Result = TypeVar("Result")


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Gradients, *fields: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "log_evidence has no second derivative; leave out create_graph=True."
            )
        return None, None, *ctx.gradients(*grad_outputs)


class _Missing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, name: str, *fields: Tensor) -> Tensor:
        ctx.name = name
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError(
            f"{ctx.name} has no gradient; differentiate log_prob(...).log_evidence, or use counts."
        )


def with_gradient(value: Tensor, hmm: HMM, gradients: Gradients) -> Tensor:
    """The value, with a gradient with respect to the fields of the HMM.

    `gradients` turns the gradient with respect to the value into those of `hmm.fields()`.
    """
    return _Known.apply(value, gradients, *hmm.fields()) if _wanted(hmm) else value


def without_gradient(result: Result, name: str, hmm: HMM) -> Result:
    """The result, raising when somebody asks for a gradient of it instead of giving none."""
    return _guard(result, name, hmm) if _wanted(hmm) else result


def _wanted(hmm: HMM) -> bool:
    return torch.is_grad_enabled() and any(field.requires_grad for field in hmm.fields())


def _guard(value: Any, name: str, hmm: HMM) -> Any:
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return value
        return _Missing.apply(value, name, *hmm.fields())
    parts = value._asdict().items()
    return value._replace(**{key: _guard(part, f"{name}.{key}", hmm) for key, part in parts})
