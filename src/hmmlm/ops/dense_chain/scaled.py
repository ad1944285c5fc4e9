"""Dense chains with one torch matrix product per step."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def forward(
    message: Float[Tensor, "B K"],
    probs: Float[Tensor, "K K"],
    emission: Float[Tensor, "B C K"],
    restart: Bool[Tensor, "B C"],
    active: Bool[Tensor, "B C"],
    initial: Float[Tensor, " K"],
    scales: Float[Tensor, "B C"],
    messages: Float[Tensor, "B C K"] | None,
    begin: int,
) -> Float[Tensor, "B K"]:
    """The forward recursion over the steps from `begin`; gives the message each row ends with.

    A step is message <- normalise((restart ? initial : message @ probs) * emission); its scale is
    the sum before normalising and goes into `scales`. Rows that are not active keep their
    message, with scale 1. Every message goes into `messages` unless that is None.
    """
    batch, steps, width = emission.shape
    tiny = torch.finfo(emission.dtype).tiny
    prediction = emission.new_empty(batch, width)
    buffers = emission.new_empty(2, batch, width)
    any_restart, all_active = restart.any(0).tolist(), active.all(0).tolist()
    for step in range(begin, steps):
        torch.mm(message, probs, out=prediction)
        if any_restart[step]:
            torch.where(restart[:, step, None], initial, prediction, out=prediction)
        after = buffers[step % 2]
        torch.mul(prediction, emission[:, step], out=after)
        scale = after.sum(1)
        after /= scale.clamp(min=tiny)[:, None]
        if not all_active[step]:
            torch.where(active[:, step, None], after, message, out=after)
            scale.masked_fill_(~active[:, step], 1.0)
        scales[:, step] = scale
        message = after
        if messages is not None:
            messages[:, step] = message
    return message.clone()


def backward(
    back: Float[Tensor, "B K"],
    probs: Float[Tensor, "K K"],
    emission: Float[Tensor, "B C K"],
    cut: Bool[Tensor, "B C"],
    backs: Float[Tensor, "B C K"],
) -> Float[Tensor, "B K"]:
    """C steps of the backward recursion; `back` belongs to the last of them.

    Writes the backward message of every step into `backs` and gives that of the step before the
    first. Where `cut`, a step says nothing of the one before it, whose message is all ones.
    """
    batch, steps, width = emission.shape
    tiny = torch.finfo(emission.dtype).tiny
    weight = emission.new_empty(batch, width)
    any_cut = cut.any(0).tolist()
    for step in range(steps - 1, -1, -1):
        backs[:, step] = back
        torch.mul(back, emission[:, step], out=weight)
        back = torch.mm(weight, probs.T)
        back /= back.amax(1, keepdim=True).clamp_(min=tiny)
        if any_cut[step]:
            back.masked_fill_(cut[:, step, None], 1.0)
    return back
