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
        ctx.save_for_backward(*fields)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "log_evidence has no second derivative; leave out create_graph=True."
            )
        _ = ctx.saved_tensors  # raises if a table has changed since
        return None, None, *ctx.gradients(*grad_outputs)


class _Missing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, message: str, *fields: Tensor) -> Tensor:
        ctx.message = message
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError(ctx.message)


def with_gradient(value: Tensor, hmm: HMM, gradients: Gradients) -> Tensor:
    """The value, with a gradient with respect to the fields of the HMM.

    `gradients` turns the gradient with respect to the value into those of `hmm.fields()`.
    """
    return _Known.apply(value, gradients, *hmm.fields()) if _wanted(hmm) else value


def without_gradient(result: Result, name: str, hmm: HMM) -> Result:
    """The result, raising when somebody asks for a gradient of it instead of giving none."""
    return _guard(result, name, hmm) if _wanted(hmm) else result


def refuse_belief(value: Tensor, log_probs: Tensor) -> Tensor:
    """The value, raising when its gradient would be a gradient of a carried belief too."""
    came_from_us = log_probs.grad_fn is not None and log_probs.grad_fn.name() == "_MissingBackward"
    if came_from_us or not torch.is_grad_enabled() or not log_probs.requires_grad:
        return value  # a belief of an earlier call is a constant, as its own guard says
    message = "A carried belief has no gradient; detach its log_probs before it is carried."
    return _Missing.apply(value, message, log_probs)


def _wanted(hmm: HMM) -> bool:
    return torch.is_grad_enabled() and any(field.requires_grad for field in hmm.fields())


def _guard(value: Any, name: str, hmm: HMM) -> Any:
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return value
        message = (
            f"{name} has no gradient; differentiate log_prob(...).log_evidence, or use counts."
        )
        return _Missing.apply(value, message, *hmm.fields())
    parts = value._asdict().items()
    return value._replace(**{key: _guard(part, f"{name}.{key}", hmm) for key, part in parts})
