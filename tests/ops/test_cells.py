"""Products of the cells of a ragged map, made one way or the other."""

import pytest
import torch

from hmmlm.ops import cells
from hmmlm.ops.cells import Tiling, cell_products
from hmmlm.support import Support

ROWS = {
    "of their own": Support.ragged([[0, 3], [1], [2, 4, 0], [3]], 5),
    "shared": Support.ragged([[0, 3], [1], [0, 3], [2, 4, 0], [3]], 5),
}


@pytest.mark.parametrize("support", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("is_whole", [False, True])
def test_they_and_their_gradients_are_those_of_the_whole_product(
    support: Support, is_whole: bool, monkeypatch
) -> None:
    monkeypatch.setattr(cells, "is_whole", lambda *given: is_whole)
    generator = torch.Generator().manual_seed(0)
    vectors, items = (
        torch.randn(size, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        for size in (support.num_states, support.vocab_size)
    )
    slots = support.rows[support.row_of_word]
    weights = torch.randn(slots.shape, generator=generator).double().masked_fill(slots < 0, 0.0)
    made = cell_products(vectors, items, support.rows, Tiling(support.row_of_word))
    truth = (vectors[slots.clamp(min=0)] * items[:, None]).sum(2)
    torch.testing.assert_close(made[slots >= 0], truth[slots >= 0])
    ours = torch.autograd.grad((made * weights).sum(), (vectors, items))
    wanted = torch.autograd.grad((truth * weights).sum(), (vectors, items))
    torch.testing.assert_close(ours, wanted)


def test_all_products_are_made_only_where_a_gpu_has_room_for_them(monkeypatch) -> None:
    alone, together = Tiling(torch.arange(4)), Tiling(torch.zeros(4, dtype=torch.long))
    vectors, items = torch.zeros(5, 3), torch.zeros(4, 3)
    assert not cells.is_whole(vectors, items, alone)
    assert (alone.width, together.width) == (1, 4)  # found out now: there is no device in truth
    monkeypatch.setattr(torch.Tensor, "device", torch.device("cuda", 0))
    monkeypatch.setattr(cells, "room", lambda device, share, most: 20)
    assert cells.is_whole(vectors, items, alone)
    assert not cells.is_whole(vectors, items, together)
    monkeypatch.setattr(cells, "room", lambda device, share, most: 19)
    assert not cells.is_whole(vectors, items, alone)
