"""The softmax over all words, for one block of all states, as Triton kernels and torch products."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hmmlm.ops.kernels import is_interpreted, product
from hmmlm.ops.normaliser.kernel import log_normaliser
from hmmlm.products import Operand


@triton.jit
def _table(
    vectors, items, bias, norms, table, V, Z,
    H: tl.constexpr, WIDE: tl.constexpr, ITEMS: tl.constexpr, SIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """items . vectors + bias - norm, as a table by item."""
    ids = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    states = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    logits = tl.zeros([ITEMS, SIDE], tl.float32)
    for first in range(0, H, WIDE):
        features = first + tl.arange(0, WIDE)
        mine = tl.load(
            items + ids[:, None].to(tl.int64) * H + features[None, :],
            mask=(ids < V)[:, None] & (features < H)[None, :], other=0.0,
        )  # fmt: skip
        theirs = tl.load(
            vectors + states[:, None] * H + features[None, :],
            mask=(states < Z)[:, None] & (features < H)[None, :], other=0.0,
        )  # fmt: skip
        logits = tl.dot(mine, tl.trans(theirs), logits, input_precision=PRECISION)
    logits += tl.load(bias + ids, mask=ids < V, other=0.0)[:, None]
    logits -= tl.load(norms + states, mask=states < Z, other=0.0)[None, :]
    where = table + ids[:, None].to(tl.int64) * Z + states[None, :]
    tl.store(where, logits, mask=(ids < V)[:, None] & (states < Z)[None, :])


@triton.jit
def _change(table, grad, totals, change, to_bias, V, Z, ITEMS: tl.constexpr, SIDE: tl.constexpr):
    """grad - p total, and its sums by item."""
    ids = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    alone = tl.zeros([ITEMS], tl.float32)
    for first in range(0, Z, SIDE):
        states = first + tl.arange(0, SIDE)
        mask = (ids < V)[:, None] & (states < Z)[None, :]
        cells = ids[:, None].to(tl.int64) * Z + states[None, :]
        total = tl.load(totals + states, mask=states < Z, other=0.0)
        probs = tl.exp(tl.load(table + cells, mask=mask, other=float("-inf")))
        new = tl.load(grad + cells, mask=mask, other=0.0) - probs * total[None, :]
        alone += tl.sum(new, 1)
        tl.store(change + cells, new.to(change.dtype.element_ty), mask=mask)
    tl.store(to_bias + ids, alone, mask=ids < V)


class LogSoftmax(torch.autograd.Function):
    """log p(item | state), (V, Z): softmax over all items, of factors rounded to `operand`."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, items: Tensor, bias: Tensor, operand: Operand) -> Tensor:
        vectors, items = (part.to(operand.dtype).contiguous() for part in (vectors, items))
        norms = log_normaliser(vectors, items, operand.precision, bias)
        (states, width), words = vectors.shape, len(items)
        table = torch.empty(words, states, device=items.device)
        item, side = (
            (32, 32)
            if is_interpreted()
            else (128, min(128, max(16, triton.next_power_of_2(states))))
        )
        wide = min(64, max(16, triton.next_power_of_2(width)))
        _table[(triton.cdiv(words, item), triton.cdiv(states, side))](
            vectors, items, bias, norms, table, words, states,
            H=width, WIDE=wide, ITEMS=item, SIDE=side, PRECISION=operand.precision,
            num_warps=8, num_stages=3,
        )  # fmt: skip
        ctx.save_for_backward(vectors, items, table)
        return table

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        grad = grad_outputs[0].contiguous()
        vectors, items, table = ctx.saved_tensors
        words, states = table.shape
        change = torch.empty(table.shape, device=table.device, dtype=items.dtype)
        to_bias = torch.empty(words, device=table.device)
        _change[(triton.cdiv(words, 4),)](
            table, grad, grad.sum(0), change, to_bias, words, states,
            ITEMS=4, SIDE=min(512, triton.next_power_of_2(states)), num_warps=4,
        )  # fmt: skip
        return product(change.T, items), product(change, vectors), to_bias, None
