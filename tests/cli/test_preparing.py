"""`hmmlm prepare` as people run it, and stop it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import SOURCE, Answer, made_up_lines, tree
from hmmlm.storage import work_folder

# Blocks of some lines, so that there is something to stop.
SCRIPT = """
import hmmlm.data.preparation
from hmmlm.cli import main

hmmlm.data.preparation._BLOCK = 2000
main()
"""


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A text, and the corpus that one process makes of it without a stop."""
    folder = tmp_path_factory.mktemp("texts")
    lines = made_up_lines(50_000, seed=1)
    (folder / "long.txt").write_text("".join(f"{line}\n" for line in lines))
    assert finish(start(folder, "long.txt", "--out=whole", "--workers=1")).status == 0
    return folder


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "prepare", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
        start_new_session=True,
    )


def finish(process: subprocess.Popen) -> Answer:
    """Waits until nobody has its standard output: until its workers have ended too."""
    out, err = process.communicate(timeout=120)
    return Answer(process.returncode, out, err)


def wait_for_pieces(work: Path) -> None:
    """Until some blocks are encoded."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        if (work / "state.json").exists():
            splits = json.loads((work / "state.json").read_text())["splits"]
            if splits and splits["train"]["written"]["tokens"] > 10_000:
                return
        time.sleep(0.001)
    raise AssertionError("nothing was encoded")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_in_the_middle_it_goes_on(texts, workers, number):
    name = f"killed-{workers}-{number}"
    arguments = ["long.txt", f"--out={name}", f"--workers={workers}"]
    work = texts / f".{name}.unfinished"
    process = start(texts, *arguments)
    wait_for_pieces(work)
    process.send_signal(number)
    assert finish(process).status == -number
    assert not (texts / name).exists() and work.is_dir()
    answer = finish(start(texts, *arguments))
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.startswith(f"Going on with the unfinished {name}.\n train ")
    assert tree(texts / name) == tree(texts / "whole") and not work.exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_says_how_to_go_on(texts, workers):
    name = f"stopped-{workers}"
    arguments = ["long.txt", f"--out={name}", f"--workers={workers}"]
    process = start(texts, *arguments)
    wait_for_pieces(texts / f".{name}.unfinished")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all its processes
    answer = finish(process)
    assert (answer.status, answer.out) == (130, "")
    assert answer.err.splitlines() == [
        "What was done is kept; the same command goes on from there.",
        "hmmlm: stopped.",
    ]
    assert finish(start(texts, *arguments)).status == 0
    assert tree(texts / name) == tree(texts / "whole")


def test_two_at_once(texts):
    first = start(texts, "long.txt", "--out=both")
    wait_for_pieces(texts / ".both.unfinished")
    first.send_signal(signal.SIGSTOP)  # so that it does not end before the second begins
    second = finish(start(texts, "long.txt", "--out=both"))
    first.send_signal(signal.SIGCONT)
    assert second.status == 2
    assert second.err == (
        "hmmlm: both is being made by another process; wait for that one or choose another name.\n"
    )
    assert finish(first).status == 0
    assert tree(texts / "both") == tree(texts / "whole")


def test_one_at_a_time(place, refused):
    with work_folder("new"):
        message = refused("prepare", "text.txt", "--out=new")
    assert message == (
        "new is being made by another process; wait for that one or choose another name."
    )


def test_a_changed_text_starts_afresh_and_says_so(texts):
    process = start(texts, "long.txt", "--out=changed")
    wait_for_pieces(texts / ".changed.unfinished")
    process.kill()
    finish(process)
    with (texts / "long.txt").open("a") as file:
        file.write("one more\n")
    try:
        out = finish(start(texts, "long.txt", "--out=changed", "--json")).out
    finally:
        size = (texts / "long.txt").stat().st_size
        os.truncate(texts / "long.txt", size - len("one more\n"))
    assert out.startswith(
        "There is an unfinished changed, but the text has changed; starting afresh.\n"
    )
    assert json.loads(out.splitlines()[-1])["splits"]["train"]["sentences"] == 50_001


@pytest.mark.parametrize("workers", ["0", "x"])
def test_a_number_of_workers_that_is_none(place, refused, workers):
    message = refused("prepare", "text.txt", "--out=new", f"--workers={workers}")
    assert f"'{workers}' is not a whole number of at least 1" in message


def test_a_killed_worker_is_one_sentence(place, call, monkeypatch):
    def fail(*_, **__):
        raise ChildProcessError("A process that shared the work was killed")

    monkeypatch.setattr("hmmlm.data.processes.Processes.map", fail)
    answer = call("prepare", "text.txt", "--out=new")
    assert answer.status == 2
    assert answer.err == "hmmlm: A process that shared the work was killed.\n"
    assert (place / ".new.unfinished").is_dir()


def test_validation_text_from_a_pipe(place):
    process = subprocess.run(
        [sys.executable, "-m", "hmmlm", "prepare", "text.txt", "--valid=-", "--out=new", "--json"],
        cwd=place,
        input=b"the dog\na cat\n",
        capture_output=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout.splitlines()[-1])
    assert result["splits"]["valid"] == {"tokens": 6, "sentences": 2, "unknown": 0}


def test_the_bar_shows_the_share_the_speed_and_the_time_left(texts, monkeypatch):
    from rich.console import Console

    from hmmlm.cli import bars

    screen = Console(force_terminal=True, width=100, record=True, file=io.StringIO())
    monkeypatch.setattr(bars, "errors", screen)
    with bars.progress_bar("Reading", 0, bytes=True) as bar:
        bar.reset(bar.task_ids[0], description="Encoding", total=10_000_000)
        for read in (1_000_000, 2_000_000, 5_000_000):
            bar.update(bar.task_ids[0], completed=read)
            time.sleep(0.1)
        bar.refresh()
        line = screen.export_text().splitlines()[-1]
    assert "Encoding" in line and "50%" in line and "MB/s" in line


def test_a_dataset(place, call, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", place / "cache")
    Path("my.data").mkdir()
    for split, lines in (("train", ["a b", "b"]), ("validation", ["a"]), ("more", ["c", "a a"])):
        rows = [json.dumps({"said": line}) + "\n" for line in lines]
        Path(f"my.data/{split}.jsonl").write_text("".join(rows))
    answer = call("prepare", "hf:./my.data", "--column=said", "--json")
    assert (answer.status, answer.err) == (0, "")
    found = json.loads(answer.out.splitlines()[-1])
    assert found["folder"] == "my.corpus"
    assert {name: split["tokens"] for name, split in found["splits"].items()} == {
        "train": 5,
        "valid": 2,
    }
    options = ["--column=said", "--split=train=validation", "--split=test=train", "--out=two"]
    answer = call("prepare", "hf:./my.data", *options, "--valid=text.txt", "--json")
    found = json.loads(answer.out.splitlines()[-1])
    assert {name: split["sentences"] for name, split in found["splits"].items()} == {
        "train": 1,
        "test": 2,
        "valid": 200,
    }


@pytest.mark.parametrize("option", ["config", "split", "column"])
def test_settings_of_datasets_are_for_datasets(refused, option):
    said = refused("prepare", "text.txt", "--out=new", f"--{option}=x")
    assert said == f"--{option} is for a dataset, hf:NAME; text.txt is none: leave it out."


def test_much_that_is_unknown_is_told(place, call):
    answer = call("prepare", "text.txt", "--min-count=200", "--out=new")
    assert re.fullmatch(
        r"hmmlm: \d\d% of the training text is <unk>: a lower --min-count or a larger --max-size "
        r"keeps more words\.\n",
        answer.err,
    )
    Path("other.txt").write_text("quite another text\n")
    answer = call("prepare", "text.txt", "--valid=other.txt", "--out=new-2")
    said = "hmmlm: 75% of the validation text is <unk>: its words are not those of the training "
    assert answer.err == f"{said}text.\n"
    how = ["--tokenizer=corpus/tokenizer.json", "--out=new-3"]
    answer = call("prepare", "other.txt", *how)
    assert answer.err.endswith("its words are not those of the tokenizer; give another, or none.\n")
