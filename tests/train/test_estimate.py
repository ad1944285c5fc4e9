"""What a step costs, beside what it does cost."""

import dataclasses

import pytest
import torch

from hmmlm.params import lowrank, mlp, scalar, transformer
from hmmlm.support import Support
from hmmlm.train.config import make_config
from hmmlm.train.estimate import count_parameters, estimate

SETTINGS = [
    scalar.Settings(),
    lowrank.Settings(width=6),
    lowrank.Settings(width=6, shared=True),
    lowrank.Settings(width=6, composed=True),
    lowrank.Settings(width=6, factor_trans=False, bias=False),
    lowrank.Settings(width=6, factor_emit=False),
    lowrank.Settings(width=6, factor_trans=False, factor_init=False, factor_emit=False),
    mlp.Settings(width=6),
    mlp.Settings(width=6, destination=True, start="linear", layers=1, layer_norm=False),
    mlp.Settings(width=6, split=True),
    mlp.Settings(width=6, monolithic=True, destination=True),
    mlp.Settings(width=6, monolithic=True, split=True),
    mlp.Settings(width=6, composed=True, bias=False),
    transformer.Settings(width=8, depth=3),
    transformer.Settings(width=8, monolithic=False, composed=True),
]


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("blocks", [0, 4])
def test_parameters_are_counted_as_they_are(params, blocks):
    model = {"states": 12, "blocks": blocks, "kind": params.__module__.split(".")[-1]}
    config = dataclasses.replace(make_config({"model": model}), params=params)
    clusters = torch.arange(20) % 4
    support = Support.from_clusters(clusters, 3) if blocks else Support.dense(20, 12)
    built = params.build(support, generator=torch.Generator())
    assert count_parameters(config, 20) == sum(p.numel() for p in built.parameters())


def test_costs_grow_as_they_should():
    def cost(**model):
        tables = {"model": {"kind": "mlp", "width": 64, **model}, "train": {"dropout": 0.5}}
        return estimate(make_config(tables), 1000)

    small, large = cost(states=512, blocks=8), cost(states=1024, blocks=8)
    assert small.kept_states == 256 and large.kept_states == 512
    assert large.flops["transitions"] == 4 * small.flops["transitions"]
    assert large.flops["networks"] == 2 * small.flops["networks"]
    assert cost(states=512, blocks=16).flops["tiles"] * 4 == small.flops["tiles"]
    assert small.total_flops == sum(small.flops.values())
    assert small.total_memory == sum(small.memory.values())
