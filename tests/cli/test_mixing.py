"""`hmmlm mix`."""

import json
import math
from pathlib import Path

import pytest

from commands import last_json, made_up_lines
from hmmlm.model import Model

SECOND = ["--states=8", "--blocks=4", "--epochs=2", "--batch-size=4", "--length=64"]


@pytest.fixture
def second(place: Path, call) -> str:
    """Another model of the same corpus, in blocks."""
    answer = call("train", "corpus", "--out=second", "--set=model.width=4", *SECOND)
    assert answer.status == 0, answer.err
    return "second"


def test_a_line_is_as_probable_as_the_parts_say(second: str, call) -> None:
    answer = call("mix", "model", second, "--out=both", "--weights=3,1", "--json")
    assert answer.status == 0, answer.err
    assert answer.out.startswith("0.7500  model, 4 states\n0.2500  second, 8 states\n")
    assert last_json(answer.out) == {"folder": "both", "states": 12, "weights": [0.75, 0.25]}
    lines = made_up_lines(5, seed=7)
    scored = [
        [sum(line.log_probs) for line in Model.load(name).score(lines)]
        for name in ("model", second, "both")
    ]
    for first, other, both in zip(*scored, strict=True):
        wanted = math.log(0.75 * math.exp(first) + 0.25 * math.exp(other))
        assert both == pytest.approx(wanted, rel=1e-5)
    about = json.loads(Path("both/config.json").read_text())
    assert [part["states"] for part in about["parts"]] == [4, 8]
    assert about["parts"][1]["training"]["model"]["kind"] == "lowrank"
    for words in (["info"], ["sample", "-n1"], ["next"], ["evaluate", "corpus"]):
        assert call(words[0], "both", *words[1:]).status == 0


def test_weights_are_found_on_validation_text(second: str, call) -> None:
    for name, options in (("alike", []), ("found", ["--weigh-on=corpus"])):
        assert call("mix", "model", second, f"--out={name}", *options).status == 0
    values = {}
    for name in ("model", second, "alike", "found"):
        answer = call("evaluate", name, "corpus", "--split=valid", "--json")
        values[name] = last_json(answer.out)["nats"]
    assert values["found"] <= min(values.values()) + 1e-3
    answer = call("mix", "model", second, "--out=again", "--weigh-on=corpus")
    nats = float(answer.out.split(": ")[1].split(" nats")[0].replace(",", ""))
    assert answer.out.startswith("30 sentences: ") and nats == pytest.approx(
        values["found"], abs=0.1
    )


def test_where_the_parts_come_from_is_kept(second: str, call) -> None:
    """Also of parts that were tempered or are mixtures; `info` says it."""
    assert call("temper", second, "--out=flat", "--emit=0.5").status == 0
    assert call("mix", "model", "flat", "--out=both", "--weights=3,1").status == 0
    assert call("mix", "both", second, "--out=three").status == 0
    about = json.loads(Path("three/config.json").read_text())
    assert [part["model"] for part in about["parts"]] == ["both", "second"]
    inner = about["parts"][0]["parts"]
    assert inner[1]["powers"] == {"emit": 0.5, "trans": 1.0}
    assert inner[1]["training"]["model"]["kind"] == "lowrank"
    told = call("info", "both", "--json")
    assert "model model, weight 0.75, states 4" in told.out
    assert "model flat, weight 0.25, states 8, powers emit 0.5, trans 1.0" in told.out
    assert "unknown" not in told.out.split("\n{")[0].replace("blocks from", "")
    parts = last_json(told.out)["parts"]
    assert parts[0] == {"model": "model", "weight": 0.75, "states": 4}
    assert last_json(call("info", "flat", "--json").out)["powers"] == {"emit": 0.5, "trans": 1.0}


def label(folder: str, tags: list[str], size: int) -> None:
    about = json.loads(Path(folder, "config.json").read_text())
    about["labels"] = {"tags": tags, "states_per_tag": size}
    Path(folder, "config.json").write_text(json.dumps(about))


def test_states_keep_their_labels(second: str, call) -> None:
    label("model", ["D", "N"], 2)
    answer = call("mix", "model", second, "--out=some")
    assert "labels are left out: not every model has them" in answer.out
    assert "labels" not in json.loads(Path("some/config.json").read_text())
    label(second, ["N", "D", "V", "P"], 2)
    assert "left out" not in call("mix", "model", second, "--out=all").out
    assert Model.load("all").tag_names == [tag for tag in "DNNDVP" for _ in range(2)]
    label(second, ["N", "D"], 4)
    answer = call("mix", "model", second, "--out=other")
    assert "labels are left out: a label has 2 or 4 states" in answer.out


def test_sizes_are_checked_before_texts_are_scored(refused, second: str, monkeypatch) -> None:
    monkeypatch.setattr("hmmlm.mixture.LARGEST", 143)
    monkeypatch.setattr("hmmlm.evaluate.token_log_probs", None)
    said = refused("mix", "model", second, "--out=x", "--weigh-on=corpus")
    assert "12 states and a transition table of 144 cells, but 143 is the most" in said


def test_what_is_refused(refused, place: Path, call) -> None:
    assert "--weights is 1,x but must be 2 numbers over 0" in refused(
        "mix", "model", "model", "--out=x", "--weights=1,x"
    )
    assert "leave one of them out" in refused(
        "mix", "model", "--out=x", "--weights=1", "--weigh-on=corpus"
    )
    assert "no split 'dev'" in refused(
        "mix", "model", "--out=x", "--weigh-on=corpus", "--split=dev"
    )
    assert "--split is of --weigh-on CORPUS; give both, or neither" in refused(
        "mix", "model", "--out=x", "--split=test"
    )
    assert "already exists" in refused("mix", "model", "--out=corpus")
    assert call("train", "--text=test.txt", "--out=other", *SECOND).status == 0
    assert "other has another vocabulary than model" in refused("mix", "model", "other", "--out=x")
