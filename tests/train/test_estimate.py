"""What a step costs, beside what it does cost."""

import dataclasses
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from costs import check_memory
from hmmlm.baselines import hmm_rnn
from hmmlm.baselines.kinds import NEURAL
from hmmlm.params import lowrank, mlp, pretrained, scalar, transformer
from hmmlm.support import Support
from hmmlm.train.config import make_config
from hmmlm.train.estimate import count_parameters, estimate, network_memory

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
LLAMA = str(Path(__file__).parent / "llama")
if find_spec("transformers"):
    SETTINGS += [
        pretrained.Settings(checkpoint=LLAMA, random=True),
        pretrained.Settings(checkpoint=LLAMA, random=True, depth=1, bias=False),
    ]


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("blocks", [0, 4])
def test_parameters_are_counted_as_they_are(params, blocks):
    model = {"states": 12, "blocks": blocks, "kind": params.__module__.split(".")[-1]}
    config = make_config({"model": {**model, **dataclasses.asdict(params)}})
    assert config.params == params
    clusters = torch.arange(20) % 4
    support = Support.from_clusters(clusters, 3) if blocks else Support.dense(20, 12)
    built = params.build(support, generator=torch.Generator())
    assert count_parameters(config, 20) == sum(p.numel() for p in built.parameters())


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["uneven", "uniform"])
def test_parameters_of_words_that_have_not_as_many_states(params, kind):
    support = Support.from_clusters(torch.arange(20) % 4, [1, 2, 6, 3])
    if kind == "uniform":
        support = Support.uniform(20, 12, 4, generator=torch.Generator().manual_seed(0))
    if kind == "uniform" and getattr(params, "composed", False):
        return  # made of blocks
    model = {"states": 12, "blocks": 0, "kind": params.__module__.split(".")[-1]}
    config = make_config({"model": {**model, **dataclasses.asdict(params)}})
    built = params.build(support, generator=torch.Generator())
    counted = count_parameters(config, 20, support.num_blocks, support.width)
    assert counted == sum(p.numel() for p in built.parameters())


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


def test_tables_that_are_made_a_tile_at_a_time_take_no_memory():
    """As measured: 18,000 states of width 16 take 0.05 GB, where their table is 1.3 GB."""
    tables = {"model": {"kind": "lowrank", "states": 18_000, "blocks": 0, "width": 16}}
    tables |= {"data": {"batch_size": 2, "length": 4}, "train": {"dropout": 0.0}}
    config = make_config(tables)
    assert 0.03e9 < estimate(config, 50, validation=False).total_memory < 0.1e9
    assert estimate(config, 50).total_memory < 0.5e9
    tables["model"]["states"] = 16_000
    assert estimate(make_config(tables), 50).total_memory > 5 * 4 * 16_000**2


def test_states_by_chance_cost_what_as_many_blocks_do():
    tables = {"model": {"kind": "lowrank", "states": 4096, "blocks": 0, "states_per_word": 64}}
    chance = estimate(make_config(tables), 1000)
    tables["model"] = {"kind": "lowrank", "states": 4096, "blocks": 64}
    assert chance == estimate(make_config(tables), 1000)


ADAMW = [
    ("scalar", 512, 0, 0.25, 5000, {}),
    ("scalar", 2048, 32, 0.5, 5000, {}),
    ("scalar", 512, 0, 0.75, 500, {}),
    ("lowrank", 1040, 65, 0.25, 1900, {}),
    ("lowrank", 2048, 32, 0.0, 1900, {}),
    ("lowrank", 4096, 64, 0.75, 2000, {}),
    ("lowrank", 4096, 64, 0.75, 2000, {"width": 16}),
    ("lowrank", 768, 0, 0.25, 5000, {}),
    ("lowrank", 1024, 0, 0.5, 2000, {}),
    ("lowrank", 1024, 0, 0.75, 2000, {}),
    ("lowrank", 256, 0, 0.5, 30_000, {}),
    ("lowrank", 1024, 32, 0.25, 5000, {"factor_trans": False}),
    ("lowrank", 1024, 32, 0.25, 20_000, {"factor_emit": False}),
    ("mlp", 1024, 32, 0.5, 3000, {}),
    ("mlp", 1024, 32, 0.5, 3000, {"composed": True, "scale": 0.05}),
    ("mlp", 512, 0, 0.0, 3000, {"monolithic": True}),
    ("transformer", 512, 32, 0.5, 3000, {}),
]
if find_spec("transformers"):
    named = {"checkpoint": LLAMA, "random": True}
    ADAMW += [("pretrained", 512, 32, 0.5, 3000, named), ("pretrained", 512, 0, 0.0, 300, named)]
COUNTING = [
    ("scalar", 256, 0, 5000, "em"),
    ("scalar", 512, 0, 5000, "em"),
    ("scalar", 1024, 32, 5000, "em"),
    ("scalar", 256, 8, 20_000, "em"),
    ("scalar", 512, 0, 5000, "gem"),
    ("lowrank", 1040, 65, 1900, "gem"),
    ("lowrank", 1024, 32, 5000, "gem"),
    ("lowrank", 512, 0, 2000, "gem"),
    ("mlp", 512, 0, 3000, "gem"),
    ("transformer", 512, 32, 5000, "gem"),
]


@pytest.mark.parametrize("kind, states, blocks, dropout, words, more", ADAMW)
def test_memory_is_what_training_takes_within_a_quarter(kind, states, blocks, dropout, words, more):
    model = {"kind": kind, "states": states, "blocks": blocks, **more}
    check_memory({"model": model, "train": {"dropout": dropout, "epochs": 1}}, words)


@pytest.mark.parametrize("kind, states, blocks, words, optimiser", COUNTING)
def test_memory_of_counting_is_what_training_takes_within_a_quarter(
    kind, states, blocks, words, optimiser
):
    train = {"optimiser": optimiser, "epochs": 1}
    train |= {"gradient_steps": 2} if optimiser == "gem" else {}
    check_memory(
        {"model": {"kind": kind, "states": states, "blocks": blocks}, "train": train}, words
    )


def test_memory_of_several_batches_a_step_is_what_training_takes_within_a_quarter():
    model = {"kind": "mlp", "states": 1024, "blocks": 32}
    check_memory({"model": model, "train": {"dropout": 0.5, "epochs": 1, "accumulate": 2}}, 3000)


def test_the_step_that_is_costed_keeps_the_most_states():
    def cost(**train):
        model = {"states": 512, "blocks": 8}
        return estimate(make_config({"model": model, "train": train}), 1000)

    assert cost(dropout=0.75, dropout_last=0.25) == cost(dropout=0.25)
    assert cost(dropout=0.0, dropout_last=0.5) == cost(dropout=0.0)


def test_batches_of_a_step_take_their_time_and_memory_for_their_gradients_only():
    def cost(**train):
        model = {"kind": "scalar" if "optimiser" in train else "lowrank", "states": 512}
        return estimate(make_config({"model": {**model, "blocks": 8}, "train": train}), 1000)

    one, four, epoch = (cost(accumulate=number) for number in (1, 4, 0))
    assert (four.unit, four.tokens) == ("step", 4 * one.tokens)
    assert four.total_flops == 4 * one.total_flops and four.memory == epoch.memory
    assert one.total_memory <= four.total_memory <= one.total_memory + 5 * one.parameters
    assert epoch == one._replace(unit="batch", memory=epoch.memory)
    counting = cost(optimiser="em", accumulate=3)
    assert counting.flops == {"recursion": 3 * cost(optimiser="em").flops["recursion"]}


@pytest.mark.parametrize("kind", ["scalar", "lowrank", "mlp"])
def test_blocks_of_clusters_are_costed_as_blocks(kind):
    def cost(found=None, **model):
        config = make_config({"model": {"kind": kind, "states": 512, **model}})
        return estimate(config, 1000, blocks=found)

    assert cost(16, clusters="paths") == cost(blocks=16) != cost(blocks=0)


def test_a_network_of_states_has_a_table_of_words_and_no_scores_of_all_of_them():
    """A larger batch needs more of an LSTM, which scores every word at every token."""

    def words(kind: str, rows: int) -> int:
        tables = {"model": {"kind": kind}, "data": {"batch_size": rows, "length": 32}}
        return network_memory(make_config(tables, NEURAL), 10, 1000)["words"]

    assert words("lstm", 64) == 2 * words("lstm", 32) == 4 * 2 * 64 * 32 * 1000
    states = 4 * 2 * hmm_rnn.Settings().states
    assert words("hmm_rnn", 64) == words("hmm_rnn", 32) == states * 1000
