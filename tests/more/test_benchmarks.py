"""The benchmark commands, end to end, on tiny sizes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks/ is no part of the wheel

from benchmarks.cases import QUANTITIES, SMOKE, Case  # noqa: E402
from benchmarks.guiding import WORDS  # noqa: E402

from benchmarks import clusters, gpu  # noqa: E402
from hmmlm.data.builtin import builtin_sentences  # noqa: E402
from hmmlm.data.tokenizer import Tokenizer  # noqa: E402

KEYS = {
    "case", "what", "implementation", "dtype", "ms", "q20", "q80", "floor_ms", "tokens_per_s",
    "peak_bytes", "device", "threads", "commit", "versions",
}  # fmt: skip


def test_no_benchmark_of_kernels_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(SystemExit, match="pip install triton"):
        gpu.make_bench(smoke=True)


def test_inference(tmp_path: Path) -> None:
    out = tmp_path / "lines.jsonl"
    words = ["cpu", "--smoke", "--out", str(out)]
    for name in ("hmmlm", "hmmlm-reference", "pytorch", "hmmlearn"):
        words += ["--only", name]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["ok"] and set(summary["cases"][SMOKE[0]]) == set(QUANTITIES)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert {line["implementation"] for line in lines} >= {"hmmlm", "hmmlm-reference", "pytorch"}
    for line in lines:
        assert set(line) >= KEYS
        assert 0 < line["q20"] <= line["ms"] <= line["q80"] and line["floor_ms"] > 0
        tokens = Case.parse(line["case"]).tokens_per_call
        assert line["tokens_per_s"] == pytest.approx(tokens / line["ms"] * 1e3, rel=0.02)


def test_k_means(tmp_path: Path) -> None:
    out = tmp_path / "lines.jsonl"
    summary, _ = run_module("benchmarks.kmeans", "--smoke", "--out", str(out))
    assert summary == {"ok": True, "wrong": []}
    speed, inertia = (json.loads(line) for line in out.read_text().splitlines())
    assert speed["seconds"] > speed["floor_s"] > 0 and speed["iterations"] == 50
    assert inertia["ratio"] == pytest.approx(1, abs=0.01)


def test_exploring(tmp_path: Path) -> None:
    out = tmp_path / "lines.jsonl"
    summary, _ = run_module("benchmarks.exploring", "--smoke", "--out", str(out))
    assert summary == {"ok": True, "over_the_bar": []}
    (line,) = map(json.loads, out.read_text().splitlines())
    assert 0 < line["word_q20"] <= line["word_ms"] <= line["word_q80"]
    assert line["ready_s"] > 0 and line["use_s"] > 0 and line["first_page_ms"] > 0


def test_guiding(tmp_path: Path) -> None:
    out, tokenizer = tmp_path / "lines.jsonl", tmp_path / "tokenizer.json"
    Tokenizer.words([" ".join(WORDS), "a b c d"]).save(tokenizer)
    sizes = ["--states", "8", "--rows", "2", "--budget", "8"]
    summary, _ = run_module("benchmarks.guiding", str(tokenizer), *sizes, "--out", str(out))
    assert summary == {"ok": True}
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["what"] for line in lines] == ["compile", "look ahead", "token"]
    assert all(line["ms"] > 0 and line["automaton_states"] == [33, 33] for line in lines)


def test_clustering(tmp_path: Path) -> None:
    out = tmp_path / "lines.jsonl"
    words = ["--smoke", "--rounds", "2", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.clusters", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["ok"] and set(summary["seconds"]) == set(clusters.SMOKE)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for line in lines:
        assert line["seconds"] > 0 and line["lookups"] > 0 and line["floor_seconds"] >= 0
        assert line["mutual_information"] > 0 and len(line["rounds"]) == 2


def run_module(*words: str) -> tuple[dict, str]:
    """The last line of a command that must go well, and all that it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    lines = builtin_sentences()["train"][:200]
    for name, part in (("train", lines), ("valid", lines[:10]), ("test", lines[10:20])):
        (folder / f"{name}.txt").write_text("\n".join(part) + "\n")
    return folder


def test_gpu(tmp_path: Path, text: Path) -> None:
    """Every family of cases, by Triton's interpreter where there is no GPU."""
    out = tmp_path / "lines.jsonl"
    words = ["--smoke", "--data", str(text), "--out", str(out), "--commit", "none"]
    summary, printed = run_module("benchmarks.run", "gpu", *words)
    lines = read_lines(out)
    assert summary["ok"] and summary["lines"] == len(lines), printed
    for family in gpu.FAMILIES:
        for name in family.SMOKE:
            assert any(line["case"] == name for line in lines), name
    for line in lines:
        assert line["commit"] == "none" and line["device"] and line["torch"]
        if line["what"] == "row sums":
            assert 0 <= line["max_row_error"] < 1e-4
        else:
            assert 0 < line["q20"] <= line["ms"] <= line["q80"]
        if line["what"] not in ("row sums", "tables"):
            assert line["floor_ms"] > 0 and line["tokens_per_s"] > 0
    kernels = {line["what"] for line in lines if line["implementation"] == "kernel"}
    assert {"log evidence", "expected counts", "evaluation, streaming"} <= kernels


def test_picture_of_steps(tmp_path: Path) -> None:
    summary, _ = run_module("benchmarks.run", "plot-gpu", "--out", str(tmp_path / "steps.svg"))
    assert "milliseconds" in (tmp_path / "steps.svg").read_text()
    assert summary["states"] == sorted(summary["states"]) and len(summary["states"]) > 1


def test_precisions(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "lines.jsonl"
    summary, printed = run_module(
        "benchmarks.precision", "--smoke", "--data", str(text), "--out", str(out)
    )
    assert summary["ok"] and "valid. ppl" in printed
    gaps = summary["differences"]
    curves = [line for line in read_lines(out) if line["what"] == "an epoch"]
    lines = {(line["dtype"], line["seed"]): line for line in curves}
    sums = [line for line in read_lines(out) if line["what"] == "row sums"]
    assert sums and all(line["max_row_error"] < 1e-4 for line in sums)
    assert len(lines) == 6 and all(line["steps"] == 4 for line in lines.values())
    assert 0 < gaps["bf16 and fp32, seed 0"]["largest"] < gaps["seeds 0 and 1, fp32"]["largest"]


def test_pyjuice(tmp_path: Path) -> None:
    """Ours is measured; the other, without a GPU or not installed, says why it is not."""
    out = tmp_path / "lines.jsonl"
    summary, printed = run_module("benchmarks.pyjuice_hmm", "--smoke", "--out", str(out))
    assert summary["ok"], printed
    lines = read_lines(out)
    assert {line["what"] for line in lines if line["implementation"] == "hmmlm-plain"} == {
        "log evidence",
        "expected counts",
    }
    for line in lines:
        assert ("failed" in line) or line["error"] < 1e-3
