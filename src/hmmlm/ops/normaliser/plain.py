"""The row normaliser with torch's products, a group of rows at a time."""

from typing import Any

import torch
from torch import Tensor

from hmmlm.products import full_products

KEPT = 1 << 25
"""Probabilities that may be kept for the gradient; more are made a second time."""


class LogNormaliser(torch.autograd.Function):
    """log sum_j exp(left_i . right_j) for every i.

    Its gradient takes two more products of that size, or three where S x Z numbers are not kept.
    """

    @staticmethod
    @full_products()
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        keep = any(ctx.needs_input_grad) and len(left) * len(right) <= KEPT
        norms = left.new_empty(len(left))
        probs = left.new_empty(len(left), len(right)) if keep else None
        for rows in _groups(left, right):
            logits = left[rows] @ right.T
            norms[rows] = torch.logsumexp(logits, 1)
            if probs is not None:
                torch.exp(logits.sub_(norms[rows, None]), out=probs[rows])
        ctx.save_for_backward(left, right, norms, *(() if probs is None else (probs,)))
        return norms

    @staticmethod
    @torch.autograd.function.once_differentiable
    @full_products()
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (grad,) = grad_outputs
        left, right, norms, *kept = ctx.saved_tensors
        if kept:
            weights = kept[0] * grad[:, None]
            return weights @ right, weights.T @ left
        to_left, to_right = torch.empty_like(left), torch.zeros_like(right)
        for rows in _groups(left, right):
            weights = (left[rows] @ right.T).sub_(norms[rows, None]).exp_()
            weights *= grad[rows, None]
            torch.mm(weights, right, out=to_left[rows])
            to_right.addmm_(weights.T, left[rows])
        return to_left, to_right


def _groups(left: Tensor, right: Tensor) -> list[slice]:
    """Groups of rows whose logits stay near the processor, or are large enough to fill a GPU."""
    cells = 1 << (18 if left.device.type == "cpu" else 26)
    step = max(1, cells // len(right))
    return [slice(start, start + step) for start in range(0, len(left), step)]
