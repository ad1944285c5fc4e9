"""Trainings that are stopped or killed, and go on."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

from commands import SOURCE, run_command, stop_after_a_step, tree
from hmmlm.cli import fitting
from hmmlm.data.shards import write_corpus
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError

OPTIONS = ["--kind=lowrank", "--states=8", "--blocks=4", "--epochs=30", "--batch-size=2"]
OPTIONS += ["--device=cpu", "--set=train.save_steps=20", "--set=model.width=4"]


def test_the_way_to_go_on_can_be_copied(monkeypatch):
    said = []
    monkeypatch.setattr(fitting, "warn", said.append)
    with pytest.raises(SystemExit):
        fitting._leave(3, Path("my runs/a"), signal.SIGINT)
    assert said == ["Stopped; hmmlm train --resume 'my runs/a' goes on after step 3."]

    class Full:
        def write_into(self, folder):
            raise InputError("The disk is full.")

    run = SimpleNamespace(folder=Path("my runs/a"), checkpoints=SimpleNamespace(newest=lambda: 3))
    with pytest.raises(InputError, match=r"--resume 'my runs/a', which goes on after step 3\."):
        fitting._finish(run, Full())


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "hmmlm", "train", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
    )


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists() or not path.read_bytes():
        assert time.monotonic() < until, f"{path} never came"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def stopped(made, tmp_path_factory) -> Path:
    """A folder with a corpus and the training `run`, stopped by SIGTERM."""
    folder = tmp_path_factory.mktemp("stopped")
    shutil.copytree(made.folder / "corpus", folder / "corpus")
    process = start(folder, "corpus", "--out=run", *OPTIONS)
    wait_for(folder / "run/metrics.jsonl")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    last = json.loads((folder / "run/metrics.jsonl").read_text().splitlines()[-1])["step"]
    wanted = f"hmmlm: Stopped; hmmlm train --resume run goes on after step {last}.\n"
    assert said.decode() == wanted
    return folder


@pytest.fixture
def again(stopped, tmp_path, monkeypatch) -> Path:
    """A copy of the stopped training, as the current folder."""
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_training_that_was_stopped_goes_on_to_the_same_model(again, call):
    resumed = call("train", "--resume", "run")
    assert resumed.status == 0 and "going on after step" in resumed.out
    whole = call("train", "corpus", "--out=whole", *OPTIONS)
    assert whole.status == 0
    first, second = (
        {name: held for name, held in tree(again / part).items() if "tensorboard" not in name}
        for part in ("whole", "run")
    )
    assert first.keys() == second.keys()
    assert first["model.safetensors"] == second["model.safetensors"]
    configs = [json.loads(part["config.json"]) for part in (first, second)]
    for config in configs:  # where the text is, is said in full when it may be looked for again
        config["training"]["data"].pop("corpus")
    assert configs[0] == configs[1]


@pytest.mark.parametrize("given", ["clusters", "start"])
def test_a_training_goes_on_from_another_folder(again, call, monkeypatch, given):
    """Also with files other than its text, that were named from the folder it began in."""
    how = [*OPTIONS[2:], "--epochs=2"]
    if given == "clusters":
        assert call("cluster", "--text=corpus", "--clusters=3", "--out=paths").status == 0
        how += ["--states=9", "--clusters=paths", "--like-hmm-lm"]
        how.remove("--blocks=4")
    else:
        how = [option for option in how if "block" not in option and "width" not in option]
        first = ["--kind=scalar", "--states=8", "--blocks=4", "--epochs=1", "--out=paths"]
        assert call("train", "corpus", *first).status == 0
        how += ["--kind=scalar", "--set=train.start=paths", "--dropout=0"]
    assert call("train", "corpus", *how, "--out=whole").status == 0
    stop_after_a_step(call, monkeypatch, "train", "corpus", *how, "--out=other")
    (again / "elsewhere").mkdir()
    monkeypatch.chdir(again / "elsewhere")
    (again / "paths").rename(again / "moved")
    if given == "start":  # the checkpoint has its weights
        (again / "other/checkpoints").rename(again / "checkpoints")
    lost = call("train", "--resume=../other")
    assert lost.status == 2
    option = "--clusters NEW-PLACE" if given == "clusters" else "--set train.start=NEW-PLACE"
    assert lost.err == (
        f"hmmlm: {again}/paths, which the run in ../other began with, is not there; if it has "
        f"moved, go on with hmmlm train --resume ../other {option}.\n"
    )
    if given == "start":
        (again / "checkpoints").rename(again / "other/checkpoints")
    else:
        (again / "moved").rename(again / "paths")
    answer = call("train", "--resume=../other")
    assert answer.status == 0, answer.err
    files = [again / name / "model.safetensors" for name in ("other", "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_run_does_not_go_on_with_another_start(again, call, monkeypatch):
    first = ["train", "corpus", "--kind=scalar", "--states=8", "--blocks=4", "--epochs=1"]
    for seed in (1, 2):
        assert call(*first, f"--seed={seed}", f"--out=start-{seed}").status == 0
    how = ["--kind=scalar", "--dropout=0", "--epochs=1", "--set=train.start=start-1"]
    stop_after_a_step(call, monkeypatch, "train", "corpus", *how, "--out=other")
    answer = call("train", "--resume=other", "--set=train.start=start-2")
    assert answer.status == 2 and "The run in other is another one: start was " in answer.err


def test_ctrl_c_saves_and_leaves(again):
    process = start(again, "corpus", "--out=other", *OPTIONS)
    wait_for(again / "other/metrics.jsonl")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    promise, last = said.decode().splitlines()
    assert promise == "stopping after this step; Ctrl-C again leaves now"
    assert last.startswith("hmmlm: Stopped; hmmlm train --resume other goes on after step")
    assert list((again / "other/checkpoints").iterdir())


def test_the_corpus_may_have_moved(stopped, again, call):
    (again / "corpus").rename(again / "moved")
    described = (again / "run/run.json").read_text()
    (again / "run/run.json").write_text(described.replace(str(stopped), "/nowhere"))
    shutil.rmtree("run/checkpoints")  # one that never came to a checkpoint starts again
    answer = call("train", "--resume", "run")
    assert answer.status == 2 and answer.err == (
        "hmmlm: /nowhere/corpus, which the run in run began with, is not there; if it has moved, "
        "go on with hmmlm train --resume run NEW-PLACE.\n"
    )
    assert call("train", "moved", "--resume", "run").status == 0


@pytest.mark.parametrize(
    "arguments, wanted",
    [
        (["--set=train.epochs=9"], "another one: config.train.epochs was 30 and is 9. Go on with"),
        (["--learning-rate=0.5"], "config.train.learning_rate was 0.03 and is 0.5"),
        (["--out=new"], "--resume goes on in run; leave --out away."),
    ],
)
def test_a_training_goes_on_as_it_was_begun(again, call, arguments, wanted):
    before = tree(again)
    answer = call("train", "--resume", "run", *arguments)
    assert answer.status == 2 and wanted in answer.err
    assert tree(again) == before


def test_another_text_is_not_gone_on_with(again, call):
    splits = {"train": ["a b c"], "valid": ["a b"]}
    write_corpus(again / "other", Tokenizer.words(["a b c"]), splits)
    answer = call("train", "other", "--resume", "run", "--set=model.blocks=4")
    assert answer.status == 2 and answer.err.count("\n") == 1


def test_a_model_that_is_not_ready_says_how_to_go_on(again, call):
    answer = call("info", "run")
    assert answer.status == 2
    assert "its training is not over; hmmlm train --resume run goes on." in answer.err


def test_a_finished_training_cannot_be_resumed(made):
    answer = run_command("train", "--resume", "model", cwd=made.folder)
    assert answer.status == 2 and "nothing to resume" in answer.err


@pytest.mark.parametrize("part", ["model", "best", "learner"])
def test_a_checkpoint_that_does_not_fit_is_told(again, call, part):
    """One that says of itself that it is whole."""
    folder = max((again / "run/checkpoints").iterdir())
    held = json.loads((folder / "state.json").read_text())
    tensors = load_file(folder / "state.safetensors")
    for name in [name for name in tensors if name.startswith(f"{part}.")]:
        del tensors[name], held["tensors"][name]
    save_file(tensors, folder / "state.safetensors")
    (folder / "state.json").write_text(json.dumps(held))
    answer = call("train", "--resume", "run")
    wanted = rf"hmmlm: The checkpoint of step {held['numbers']['step']} does not fit this training "
    assert answer.status == 2 and re.match(wanted, answer.err), answer.err
    assert "remove its folder to go on from the one before, or from the start" in answer.err


def test_a_run_without_its_data_is_told(again, call):
    held = json.loads((again / "run/run.json").read_text())
    del held["about"]["config"]["data"]
    (again / "run/run.json").write_text(json.dumps(held))
    answer = call("train", "--resume", "run")
    assert answer.status == 2 and answer.err.count("\n") == 1


def test_two_trainings_into_one_folder(again, call):
    with (again / "run/run.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = tree(again)
        answer = call("train", "--resume", "run")
        assert answer.status == 2
        assert "run is being trained by another process (number " in answer.err
        answer = call("train", "corpus", "--out=run", *OPTIONS)
        assert answer.status == 2 and "run already exists" in answer.err
        assert tree(again) == before
