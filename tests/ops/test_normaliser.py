"""The normaliser of factored transitions."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hmmlm.ops.normaliser import log_normaliser
from hmmlm.transitions import Factored


class Largest(TorchDispatchMode):
    """The most numbers that one tensor has."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return out


def test_probabilities_are_kept_for_a_gradient_only():
    left, right = (torch.zeros(1024, 2, requires_grad=True) for _ in range(2))
    with Largest() as found:
        log_normaliser(left, right)
    assert found.numbers == 1 << 20
    with torch.no_grad(), Largest() as found:
        log_normaliser(left, right)
    assert found.numbers == 1 << 18


def test_rows_of_large_logits_sum_to_one_where_they_are_asked():
    generator = torch.Generator().manual_seed(0)
    left, right = (3 * torch.randn(200, 256, generator=generator) for _ in range(2))
    right += 3
    with torch.no_grad():
        norms = log_normaliser(left, right)
    assert norms.dtype == torch.float32 and norms.abs().max() > 500
    assert Factored(left, right, norms).row_error(torch.arange(200)) < 1e-4
    learnt = log_normaliser(left.requires_grad_(), right)
    learnt = learnt.detach()
    assert Factored(left.detach(), right, learnt).row_error(torch.arange(200)) > 1e-4
