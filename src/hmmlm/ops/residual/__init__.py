"""A residual network of two layers with a LayerNorm; `kernel` makes it with Triton."""

import torch

from hmmlm.ops.kernels import why_not
from hmmlm.products import FLOAT32, TF32, Operand

WIDTHS = (16, 32, 64, 128, 256)
"""Widths that a program can hold all of."""


def choose(device: torch.device, width: int, operand: Operand) -> tuple[str, str]:
    """The implementation for networks on a device, and why."""
    reason = why_not(device)
    if reason is not None:
        return "plain", reason
    if operand in (FLOAT32, TF32):
        return "plain", "products in float32: torch's are faster"
    if width not in WIDTHS:
        return "plain", f"width {width:,}: the kernel has {', '.join(map(str, WIDTHS))}"
    return "kernel", f"products in {operand.name}"
