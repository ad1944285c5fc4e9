"""The benchmark command, end to end, on tiny sizes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks/ is no part of the wheel

from benchmarks.cases import CPU, QUANTITIES, SMOKE, Case  # noqa: E402

from benchmarks import run  # noqa: E402

KEYS = {
    "case", "what", "implementation", "dtype", "ms", "q20", "q80", "floor_ms", "tokens_per_s",
    "peak_bytes", "device", "threads", "commit", "versions",
}  # fmt: skip


def test_smoke(tmp_path: Path) -> None:
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


def test_a_wrong_answer_gets_no_number(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """An implementation that disagrees with float64 is refused, not measured."""
    group = run.Group(Case.parse(SMOKE[0]), "counts", tmp_path)
    np.savez(group.path("truth"), np.array(-100.0), np.array([1.0, 2.0]))
    np.savez(group.path("hmmlm"), np.array(-100.1), np.array([1.0, 2.0]))
    assert group.distance("hmmlm") == (pytest.approx(1e-3), 0.0)

    def answer(process, command):
        return {"checked": True}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "ask", answer)
        reason = group.check(run.IMPLEMENTATIONS["hmmlm"], None)
    assert reason is not None and "disagrees with float64" in reason
    assert len(group.wrong) == 1 and "WRONG" in capsys.readouterr().out


def test_the_cases_are_those_of_the_issue() -> None:
    cases = [Case.parse(name) for name in CPU]
    assert [case.states for case in cases] == [64, 512, 2048]
    assert {(case.words, case.batch, case.steps) for case in cases} == {(10_000, 16, 256)}
    assert cases[0].flops("log-likelihood") == 2 * 16 * 64 * 64 * 256
    assert cases[0].flops("counts") == 3 * cases[0].flops("log-likelihood")
    assert cases[0].flops("em-step") == cases[0].flops("counts")
    with pytest.raises(SystemExit, match="No such case: dense-64"):
        Case.parse("dense-64")
