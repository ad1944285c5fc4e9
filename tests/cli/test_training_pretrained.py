"""`hmmlm train --model pretrained`: states that a language model reads, from a folder."""

import json
import shutil
from pathlib import Path

import pytest

from commands import stop_after_a_step
from hmmlm.cli.texts import find_again, is_path
from hmmlm.train.config import make_config

transformers = pytest.importorskip("transformers")

OPTIONS = ["--model=pretrained", "--states=6", "--blocks=0", "--batch-size=4", "--epochs=4"]
OPTIONS += ["--set=model.checkpoint=llama", "--learning-rate=0.01", "--dropout=0", "--device=cpu"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    folder = tmp_path_factory.mktemp("checkpoint") / "llama"
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=12,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def ready(place, call, llama):
    shutil.copytree(llama, "llama")
    return call


def losses(folder: str) -> list[float]:
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_a_training_lowers_the_loss_and_goes_on_to_the_same_model(ready, place, monkeypatch):
    answer = ready("train", "corpus", *OPTIONS, "--out=whole")
    assert answer.status == 0, answer.err
    assert all(line.startswith("step ") for line in answer.err.splitlines())
    found = losses("whole")
    assert sum(found[-5:]) < sum(found[:5]) - 1.0
    words = json.loads(Path("corpus/corpus.json").read_text())["vocab_size"]
    count = [
        "estimate",
        "--no-measure",
        f"--vocab={words}",
        "--set=model.kind=pretrained",
        "--set=model.states=6",
    ]
    said = ready(*count, "--set=model.blocks=0", "--set=model.checkpoint=llama").out
    parameters = said.split(" parameters")[0].split()[-1]
    assert f"; {parameters} parameters" in answer.out
    stop_after_a_step(ready, monkeypatch, "train", "corpus", *OPTIONS, "--out=run")
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    Path("../llama").rename("../moved")
    lost = ready("train", "--resume=../run")
    assert lost.status == 2
    assert lost.err == (
        f"hmmlm: {place}/llama, which the run in ../run began with, is not there; if it has moved, "
        f"go on with hmmlm train --resume ../run --set model.checkpoint=NEW-PLACE.\n"
    )
    answer = ready("train", "--resume=../run", "--set=model.checkpoint=../moved")
    assert answer.status == 0, answer.err
    assert losses("../run") == found
    files = [place / name / "model.safetensors" for name in ("run", "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_run_does_not_go_on_with_another_checkpoint(ready, monkeypatch):
    stop_after_a_step(ready, monkeypatch, "train", "corpus", *OPTIONS, "--out=run")
    shutil.copytree("llama", "other")
    model = transformers.LlamaForCausalLM.from_pretrained("llama")
    model.model.norm.weight.data += 0.5
    model.save_pretrained("other")
    answer = ready("train", "--resume=run", "--set=model.checkpoint=other")
    assert answer.status == 2 and "The run in run is another one: checkpoint was " in answer.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--states=33"], "There are 33 states but llama reads 32 at most; use fewer, or another"),
        (["--set=model.checkpoint={}/none"], "none cannot be loaded: there is no such folder. Gi"),
        (["--set=model.checkpoint=corpus"], "The checkpoint corpus cannot be loaded: "),
        (["--set=model.checkpoint="], "kind pretrained needs model.checkpoint: a folder that Hug"),
        (["--set=model.depth=3"], "depth is 3 but llama has 2 layers; use at most so many, or 0"),
        (["--set=train.start=model"], "so kind must be scalar, or the layers of a decoder for "),
    ],
)
def test_what_is_refused(ready, place, refused, options, message):
    assert message in refused(
        "train", "corpus", *OPTIONS, *(option.format(place) for option in options), "--out=new"
    )


def test_states_are_counted_before_any_work(ready, refused):
    asked = ["--set=model.kind=pretrained", "--set=model.checkpoint=llama"]
    for states in ("--set=model.states=40", "--tokens=2000"):
        assert "states but llama reads 32 at most" in refused("estimate", *asked, states)


def test_a_name_on_the_hub_is_no_path(place):
    assert is_path("model.checkpoint", "corpus") and is_path("model.checkpoint", "/no/folder")
    assert not is_path("model.checkpoint", "someone/small-llama")
    assert is_path("model.clusters", "someone/paths")
    tables = {"model": {"kind": "pretrained", "checkpoint": "someone/small-llama"}}
    find_again(make_config({**tables, "data": {"corpus": "corpus"}}), Path("run"))


def test_it_trains_with_carried_belief_dropout_and_bf16(ready):
    how = ["--set=data.layout=streams", "--set=train.precision=bf16", "--set=model.random=true"]
    options = [option for option in OPTIONS if "dropout" not in option and "epochs" not in option]
    answer = ready("train", "corpus", *options, *how, "--dropout=0.5", "--epochs=2", "--out=new")
    assert answer.status == 0, answer.err
    found = json.loads(ready("evaluate", "new", "corpus", "--json").out.splitlines()[-1])
    assert 1 < found["perplexity"] < 20 and found["max_row_error"] < 1e-4
