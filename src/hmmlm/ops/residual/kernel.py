"""A residual network of two layers as two Triton kernels: LayerNorm(relu(W2 y + b2) + y).

y is relu(W1 x + b1). A program holds whole rows, so that layers and LayerNorm are one pass.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hmmlm.ops.kernels import is_interpreted, product
from hmmlm.ops.narrow_kernel import narrowed
from hmmlm.products import Operand


@triton.jit
def _matrix(weight, W: tl.constexpr):
    return tl.load(weight + tl.arange(0, W)[:, None] * W + tl.arange(0, W)[None, :])


@triton.jit
def _normalised(first, second, EPS: tl.constexpr, W: tl.constexpr):
    total = tl.maximum(second.to(tl.float32), 0.0) + first.to(tl.float32)
    centred = total - (tl.sum(total, 1) / W)[:, None]
    over = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / W + EPS)
    return centred * over[:, None], over


@triton.jit
def _forward(
    inputs, weight1, bias1, weight2, bias2, scale, shift, firsts, seconds, outputs, S,
    EPS: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, W)
    where = rows[:, None].to(tl.int64) * W + columns[None, :]
    mask = (rows < S)[:, None]
    given = tl.load(inputs + where, mask=mask, other=0.0)
    first = tl.dot(given, tl.trans(_matrix(weight1, W)), input_precision=PRECISION)
    first = tl.maximum(first + tl.load(bias1 + columns)[None, :], 0.0)
    first = narrowed(first, given, PRECISION)
    tl.store(firsts + where, first, mask=mask)
    second = tl.dot(first, tl.trans(_matrix(weight2, W)), input_precision=PRECISION)
    second = narrowed(second + tl.load(bias2 + columns)[None, :], given, PRECISION)
    tl.store(seconds + where, second, mask=mask)
    normal, _ = _normalised(first, second, EPS, W)
    answer = normal * tl.load(scale + columns)[None, :] + tl.load(shift + columns)[None, :]
    # Rounded once, here: all that read it read the same numbers.
    answer = narrowed(answer, given, PRECISION)
    tl.store(outputs + where, answer.to(tl.float32), mask=mask)


@triton.jit
def _backward(
    weight1, weight2, scale, firsts, seconds, grad, to_inputs, to_firsts, to_seconds,
    to_scale, to_shift, to_bias1, to_bias2, S,
    EPS: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    rows = part * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, W)
    where = rows[:, None].to(tl.int64) * W + columns[None, :]
    mask = (rows < S)[:, None]
    first = tl.load(firsts + where, mask=mask, other=0.0)
    second = tl.load(seconds + where, mask=mask, other=0.0)
    normal, over = _normalised(first, second, EPS, W)
    change = tl.load(grad + where, mask=mask, other=0.0)
    tl.store(to_scale + part * W + columns, tl.sum(change * normal, 0))
    tl.store(to_shift + part * W + columns, tl.sum(change, 0))
    change *= tl.load(scale + columns)[None, :]
    change -= (tl.sum(change, 1) / W)[:, None] + normal * (tl.sum(change * normal, 1) / W)[:, None]
    change *= over[:, None]
    to_second = tl.where(second > 0, change, 0.0)
    tl.store(to_bias2 + part * W + columns, tl.sum(to_second, 0))
    to_second = narrowed(to_second, first, PRECISION)
    tl.store(to_seconds + where, to_second, mask=mask)
    change = tl.dot(to_second, _matrix(weight2, W), change, input_precision=PRECISION)
    to_first = tl.where(first > 0, change, 0.0)
    tl.store(to_bias1 + part * W + columns, tl.sum(to_first, 0))
    to_first = narrowed(to_first, first, PRECISION)
    tl.store(to_firsts + where, to_first, mask=mask)
    to_input = tl.dot(to_first, _matrix(weight1, W), input_precision=PRECISION)
    tl.store(to_inputs + where, to_input, mask=mask)


class Residual(torch.autograd.Function):
    """The network's answer to (S, W) inputs rounded to `operand`, itself rounded; float32."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight1: Tensor,
        bias1: Tensor,
        weight2: Tensor,
        bias2: Tensor,
        scale: Tensor,
        shift: Tensor,
        eps: float,
        operand: Operand,
    ) -> Tensor:
        inputs, weight1, weight2 = (
            operand.narrow(part).contiguous() for part in (inputs, weight1, weight2)
        )
        outputs = torch.empty(inputs.shape, device=inputs.device)
        ctx.constants = constants = _constants(inputs, eps, operand.precision)
        firsts, seconds = torch.empty_like(inputs), torch.empty_like(inputs)
        _forward[_grid(inputs, constants)](
            inputs, weight1, bias1, weight2, bias2, scale, shift, firsts, seconds, outputs,
            len(inputs), **constants,
        )  # fmt: skip
        ctx.save_for_backward(inputs, weight1, weight2, scale, firsts, seconds)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        inputs, weight1, weight2, scale, firsts, seconds = ctx.saved_tensors
        grid = _grid(inputs, ctx.constants)
        to_inputs = torch.empty(inputs.shape, device=inputs.device)
        to_firsts, to_seconds = torch.empty_like(inputs), torch.empty_like(inputs)
        vectors = torch.empty(4, *grid, inputs.shape[1], device=inputs.device)
        _backward[grid](
            weight1, weight2, scale, firsts, seconds, grad_outputs[0].contiguous(), to_inputs,
            to_firsts, to_seconds, *vectors, len(inputs), **ctx.constants,
        )  # fmt: skip
        to_scale, to_shift, to_bias1, to_bias2 = vectors.sum(1)
        to_weight1 = product(to_firsts.T, inputs)
        to_weight2 = product(to_seconds.T, firsts)
        gradients = to_inputs, to_weight1, to_bias1, to_weight2, to_bias2, to_scale, to_shift
        return *gradients, None, None


def _grid(inputs: Tensor, constants: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(len(inputs), constants["ROWS"]),)


def _constants(inputs: Tensor, eps: float, precision: str) -> dict[str, Any]:
    width = inputs.shape[1]
    return {
        "EPS": eps,
        "W": width,
        "ROWS": 16 if is_interpreted() else 64,
        "PRECISION": precision,
        "num_warps": 8 if width > 64 else 4,
        "num_stages": 1,
    }
