"""The best of each row of a table, in the order in which they stand, as a Triton kernel."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _choose(
    scores, ids, keep, firsts, chosen, K, WIDE: tl.constexpr, SOME: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slots = tl.arange(0, WIDE)
    mine = tl.load(scores + row * K + slots, mask=slots < K, other=-2.0)
    better = tl.zeros([WIDE], tl.int32)
    for first in range(0, K, SOME):
        others = first + tl.arange(0, SOME)
        theirs = tl.load(scores + row * K + others, mask=others < K, other=-2.0)
        above = theirs[None, :] > mine[:, None]
        above = above | ((theirs[None, :] == mine[:, None]) & (others[None, :] < slots[:, None]))
        better += tl.sum(above.to(tl.int32), 1)
    kept = (better < tl.load(keep + row)) & (slots < K)
    places = tl.load(firsts + row) + tl.cumsum(kept.to(tl.int32), 0) - 1
    values = tl.load(ids + row * K + slots, mask=kept, other=0)
    tl.store(chosen + places, values, mask=kept)


def choose(scores: Tensor, ids: Tensor, keep: Tensor, firsts: Tensor, count: int) -> Tensor:
    """The ids of the `keep` (R,) highest scores (R, K) of each row; ties go to the first.

    Those of row r begin at `firsts` (R,); `count` is how many there are in all.
    """
    chosen = torch.empty(count, dtype=ids.dtype, device=ids.device)
    width = scores.shape[1]
    wide = max(16, triton.next_power_of_2(width))
    _choose[(len(scores),)](
        scores, ids, keep, firsts, chosen, width, WIDE=wide, SOME=16, num_warps=4
    )
    return chosen
