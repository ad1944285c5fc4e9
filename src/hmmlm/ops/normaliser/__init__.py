"""The normaliser of factored transitions: log sum_j exp(left_i . right_j), and its gradient.

`plain` makes it with torch, `kernel` with Triton, without ever writing the S x Z products.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.ops.kernels import is_interpreted, lacking, why_not
from hmmlm.ops.normaliser import plain
from hmmlm.ops.normaliser.plain import KEPT
from hmmlm.products import FLOAT32, Operand

__all__ = ["KEPT", "choose", "log_normaliser"]


def choose(device: torch.device, operand: Operand) -> tuple[str, str]:
    """The implementation for factors on a device, and why."""
    reason = why_not(device)
    if reason is not None:
        return "plain", reason
    if operand == FLOAT32:
        return "plain", "factors of float32: torch's products are faster"
    return "kernel", f"products in {operand.name}"


def log_normaliser(
    left: Float[Tensor, "S H"],
    right: Float[Tensor, "Z H"],
    *,
    operand: Operand = FLOAT32,
    implementation: str = "auto",
) -> Float[Tensor, " S"]:
    """log sum_j exp(left_i . right_j) for every i.

    `operand` is what the factors were rounded to, if they were: kernels make products in it. Where
    nothing is to be learnt from it and factors are not rounded, products are summed in float64:
    questions sum them in other orders, and rows must add up to one whatever these are.
    O(S Z H) time, and a fixed number of cells of the product at a time (S x Z up to `KEPT`).
    """
    is_asked = not torch.is_grad_enabled()
    if is_asked:  # which a function does not see
        left, right = left.detach(), right.detach()
    if implementation == "auto":
        implementation, _ = choose(left.device, operand)
        if is_asked and operand == FLOAT32:
            return plain.LogNormaliser.apply(left.double(), right.double()).to(left.dtype)
    if implementation not in ("plain", "kernel"):
        raise InputError(f"implementation is {implementation!r} but must be auto, plain or kernel.")
    if implementation == "plain":
        return plain.LogNormaliser.apply(left, right)
    if not is_interpreted() and (reason := lacking(left.device)) is not None:
        raise InputError(f"implementation is 'kernel' but {reason}; use plain, or auto.")
    from hmmlm.ops.normaliser.kernel import LogNormaliser

    return LogNormaliser.apply(left, right, operand)
