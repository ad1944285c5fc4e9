"""Forty lines of plain PyTorch: scaled matrix products, nothing about underflow or lengths.

What a careful user would write. In float64 it is also the second opinion on the truth.
"""

import torch
from torch import Tensor


def log_likelihood(init: Tensor, trans: Tensor, emit: Tensor, tokens: Tensor) -> Tensor:
    """log p(x) of each row from probabilities; emissions are (V, Z)."""
    _, scales, _ = forward(init, trans, emit, tokens, keep=False)
    return scales.double().log().sum(1)


def forward(
    init: Tensor, trans: Tensor, emit: Tensor, tokens: Tensor, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    seen = emit[tokens.T]  # (T, B, Z)
    messages = torch.empty_like(seen) if keep else seen[:0]
    scales = []
    prediction = init.expand(seen.shape[1:])
    for step in range(len(seen)):
        message = prediction * seen[step]
        scale = message.sum(1, keepdim=True)
        message /= scale
        scales.append(scale)
        if keep:
            messages[step] = message
        prediction = message @ trans
    return messages, torch.cat(scales, 1), seen


def counts(
    init: Tensor, trans: Tensor, emit: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(log p of each row, starts (Z,), transitions (Z, Z), emissions (V, Z))."""
    messages, scales, seen = forward(init, trans, emit, tokens, keep=True)
    weights = seen / scales.T[:, :, None]
    posterior = messages.clone()
    back_trans = trans.T.contiguous()
    back = torch.ones_like(messages[0])
    for step in range(len(seen) - 1, -1, -1):
        posterior[step] *= back
        weights[step] *= back
        back = weights[step] @ back_trans
    states = trans.shape[0]
    pairs = messages[:-1].reshape(-1, states).T @ weights[1:].reshape(-1, states)
    emissions = torch.zeros_like(emit).index_add_(
        0, tokens.T.reshape(-1), posterior.reshape(-1, states)
    )
    return scales.double().log().sum(1), posterior[0].sum(0), pairs * trans, emissions
