"""Messages as log-probabilities: the definition, never optimised."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hmmlm.ops.links import TILE, CountSums, Link, Tiles, finite, gather, spread

zero, one = -torch.inf, 0.0


def enter(log_probs: Tensor) -> Tensor:
    return log_probs


def leave(message: Tensor) -> Tensor:
    return message


def push(
    link: Link, message: Float[Tensor, "B K"]
) -> tuple[Float[Tensor, "B L"], Float[Tensor, " B"]]:
    """log sum_i exp(message_i) p(j | i) for every j, and the scale taken out (0 here)."""
    scale = message.new_zeros(message.shape[0])
    if isinstance(link, Tiles):
        return torch.logsumexp(message[:, :, None] + link.log_tile, 1), scale
    wide = spread(message, link.sources, link.table.num_sources, zero)
    total = message.new_full((len(message), link.table.num_states), zero)
    for rows, log_tile in link.table.log_tiles():
        total = torch.logaddexp(total, log_matmul(wide[:, rows], log_tile))
    return gather(total, link.destinations, zero), scale


def absorb(
    prediction: Float[Tensor, "B L"], log_emission: Float[Tensor, "B L"]
) -> tuple[Float[Tensor, "B L"], Float[Tensor, " B"], Bool[Tensor, " B"]]:
    """Takes in an observation: (posterior message, log of its probability, rows to be redone)."""
    joint = prediction + log_emission
    total = torch.logsumexp(joint, 1)
    message = joint - finite(total)[:, None]  # an impossible row stays -inf
    return message, total, torch.zeros_like(total, dtype=torch.bool)


def weigh(back: Float[Tensor, "B L"], log_emission: Float[Tensor, "B L"]) -> Float[Tensor, "B L"]:
    """What a step and everything after it say of its states: emission times backward message."""
    return back + log_emission


def pull(
    link: Link, weight: Float[Tensor, "B L"]
) -> tuple[Float[Tensor, "B K"], Bool[Tensor, " B"]]:
    """log sum_j p(j | i) exp(weight_j) for every i, its largest entry 0; and rows to be redone."""
    if isinstance(link, Tiles):
        back = torch.logsumexp(link.log_tile + weight[:, None, :], 2)
    else:
        wide = spread(weight, link.destinations, link.table.num_states, zero)
        back = weight.new_empty(len(weight), link.table.num_sources)
        for rows, tile in link.table.log_tiles():
            back[:, rows] = log_matmul(wide, tile.T)
        back = gather(back, link.sources, zero)
    most = back.max(1, keepdim=True).values
    back = back - finite(most)
    return back, torch.zeros(len(back), dtype=torch.bool, device=back.device)


def posterior(
    message: Float[Tensor, "B K"], back: Float[Tensor, "B K"]
) -> tuple[Float[Tensor, "B K"], Bool[Tensor, " B"]]:
    """p(z_t | everything), and the rows to be redone."""
    result, low = log_posterior(message, back)
    return result.exp(), low


def log_posterior(
    message: Float[Tensor, "B K"], back: Float[Tensor, "B K"]
) -> tuple[Float[Tensor, "B K"], Bool[Tensor, " B"]]:
    """log p(z_t | everything), and the rows to be redone."""
    result, _, low = absorb(message, back)
    return result, low


def add_pairs(
    link: Link,
    sums: CountSums,
    message: Float[Tensor, "B K"],
    weight: Float[Tensor, "B L"],
    times: Float[Tensor, " B"],
) -> Bool[Tensor, " B"]:
    """Adds p(z_t-1 = i, z_t = j | everything) so many times; gives the rows to be redone.

    Rows to be added zero times are left alone, whatever is in them.
    """
    redo = torch.zeros_like(times, dtype=torch.bool)
    if isinstance(link, Tiles):
        joint = message[:, :, None] + link.log_tile + weight[:, None, :]
        total = torch.logsumexp(joint, (1, 2))
        possible = (times != 0) & torch.isfinite(total)
        counts = (joint - torch.where(possible, total, 0.0)[:, None, None]).exp()
        counts = counts * times[:, None, None]
        sums.add_tile(
            torch.where(possible[:, None, None], counts, 0.0), link.sources, link.destinations
        )
        return redo
    prediction, _ = push(link, message)
    total = torch.logsumexp(prediction + weight, 1)
    message = spread(message, link.sources, link.table.num_sources, zero)
    weight = spread(weight, link.destinations, link.table.num_states, zero)
    for row in ((times != 0) & torch.isfinite(total)).nonzero().flatten().tolist():
        for part, log_tile in link.table.log_tiles():
            joint = message[row, part, None] + log_tile + weight[row] - total[row]
            sums.add_rows(part, joint.exp() * times[row])
    return redo


def log_matmul(left: Float[Tensor, "B K"], right: Float[Tensor, "K L"]) -> Float[Tensor, "B L"]:
    """log of exp(left) @ exp(right), without a temporary of more than about TILE cells."""
    step = max(1, TILE // max(1, left.numel()))
    result = left.new_empty(len(left), right.shape[1])
    for start in range(0, right.shape[1], step):
        columns = slice(start, start + step)
        result[:, columns] = torch.logsumexp(left[:, :, None] + right[None, :, columns], 1)
    return result
