"""Messages as probabilities with the scale taken out at every step: matrix products.

A number keeps its digits while it is above `lowest`. A row with a possible state below that is
reported, for what was lost there can be what explains the rest of the text; its caller redoes it
in a wider arithmetic. So messages have full precision, however far apart the states are.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hmmlm.ops.links import CountSums, Link, Tiles, finite, gather, spread

zero, one = 0.0, 1.0


def lowest(dtype: torch.dtype) -> float:
    """What a message may hold without losing digits: float32 ends at 1e-38, float64 at 1e-308."""
    return 1e-290 if dtype == torch.float64 else 1e-30


def enter(log_probs: Tensor) -> Tensor:
    return log_probs.exp()


def leave(message: Tensor) -> Tensor:
    return message.log()


def push(
    link: Link, message: Float[Tensor, "B K"]
) -> tuple[Float[Tensor, "B L"], Float[Tensor, " B"]]:
    """sum_i message_i p(j | i) for every j, and the log of the scale taken out of it."""
    if isinstance(link, Tiles):
        probs, most = tile_probs(link)
        return (message[:, None, :] @ probs)[:, 0], most
    wide = spread(message, link.sources, link.table.num_sources, zero)
    total = message.new_zeros(len(message), link.table.num_states)
    for rows, tile in link.table.prob_tiles():
        total.addmm_(wide[:, rows], tile)
    return gather(total, link.destinations, zero), message.new_zeros(message.shape[0])


def absorb(
    prediction: Float[Tensor, "B L"], log_emission: Float[Tensor, "B L"]
) -> tuple[Float[Tensor, "B L"], Float[Tensor, " B"], Bool[Tensor, " B"]]:
    """Takes in an observation: (posterior message, log of its probability, rows to be redone)."""
    most = finite(log_emission.max(1).values)
    joint = prediction * (log_emission - most[:, None]).exp()
    low = _lost(joint, torch.isfinite(log_emission))
    message, scale = normalise(joint)
    return message, scale.log() + most, low


def weigh(back: Float[Tensor, "B L"], log_emission: Float[Tensor, "B L"]) -> Float[Tensor, "B L"]:
    """What a step and everything after it say of its states: emission times backward message."""
    most = finite(log_emission.max(1, keepdim=True).values)
    return back * (log_emission - most).exp()


def pull(
    link: Link, weight: Float[Tensor, "B L"]
) -> tuple[Float[Tensor, "B K"], Bool[Tensor, " B"]]:
    """sum_j p(j | i) weight_j for every i, its largest entry 1; and rows to be redone."""
    return _over_most(link, _pulled(link, weight))


def _over_most(
    link: Link, back: Float[Tensor, "B K"]
) -> tuple[Float[Tensor, "B K"], Bool[Tensor, " B"]]:
    most = back.max(1, keepdim=True).values
    real = torch.ones_like(back, dtype=torch.bool) if link.sources is None else link.sources >= 0
    return back / torch.where(most > 0, most, 1.0), _lost(back, real)


def _pulled(link: Link, weight: Float[Tensor, "B L"]) -> Float[Tensor, "B K"]:
    if isinstance(link, Tiles):
        return (tile_probs(link)[0] @ weight[:, :, None])[:, :, 0]
    wide = spread(weight, link.destinations, link.table.num_states, zero)
    # Into one place: small results between large tiles would leave holes in the memory.
    back = weight.new_empty(len(weight), link.table.num_sources)
    for rows, tile in link.table.prob_tiles():
        back[:, rows] = wide @ tile.T
    return gather(back, link.sources, zero)


def posterior(
    message: Float[Tensor, "B K"], back: Float[Tensor, "B K"]
) -> tuple[Float[Tensor, "B K"], Bool[Tensor, " B"]]:
    """p(z_t | everything), and the rows to be redone."""
    result, total = normalise(message * back)
    return result, total < lowest(total.dtype)


def log_posterior(
    message: Float[Tensor, "B K"], back: Float[Tensor, "B K"]
) -> tuple[Float[Tensor, "B K"], Bool[Tensor, " B"]]:
    """log p(z_t | everything), and the rows to be redone.

    Both messages have all their digits but their product may be too small for a number.
    """
    total = (message * back).sum(1)
    result = message.log() + back.log() - total.log()[:, None]
    return result, total < lowest(total.dtype)


def add_pairs(
    link: Link,
    sums: CountSums,
    message: Float[Tensor, "B K"],
    weight: Float[Tensor, "B L"],
    times: Float[Tensor, " B"],
) -> Bool[Tensor, " B"]:
    """Adds p(z_t-1 = i, z_t = j | everything) so many times; gives the rows to be redone.

    Rows that are reported add nothing.
    """
    prediction, _ = push(link, message)
    return _add(link, sums, message, weight, times, (prediction * weight).sum(1))


def pull_pairs(
    link: Link,
    sums: CountSums,
    message: Float[Tensor, "B K"],
    weight: Float[Tensor, "B L"],
    times: Float[Tensor, " B"],
) -> tuple[Float[Tensor, "B K"], Bool[Tensor, " B"]]:
    """What `pull` gives, after adding what `add_pairs` does: the link is made twice, not thrice."""
    pulled = _pulled(link, weight)
    lost = _add(link, sums, message, weight, times, (message * pulled).sum(1))
    back, low = _over_most(link, pulled)
    return back, low | lost


def _add(
    link: Link, sums: CountSums, message: Tensor, weight: Tensor, times: Tensor, total: Tensor
) -> Bool[Tensor, " B"]:
    rows = times != 0
    low = ~(total >= lowest(message.dtype))  # also where it is no number
    factor = torch.where(rows & ~low, times / total, 0.0)
    weight = torch.where((rows & ~low)[:, None], weight * factor[:, None], 0.0)
    if isinstance(link, Tiles):
        probs, _ = tile_probs(link)
        counts = message[:, :, None] * probs * weight[:, None, :]
        sums.add_tile(counts, link.sources, link.destinations)
        return low & rows
    message = spread(message, link.sources, link.table.num_sources, zero)
    weight = spread(weight, link.destinations, link.table.num_states, zero)
    for part, tile in link.table.prob_tiles():
        ids = part if link.rows is None else link.rows[part]
        sums.add_rows(ids, (message[:, part].T @ weight).mul_(tile), link.columns)
    return low & rows


def tile_probs(link: Tiles) -> tuple[Float[Tensor, "B K L"], Float[Tensor, " B"]]:
    """The tile over its largest entry, which can be far below 1, and the log of that."""
    most = finite(link.log_tile.amax((1, 2)))
    return (link.log_tile - most[:, None, None]).exp(), most


def normalise(joint: Float[Tensor, "B K"]) -> tuple[Float[Tensor, "B K"], Float[Tensor, " B"]]:
    """The joint over its sum (as it is where that is zero), and the sum."""
    scale = joint.sum(1)
    return joint / torch.where(scale > 0, scale, 1.0)[:, None], scale


def _lost(values: Float[Tensor, "B K"], possible: Bool[Tensor, "B K"]) -> Bool[Tensor, " B"]:
    """Rows where a possible state is too small to have kept its digits."""
    return ((values < lowest(values.dtype)) & possible).any(1)
