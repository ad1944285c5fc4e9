"""`torchrun -m hmmlm train`: ranks end together when one fails, start again, and stop."""

import json
from pathlib import Path

import pytest

import ranks
from commands import lines_of_ours, made_up_lines, run_command, torchrun


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "text.txt").write_text("\n".join(made_up_lines(150, seed=0)))
    (folder / "valid.txt").write_text("\n".join(made_up_lines(20, seed=1)))
    made = run_command("prepare", "text.txt", "--valid", "valid.txt", "--out", "c", cwd=folder)
    assert made.status == 0, made.err
    return folder


TRAIN = ("train", "c", "--states", "24", "--blocks", "6", "--batch-size", "6", "--length", "24")


def test_the_command_under_torchrun(corpus):
    how = (*TRAIN, "--epochs", "2", "--set", "model.width=4", "--json")
    two = torchrun("-m", "hmmlm", *how, "--out", "two", cwd=corpus)
    assert two.status == 0, two.err
    one = run_command(*how, "--out", "one", cwd=corpus)
    said = two.out.splitlines()
    assert len(said) == len(set(said)) and "2 ranks, each 3 rows of a batch" in said
    for key in ("steps", "val"):
        found = [json.loads(answer.out.splitlines()[-1])[key] for answer in (one, two)]
        assert found[1] == pytest.approx(found[0], rel=1e-4)
    metrics = [
        (corpus / name / "metrics.jsonl").read_text().splitlines() for name in ("one", "two")
    ]
    ours, truth = ([json.loads(line)["loss"] for line in lines] for lines in metrics)
    assert ours == pytest.approx(truth, rel=1e-4)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            "disagree",
            "hmmlm: train.learning_rate is 0.03 on rank 0 but 0.125 on rank 1; start all ranks "
            "with the same settings and the same text.",
        ),
        ("fail", "hmmlm: train-00000.bin: Input/output error."),
    ],
)
def test_an_error_of_one_rank_is_told_once_and_ends_all(act, message, corpus):
    answer = torchrun(ranks.__file__, act, *TRAIN, "--out", act, cwd=corpus)
    assert answer.status != 0 and not (corpus / act / "config.json").exists()
    assert lines_of_ours(answer) == [message]


def test_a_rank_that_dies_ends_all(corpus):
    answer = torchrun(ranks.__file__, "die", *TRAIN, "--out", "die", cwd=corpus)
    assert answer.status != 0 and not (corpus / "die/config.json").exists()
    # torchrun may end the other one before it has said anything.
    assert all("Rank 0 lost another rank" in line for line in lines_of_ours(answer))
    assert "SIGKILL" in answer.err


def test_a_rank_that_dies_and_is_started_again_changes_nothing(corpus):
    how = (*TRAIN, "--epochs", "3", "--set", "model.width=4", "--set", "train.save_steps=2")
    answer = torchrun(
        "--max-restarts=1", ranks.__file__, "die once", *how, "--out", "restarted", cwd=corpus
    )
    assert answer.status == 0, answer.err
    assert "exitcode: -9" in answer.err and "going on after step 2 of " in answer.out
    whole = torchrun("-m", "hmmlm", *how, "--out", "undisturbed", cwd=corpus)
    assert whole.status == 0, whole.err
    files = [corpus / name / "model.safetensors" for name in ("restarted", "undisturbed")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_signal_to_one_rank_stops_all_and_any_number_goes_on(corpus):
    how = (*TRAIN, "--epochs", "3", "--set", "model.width=4")
    answer = torchrun(ranks.__file__, "stop", *how, "--out", "stopped", cwd=corpus)
    assert answer.status != 0
    (said,) = lines_of_ours(answer)
    assert said == "hmmlm: Stopped; hmmlm train --resume stopped goes on after step 4."
    resumed = run_command("train", "--resume", "stopped", "--json", cwd=corpus)
    assert resumed.status == 0, resumed.err
    whole = run_command(*how, "--out", "never-stopped", "--json", cwd=corpus)
    found = [json.loads(answer.out.splitlines()[-1])["val"] for answer in (resumed, whole)]
    assert found[0] == pytest.approx(found[1], rel=1e-4)


EM = ("train", "c", "--kind=scalar", "--optimiser=em", "--batch-size=6", "--length=24")


@pytest.fixture(scope="module")
def files(corpus) -> Path:
    """Two files of labels and two models to start from, beside the corpus."""
    lines = (corpus / "text.txt").read_text().splitlines()
    for name, marked in (("one.txt", "dog"), ("two.txt", "cat")):
        marks = [["N" if word == marked else "_" for word in line.split()] for line in lines]
        (corpus / name).write_text("\n".join(map(" ".join, marks)) + "\n")
    for seed in ("1", "2"):
        how = (*TRAIN, "--kind=scalar", "--epochs=1", "--seed", seed, "--out", f"start-{seed}")
        assert run_command(*how, cwd=corpus).status == 0
    return corpus


@pytest.mark.parametrize(
    ("swapped", "options", "message"),
    [
        ("--labels=one.txt --labels=two.txt", ["--labels=one.txt"], "the content of labels is '"),
        (
            "--set=train.start=start-1 --set=train.start=start-2",
            ["--set=train.start=start-1"],
            "the content of start is '",
        ),
        ("--epochs=3 --resume-if-begun", ["--epochs=3"], "--resume-if-begun is not set on rank 0"),
        ("--out=new --json", [], "--out is 'given' on rank 0 but not set on rank 1"),
    ],
)
def test_ranks_with_other_files_or_folders_are_told(swapped, options, message, files):
    how = (*EM, "--out=new", *options)
    answer = torchrun(ranks.__file__, f"swap {swapped}", *how, cwd=files)
    assert answer.status != 0 and not (files / "new").exists()
    (said,) = lines_of_ours(answer)
    assert said.startswith(f"hmmlm: {message}") and " rank 1; start all ranks with" in said


def test_ranks_of_other_versions_are_told(corpus):
    code = "import os, sys, hmmlm; hmmlm.__version__ += os.environ['RANK']\n"
    code += "from hmmlm.cli import main; main()"
    (corpus / "versions.py").write_text(code)
    answer = torchrun("versions.py", *EM, "--out=new", cwd=corpus)
    (said,) = lines_of_ours(answer)
    assert said.startswith("hmmlm: the version of hmmlm is '") and "on rank 0 but '" in said


def test_a_rank_that_dies_when_all_is_done_changes_nothing(corpus):
    answer = torchrun(
        "--max-restarts=1", ranks.__file__, "die late", *EM, "--out=late", "--epochs=2", cwd=corpus
    )
    assert answer.status == 0, answer.err
    assert "exitcode: -9" in answer.err
    assert "late was trained to its end before; there is nothing left to do." in answer.out


def test_a_model_that_rules_the_text_out_is_written_by_any_number_of_ranks(corpus):
    how = (*EM, "--learning-rate=1", "--set=train.accumulate=1", "--set=train.pseudocount=0")
    how += ("--states=8", "--blocks=0", "--batch-size=2", "--length=8")
    two = torchrun("-m", "hmmlm", *how, "--out=no-2", cwd=corpus)
    assert two.status != 0
    one = run_command(*how, "--out=no-1", cwd=corpus)
    assert lines_of_ours(two) == [lines_of_ours(one)[0].replace("no-1", "no-2")]
    stopped = [json.loads((corpus / n / "config.json").read_text()) for n in ("no-1", "no-2")]
    assert stopped[0]["stopped"] == stopped[1]["stopped"]
    assert not (corpus / "no-2/run.json").exists()


def test_a_signal_to_one_rank_is_heard_by_all_in_the_middle_of_a_long_step(corpus):
    how = (*EM, "--states=12", "--blocks=0", "--epochs=3")
    answer = torchrun(ranks.__file__, "stop", *how, "--out=left", cwd=corpus)
    (said,) = lines_of_ours(answer)
    assert said == "hmmlm: Stopped; hmmlm train --resume left goes on after step 0."
    resumed = torchrun("-m", "hmmlm", "train", "--resume=left", cwd=corpus)
    assert resumed.status == 0, resumed.err
    whole = torchrun("-m", "hmmlm", *how, "--out=not-left", cwd=corpus)
    assert whole.status == 0, whole.err
    files = [corpus / name / "model.safetensors" for name in ("left", "not-left")]
    assert files[0].read_bytes() == files[1].read_bytes()
