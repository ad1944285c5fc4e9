"""Products of vectors for the cells of a ragged map only: (V, K) of V x S that there could be."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.ops.kernels import room
from hmmlm.products import full_products

WIDEST = 64
"""Items of a tile at most."""

WHOLE = 1 << 30
"""Products of all items with all vectors that a GPU makes to choose from, or as many as a sixteenth
of its memory holds: one such product is faster than many small ones."""

GATHERED = 1 << 22
"""Numbers gathered at a time."""


@dataclass(frozen=True)
class Tiling:
    """Items cut into tiles that share their row of a map: `row_of_item` says which.

    A tile has up to W items, so that they can be multiplied with their row's vectors together.
    """

    row_of_item: Int[Tensor, " V"]

    @cached_property
    def width(self) -> int:
        """W: a power of two near the number of items that share a row."""
        shared = len(self.row_of_item) / max(1, int(self.row_of_item.unique().numel()))
        return max(1, min(WIDEST, 1 << (int(shared).bit_length() - 1)))

    @cached_property
    def tiles(self) -> tuple[Int[Tensor, " N"], Int[Tensor, "N W"], Int[Tensor, " V"]]:
        """The row of each tile, its items (-1 for padding), and the place of each item in them."""
        order = torch.sort(self.row_of_item, stable=True).indices
        sizes = torch.bincount(self.row_of_item)
        tiles = -(-sizes // self.width)
        row_of_tile = torch.repeat_interleave(torch.arange(len(sizes)).to(tiles), tiles)
        starts = (tiles.cumsum(0) - tiles) * self.width  # the first place of each row
        firsts = sizes.cumsum(0) - sizes
        rows = self.row_of_item[order]
        place_in_order = starts[rows] + torch.arange(len(order)).to(rows) - firsts[rows]
        items = torch.full((len(row_of_tile) * self.width,), -1).to(order)
        items[place_in_order] = order
        places = torch.empty_like(order)
        places[order] = place_in_order
        return row_of_tile, items.view(-1, self.width), places

    @cached_property
    def groups(self) -> tuple[Int[Tensor, " V"], Int[Tensor, " R+1"], int]:
        """The items ordered by their row, where each row's begin, and the size of the largest."""
        order = torch.sort(self.row_of_item, stable=True).indices
        sizes = torch.bincount(self.row_of_item)
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        return order, offsets, int(sizes.max())

    def to(self, device: torch.device) -> "Tiling":
        return self if self.row_of_item.device == device else Tiling(self.row_of_item.to(device))


def cell_products(
    vectors: Float[Tensor, "S H"],
    items: Float[Tensor, "V H"],
    rows: Int[Tensor, "R K"],
    tiling: Tiling,
) -> Float[Tensor, "V K"]:
    """items_v . vectors_s for every slot s of the item's row; any number in padding (-1).

    O(V K H) time. The gathered vectors, (R, K, H), are never all there at a time. On a GPU, where
    each item has a row of its own, O(V S H) time and V S numbers.
    """
    if rows.shape[0] == 1:
        return items @ vectors[rows[0].clamp(min=0)].T
    if is_whole(vectors, items, tiling):
        return (items @ vectors.T).gather(1, rows[tiling.row_of_item].clamp(min=0))
    return _CellProducts.apply(vectors, items, rows, tiling)


def is_whole(vectors: Tensor, items: Tensor, tiling: Tiling) -> bool:
    """Whether all products are made, and those that are wanted chosen from them."""
    if vectors.device.type != "cuda" or tiling.width > 1:
        return False
    return len(items) * len(vectors) <= room(vectors.device, 16, WHOLE)


class _CellProducts(torch.autograd.Function):
    @staticmethod
    @full_products()
    def forward(ctx: Any, vectors: Tensor, items: Tensor, rows: Tensor, tiling: Tiling) -> Tensor:
        ctx.tiling = tiling
        ctx.save_for_backward(vectors, items, rows)
        row_of_tile, members, places = tiling.tiles
        products = items.new_empty(*members.shape, rows.shape[1])  # (N, W, K)
        for part in _parts(ctx.tiling, rows, vectors):
            slots = rows[row_of_tile[part]].clamp(min=0)  # (n, K)
            theirs = items[members[part].clamp(min=0)]  # (n, W, H)
            torch.bmm(theirs, vectors[slots].transpose(1, 2), out=products[part])
        return products.flatten(0, 1)[places]

    @staticmethod
    @torch.autograd.function.once_differentiable
    @full_products()
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (grad,) = grad_outputs
        vectors, items, rows = ctx.saved_tensors
        row_of_tile, members, places = ctx.tiling.tiles
        to_vectors = torch.zeros_like(vectors)
        to_members = items.new_empty(*members.shape, items.shape[1])  # (N, W, H)
        tiled = grad.new_zeros(members.numel(), rows.shape[1])
        tiled[places] = grad
        tiled = tiled.view(*members.shape, -1)
        for part in _parts(ctx.tiling, rows, vectors):
            slots, weights = rows[row_of_tile[part]], tiled[part]
            weights = weights * (slots >= 0)[:, None, :]
            slots, mine = slots.clamp(min=0), members[part]
            back = torch.bmm(weights.transpose(1, 2), items[mine.clamp(min=0)])  # (n, K, H)
            to_vectors.index_add_(0, slots.flatten(), back.flatten(0, 1))
            torch.bmm(weights, vectors[slots], out=to_members[part])
        return to_vectors, to_members.flatten(0, 1)[places], None, None


def _parts(tiling: Tiling, rows: Tensor, vectors: Tensor) -> list[slice]:
    row_of_tile, _, _ = tiling.tiles
    step = max(1, GATHERED // max(1, (rows.shape[1] + tiling.width) * vectors.shape[1]))
    return [slice(start, start + step) for start in range(0, len(row_of_tile), step)]
