"""Configurations: what is read, what is refused, and what the refusal says."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from hmmlm.baselines.kinds import NEURAL
from hmmlm.data.labels import Labels
from hmmlm.data.shards import TokenArray
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError, rounded
from hmmlm.params import lowrank, mlp
from hmmlm.support import Support
from hmmlm.train import memory
from hmmlm.train.config import (
    KINDS,
    RECIPES,
    make_batches,
    make_config,
    mode_of_training,
    validation_mode,
)
from hmmlm.train.labels import check_labels, check_states, share_states
from hmmlm.train.memory import check_tables, check_training
from hmmlm.train.sizes import with_sizes, with_start
from hmmlm.train.tables import override, read_config
from models import make_hmm


def test_nothing_given_is_a_whole_configuration():
    config = make_config({})
    assert config.model.kind == "lowrank" and config.params == lowrank.Settings()
    assert config.train.learning_rate == RECIPES["lowrank"]["learning_rate"]
    assert config.dropout.rate == 0.25 and config.seed == 0


@pytest.mark.parametrize("kind", KINDS)
def test_tables_come_back_as_they_were(kind):
    given = {"model": {"kind": kind, "states": 96, "blocks": 3}, "train": {"dropout_last": 0.1}}
    given["model"] |= {"checkpoint": "folder"} if kind == "pretrained" else {}
    config = make_config(given)
    assert make_config(config.as_tables()) == config
    assert config.train.learning_rate == RECIPES[kind]["learning_rate"]


def test_a_file_and_changes_to_it(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[model]\nkind = "mlp"\nwidth = 128\n[train]\nepochs = 3\nlearning_rate = 1\n')
    changes = ["train.epochs=20", "model.start=linear", "train.dropout=0.5", "model.bias=false"]
    config = make_config(override(read_config(path), changes))
    assert config.params == mlp.Settings(width=128, start="linear", bias=False)
    assert config.train.epochs == 20 and config.train.learning_rate == 1.0
    assert config.dropout.rate == 0.5


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"train": {"lr": 0.1}}, r"There is no setting train\.lr\."),
        ({"train": {"epoch": 3}}, r"no setting train\.epoch\. Did you mean epochs\?"),
        ({"train": {"lr": 0.1}}, r"no setting train\.lr\. Did you mean learning_rate\?"),
        ({"train": {"drop_out": 0.1}}, r"no setting train\.drop_out\. Did you mean dropout\?"),
        ({"model": {"widht": 3}}, r"no setting model\.widht\. Did you mean width\?"),
        ({"model": {"layers": 2}}, r"There is no setting model\.layers\."),
        ({"modle": {}}, r"There is no table \[modle\]\. Did you mean model\?"),
        ({"train": {"epochs": 2.5}}, r"train\.epochs is 2\.5 but must be a whole number\."),
        ({"train": {"epochs": True}}, r"train\.epochs is True but must be a whole number\."),
        ({"train": {"epochs": "many"}}, r"train\.epochs is 'many' but must be a whole number"),
        ({"model": {"bias": 1}}, r"model\.bias is 1 but must be true or false\."),
        ({"model": {"kind": 3}}, r"model\.kind is 3 but must be a text\."),
        ({"model": {"kind": "lorank"}}, r"kind is 'lorank' but .* Did you mean lowrank\?"),
        ({"train": {"dropout_last": "no"}}, r"train\.dropout_last is 'no' but must be a number"),
        ({"train": {"dropout": 1.0}}, r"The state dropout is 1\.0 but must be at least 0"),
        ({"train": 3}, r"train is 3 but must be a table: write \[train\]\."),
        ({"data": {"layout": "rows"}}, "layout is 'rows' but must be one of packed, streams"),
        (
            {
                "data": {"layout": "streams"},
                "model": {"kind": "scalar"},
                "train": {"optimiser": "em"},
            },
            r"layout is streams but optimiser em counts each row .* Use layout packed or windows\.",
        ),
        (
            {"data": {"layout": "streams"}, "train": {"optimiser": "gem"}},
            "layout is streams but optimiser gem counts each row of a batch as a text",
        ),
        (
            {"data": {"layout": "streams", "states": "x"}},
            "states are those of rows that start cold but layout is streams; use layout packed",
        ),
        ({"data": {"length": 0}}, "length is 0 but must be at least 1"),
        (
            {"model": {"states": 1000, "blocks": 64}},
            "1,000 states cannot be shared equally among 64 blocks; use 1,024 states, say",
        ),
        ({"model": {"states": 0}}, "states is 0 but must be at least 1"),
        ({"model": {"blocks": -1}}, "blocks is -1 but must be 0 or at least 2"),
    ],
)
def test_what_is_refused(tables, message):
    with pytest.raises(InputError, match=message):
        make_config(tables)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"model": {"width": 0}}, "width is 0 but must be at least 1"),
        ({"model": {"kind": "mlp", "width": -4}}, "width is -4 but must be at least 1"),
        ({"model": {"kind": "transformer", "width": 0}}, "width is 0 but must be at least 1"),
        ({"model": {"kind": "transformer", "heads": 0}}, "heads is 0 but must be at least 1"),
        ({"model": {"kind": "transformer", "heads": -4}}, "heads is -4 but must be at least 1"),
        ({"model": {"kind": "transformer", "start": "netwrok"}}, "start is 'netwrok' but must be"),
        ({"model": {"kind": "mlp", "layers": 3}}, "layers is 3 but must be 1 or 2"),
        ({"model": {"kind": "pretrained"}}, r"kind pretrained needs model\.checkpoint: a folder"),
        ({"model": {"kind": "pretrained", "depth": -1}}, "depth is -1 but must be at least 0"),
        ({"model": {"kind": "mlp", "width": 5, "composed": True}}, "The width is 5 but composed"),
        ({"model": {"width": 5, "composed": True}}, "The width is 5 but composed .* an even one"),
        ({"model": {"scale": -0.5}}, r"scale is -0\.5 but must be at least 0"),
        ({"model": {"kind": "scalar", "scale": -1}}, r"scale is -1\.0 but must be at least 0"),
        ({"model": {"states": 10**26}}, rf"model\.states is {10**26} but .* at most 2\^63 - 1"),
        ({"data": {"batch_size": 10**23}}, rf"data\.batch_size is {10**23} but must be at most"),
        ({"data": {"length": -(10**23)}}, r"length is -100,.* but must be at least 1"),
        ({"train": {"seed": 10**23}}, r"train\.seed is 10* but must be at most 2\^63 - 1"),
        ({"train": {"seed": -1}}, "seed is -1 but must be at least 0"),
        ({"train": {"plateau_threshold": -0.1}}, r"plateau_threshold is -0\.1 but must be at leas"),
        ({"train": {"learning_rate": 10**400}}, r"train\.learning_rate is 10* but .* finite"),
        ({"train": [1, 2]}, r"train is \[1, 2\] but must be a table: write \[train\]\."),
        ({"data": {"reset": False}}, "reset is false but layout packed restarts at each sentence"),
        (
            {"model": {"kind": "scalar", "blocks": 8}, "train": {"precision": "bf16"}},
            r"bf16 but kind scalar has no products to round in blocks; .* \(blocks = 0\)",
        ),
    ],
)
def test_what_is_out_of_range_or_does_not_go_together(tables, message):
    with pytest.raises(InputError, match=message):
        make_config(override(tables, []))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_not_finite(value):
    names = ["learning_rate", "weight_decay", "final_rate", "plateau_threshold", "clip", "average"]
    for name in [*names, "save_minutes", "pseudocount", "dropout", "schedule_power"]:
        with pytest.raises(InputError, match=rf"train\.{name} is .* but must be a finite number"):
            make_config({"train": {name: value}})
    for kind in KINDS.values():
        with pytest.raises(InputError, match=r"scale is .* but must be at least 0 and finite"):
            kind.Settings(scale=value)


@pytest.mark.parametrize("change", ["train.epochs=1\nx=2", "train.epochs=1\r\n"])
def test_a_change_of_more_than_one_line(change):
    with pytest.raises(InputError, match="has more than one line; give each setting on its own"):
        override({}, [change])


def test_texts_that_toml_cannot_hold_are_words(tmp_path):
    long, deep = "1" * 5000, "[" * 100_000
    for text in (long, deep):
        with pytest.raises(InputError, match=r"train\.seed is '.* but must be a whole number"):
            make_config(override({}, [f"train.seed={text}"]))
        (tmp_path / "run.toml").write_text(f"[train]\nseed = {text}\n")
        with pytest.raises(InputError, match="is not TOML: "):
            read_config(tmp_path / "run.toml")


@pytest.mark.parametrize("change", ["epochs=3", "train.epochs", "train.=3", "3"])
def test_changes_that_are_none(change):
    with pytest.raises(InputError, match=r"is not a setting; write table\.key=value"):
        override({}, [change])


def test_files_that_are_none(tmp_path: Path):
    broken, binary = tmp_path / "broken.toml", tmp_path / "binary.toml"
    broken.write_text("[train\n")
    binary.write_bytes(b"\xff\xfe")
    for path, message in [
        (broken, "is not TOML: "),
        (binary, "is not UTF-8 text"),
        (tmp_path / "none.toml", "cannot be read: No such file"),
    ]:
        with pytest.raises(InputError, match=message):
            read_config(path)


def test_every_setting_is_of_a_type_that_can_be_read():
    for kind in KINDS.values():
        for field in dataclasses.fields(kind.Settings):
            assert field.type in ("int", "float", "bool", "str", int, float, bool, str)


EM = {"model": {"kind": "scalar"}, "train": {"optimiser": "em"}}


def em(**train) -> dict:
    return {**EM, "train": {**EM["train"], **train}}


def test_the_recipes_of_em():
    config = make_config(EM)
    train = config.train
    assert (train.accumulate, train.schedule, train.learning_rate) == (0, "constant", 1.0)
    assert train.warmup_steps == 0 and config.dropout.rate == 0
    assert config.learner.pseudocount == 0.01 and config.learner.tie == "none"
    stepwise = make_config(em(accumulate=8)).train
    assert (stepwise.schedule, stepwise.schedule_power) == ("power", 0.6)
    assert stepwise.learning_rate < 1
    assert make_config(em(accumulate=8, schedule="constant")).train.schedule == "constant"
    neural = make_config({"model": {"kind": "mlp"}, "train": {"optimiser": "gem"}})
    assert neural.train.learning_rate == RECIPES["mlp"]["learning_rate"]
    assert (neural.train.accumulate, neural.dropout.rate) == (0, 0.0)
    for config in (make_config(em(tie="emit", accumulate=3)), neural):
        assert make_config(config.as_tables()) == config


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"train": {"optimiser": "em"}},
            "em learns tables, so kind must be scalar, not lowrank; use optimiser gem, or kind "
            "scalar with train.start",
        ),
        (em(dropout=0.25), r"dropout is 0\.25 but optimiser em counts on all states: it must be 0"),
        (em(dropout_last=0.1), "and dropout_last and kept left out"),
        (em(precision="bf16"), "precision is bf16 but optimiser em counts in float32"),
        (em(learning_rate=1.5), r"learning_rate is 1\.5 but that of em is .*: at most 1"),
        (em(average=0.9), r"average is 0\.9 but must be 0: logits of probability zero"),
        (em(pseudocount=-1), r"pseudocount is -1\.0 but must be at least 0"),
        (em(tie="rows"), "tie is 'rows' but must be one of none, emit, trans"),
        (em(gradient_steps=0), "gradient_steps is 0 but must be at least 1"),
        (
            {"train": {"optimiser": "adam"}},
            "optimiser is 'adam' but must be one of adamw, sgd, em, gem",
        ),
        ({"train": {"optimiser": 3}}, r"train\.optimiser is 3 but must be a text"),
        ({"train": {"pseudocount": 0.1}}, "pseudocount needs expected counts; use optimiser em"),
        ({"data": {"labels": "x"}}, "labels needs expected counts; use optimiser em or gem"),
        (
            {"data": {"states": "x"}, "train": {"optimiser": "gem"}},
            "data.states are learnt by descent but optimiser is gem; use adamw or sgd, then polish",
        ),
        ({"train": {"optimiser": "gem", "tie": "emit"}}, "tie is emit but only optimiser em ties"),
        (
            {"train": {"start": "x"}},
            "so kind must be scalar, or the layers of a decoder for kind transformer; it is lowr",
        ),
        (
            {"model": {"kind": "transformer", "monolithic": False}, "train": {"start": "x"}},
            "train.start gives one transformer its layers but monolithic is false; leave it out",
        ),
        ({"model": {"kind": "scalar"}, "train": {"start": "x", "average": 0.5}}, "must be 0: log"),
    ],
)
def test_what_em_refuses(tables, message):
    with pytest.raises(InputError, match=message):
        make_config(tables)


def beginning(model: dict, what: str = "both", **train) -> dict:
    return {"model": model, "train": {"begin_with": what, **train}}


FREE = {"factor_init": False, "factor_trans": False, "factor_emit": False}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (beginning({}, "centroids"), "begin_with is 'centroids' but must be one of none, centres"),
        (beginning({}, frozen=1.5), r"frozen is 1\.5 but must be a share, from 0 to 1"),
        (beginning({}, "none", frozen=0.5), "begin_with is none, so nothing can be frozen; set be"),
        (beginning({"kind": "scalar"}), "kind scalar has no embeddings; use kind lowrank, mlp or"),
        (beginning({"composed": True}, "centres"), "are shared in part; leave composed out"),
        (beginning({"factor_emit": False}, "head"), "have no embeddings; leave factor_emit out"),
        (beginning(FREE, "centres"), "begin_with is centres but factor_emit is false"),
        (beginning({"kind": "lstm"}), "begin_with is a setting of HMMs but kind is lstm; leave it"),
    ],
)
def test_beginnings_that_a_model_has_no_place_for(tables, message):
    with pytest.raises(InputError, match=message):
        make_config(tables, NEURAL)


def test_beginnings_that_it_has_a_place_for():
    for kind in ("lowrank", "mlp", "transformer"):
        config = make_config(beginning({"kind": kind}, frozen=0.04))
        assert make_config(config.as_tables()) == config and config.learner.frozen == 0.04
    make_config(beginning({"composed": True}, "head"))
    make_config(beginning({"factor_emit": False}, "centres"))


def test_sizes_with_tags_are_multiples_of_their_number():
    config, reason = with_sizes(make_config(EM), 25_000, 5000, tags=45)
    assert (config.model.states, config.model.blocks) == (270, 0)
    assert reason == ", chosen for 25,000 tokens"
    assert with_sizes(make_config(EM), 25_000, 5000)[0].model.blocks == 32


@pytest.mark.parametrize(
    ("words", "model", "chosen"),
    [
        (200, {}, (256, 0)),
        (201, {}, (4096, 128)),
        (5000, {"blocks": 0}, (256, 0)),
        (100, {"blocks": 10}, (4090, 10)),
        (100, {"states": 1000}, (1000, 0)),
    ],
)
def test_states_that_every_word_has_are_few_unless_given(words, model, chosen):
    config, _ = with_sizes(make_config({"model": model}), 1_000_000, words)
    assert (config.model.states, config.model.blocks) == chosen


@pytest.mark.parametrize(
    "config",
    [{}, {"training": "unknown"}, {"training": {}}, {"training": {"data": {"layout": "new"}}}],
)
def test_a_model_that_does_not_say_how_it_was_validated(config):
    assert mode_of_training(config) is None


@pytest.mark.parametrize(
    ("words", "model", "said"),
    [
        (5000, {}, " in 128 blocks of 32, chosen for 1,000,000 tokens"),
        (5000, {"blocks": 7}, " in 7 blocks of 585, chosen for 1,000,000 tokens"),
        (5000, {"blocks": 8, "uneven": 0.5}, " in 8 blocks, chosen for 1,000,000 tokens"),
        (5000, {"states": 128}, " in 4 blocks of 32"),
        (5000, {"states": 100}, ", without blocks: blocks are of 32 states, from 128 states on"),
        (
            5000,
            {"states": 1000},
            ", without blocks: 1,000 states are not 31 blocks of one size; 992 are",
        ),
        (
            200,
            {"states": 1000},
            ", without blocks: the text has 200 words, and blocks are for more than 200",
        ),
        (5000, {"states": 100, "blocks": 0}, ""),
    ],
)
def test_sizes_that_are_chosen_say_why(words, model, said):
    assert with_sizes(make_config({"model": model}), 1_000_000, words)[1] == said


def test_sizes_of_the_model_to_start_from():
    def started(kind, **model):
        tables = {"model": {"kind": "scalar", **model}, "train": {"start": "old"}}
        return with_start(make_config(tables), make_hmm(kind)).model

    assert (started("blocks").states, started("blocks").blocks) == (4, 2)
    assert started("dense", states=3).blocks == 0 and started("ragged").blocks == 0
    with pytest.raises(InputError, match="states is 5 but old has 4; leave it out"):
        started("blocks", states=5)
    for wrong in ({"blocks": 4}, {"clusters": "paths"}, {"states_per_word": 2}, {"uneven": 0.5}):
        with pytest.raises(InputError, match="old, which has its own emission blocks; leave out"):
            started("blocks", **wrong)


def test_the_memory_that_control_groups_leave(tmp_path):
    def put(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    assert list(memory.left_in_groups(tmp_path)) == []
    put("proc/self/cgroup", "0::/job/step\n")
    put("sys/fs/cgroup/job/step/memory.max", "max\n")
    put("sys/fs/cgroup/job/step/memory.current", "500\n")
    put("sys/fs/cgroup/job/memory.max", "1000\n")
    put("sys/fs/cgroup/job/memory.current", "700\n")
    put("sys/fs/cgroup/job/memory.stat", "anon 400\ninactive_file 200\n")
    assert list(memory.left_in_groups(tmp_path)) == [500]
    # The older kind; a container sees its own group at the top, whatever it is called outside.
    put("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/docker/1f\n")
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "300\n")
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "400\n")
    assert list(memory.left_in_groups(tmp_path)) == [0]


def test_tables_that_do_not_fit_the_memory(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 10**9)
    check_tables(Support.dense(100, 5000))
    with pytest.raises(
        InputError, match=r"6,000 x 6,000 transitions and 100 x 6,000 .* 1\.3 GB .* but 1\.0 GB are"
    ):
        check_tables(Support.dense(100, 6000))
    monkeypatch.undo()
    free = memory.free_memory(torch.device("cpu"))
    assert free is None or free > 0


def test_a_training_far_beyond_the_memory(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 21 * 10**9)
    check_training({"weights": 42 * 10**9, "tiles": 10**15})  # estimates are right within a factor
    check_training({"weights": 210 * 10**9}, "cuda")  # those of a GPU's memory within a larger one
    for needed, device in ((43 * 10**9, "cpu"), (211 * 10**9, "cuda")):
        with pytest.raises(
            InputError,
            match=r"needs about (43|211) GB and 21 GB are free; use fewer states, or --bl",
        ):
            check_training({"weights": needed - 5, "gradients": 5}, device)
    monkeypatch.setattr(memory, "free_memory", lambda device: None)
    check_training({"weights": 10**30})


def test_amounts_have_the_prefix_that_suits():
    amounts = [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (9960, "10 kB"), (58_600_000, "59 MB")]
    amounts += [(999_600_000, "1.0 GB"), (1_260_241_174_000_000, "1,260 TB")]
    for amount, said in amounts:
        assert rounded(amount, "B") == said


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (10, "10 states cannot be shared equally among 4 tags; use 8 or 12 states"),
        (3, "3 states cannot be shared equally among 4 tags; use 4 states"),
    ],
)
def test_states_that_tags_cannot_share(states, message):
    assert share_states(8, 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(InputError, match=message):
        share_states(states, 4)


def test_a_label_that_no_state_of_its_word_has():
    words = Tokenizer.words({"a": 3, "b": 2, "c": 1})
    ids = [words.id(word) for word in "abcab"]
    tokens = TokenArray.from_ids(ids, eos_id=words.eos_id)
    labels = Labels(("N", "V"), TokenArray.from_ids([1, 2, 0, 0, 2], eos_id=1))
    blocks = Support.from_clusters([0, 0, 0, 1, 1], 2)  # <unk> <eos> a | b c
    check_labels(blocks, share_states(4, 2), labels, tokens, words)
    wrong = labels._replace(ids=TokenArray.from_ids([1, 1, 0, 0, 2], eos_id=1))
    with pytest.raises(
        InputError, match=r"The word 'b' has the label 'N' but may come from none of its 2 states"
    ):
        check_labels(blocks, share_states(4, 2), wrong, tokens, words)
    check_labels(Support.dense(5, 4), share_states(4, 2), wrong, tokens, words)


def test_states_that_cannot_be_those_of_a_text():
    words = Tokenizer.words({"a": 3, "b": 2, "c": 1})
    tokens = TokenArray.from_ids([words.id(word) for word in "abcab"], eos_id=words.eos_id)
    blocks = Support.from_clusters([0, 0, 0, 1, 1], 2)  # <unk> <eos> a | b c
    check_states(blocks, np.array([0, 2, 3], dtype=np.uint16), tokens, words)
    wrong = r"Token 2 is 'b', which cannot come from state 1 that data.states has .* 4 states"
    with pytest.raises(InputError, match=wrong):
        check_states(blocks, np.array([0, 1, 3], dtype=np.uint16), tokens, words)
    with pytest.raises(InputError, match="There are states for 6 tokens but the text has 5; make"):
        check_states(blocks, np.zeros(6, dtype=np.uint16), tokens, words)
    with pytest.raises(InputError, match="Token 1 is 'a', which cannot come from state 9"):
        check_states(Support.dense(5, 4), np.array([9], dtype=np.uint16), tokens, words)


@pytest.mark.parametrize(
    "data, mode",
    [
        ({}, "sentence"),
        ({"layout": "streams"}, "sentence"),
        ({"layout": "streams", "reset": False}, "streaming"),
        ({"layout": "windows", "reset": False, "length": 32}, "window 32"),
    ],
)
def test_validation_starts_the_chain_where_training_does(data, mode):
    config = make_config({"data": data})
    assert validation_mode(config.data) == mode
    assert mode_of_training({"training": config.as_tables()}) == mode


@pytest.mark.parametrize(
    ("layout", "drawn"), [("packed", True), ("windows", True), ("streams", False)]
)
def test_the_seed_draws_the_order_of_rows_that_stand_alone(layout, drawn):
    tokens = TokenArray.from_ids([*range(2, 60), 1] * 5, eos_id=1)

    def order(seed: int) -> list[list[int]]:
        tables = {"data": {"layout": layout, "length": 10}, "train": {"seed": seed}}
        batches = make_batches(make_config(tables), tokens)
        return [row for batch in batches for row in batch.tokens.tolist()]

    assert order(1) == order(1)
    assert (order(1) != order(2)) == drawn


@pytest.mark.parametrize("kind", NEURAL)
def test_kinds_that_are_no_hmms_have_settings_and_recipes_of_their_own(kind):
    config = make_config({"model": {"kind": kind}}, NEURAL)
    usual = next(iter(NEURAL[kind].RECIPES))
    recipe = NEURAL[kind].RECIPES[usual]
    assert not config.is_hmm and config.learner.optimiser == usual
    assert config.train.learning_rate == recipe["train"]["learning_rate"]
    assert config.data.batch_size == recipe["data"]["batch_size"]
    assert config.params == NEURAL[kind].Settings()
    assert make_config(config.as_tables(), NEURAL) == config
    with pytest.raises(InputError, match=f"kind is '{kind}' but must be one of scalar, lowrank"):
        make_config({"model": {"kind": kind}})


def test_a_recipe_is_that_of_the_optimiser():
    tables = {"model": {"kind": "awd_lstm"}, "train": {"optimiser": "adamw"}}
    config = make_config(tables, NEURAL)
    assert config.train.learning_rate < 0.1 and config.train.average_after == 0
    tables = {"model": {"kind": "lstm"}, "train": {"optimiser": "sgd", "learning_rate": 20}}
    config = make_config(tables, NEURAL)
    assert config.learner.optimiser == "sgd" and config.train.learning_rate == 20
    assert config.data.layout == "streams"


def test_hmms_can_be_trained_by_plain_descent_on_streams_that_vary():
    data = {"layout": "streams", "vary_length": True, "validation": "streaming"}
    config = make_config({"data": data, "train": {"optimiser": "sgd"}})
    assert config.learner.is_descent and validation_mode(config.data) == "streaming"
    tokens = TokenArray.from_ids(list(range(7)) * 9, eos_id=0)
    assert make_batches(config, tokens).vary


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"data": {"reset_at_ends": False}},
            "reset_at_ends is false, which is for streams with reset, but layout is packed and "
            "reset true; leave it out",
        ),
        (
            {"data": {"reset_at_ends": False}, "model": {"kind": "lstm"}},
            "data.reset_at_ends is a setting of HMMs but kind is lstm; leave it out",
        ),
        ({"model": {"uneven": 1.5}}, "uneven is 1.5 but must lie between 0, the same number of"),
        ({"model": {"uneven": 0.5, "blocks": 0}}, "how blocks share the states, but there are no"),
        (
            {"model": {"uneven": 0.5, "blocks": 128, "states": 100}},
            "100 states are fewer than 128 blocks, each of which needs one; use 128 states or more",
        ),
        (
            {"model": {"uneven": 0.5, "states_per_word": 4}},
            "uneven says how blocks share the states, but there are no blocks",
        ),
        ({"model": {"states_per_word": 0}}, "states_per_word is 0 but must be at least 1"),
        (
            {"model": {"states_per_word": 4, "blocks": 2}},
            "so there are no blocks; leave out blocks, clusters and like_hmm_lm",
        ),
    ],
)
def test_settings_that_only_go_with_others(tables, message):
    with pytest.raises(InputError, match=message):
        make_config(tables, NEURAL)


def test_uneven_blocks_need_not_divide_the_states():
    def sizes(vocab_size: int = 5000, **model):
        config, _ = with_sizes(make_config({"model": model}), 1_000_000, vocab_size)
        return config.model.states, config.model.blocks

    assert sizes(states=1000, blocks=64, uneven=0.5) == (1000, 64)
    assert sizes(blocks=60, uneven=0.5) == (4096, 60) and sizes(uneven=0.5) == (4096, 128)
    with pytest.raises(InputError, match="1,000 states cannot be shared equally among 64 blocks"):
        sizes(states=1000, blocks=64)
    assert sizes(states=1000, uneven=0.5) == (1000, 31)
    with pytest.raises(InputError, match="256 states for 100 words would have none; say how many"):
        sizes(100, uneven=0.5)


def test_a_setting_that_was_added_later_is_nothing_unless_it_is_given():
    """Else a run that was begun before would be another one now."""
    assert "uneven" not in make_config({}).as_tables()["model"]
    assert make_config({"model": {"uneven": 0.5}}).as_tables()["model"]["uneven"] == 0.5


def test_states_by_chance_are_no_blocks():
    config, _ = with_sizes(make_config({"model": {"states_per_word": 8}}), 1_000_000, 5000)
    assert (config.model.states, config.model.blocks) == (256, 0)
