"""`hmmlm train` from configurations and plain text, and `hmmlm estimate`."""

import json
from pathlib import Path

import pytest

from commands import made_up_lines, tree
from hmmlm import Model
from hmmlm.train.config import make_config

FEW = ["--epochs=1", "--batch-size=4", "--length=64"]


def last_json(out: str) -> dict:
    return json.loads(out.splitlines()[-1])


def training(folder: str) -> dict:
    return json.loads((Path(folder) / "config.json").read_text())["training"]


def test_train_from_a_file_with_changes(place, call):
    Path("run.toml").write_text(
        '[data]\ncorpus = "corpus"\nlength = 32\n[model]\nkind = "mlp"\nwidth = 8\nstates = 12\n'
        "blocks = 4\n[train]\nepochs = 2\n"
    )
    answer = call("train", "run.toml", "--set=train.epochs=1", "--seed=3", "--out=new", "--json")
    assert answer.status == 0, answer.err
    assert last_json(answer.out)["steps"] > 0
    kept = training("new")
    assert kept["model"]["kind"] == "mlp" and kept["model"]["width"] == 8
    assert kept["train"]["epochs"] == 1 and kept["train"]["seed"] == 3
    config = make_config({name: kept[name] for name in ("data", "model", "train")})
    assert config.data.length == 32 and config.model.blocks == 4
    hmm = Model.load("new").hmm
    assert hmm.num_states == 12 and hmm.support.rows.shape == (4, 3)


@pytest.mark.parametrize("kind", ["scalar", "lowrank", "mlp", "transformer"])
@pytest.mark.parametrize("layout", ["packed", "streams", "windows"])
def test_every_kind_and_layout_trains(place, call, kind, layout):
    answer = call(
        "train", "corpus", "--kind", kind, "--set", f"data.layout={layout}", "--states=12",
        "--blocks=4", "--out=new", *FEW,
    )  # fmt: skip
    assert answer.status == 0, answer.err
    found = last_json(call("evaluate", "new", "corpus", "--split=test", "--json").out)
    assert 1 < found["perplexity"] < 20 and found["max_row_error"] < 1e-4


def test_train_from_plain_text_chooses_sizes(place, call):
    Path("many.txt").write_text("".join(f"{line}\n" for line in made_up_lines(400, seed=7)))
    answer = call("train", "--text=many.txt", *FEW, "--json")
    assert answer.status == 0, answer.err
    assert "tokens to train on, " in answer.out and " held out, " in answer.out
    assert "128 states, chosen for 3,040 tokens;" in answer.out
    result = last_json(answer.out)
    assert result["folder"] == "runs/many" and result["val"] > 1
    assert Model.load("runs/many").hmm.num_states == 128
    again = call("train", "--text=many.txt", *FEW, "--json")
    assert last_json(again.out)["folder"] == "runs/many-2"


def test_a_loss_that_is_not_finite_keeps_the_best_weights(place, call, monkeypatch):
    from hmmlm.train.loss import HmmLoss

    plain, calls = HmmLoss.__call__, []

    def breaks(self, batch, done):
        calls.append(1)
        return plain(self, batch, done) * (float("nan") if len(calls) == 8 else 1.0)

    monkeypatch.setattr(HmmLoss, "__call__", breaks)
    answer = call(
        "train", "corpus", "--states=8", "--blocks=0", "--out=new", "--epochs=3", *FEW[1:]
    )
    assert answer.status == 2
    assert "Training stopped at step 8 with learning rate" in answer.err
    assert "try a lower learning rate. The model was written to new." in answer.err
    Model.load("new")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set=train.lr=1"], "There is no setting train.lr."),
        (["--set=train.epoch=1"], "Did you mean epochs?"),
        (["--set=epochs=1"], "'epochs=1' is not a setting; write table.key=value"),
        (["--set=train.epochs=many"], "train.epochs is 'many' but must be a whole number."),
        (["--states=10", "--blocks=4"], "10 states cannot be shared equally among 4 blocks; use 8"),
        (["--dropout=1"], "The state dropout is 1.0 but must be at least 0 and less than 1"),
    ],
)
def test_settings_that_are_refused(place, refused, options, message):
    before = tree(place)
    assert message in refused("train", "corpus", "--out=new", *options)
    assert tree(place) == before


def test_estimate(place, call):
    options = ["--set=model.kind=mlp", "--set=model.states=32768", "--set=model.blocks=128"]
    answer = call("estimate", *options, "--vocab=10000", "--json")
    assert answer.status == 0, answer.err
    result = last_json(answer.out)
    assert result["parameters"] == 11_355_153
    assert result["bytes"] == sum(result["memory"].values())
    assert "11,355,153 parameters" in answer.out and "in all" in answer.out
