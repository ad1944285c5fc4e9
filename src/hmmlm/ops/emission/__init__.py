"""Emissions on blocks: log softmax over the words of each state's block.

`kernel` makes it with Triton; the plain way is `cells.cell_products` and a sum by state.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.ops.cells import Tiling
from hmmlm.ops.kernels import why_not
from hmmlm.products import FLOAT32, Operand


def choose(device: torch.device, is_partition: bool, operand: Operand) -> tuple[str, str]:
    """The implementation for emissions on a device, and why."""
    reason = why_not(device)
    if reason is not None:
        return "plain", reason
    if not is_partition:
        return "plain", "words share only a part of their states: the kernel is for blocks"
    if operand == FLOAT32:
        return "plain", "products in float32: torch's are faster"
    return "kernel", f"products in {operand.name}"


def log_softmax(
    vectors: Float[Tensor, "S H"],
    items: Float[Tensor, "V H"],
    bias: Float[Tensor, " V"],
    rows: Int[Tensor, "R K"],
    tiling: Tiling,
    *,
    operand: Operand = FLOAT32,
) -> Float[Tensor, "V K"]:
    """log p(item | slot): items_v . vectors_s + bias_v normalised over the items of a row.

    `rows` are the vectors of each row's slots, none of them twice, -inf in padding (-1). O(V K H).
    """
    if not torch.is_grad_enabled():
        vectors, items, bias = vectors.detach(), items.detach(), bias.detach()
    if len(rows) == 1:
        from hmmlm.ops.emission import dense_kernel

        vectors = vectors.index_select(0, rows[0])
        return dense_kernel.LogSoftmax.apply(vectors, items, bias, operand)
    from hmmlm.ops.emission.kernel import LogSoftmax

    return LogSoftmax.apply(vectors, items, bias, rows, tiling, operand)
