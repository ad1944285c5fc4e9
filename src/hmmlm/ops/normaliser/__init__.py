"""The normaliser of factored transitions: log sum_j exp(left_i . right_j), and its gradient.

`plain` makes it with torch, `kernel` with Triton, without ever writing the S x Z products.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from hmmlm.ops.kernels import why_not
from hmmlm.ops.normaliser import plain
from hmmlm.ops.normaliser.plain import KEPT

__all__ = ["KEPT", "choose", "log_normaliser"]


def choose(
    device: torch.device, operand: torch.dtype | None, tf32: bool = False
) -> tuple[str, str]:
    """The implementation for factors on a device, and why."""
    reason = why_not(device)
    if reason is not None:
        return "plain", reason
    if tf32:
        return "kernel", "products in tf32"
    if operand is None:
        return "plain", "factors of float32: torch's products are faster"
    return "kernel", f"products in {str(operand).removeprefix('torch.')}"


def log_normaliser(
    left: Float[Tensor, "S H"],
    right: Float[Tensor, "Z H"],
    *,
    operand: torch.dtype | None = None,
    tf32: bool = False,
    implementation: str = "auto",
) -> Float[Tensor, " S"]:
    """log sum_j exp(left_i . right_j) for every i.

    `operand` is a narrower type that holds the factors without loss, if there is one: products
    are made in it; with `tf32` kernels make them of numbers that were rounded so.
    O(S Z H) time, and a fixed number of cells of the product at a time (S x Z up to `KEPT`).
    """
    if not torch.is_grad_enabled():  # which a function does not see
        left, right = left.detach(), right.detach()
    if implementation == "auto":
        implementation, _ = choose(left.device, operand, tf32)
    if implementation == "plain":
        return plain.LogNormaliser.apply(left, right)
    from hmmlm.ops.normaliser.kernel import LogNormaliser

    return LogNormaliser.apply(left, right, torch.float32 if tf32 else operand or left.dtype, tf32)
