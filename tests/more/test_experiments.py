"""Experiments run, in their smallest form, are stopped, go on and fail."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from benchmarks.guiding import WORDS

from experimenting import ROOT, command, read, run
from experiments import guiding, induction
from hmmlm.data.tokenizer import Tokenizer


def test_demo_settings(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    done = subprocess.run(
        command("demo_settings", "--smoke", "--out", str(out)), capture_output=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    lines = read(out)
    assert len(lines) == 2 and all(50 < line["test"] < 300 for line in lines)


def test_ginc(tmp_path: Path) -> None:
    out = tmp_path / "ginc.jsonl"
    assert run("ginc", "run", "--smoke", "--work", str(tmp_path), "--out", str(out)) == {"lines": 2}
    lines = read(out)
    for line in lines:
        assert 0 < line["optimum"] < line["nats"] < line["unigram"]
        assert line["gap"] == pytest.approx(line["nats"] - line["optimum"], abs=1e-6)
        assert line["optimum"] < line["bigram"] < line["unigram"]
    again = run("ginc", "run", "--smoke", "--work", str(tmp_path), "--out", str(out))
    assert again == {"lines": 2}  # nothing is run twice
    (tmp_path / "worlds.md").write_text(
        "a\n<!-- experiments.ginc -->old<!-- /experiments.ginc -->\nb"
    )
    done = subprocess.run(
        command("ginc", "page", "--lines", str(out), "--docs", str(tmp_path)), cwd=ROOT
    )
    assert done.returncode == 0 and (tmp_path / "ginc.svg").read_text().startswith("<?xml")
    page = (tmp_path / "worlds.md").read_text()
    assert f"| 30 states | {lines[0]['gap']:.4f} |" in page and "old" not in page


def test_induction(tmp_path: Path) -> None:
    said = run("induction", "--smoke", "--work", str(tmp_path), "--workers", "2")
    lines = read(tmp_path / "results.jsonl")
    assert said == {"runs": 17, "lines": len(lines)}
    assert {line["row"] for line in lines} == {row.name for row in induction.ROWS}
    assert {(line["tags"], line["merge"]) for line in lines} >= {("universal", 17), ("penn", None)}
    page = tmp_path / "results.md"
    run("report", "--induced", str(tmp_path / "results.jsonl"), "--out", str(page))
    assert "| EM, dense | 45 |" in page.read_text()
    assert run("induction", "--smoke", "--work", str(tmp_path))["runs"] == 0


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    words = ["--smoke", "--work", str(tmp_path), "--row=2x256 LSTM", "--dataset=ptb"]
    words += ["--epochs=40", "--device=cpu", "--beside=1"]
    module = "chiu_rush_2020.table1"
    with subprocess.Popen(
        command(module, *words), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        _wait_for(lambda: _steps(tmp_path) > 0)
        process.send_signal(signal.SIGTERM)
        said = json.loads(process.stdout.read().splitlines()[-1])
    assert process.returncode == 0 and said["left"] == ["ptb: 2x256 LSTM"]
    steps, (notes,) = _steps(tmp_path), (tmp_path / "runs").glob("*.json")
    seconds = json.loads(notes.read_text())["seconds"]
    assert 0 < steps < 1080 and seconds > 0 and not (tmp_path / "results.jsonl").exists()
    assert run(module, *words)["left"] == []
    (out,) = (tmp_path / "runs").glob("*.out")
    assert f"going on after step {steps:,} of 1,080" in out.read_text()
    lines = read(tmp_path / "results.jsonl")
    assert len(lines) == 2 and all(line["seconds"] > seconds for line in lines)
    assert lines[0]["epochs"] == 40 and lines[0]["config"]["workers"] == 2
    assert _steps(tmp_path) == 1080
    assert run(module, *words)["done"] == 1 and len(read(tmp_path / "results.jsonl")) == 2


def test_a_training_ends_with_the_runner_that_is_killed(tmp_path: Path) -> None:
    words = ["--smoke", "--work", str(tmp_path), "--row=2x256 LSTM", "--dataset=ptb"]
    words += ["--epochs=400", "--device=cpu"]
    with subprocess.Popen(
        command("chiu_rush_2020.table1", *words), cwd=ROOT, stderr=subprocess.DEVNULL
    ) as process:
        _wait_for(lambda: _steps(tmp_path) > 0)
        process.kill()
    (lock,) = (tmp_path / "runs").glob("*/run.lock")
    number = int(lock.read_text())
    _wait_for(lambda: not _is_there(number))
    assert 0 < _steps(tmp_path) < 10800
    (notes,) = (tmp_path / "runs").glob("*.json")
    assert "trained" not in json.loads(notes.read_text())


def _wait_for(is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.1)


def _is_there(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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


def test_guiding_from_a_language_model_to_the_page(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    topics = " ".join(guiding.TOPICS.values())
    asked = guiding.CHAT.format(guiding.REQUEST.format(topics)).replace(",", " ,")
    words = Tokenizer.words([asked, " ".join(WORDS), "the a is of and in"])
    config = transformers.LlamaConfig(
        vocab_size=words.vocab_size, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, bos_token_id=0, eos_token_id=words.eos_id,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llm")
    (tmp_path / "llm/tokenizer.json").write_text(words.as_json())
    call = ["guiding_stages", f"--llm={tmp_path / 'llm'}", f"--work={tmp_path / 'work'}"]
    call += [f"--out={tmp_path / 'out'}", "--commit=x", "--smoke"]
    begun = run(*call, "--until=states")
    assert begun["until"] == "states" and not (tmp_path / "work/guide").exists()
    stopped = run(*call, "--seconds=0")
    assert stopped["left"][0] == "guide" and stopped["seconds"] == begun["seconds"]
    # Time is up while the guide is being made: it is asked to stop, which is no failure.
    stopped = run(*call, "--seconds=1.5")
    assert stopped["left"][0] == "guide" and stopped["seconds"] == begun["seconds"]
    assert json.loads((tmp_path / "work/seconds.json").read_text())["guide"] > 1
    whole = run(*call)
    assert whole["seconds"] > begun["seconds"] and not whole["left"]
    lines = read(tmp_path / "out/guiding.jsonl")
    assert [line["method"] for line in lines] == [m for m in guiding.METHODS for _ in range(2)]
    assert all(all(line["met"]) for line in lines if line["method"] != "rejection")
    cases = {line["case"].partition("-z")[0] for line in read(tmp_path / "out/bench.jsonl")}
    assert cases == {"guide", "trained-guide"}
    assert "guided against mask" in (tmp_path / "out/guided.md").read_text()
    log = (tmp_path / "out/stages.log").read_text()
    assert "nats per token" in log and "of them drawn" in log
    # Stopped after the guide was written and before that was noted: it is not trained again.
    noted = tmp_path / "work/stages.jsonl"
    kept = [line for line in noted.read_text().splitlines(True) if '"guide"' not in line]
    noted.write_text("".join(kept))
    written = (tmp_path / "work/guide/model.safetensors").stat().st_mtime_ns
    assert not run(*call)["left"]
    assert (tmp_path / "work/guide/model.safetensors").stat().st_mtime_ns == written
    # What is done is done: a guide is not trained, and texts are not written, twice.
    again = subprocess.run(command(*call), capture_output=True, text=True, cwd=ROOT)
    assert again.stdout.count("done before") == 9 and read(tmp_path / "out/guiding.jsonl") == lines
