"""Tables without kernels, where they are not allowed."""

import sys
from importlib import import_module

import pytest
import torch

from hmmlm.ops import kernels, normaliser, residual
from hmmlm.ops.kernels import without_kernels
from hmmlm.params import mlp
from hmmlm.params.dropout import Keeper
from hmmlm.support import Support

BLOCKS = Support.from_clusters([0, 1, 2, 1, 0, 2, 2, 1, 0, 0], [4, 8, 6])


def test_no_kernel_runs_where_they_are_not_allowed(monkeypatch) -> None:
    monkeypatch.setattr(kernels, "lacking", lambda device: None)
    # Without a GPU nor the interpreter, a kernel that is asked for cannot run.
    names = ("choice", "emission", "normaliser", "residual")
    for name in names:
        monkeypatch.setitem(sys.modules, f"hmmlm.ops.{name}.kernel", None)
        monkeypatch.delattr(import_module(f"hmmlm.ops.{name}"), "kernel", raising=False)
    model = mlp.Settings(width=16).build(BLOCKS, generator=torch.Generator().manual_seed(0))
    keeper, generator = Keeper(BLOCKS, 0.5), torch.Generator().manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16), without_kernels():
        states = keeper.draw(generator)
        hmm = model(states, kept=keeper.support)
    sum(field.exp().sum() for field in hmm.fields() if field.requires_grad).backward()
    with pytest.raises(ImportError, match="choice"):
        keeper.draw(generator)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ImportError, match="residual"):
        model(states)
    monkeypatch.setattr(residual, "choose", lambda *given: ("plain", "it is a test"))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ImportError, match="normaliser"):
        model(states)
    monkeypatch.setattr(normaliser, "choose", lambda *given: ("plain", "it is a test"))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ImportError, match="emission"):
        model(states)
