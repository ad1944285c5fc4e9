"""Configurations: what is read, what is refused, and what the refusal says."""

import dataclasses
from pathlib import Path

import pytest

from hmmlm.errors import InputError
from hmmlm.params import lowrank, mlp
from hmmlm.train.config import KINDS, RECIPES, make_config, override, read_config


def test_nothing_given_is_a_whole_configuration():
    config = make_config({})
    assert config.model.kind == "lowrank" and config.params == lowrank.Settings()
    assert config.train.learning_rate == RECIPES["lowrank"]["learning_rate"]
    assert config.dropout.rate == 0.25 and config.seed == 0


@pytest.mark.parametrize("kind", KINDS)
def test_tables_come_back_as_they_were(kind):
    given = {"model": {"kind": kind, "states": 96, "blocks": 3}, "train": {"dropout_last": 0.1}}
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
