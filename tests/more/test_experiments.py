"""Every experiment runs, in its smallest form."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from experiments.lee_berg_kirkpatrick_2025 import tables

from hmmlm.data.shards import Corpus
from hmmlm.evaluate import evaluate
from hmmlm.neural_model import load_model

ROOT = Path(__file__).parent.parent.parent
TABLES = {"table1": 16, "figure3": 7, "table2": 3, "table3": 14, "table4": 10, "appendix_a2": 7}
TABLES["awd_lstm"] = 3
"""The files of Chiu & Rush 2020 and how many rows they have."""

DISTILLED = [name.partition("/")[2] for name in tables()]
"""The files of Lee & Berg-Kirkpatrick 2025."""


def command(module: str, *words: str) -> list[str]:
    return [sys.executable, "-m", f"experiments.{module}", *words]


def run(module: str, *words: str) -> dict:
    """The last line of an experiment, which is JSON."""
    done = subprocess.run(command(module, *words), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_demo_settings(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    done = subprocess.run(
        command("demo_settings", "--smoke", "--out", str(out)), capture_output=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    lines = read(out)
    assert len(lines) == 2 and all(50 < line["test"] < 300 for line in lines)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """One folder for all tables: those of the same settings share a training there."""
    return tmp_path_factory.mktemp("work")


@pytest.mark.parametrize("table", TABLES)
def test_tables_of_chiu_and_rush(table: str, work: Path) -> None:
    said = run(f"chiu_rush_2020.{table}", "--smoke", "--work", str(work), "--workers", "2")
    assert said == {"rows": TABLES[table], "done": TABLES[table], "left": [], "failed": []}
    lines = [line for line in read(work / "results.jsonl") if line["experiment"].endswith(table)]
    assert len(lines) == 2 * TABLES[table]
    assert {line["mode"] for line in lines} == {"sentence", "streaming"}
    for line in lines:
        assert 10 < line["val"] < 600 and 10 < line["test"] < 600 and 1 < line["train"] < 600
        assert (line["tokens_val"], line["tokens_test"]) == (2802, 5527)
        assert line["ms_eval_batch"] > 0 and line["parameters"] > 1000


def test_numbers_are_those_of_the_models(work: Path) -> None:
    """Of one that is there: its perplexities are read again, each of its own text."""
    run("chiu_rush_2020.table2", "--smoke", "--work", str(work), "--row", "VL-HMM 2^14")
    lines = [line for line in read(work / "results.jsonl") if line["row"] == "VL-HMM 2^14"]
    assert len(lines) == 2
    for line in lines:
        lm = load_model(work / "runs" / line["config"]["run"], device="cpu").lm
        corpus = Corpus.open(work / "built-in.corpus")
        for key, split, mode in (
            ("val", "valid", line["mode"]),
            ("test", "test", line["mode"]),
            ("train", "train", "sentence"),
        ):
            found = evaluate(lm, corpus.split(split), mode=mode, eos_id=corpus.tokenizer.eos_id)
            assert found.perplexity == pytest.approx(line[key], rel=1e-6)


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> Path:
    """Likewise for the other paper."""
    return tmp_path_factory.mktemp("taught")


@pytest.mark.parametrize("table", DISTILLED)
def test_tables_of_lee_and_berg_kirkpatrick(table: str, taught: Path) -> None:
    said = run(
        f"lee_berg_kirkpatrick_2025.{table}", "--smoke", "--work", str(taught), "--workers", "2"
    )
    assert said["rows"] == said["done"] > 0 and not said["left"] and not said["failed"]
    lines = [line for line in read(taught / "results.jsonl") if line["experiment"].endswith(table)]
    modes = {"sentence", "streaming"} if table == "ptb" else {"window 64"}
    assert lines and {line["mode"] for line in lines} == modes
    for line in lines:
        assert all(1 < line[key] < 1000 for key in ("val", "test", "train"))


def test_the_page_of_all_tables(work: Path) -> None:
    """After the tests above; all is there, and what stands there is what the lines say."""
    page = work / "docs/results.md"
    words = ["--lines", str(work / "results.jsonl"), "--distilled", str(work / "none.jsonl")]
    said = run("report", *words, "--out", str(page))
    assert said["lines"] == 2 * sum(TABLES.values())
    text, _, others = page.read_text().partition("# Lee & Berg-Kirkpatrick 2025\n")
    assert "not run yet" not in text and "A rehearsal" in text and "not run yet" in others
    val = next(line["val"] for line in read(work / "results.jsonl") if line["row"] == "KN 5-gram")
    assert f"**{val:.1f}**" in text
    for name in ("figure3.svg", "figure4.svg"):
        assert f"({name})" in text and (page.parent / name).read_text().startswith("<?xml")


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    words = ["--smoke", "--work", str(tmp_path), "--row=2x256 LSTM", "--dataset=ptb"]
    words += ["--epochs=40", "--device=cpu"]
    module = "chiu_rush_2020.table1"
    with subprocess.Popen(
        command(module, *words), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ends = time.monotonic() + 60
        while time.monotonic() < ends and not _steps(tmp_path):
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        said = json.loads(process.stdout.read().splitlines()[-1])
    assert process.returncode == 0 and said["left"] == ["ptb: 2x256 LSTM"]
    steps, (notes,) = _steps(tmp_path), (tmp_path / "runs").glob("*.json")
    seconds = json.loads(notes.read_text())["seconds"]
    assert 0 < steps < 2120 and seconds > 0 and not (tmp_path / "results.jsonl").exists()
    assert run(module, *words)["left"] == []
    (out,) = (tmp_path / "runs").glob("*.out")
    assert f"going on after step {steps:,} of 2,120" in out.read_text()
    lines = read(tmp_path / "results.jsonl")
    assert len(lines) == 2 and all(line["seconds"] > seconds for line in lines)
    assert lines[0]["epochs"] == 40 and _steps(tmp_path) == 2120
    assert run(module, *words)["done"] == 1 and len(read(tmp_path / "results.jsonl")) == 2


def test_a_training_that_fails(tmp_path: Path) -> None:
    words = ["--smoke", "--work", str(tmp_path), "--dataset=ptb", "--epochs=0"]
    words += ["--row=2x256 LSTM", "--row=KN 5-gram"]
    told = subprocess.run(
        command("chiu_rush_2020.table1", *words), capture_output=True, text=True, cwd=ROOT
    )
    said = json.loads(told.stdout.splitlines()[-1])
    assert told.returncode == 1 and said["left"] == ["ptb: 2x256 LSTM"] and said["done"] == 1
    message = "hmmlm ended with 2: hmmlm: epochs is 0 but must be at least 1."
    assert said["failed"] == [f"2x256 LSTM (ptb): {message}"]


def _steps(work: Path) -> int:
    """The steps that are written down."""
    files = list((work / "runs").glob("*/metrics.jsonl"))
    return len(files[0].read_text().splitlines()) if files else 0


def test_times_of_rows_alone(tmp_path: Path) -> None:
    words = ("--smoke", "--time", "--work", str(tmp_path), "--row=2^10 states", "--row=2^11 states")
    said = run("chiu_rush_2020.figure3", *words)
    assert said == {"rows": 2, "done": 2, "left": [], "failed": []}
    times = read(tmp_path / "results.jsonl")  # tiny, both are one training
    assert len(times) == 1 and times[0]["ms_train_step"] > 0 and times[0]["ms_eval_batch"] > 0
    assert run("chiu_rush_2020.figure3", *words)["done"] == 2
    assert len(read(tmp_path / "results.jsonl")) == 1


def test_times_are_taken_on_the_head_of_a_text(tmp_path: Path) -> None:
    data = tmp_path / "data/ptb"
    data.mkdir(parents=True)
    for split in ("train", "valid", "test"):
        (data / f"ptb.{split}.txt").write_text(" the <unk> of a model \n" * 4000)
    out = tmp_path / "times.jsonl"
    words = ["--data", str(data.parent), "--work", str(tmp_path / "work"), "--out", str(out)]
    words += ["--row=2x256 LSTM", "--dataset=ptb", "--time", "--commit=abc"]
    assert run("chiu_rush_2020.table1", *words)["done"] == 1
    (times,) = read(out)
    assert times["commit"] == "abc" and times["ms_train_step"] > 0
    index = json.loads((tmp_path / "work/ptb-head.corpus/corpus.json").read_text())
    tokens = {name: split["tokens"] for name, split in index["splits"].items()}
    assert tokens == {"train": 23994, "valid": 15996, "test": 996}
