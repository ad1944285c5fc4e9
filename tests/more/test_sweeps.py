"""Sweeps whose trainings are real: stopped, gone on with, and in each other's way."""

import json
import signal
import time
from pathlib import Path

import pytest

from commands import BASE, SOURCE, made_up_lines, one_child, run_command, start_sweep
from hmmlm.cli import sweeping


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """A folder with a corpus; trainings find this source from it."""
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    monkeypatch.chdir(tmp_path)
    for name, count in (("text", 200), ("valid", 30)):
        Path(f"{name}.txt").write_text("\n".join(made_up_lines(count, seed=count)))
    made = run_command("prepare", "text.txt", "--valid=valid.txt", "--out=corpus", cwd=tmp_path)
    assert made.status == 0, made.err
    return tmp_path


def sweep(place: Path, table: str) -> list[dict]:
    """The runs of a whole sweep."""
    Path("many.toml").write_text(BASE + table)
    answer = run_command("sweep", "many.toml", "--at-once=2", "--json", cwd=place)
    return json.loads(answer.out.splitlines()[-1])["runs"]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_ctrl_c_stops_trainings_and_running_again_goes_on(place):
    table = "[sweep.grid]\ntrain.epochs = [1, 500]\n"
    Path("many.toml").write_text(BASE + table)
    process = start_sweep("from hmmlm.cli import main; main()")
    assert process.stdout is not None
    for expected in ("2 runs in runs/many", "1 of 2  train.epochs=1 "):
        assert process.stdout.readline().startswith(expected)
    training = one_child(process.pid)
    metrics, until = Path("runs/many/train.epochs=500/metrics.jsonl"), time.monotonic() + 60
    while not metrics.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - asked < sweeping.SECONDS_TO_STOP  # by itself
    assert (process.returncode, err) == (130, "hmmlm: stopped.\n")
    assert not Path(f"/proc/{training}").exists()
    before = metrics.read_text().splitlines()
    assert list(metrics.parent.glob("checkpoints/step-*"))

    runs = sweep(place, table)
    states = {run["name"]: run["state"] for run in runs}
    assert states == {"train.epochs=1": "kept", "train.epochs=500": "trained"}
    after = metrics.read_text().splitlines()
    assert len(after) == json.loads(after[-1])["steps"] > len(before)
    assert after[: len(before)] == before


def test_an_empty_folder_is_trained_into_and_a_full_one_is_not(place):
    Path("runs/many/train.seed=1").mkdir(parents=True)
    Path("runs/many/train.seed=2").mkdir(parents=True)
    Path("runs/many/train.seed=2/mine").touch()
    one, two = sweep(place, "[sweep.grid]\ntrain.seed = [1, 2]\n")
    assert one["state"] == "trained" and two["state"] == "failed"
    assert two["error"].startswith("runs/many/train.seed=2 already exists and is never overwritten")
