"""The cases of the benchmark command, and its refusal to measure what is wrong."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks/ is no part of the wheel

from benchmarks.cases import CPU, SMOKE, Case  # noqa: E402

from benchmarks import run  # noqa: E402


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


def test_the_cases_have_three_sizes() -> None:
    cases = [Case.parse(name) for name in CPU]
    assert [case.states for case in cases] == [64, 512, 2048]
    assert {(case.words, case.batch, case.steps) for case in cases} == {(10_000, 16, 256)}
    assert cases[0].flops("log-likelihood") == 2 * 16 * 64 * 64 * 256
    assert cases[0].flops("counts") == 3 * cases[0].flops("log-likelihood")
    assert cases[0].flops("em-step") == cases[0].flops("counts")
    with pytest.raises(SystemExit, match="No such case: dense-64"):
        Case.parse("dense-64")
