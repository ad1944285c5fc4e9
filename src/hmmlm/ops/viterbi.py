"""The best way into every state of a step."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.ops.links import TILE, Link, Tiles, gather, spread


def best_predecessors(
    link: Link, score: Float[Tensor, "B K"]
) -> tuple[Float[Tensor, "B L"], Int[Tensor, "B L"]]:
    """max_i score_i + log p(j | i) for every j, and the place of the best i among the sources."""
    if isinstance(link, Tiles):
        best, where = (score[:, :, None] + link.log_tile).max(1)
        return best, where.int()
    wide = spread(score, link.sources, link.table.num_sources, -torch.inf)
    best = wide.new_full((len(wide), link.table.num_states), -torch.inf)
    where = torch.zeros(best.shape, dtype=torch.int32, device=wide.device)
    for rows, log_tile in link.table.log_tiles():
        step = max(1, TILE // (wide.shape[0] * log_tile.shape[0]))
        for first in range(0, log_tile.shape[1], step):
            span = slice(first, first + step)
            value, place = (wide[:, rows, None] + log_tile[None, :, span]).max(1)
            better = value > best[:, span]
            best[:, span] = torch.where(better, value, best[:, span])
            where[:, span] = torch.where(better, (place + rows.start).int(), where[:, span])
    if link.sources is not None:
        # Places are among all sources so far; the caller counts places among the named ones.
        order = torch.arange(link.sources.shape[1], dtype=torch.int32, device=wide.device)
        places = spread(order.expand(link.sources.shape), link.sources, wide.shape[1], 0)
        where = places.gather(1, where.long())
    best = gather(best, link.destinations, -torch.inf)
    if link.destinations is not None:
        where = where.gather(1, link.destinations.clamp(min=0))
    return best, where
