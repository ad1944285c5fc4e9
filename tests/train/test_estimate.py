"""What a step costs, beside what it does cost."""

import dataclasses
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hmmlm.data.batches import Batch
from hmmlm.params import lowrank, mlp, scalar, transformer
from hmmlm.support import Support
from hmmlm.train.config import make_config
from hmmlm.train.estimate import LOST, count_parameters, estimate
from hmmlm.train.learner import make_learner
from hmmlm.train.loss import HmmLoss

SETTINGS = [
    scalar.Settings(),
    lowrank.Settings(width=6),
    lowrank.Settings(width=6, shared=True),
    lowrank.Settings(width=6, composed=True),
    lowrank.Settings(width=6, factor_trans=False, bias=False),
    lowrank.Settings(width=6, factor_emit=False),
    lowrank.Settings(width=6, factor_trans=False, factor_init=False, factor_emit=False),
    lowrank.Settings(6, shared=True, factor_trans=False, factor_init=False, factor_emit=False),
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


class Held(TorchDispatchMode):
    """The most bytes that tensors held at one time."""

    def __init__(self):
        super().__init__()
        self.known, self.now, self.peak = set(), 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return out

    def _see(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key, size):
        self.known.discard(key)
        self.now -= size


@pytest.mark.parametrize(
    "kind, states, blocks, dropout, words, more",
    [
        ("scalar", 512, 0, 0.25, 5000, {}),
        ("scalar", 2048, 32, 0.5, 5000, {}),
        ("lowrank", 1040, 65, 0.25, 1900, {}),
        ("lowrank", 2048, 32, 0.0, 1900, {}),
        ("lowrank", 768, 0, 0.25, 5000, {}),
        ("lowrank", 1024, 32, 0.25, 5000, {"factor_trans": False}),
        ("lowrank", 1024, 32, 0.25, 20_000, {"factor_emit": False}),
        ("mlp", 2048, 64, 0.5, 10_000, {}),
        ("mlp", 2048, 32, 0.5, 3000, {"composed": True}),
        ("mlp", 512, 0, 0.0, 3000, {"monolithic": True}),
        ("transformer", 1024, 32, 0.5, 5000, {}),
    ],
)
def test_memory_is_what_a_step_takes_within_a_quarter(kind, states, blocks, dropout, words, more):
    config = make_config(
        {
            "model": {"kind": kind, "states": states, "blocks": blocks, **more},
            "train": {"dropout": dropout},
        }
    )
    generator = torch.Generator().manual_seed(0)
    support = Support.dense(words, states)
    if blocks:
        support = Support.from_clusters(torch.arange(words) % blocks, states // blocks)
    tokens = torch.randint(words, (16, 64), generator=generator)
    batch = Batch(tokens, torch.full((16,), 64), torch.rand(tokens.shape) < 0.05, 1024)
    with Held() as held:
        model = config.params.build(support, generator=generator)
        loss = HmmLoss(model, support, dropout=config.dropout)
        optimiser = torch.optim.AdamW(model.parameters())
        best = [value.clone() for value in model.state_dict().values()]  # as training keeps them
        for _ in range(2):
            optimiser.zero_grad()
            loss(batch, 0.0).backward()
            optimiser.step()
    expected = estimate(config, words).total_memory / LOST
    assert 0.8 * held.peak < expected < 1.25 * held.peak, best[0].shape


@pytest.mark.parametrize(
    "kind, states, blocks, words, optimiser",
    [
        ("scalar", 512, 0, 5000, "em"),
        ("scalar", 2048, 32, 5000, "em"),
        ("scalar", 256, 8, 20_000, "em"),
        ("lowrank", 1040, 65, 1900, "gem"),
        ("mlp", 512, 0, 3000, "gem"),
    ],
)
def test_memory_of_counting_is_what_a_step_takes_within_a_quarter(
    kind, states, blocks, words, optimiser
):
    config = make_config(
        {
            "model": {"kind": kind, "states": states, "blocks": blocks},
            "train": {"optimiser": optimiser, "gradient_steps": 2},
        }
    )
    generator = torch.Generator().manual_seed(0)
    support = Support.dense(words, states)
    if blocks:
        support = Support.from_clusters(torch.arange(words) % blocks, states // blocks)
    tokens = torch.randint(words, (16, 64), generator=generator)
    batch = Batch(tokens, torch.full((16,), 64), torch.rand(tokens.shape) < 0.05, 1024)
    with Held() as held:
        model = config.params.build(support, generator=generator)
        learner = make_learner(config, model, support, eos_id=0)
        best = [value.clone() for value in model.state_dict().values()]  # as training keeps them
        for _ in range(2):
            learner.step([batch, batch], 0.5, 0.0)
    expected = estimate(config, words).total_memory / LOST
    assert 0.8 * held.peak < expected < 1.25 * held.peak, best[0].shape
