"""Reading the metrics of a training, and what is drawn of them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from commands import SOURCE
from hmmlm.errors import InputError
from hmmlm.explore import curves
from hmmlm.explore.curves import best_check, draw_curves, read_metrics
from hmmlm.train.loop import Progress


def made_up_run(steps: int = 50, checks: int = 5, rate: float = 0.1) -> list[Progress]:
    """A loss that falls from 6 to 4 nats, with the lowest validation at the last check but one."""
    noise = np.random.default_rng(0).normal(0, 0.1, steps)
    losses = 4 + 2 * np.exp(-np.arange(steps) / 10) + noise
    vals: list[float | None] = [None] * steps
    for number in range(1, checks + 1):
        vals[steps * number // checks - 1] = 100.0 - number + 5 * (number == checks)
    return [
        Progress(n + 1, steps, 1, loss, float(np.exp(loss)), 64 * (n + 1), 9.0, rate, vals[n])
        for n, loss in enumerate(losses.tolist())
    ]


def write(path, lines) -> None:
    path.mkdir()
    (path / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))


def lines_of(axes, style: str) -> list:
    return [line for line in axes.lines if line.get_linestyle() == style]


def test_metrics_are_read_back(tmp_path):
    run = made_up_run()
    write(tmp_path / "run", [json.dumps(step._asdict()) for step in run])
    assert read_metrics(tmp_path / "run") == run


def test_a_last_line_that_is_being_written_is_left_out(tmp_path):
    run = made_up_run()
    write(tmp_path / "run", [json.dumps(step._asdict()) for step in run])
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write('{"step": 51, "lo')
    assert read_metrics(tmp_path / "run") == run


def test_keys_that_are_not_known_are_passed_over(tmp_path):
    step = made_up_run(1)[0]
    write(tmp_path / "run", [json.dumps({**step._asdict(), "memory": 3})])
    assert read_metrics(tmp_path / "run") == [step]


def test_the_best_check_is_the_lowest_and_may_be_none():
    run = made_up_run()
    found = best_check(run)
    assert found is not None and (found.step, found.val) == (40, 96.0)
    assert best_check([step._replace(val=None) for step in run]) is None


def test_smoothing_is_a_mean_that_does_not_lag():
    line = np.linspace(0, 10, 400)
    smooth = curves.smooth(line)
    assert smooth[:389] == pytest.approx(line[:389])  # a straight line stays, but at its end
    assert smooth[-1] == pytest.approx(line[-11:].mean())
    noise = np.random.default_rng(0).normal(0, 1, 4000)
    assert curves.smooth(noise)[200:-200].std() < 0.1
    assert curves.smooth(np.array([3.0])).tolist() == [3.0]


def test_a_long_line_keeps_its_peaks():
    x, y = np.arange(100_000), np.zeros(100_000)
    y[[777, 50_001]] = 5, -5
    thin_x, thin_y = curves._thin(x, y)
    assert len(thin_x) == curves.MOST_POINTS and (np.diff(thin_x) >= 0).all()
    assert thin_y[thin_x == 777].tolist() == [5] and thin_y[thin_x == 50_001].tolist() == [-5]


def test_labels_are_a_gap_apart_and_as_near_as_may_be():
    assert curves._spread([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert curves._spread([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert curves._spread([0.0, 0.0, 0.9], 0.1) == pytest.approx([0.0, 0.1, 0.9])
    assert curves._spread([0.2, 1.0, 1.0], 0.1) == pytest.approx([0.2, 0.9, 1.0])


@pytest.mark.parametrize("x", ["tokens", "steps"])
def test_one_run_is_drawn(x):
    run = made_up_run()
    top, bottom = draw_curves({"run": run}, x=x).axes
    places = [step.tokens if x == "tokens" else step.step for step in run]
    raw, smooth = lines_of(top, "-")[:2]
    assert raw.get_xdata().tolist() == places
    assert raw.get_ydata() == pytest.approx([step.perplexity for step in run])
    assert smooth.get_ydata() == pytest.approx(
        np.exp(curves.smooth(np.array([step.loss for step in run])))
    )
    (checks,) = lines_of(top, ":")
    assert list(checks.get_ydata()) == [99.0, 98.0, 97.0, 96.0, 100.0]
    ring = top.lines[-1]
    assert (list(ring.get_xdata()), list(ring.get_ydata())) == ([places[39]], [96.0])
    assert top.get_yscale() == "log" and [text.get_text() for text in top.texts] == ["run  96.0"]
    assert bottom.lines[0].get_ydata().tolist() == [0.1] * 50
    assert bottom.get_xlabel() == x
    legend = [text.get_text() for text in top.get_legend().get_texts()]
    assert legend == ["training, smoothed", "each step", "validation", "best validation"]


def test_many_runs_have_colours_of_their_own_and_no_single_steps(tmp_path):
    figure = draw_curves({f"run {n}": made_up_run() for n in range(20)})
    top = figure.axes[0]
    assert len({str(text.get_color()) for text in top.texts}) == 20
    assert len(lines_of(top, "-")) == 20 + 20  # smoothed, and the rings
    heights = sorted(text.get_position()[1] for text in top.texts)
    figure.savefig(tmp_path / "x.png")
    tall = top.get_window_extent().height
    assert min(np.diff(heights)) * tall >= max(
        text.get_window_extent().height for text in top.texts
    )


def test_without_validation_there_are_no_points():
    run = [step._replace(val=None) for step in made_up_run()]
    top = draw_curves({"run": run}).axes[0]
    assert lines_of(top, ":") == [] and [text.get_text() for text in top.texts] == ["run"]
    legend = [text.get_text() for text in top.get_legend().get_texts()]
    assert legend == ["training, smoothed", "each step"]


def test_rates_far_apart_have_a_log_scale():
    near = {"a": made_up_run(rate=0.1), "b": made_up_run(rate=0.2)}
    far = {"a": made_up_run(rate=0.001), "b": made_up_run(rate=0.2)}
    assert draw_curves(near).axes[1].get_yscale() == "linear"
    assert draw_curves(far).axes[1].get_yscale() == "log"


def test_a_run_that_blows_up_leaves_the_others_visible():
    wild = [step._replace(loss=5.0 + 900 * (step.step > 10)) for step in made_up_run(200, 0)]
    top = draw_curves({"calm": made_up_run(200), "wild": wild}).axes[0]
    assert top.get_ylim()[1] < 2000


@pytest.mark.parametrize("change", [{"loss": -1e5}, {"loss": 1e5}, {"val": 1e-320}, {"val": 1e308}])
def test_what_is_far_outside_can_be_drawn(tmp_path, change):
    wild = [step._replace(**change) for step in made_up_run(30)]
    draw_curves({"calm": made_up_run(30), "wild": wild}).savefig(tmp_path / "x.svg")
    draw_curves({"wild": wild}).savefig(tmp_path / "y.svg")


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
@pytest.mark.parametrize("steps", [1, 2, 30])
def test_short_runs_and_odd_names_can_be_drawn(tmp_path, steps, kind):
    figure = draw_curves({"_a": made_up_run(steps, 1), r"$\frac{$": made_up_run(steps, 0)})
    figure.savefig(tmp_path / f"x.{kind}")
    assert (tmp_path / f"x.{kind}").stat().st_size > 1000


def test_nothing_global_is_touched(tmp_path):
    code = """
import sys
import matplotlib
before = matplotlib.rcParams.copy()
from hmmlm.explore.curves import draw_curves
from hmmlm.train.loop import Progress
figure = draw_curves({"a": [Progress(1, 1, 1, 5.0, 148.4, 8, 9.0, 0.1, 99.0)]})
for kind in ("svg", "png"):
    figure.savefig("x." + kind)
print("matplotlib.pyplot" in sys.modules, matplotlib.rcParams.copy() == before)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE, "DISPLAY": ""},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("False True\n", "")


def test_matplotlib_may_be_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"not installed; run pip install 'hmmlm\[explore\]'\."):
        draw_curves({"run": made_up_run()})
