"""`hmmlm world`: a world that is known, its corpus, and other commands on both."""

import json
import math
from pathlib import Path

import pytest

from commands import last_json, tree
from hmmlm import worlds
from hmmlm.data.shards import Corpus

GINC = ["world", "ginc", "--concepts=2", "--entities=2", "--properties=3", "--words=5"]
GINC += ["--documents=40", "--length=8"]
HMM = ["world", "hmm", "--states=3", "--words=6", "--documents=40", "--length=8"]


@pytest.mark.parametrize("made_by", [GINC, HMM])
def test_a_world_is_a_model_and_a_corpus(place, call, made_by) -> None:
    answer = call(*made_by, "--out=new", "--json")
    assert answer.status == 0, answer.err
    said = last_json(answer.out)
    splits = Corpus.open("new/corpus").splits
    assert {name: split["sentences"] for name, split in splits.items()} == {
        "train": 40,
        "valid": 4,
        "test": 4,
    }
    read = call("evaluate", "new/model", "new/corpus", "--split=test", "--json")
    assert read.status == 0, read.err
    best = said["optimum"]["test"]
    assert last_json(read.out)["nats"] == pytest.approx(best["nats"], abs=1e-9)
    assert f"optimum {best['perplexity']:.3f}" in answer.out
    rate = said["entropy_rate"]
    assert f"entropy rate {rate['value']:.4f} nats per token (standard error" in answer.out
    train = ["--kind=scalar", "--states=4", "--blocks=0", "--epochs=2", "--batch-size=4"]
    trained = call("train", "new/corpus", "--out=learnt", *train, "--length=32")
    assert trained.status == 0, trained.err
    gap = call("gap", "learnt", "new/corpus", "--json")
    assert gap.status == 0, gap.err
    assert last_json(gap.out)["whole"]["teacher"] == pytest.approx(best["nats"] / best["tokens"])
    for asked in (["sample", "new/model", "-n", 2], ["next", "new/model"], ["info", "new/model"]):
        assert call(*asked).status == 0
    if made_by is GINC:
        assert "2 concepts, 14 states, vocabulary of 7" in answer.out
        assert "/" in call("next", "new/model", "/").out


def test_documents_and_prompts_as_json(place, call) -> None:
    prompts = ["--prompts=5", "--examples=0, 3", "--example-length=3"]
    answer = call(*GINC, "--out=new", "--jsonl", "--valid=0", "--test=2", *prompts)
    assert answer.status == 0, answer.err
    assert {path.name for path in Path("new").iterdir()} == {
        *("model", "corpus", "world.json", "train.jsonl", "test.jsonl", "prompts.jsonl")
    }
    lines = Path("new/prompts.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["tokens"]) for line in lines] == [2] * 5 + [14] * 5
    assert "  0 examples  the optimum answers " in answer.out and "of 5 prompts" in answer.out
    again = call(*GINC, "--out=same", "--jsonl", "--valid=0", "--test=2", *prompts)
    assert again.status == 0 and tree(Path("new")) == tree(Path("same"))
    other = call(*GINC, "--out=other", "--seed=1")
    assert other.status == 0
    assert (
        Path("new/model/model.safetensors").read_bytes()
        != Path("other/model/model.safetensors").read_bytes()
    )


@pytest.mark.parametrize(
    ("made_by", "options"),
    [
        (GINC, {"persistence": 0.5, "temperature": 0.2, "start_temperature": 3, "smoothing": 0.05}),
        (HMM, {"concentration": 0.2, "emission_concentration": 0.4}),
    ],
)
def test_options_are_those_of_the_world(tmp_path, monkeypatch, call, made_by, options) -> None:
    monkeypatch.chdir(tmp_path)
    written, write = [], worlds.write_world
    record = lambda *given, **how: written.append(given[2]) or write(*given, **how)  # noqa: E731
    monkeypatch.setattr(worlds, "write_world", record)
    told = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    answer = call(*made_by, "--out=new", *told, "--documents=11", "--seed=3", "--json")
    assert answer.status == 0, answer.err
    said = last_json(answer.out)
    assert {name: said["world"][name] for name in (*options, "seed")} == {**options, "seed": 3}
    assert said["optimum"]["valid"]["documents"] == said["optimum"]["test"]["documents"] == 2
    assert written[0].seed == 3
    assert f"), perplexity {math.exp(said['entropy_rate']['value']):.3f}\n" in answer.out


def test_impossible_prompts_are_counted(place, call) -> None:
    answer = call(*GINC, "--out=new", "--smoothing=0", "--prompts=20", "--examples=16", "--json")
    assert answer.status == 0, answer.err
    (line,) = last_json(answer.out)["prompts"]
    assert line["impossible"] > 0 and f", {line['impossible']} impossible" in answer.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*GINC, "--out=corpus"], "corpus already exists and is never overwritten; choose another"),
        ([*GINC], "Missing option '--out'; see hmmlm world ginc --help."),
        ([*GINC, "--out=new", "--concepts=0"], "'0' is not a whole number of at least 1"),
        ([*GINC, "--out=new", "--properties=1"], "'1' is not a whole number of at least 2"),
        ([*GINC, "--out=new", "--persistence=2"], "'2' is not a number from 0 to 1"),
        ([*GINC, "--out=new", "--smoothing=x"], "'x' is not a number of at least 0"),
        ([*GINC, "--out=new", "--temperature=0"], "'0' is not a number above 0"),
        ([*GINC, "--out=new", "--examples=1,b"], "'b' is not a whole number of at least 0"),
        ([*GINC, "--out=new", "--concepts=9000"], "The world would have 63,000 states but a world"),
        ([*GINC, "--out=new", "--length=1", "--prompts=1"], "Prompts need documents that go on"),
        ([*HMM, "--out=new", "--concentration=-1"], "'-1' is not a number above 0"),
        ([*HMM, "--out=text.txt/new"], "text.txt is a file, not a folder; choose another name."),
        (["world", "moon"], "No such command 'moon'"),
    ],
)
def test_what_is_refused(refused, arguments, message) -> None:
    assert message in refused(*arguments)
