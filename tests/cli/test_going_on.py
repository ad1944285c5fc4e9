"""Trainings that go on, are left, or are over: with what they began with, and whole."""

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from commands import tree
from hmmlm.cli import fitting
from hmmlm.data.batches import Packed
from hmmlm.model import Model
from hmmlm.params.scalar import Scalar
from hmmlm.train.checkpoint import Checkpoints
from hmmlm.train.run import Run

SCALAR = ["--kind=scalar", "--states=8", "--blocks=0", "--batch-size=2", "--length=32"]
EM = [*SCALAR, "--optimiser=em", "--epochs=4"]
TAGS = {"the": "D", "a": "D", ".": "P", "sees": "V", "likes": "V"}


def write_labels(name: str, tags: dict[str, str]) -> None:
    lines = Path("text.txt").read_text().splitlines()
    marks = [" ".join(tags.get(word, "_") for word in line.split()) for line in lines]
    Path(name).write_text("\n".join(marks) + "\n")


@pytest.fixture
def stop_at(monkeypatch):
    """Makes the next training hear a signal when it is about to read its n-th batch."""
    plain = Packed._batch

    def ask(number: int) -> None:
        read = 0

        def count(self: Packed, epoch: int, index: int):
            nonlocal read
            read += 1
            if read == number:
                os.kill(os.getpid(), signal.SIGTERM)
            return plain(self, epoch, index)

        monkeypatch.setattr(Packed, "_batch", count)

    return ask


def steps(folder: str) -> list[dict]:
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    return [{**json.loads(line), "tokens_per_second": 0} for line in lines]


def test_other_labels_are_not_gone_on_with(place, call, stop_at):
    write_labels("labels.txt", TAGS)
    how = ["train", "corpus", *EM, "--states=9", "--labels=labels.txt"]
    assert call(*how, "--out=whole").status == 0
    batches = count_batches()
    stop_at(2 * batches + 2)
    assert call(*how, "--out=run").status == 128 + signal.SIGTERM
    original = Path("labels.txt").read_text()
    write_labels("labels.txt", {**TAGS, "dog": "V"})
    before = tree(place)
    answer = call("train", "--resume=run")
    assert answer.status == 2 and tree(place) == before
    assert answer.err.startswith("hmmlm: The run in run is another one: labels was ")
    write_labels("labels.txt", {word: tag.lower() for word, tag in TAGS.items()})
    assert "another one: labels was " in call("train", "--resume=run").err
    Path("labels.txt").write_text(original)
    assert call("train", "--resume=run").status == 0
    same = [Path(name, "model.safetensors").read_bytes() for name in ("whole", "run")]
    assert same[0] == same[1]


def count_batches() -> int:
    from hmmlm.data.shards import Corpus

    return Packed(Corpus.open("corpus").split("train"), 2, 32).num_batches


@pytest.mark.parametrize("done", [0, 2])
def test_a_step_over_all_of_the_text_is_left_in_the_middle(place, call, stop_at, done):
    assert call("train", "corpus", *EM, "--out=whole").status == 0
    batches = count_batches()
    assert batches > 5
    stop_at(done * batches + 3)
    answer = call("train", "corpus", *EM, "--out=run")
    assert answer.status == 128 + signal.SIGTERM
    said = f"hmmlm: Stopped; hmmlm train --resume run goes on after step {done}.\n"
    assert answer.err == said
    assert [path.name for path in Path("run/checkpoints").iterdir()] == [f"step-{done:09d}"]
    resumed = call("train", "--resume=run")
    assert resumed.status == 0, resumed.err
    assert f"going on after step {done} of 4" in resumed.out
    assert steps("run") == steps("whole")
    files = [Path(name, "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert files[0] == files[1]


def test_a_checkpoint_is_written_in_the_middle_of_a_long_step(place, call, monkeypatch):
    monkeypatch.setattr(Checkpoints, "is_late", property(lambda self: True))
    written = []
    plain = Checkpoints.write

    def write(self, state):
        written.append((state.numbers["step"], state.numbers["position"]))
        plain(self, state)

    monkeypatch.setattr(Checkpoints, "write", write)
    assert call("train", "corpus", *EM, "--out=run").status == 0
    batches = count_batches()
    during = [position for step, position in written if step == 1]
    assert during == [{"epoch": 0, "batch": batches}] * (1 + batches)  # that before the step


def test_the_same_command_again(place, call, stop_at, monkeypatch):
    how = ["train", "corpus", *EM, "--out=run"]
    again = [*how, "--resume-if-begun"]
    stop_at(count_batches() + 3)
    assert call(*again).status == 128 + signal.SIGTERM
    monkeypatch.undo()
    monkeypatch.chdir(place)
    before = tree(place)
    assert call(*how).err == (
        "hmmlm: run already exists: its training is not over. Go on with hmmlm train --resume run, "
        "or choose another name.\n"
    )
    other = call(*again, "--epochs=9")
    assert other.status == 2 and "config.train.epochs was 4 and is 9" in other.err
    assert tree(place) == before
    answer = call(*again)
    assert answer.status == 0 and "going on after step 1 of 4" in answer.out
    before = tree(place)
    over = call(*again, "--json")
    assert over.status == 0
    said, facts = over.out.splitlines()
    assert said == "run was trained to its end before; there is nothing left to do."
    nothing = {"steps": 0, "seconds": 0.0, "val": None, "peak_bytes": None}
    assert json.loads(facts) == {"folder": "run", **nothing}
    assert tree(place) == before
    answer = call(*how)
    assert answer.status == 2 and "run already exists and is never overwritten" in answer.err
    answer = call("train", "corpus", *EM, "--resume-if-begun")
    assert answer.err == ("hmmlm: --resume-if-begun needs --out, the folder that is looked into.\n")
    # A folder of something else is not taken for a model.
    Path("other/checkpoints").mkdir(parents=True)
    Path("other/config.json").write_text("{}")
    answer = call("train", "corpus", *EM, "--out=other", "--resume-if-begun")
    assert answer.status == 2 and "other already exists and is never" in answer.err
    assert Path("other/checkpoints").is_dir()


def test_ranks_that_are_started_again_when_all_is_done(place, call, monkeypatch):
    assert call("train", "corpus", *EM, "--out=run").status == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    answer = call("train", "corpus", *EM, "--out=run")
    assert answer.status == 0 and "there is nothing left to do" in answer.out


IMPOSSIBLE = [*EM, "--length=8", "--learning-rate=1", "--set=train.accumulate=1"]
IMPOSSIBLE += ["--set=train.pseudocount=0"]


def test_a_training_that_failed_is_not_well_when_asked_again(place, call):
    first = call("train", "corpus", *IMPOSSIBLE, "--out=run")
    assert first.status == 2 and "the model gives probability zero to " in first.err
    assert first.err.endswith(" The model was written to run.\n")
    Model.load("run")
    again = call("train", "corpus", *IMPOSSIBLE, "--out=run", "--resume-if-begun")
    assert again.status == 2 and again.err == first.err


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_the_very_end(place, call, monkeypatch, when):
    plain = Run.finish

    def killed(self) -> None:
        (self.folder / ".tokenizer.json.x1f").write_bytes(b"half")
        if when == "after":
            shutil.copytree(self.folder / "checkpoints", "kept")
            plain(self)
            shutil.move("kept", self.folder / "checkpoints")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "finish", killed)
        how = ["train", "corpus", *EM, "--set=train.save_steps=1", "--out=run"]
        assert call(*how).status == 130
    weights = Path("run/model.safetensors").read_bytes()
    answer = call("train", "--resume=run")
    assert answer.status == 0 and "run was trained to its end before" in answer.out
    names = {path.name for path in Path("run").iterdir()} - {"tensorboard"}
    assert names == {"config.json", "metrics.jsonl", "model.safetensors", "tokenizer.json"}
    assert Path("run/model.safetensors").read_bytes() == weights
    answer = call("train", "--resume=run")
    assert answer.status == 2 and "nothing to resume" in answer.err


def test_tables_that_do_not_fit_are_not_made(place, refused, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("made before it was refused")

    monkeypatch.setattr("hmmlm.train.memory.free_memory", lambda device: 100)
    monkeypatch.setattr("hmmlm.train.memory.FAR", {"cpu": 10**9, "cuda": 10**9})  # no rough check
    monkeypatch.setattr(Scalar, "__init__", fail)
    assert "Tables of 8 x 8 transitions and " in refused("train", "corpus", *EM, "--out=new")


def test_a_text_that_is_cut_short_while_it_is_read(place, call, monkeypatch):
    whole, plain = Path("corpus/train-00000.bin").read_bytes(), fitting._record

    def cut(run, log, step, state) -> None:
        plain(run, log, step, state)
        if step.step == 3:
            os.truncate("corpus/train-00000.bin", 100)

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "_record", cut)
        how = ["train", "corpus", *SCALAR, "--epochs=1", "--set=train.save_steps=2", "--out=run"]
        answer = call(*how)
    assert answer.status == 2 and answer.err.count("\n") == 1
    assert "corpus/train-00000.bin has become shorter since it was opened" in answer.err
    Path("corpus/train-00000.bin").write_bytes(whole)
    answer = call("train", "--resume=run")
    assert answer.status == 0 and "going on after step 2 of" in answer.out


def test_a_validation_that_never_gives_a_number_keeps_the_last_weights(place, call):
    Path("odd.txt").write_text("the unheard of dog .\n")
    assert call("prepare", "text.txt", "--valid=odd.txt", "--out=odd").status == 0
    answer = call("train", "odd", *EM, "--set=train.pseudocount=0", "--out=run")
    assert answer.status == 0
    assert answer.err == (
        "hmmlm: Validation gave no number, at no step: the model gives probability zero to some of "
        "its text. The weights are those of the last check, step 4.\n"
    )
    one = call("train", "odd", *EM, "--set=train.pseudocount=0", "--epochs=1", "--out=one")
    assert "step 1." in one.err
    files = [Path(name, "model.safetensors").read_bytes() for name in ("run", "one")]
    assert files[0] != files[1]


def test_lost_metrics_are_told_once(place, call, monkeypatch):
    def full(self, step) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Run, "add_metrics", full)
        answer = call("train", "corpus", *EM, "--set=train.save_steps=1", "--out=run")
    assert answer.status == 0
    assert answer.err == (
        "hmmlm: The metrics of step 1 are lost, and those of others may be, without another word "
        "(No space left on device). Training goes on.\n"
    )


def test_a_disk_without_locks(place, call, monkeypatch):
    def no(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("hmmlm.train.run.fcntl.flock", no)
    answer = call("train", "corpus", *EM, "--out=run")
    assert answer.status == 0
    assert answer.err == (
        "hmmlm: run cannot be locked (Function not implemented); let no other process train "
        "there.\n"
    )
