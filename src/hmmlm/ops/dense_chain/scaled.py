"""Dense chains with one torch matrix product per step."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.ops.links import least_probability
from hmmlm.ops.messages.scaled import lowest


def pack(log_probs: Float[Tensor, "K K"], *, turned: bool = False) -> Float[Tensor, "K K"]:
    """The matrix, or it turned over for the way back, in the order a step reads it."""
    probs = log_probs.exp()
    return probs.T.contiguous() if turned else probs


def least(log_probs: Float[Tensor, "..."]) -> float:
    """The smallest probability that is not zero; 0 where one is too small for a number."""
    return least_probability(log_probs)


def forward(
    message: Float[Tensor, "B K"],
    packed: Float[Tensor, "K K"],
    log_weights: Float[Tensor, "V K"],
    index: Int[Tensor, "B C"],
    restart: Bool[Tensor, "B C"],
    active: Bool[Tensor, "B C"],
    initial: Float[Tensor, " K"],
    log_scales: Float[Tensor, "B C"],
    low: Bool[Tensor, " B"],
    messages: Float[Tensor, "B C K"] | None,
    *,
    begin: int,
    exact_zeros: bool,
) -> Float[Tensor, "B K"]:
    """The forward recursion over the steps from `begin`; gives the message each row ends with.

    A step is message <- normalise((restart ? initial : message @ matrix) * weight), with the weight
    exp(log_weights[index]), or 1 where the index is -1. Its scale is the sum before normalising
    and its log goes into `log_scales`. Rows that are not active keep their message, at 0. Every
    message goes into `messages` unless that is None. Rows in which a possible state falls below
    `lowest` are marked in `low`; a prediction of zero is impossible if `exact_zeros`, and may have
    been lost if not.
    """
    if begin == index.shape[1]:
        return message.clone()
    least, zero = lowest(message.dtype), 0.0 if exact_zeros else -1.0
    tiny = torch.finfo(message.dtype).tiny
    weights, possible = _weights(log_weights, index)  # (B, C, K)
    prediction = torch.empty_like(message)
    buffers = message.new_empty(2, *message.shape)
    any_restart, all_active = torch.stack([restart.any(0), active.all(0)]).tolist()
    for step in range(begin, index.shape[1]):
        torch.mm(message, packed, out=prediction)
        if any_restart[step]:
            torch.where(restart[:, step, None], initial, prediction, out=prediction)
        after = buffers[step % 2]
        torch.mul(prediction, weights[:, step], out=after)
        small = (after < least) & (prediction > zero) & possible[:, step]
        low |= small.any(1) & active[:, step]
        scale = after.sum(1)
        after /= scale.clamp(min=tiny)[:, None]
        if not all_active[step]:
            torch.where(active[:, step, None], after, message, out=after)
            scale.masked_fill_(~active[:, step], 1.0)
        log_scales[:, step] = scale.log()
        message = after
        if messages is not None:
            messages[:, step] = message
    return message.clone()


def backward(
    back: Float[Tensor, "B K"],
    packed: Float[Tensor, "K K"],
    log_weights: Float[Tensor, "V K"],
    index: Int[Tensor, "B C"],
    cut: Bool[Tensor, "B C"],
    messages: Float[Tensor, "B C K"],
    log_scales: Float[Tensor, "B C"],
    counted: Bool[Tensor, "B C"] | None,
    posteriors: Float[Tensor, "B C K"],
    totals: Float[Tensor, "B C"],
    low: Bool[Tensor, " B"],
    pairs: Float[Tensor, "B C K"] | None,
    *,
    exact_zeros: bool,
) -> Float[Tensor, "B K"]:
    """C steps of the backward recursion; `back` belongs to the last of them.

    `packed` is the matrix transposed. The message forward times the one backward goes into
    `posteriors`, over its sum, which goes into `totals`. Where `counted`, weight * back / (scale *
    total) goes into `pairs`: its outer product with the message before, times the matrix, is the
    joint of two steps. Without `pairs`, it is the backward messages that go into `posteriors`:
    the product may be too small for a number though its logarithm is not. Gives the message of
    the step before the first. Where `cut`, a step says nothing of the one before it, whose message
    is all ones, and its pairs are 0. `low` and `exact_zeros` as in `forward`.
    """
    least, zero = lowest(back.dtype), 0.0 if exact_zeros else -1.0
    tiny = torch.finfo(back.dtype).tiny
    weights, possible = _weights(log_weights, index)
    any_cut = cut.any(0).tolist()
    for step in range(index.shape[1] - 1, -1, -1):
        posteriors[:, step] = back
        weights[:, step] *= back
        small = (weights[:, step] < least) & (back > zero) & possible[:, step]
        back = torch.mm(weights[:, step], packed)
        small |= (back < least) & (back > zero)
        low |= small.any(1) & ~cut[:, step]
        back /= back.amax(1, keepdim=True).clamp_(min=tiny)
        if any_cut[step]:
            back.masked_fill_(cut[:, step, None], 1.0)
    if counted is None or pairs is None:
        torch.sum(posteriors * messages, 2, out=totals)
        return back
    posteriors *= messages
    torch.sum(posteriors, 2, out=totals)
    divisor = totals.clamp(min=lowest(totals.dtype))
    posteriors /= divisor[:, :, None]
    factor = ((-log_scales).exp() / divisor).masked_fill_(cut | ~counted, 0.0)
    torch.mul(weights, factor[:, :, None], out=pairs)
    return back


def log(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    return values.log()


def add_rows(
    table: Float[Tensor, "V K"],
    index: Int[Tensor, "B C"],
    rows: Float[Tensor, "B C K"],
    counted: Bool[Tensor, "B C"],
) -> None:
    """table[index] += rows where counted; the table may be of a wider type."""
    table.index_add_(0, index[counted], rows[counted].to(table.dtype))


def _weights(
    log_weights: Float[Tensor, "V K"], index: Int[Tensor, "B C"]
) -> tuple[Float[Tensor, "B C K"], Bool[Tensor, "B C K"]]:
    """The weights of all steps, and where they are not zero."""
    log_values = log_weights[index.clamp(min=0)].masked_fill_((index < 0)[:, :, None], 0.0)
    possible = log_values > -torch.inf
    return log_values.exp_(), possible
