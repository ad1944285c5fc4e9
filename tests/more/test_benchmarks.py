"""The benchmark commands, end to end, on tiny sizes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks/ is no part of the wheel

from benchmarks.cases import QUANTITIES, SMOKE, Case  # noqa: E402

from benchmarks import clusters  # noqa: E402

KEYS = {
    "case", "what", "implementation", "dtype", "ms", "q20", "q80", "floor_ms", "tokens_per_s",
    "peak_bytes", "device", "threads", "commit", "versions",
}  # fmt: skip


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
