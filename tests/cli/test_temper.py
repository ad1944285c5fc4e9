"""`hmmlm temper`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from commands import last_json
from hmmlm.model import Model
from hmmlm.tempering import tempered


def test_powers_are_found_on_validation_text(place: Path, call) -> None:
    answer = call("temper", "model", "--out=flat", "--on=corpus", "--json")
    assert answer.status == 0, answer.err
    found = last_json(answer.out)
    about = json.loads(Path("flat/config.json").read_text())
    assert about["powers"] == {name: found[name] for name in ("emit", "trans")}
    values = []
    for name in ("model", "flat"):
        scored = call("evaluate", name, "corpus", "--split=valid", "--json")
        values.append(last_json(scored.out))
    assert values[1]["nats"] <= values[0]["nats"]
    each = values[1]["nats"] / values[1]["tokens"]
    assert f"{each:.4f} nats each" in answer.out
    given = call("temper", "model", "--out=given", "--emit=0.5", "--json")
    assert last_json(given.out) == {"folder": "given", "emit": 0.5, "trans": 1.0}
    worse = last_json(call("evaluate", "given", "corpus", "--split=valid", "--json").out)
    assert worse["nats"] > values[1]["nats"] and worse["max_row_error"] == pytest.approx(
        0, abs=1e-5
    )


def test_powers_of_powers(place: Path, call) -> None:
    """What is kept are the powers of what was learnt; before is the model as it was given."""
    assert call("temper", "model", "--out=once", "--emit=0.5", "--trans=0.8").status == 0
    answer = call("temper", "once", "--out=twice", "--emit=0.5", "--json")
    assert last_json(answer.out) == {"folder": "twice", "emit": 0.5, "trans": 1.0}
    assert "with what it had: emissions to the power of 0.250, transitions 0.800" in answer.out
    powers = json.loads(Path("twice/config.json").read_text())["powers"]
    assert powers == {"emit": 0.25, "trans": 0.8}
    first, second = (Model.load(name).hmm for name in ("model", "twice"))
    wanted = tempered(first, **powers)
    for ours, theirs in zip(second.fields(), wanted.fields(), strict=True):
        torch.testing.assert_close(ours, theirs)
    scored = last_json(call("evaluate", "model", "corpus", "--split=valid", "--json").out)
    answer = call("temper", "model", "--out=other", "--on=corpus", "--emit=0.6")
    assert f"{scored['nats'] / scored['tokens']:.4f} before" in answer.out


def test_a_power_out_of_all_measure_writes_nothing(place: Path, call) -> None:
    answer = call("temper", "model", "--out=wild", "--emit=1e39")
    assert answer.status == 2 and not Path("wild").exists()
    assert "emit is 1e+39 but must lie between 1e-06," in answer.err


def test_an_answer_at_an_edge_is_told(place: Path, call) -> None:
    """Of a model that is far too sharp, a power under all that are tried would be better."""
    assert call("temper", "model", "--out=sharp", "--emit=9").status == 0
    answer = call("temper", "sharp", "--out=x", "--on=corpus", "--trans=1")
    assert answer.status == 0, answer.err
    assert "the best power of the emissions is at the edge of what was tried, 0.5 to 1.3;" in (
        answer.err
    )
    again = call("temper", "x", "--out=y", "--on=corpus", "--trans=1")
    assert last_power(again.out) < 0.6
    assert not call("temper", "model", "--out=z", "--on=corpus", "--trans=1").err


def last_power(said: str) -> float:
    return float(said.split("emissions to the power of ")[1].split(",")[0])


def test_a_text_that_the_model_cannot_have(refused, place: Path) -> None:
    model = Model.load("model")
    emit = model.hmm.log_emit.clone()
    word = model.tokenizer.id("dog")
    emit[word] = -torch.inf
    hmm = replace(model.hmm, log_emit=emit.log_softmax(0))
    Model(hmm, model.tokenizer).save("silent")
    said = refused("temper", "silent", "--out=x", "--on=corpus")
    assert "has sentences of probability zero under silent, with whatever power" in said


def test_what_is_refused(refused, place: Path) -> None:
    assert "--emit and --trans say what --on would find; leave one of them out" in refused(
        "temper", "model", "--out=x", "--emit=0.9", "--trans=1", "--on=corpus"
    )
    assert "--split is of --on CORPUS; give both, or neither" in refused(
        "temper", "model", "--out=x", "--emit=0.9", "--split=test"
    )
    assert "Give --emit or --trans, or --on CORPUS" in refused("temper", "model", "--out=x")
    assert "already exists" in refused("temper", "model", "--out=corpus", "--emit=0.9")
    assert "no split 'dev'" in refused("temper", "model", "--out=x", "--on=corpus", "--split=dev")
