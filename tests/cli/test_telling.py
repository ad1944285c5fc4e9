"""What is told while work runs: the bar in terminals of any width, lines in a log, and signals."""

import io
import math
import os
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console

from hmmlm.cli import bars, fitting, output, telling
from hmmlm.train.loop import Progress
from hmmlm.train.run import Interrupts

STEP = Progress(480, 1440, 1, 4.307, 74.23, 9000, 35_081.0, 0.1, None)


class Clock:
    now = 1000.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(telling, "time", clock)
    return clock


@pytest.fixture
def screen(monkeypatch):
    """A console in the place of stderr's; a log without a width, a terminal with one."""

    def make(width=None):
        watched = width is not None
        found = Console(force_terminal=watched, width=width, file=io.StringIO(), highlight=False)
        for module in (bars, output, telling):
            monkeypatch.setattr(module, "errors", found)
        monkeypatch.setattr(output.note, "__kwdefaults__", {"on": found})
        return found

    return make


def drawn(screen, what, total, **fields):
    """The line of a bar as it stands."""
    with bars.progress_bar(what, total) as bar:
        bar.update(bar.task_ids[0], **fields)
        paper = Console(width=screen.width, file=io.StringIO())
        paper.print(bar.get_renderable())
    return paper.file.getvalue().rstrip()


@pytest.mark.parametrize(
    ("width", "said"),
    [
        (60, " 33%, 0:41 left, perplexity 74.2, best 76.5"),
        (80, " 33%, 0:41 left, perplexity 74.2, best on validation 76.5"),
        (100, " 33%, 0:41 left, perplexity 74.2, best on validation 76.5, 35,081 tokens/s"),
        (
            140,
            " 33%, 0:41 left, step 480 of 1,440, perplexity 74.2, best on validation 76.5, 35,081 "
            "tokens/s",
        ),
    ],
)
def test_the_bar_of_a_training_fits_the_terminal(screen, width, said):
    known = {"completed": 480, "left": 41.0, "details": telling._versions(STEP, 76.5)}
    line = drawn(screen(width), "Training", 1440, **known)
    assert line.startswith("Training ") and line.endswith(said)
    assert "\n" not in line and len(line) < width


def test_a_bar_that_has_no_room_leaves_the_words(screen):
    known = {"completed": 480, "left": 41.0, "details": telling._versions(STEP, math.inf)}
    assert drawn(screen(42), "Training", 1440, **known) == (
        "Training  33%, 0:41 left, perplexity 74.2"
    )


def test_a_name_that_is_too_long_is_cut(screen):
    line = drawn(screen(40), "Reading " + "folder/" * 9, None, details="7 tokens")
    assert line.startswith("Reading folder/") and line.endswith(" 0:00, 7 tokens")
    assert "…" in line and len(line) <= 40


def test_durations():
    said = {0.4: "0:00", 41: "0:41", 723: "12:03", 3723: "1:02:03", 93_600: "26 h"}
    assert {seconds: bars.duration(seconds) for seconds in said} == said
    said = {0.61: "0.6 s", 94: "94 s", 1500: "25 min", 93_600: "26 h"}
    assert {seconds: bars.in_words(seconds) for seconds in said} == said


def told(screen, clock, steps, *, has_checks=True, out="my run"):
    """What a log has of steps: pairs of the seconds that one takes, and its validation."""
    with bars.progress_bar("Training", 1440) as bar:
        teller = telling.Teller(bar, Path(out), has_checks=has_checks)
        for number, (seconds, val) in enumerate(steps, 1):
            clock.now += seconds
            teller.tell(STEP._replace(step=number, val=val), math.inf)
    return screen.file.getvalue().splitlines()


def test_a_log_has_a_line_for_a_validation(screen, clock):
    steps = [(1.0, None)] * 7 + [(0.1, 66.04), (0.1, 65.0), (0.1, None)]
    assert told(screen(), clock, steps) == [
        "step 8 of 1,440, perplexity 74.2, validation 66.0, 20:48 left"
    ]


@pytest.mark.parametrize(("has_checks", "seconds"), [(True, 600), (False, 60)])
def test_a_log_without_a_validation_is_not_silent(screen, clock, has_checks, seconds):
    steps = [(seconds - 1.0, None), (1.0, None), (2.0, None)]
    assert told(screen(), clock, steps, has_checks=has_checks)[0].startswith("step 2 of 1,440, ")


def test_a_long_training_says_so_once(screen, clock):
    lines = told(screen(), clock, [(30.0, None)] + [(4.0, None)] * 8)
    said = "about 96 min on this machine; Ctrl-C stops, hmmlm train --resume 'my run' goes on"
    assert lines == [said]


def test_a_short_training_says_nothing(screen, clock):
    assert told(screen(), clock, [(30.0, None)] + [(0.3, None)] * 200) == []


def test_train_writes_lines_where_nobody_watches(place, call, monkeypatch):
    monkeypatch.setattr(telling, "LEAST", 0.0)
    small = ["--kind=scalar", "--states=4", "--blocks=0", "--batch-size=4", "--length=64"]
    answer = call("train", "corpus", "--out=new", *small, "--epochs=3", "--json")
    assert answer.status == 0 and answer.out.splitlines()[-1].startswith('{"folder": "new", ')
    lines = answer.err.splitlines()
    assert len(lines) == 3 and all(", validation " in line for line in lines)
    assert lines[0].startswith("step ") and lines[-1].endswith(", 0:00 left")


def test_ctrl_c_is_answered_at_once(screen):
    log = screen()
    with Interrupts(fitting._promise) as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)  # of a machine, which presses no keys
    assert interrupts.asked == signal.SIGTERM and not log.file.getvalue()
    with Interrupts(fitting._promise) as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.asked == signal.SIGINT
        assert log.file.getvalue() == "stopping after this step; Ctrl-C again leaves now\n"
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert log.file.getvalue().count("stopping") == 1


def test_ctrl_c_is_answered_while_stderr_is_written(monkeypatch, capfd):
    def busy(text):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    monkeypatch.setattr(fitting, "note", busy)
    fitting._promise()
    assert capfd.readouterr().err == "\nstopping after this step; Ctrl-C again leaves now\n"


def test_errors_are_wrapped_at_words_in_a_terminal(place, call, monkeypatch):
    usage = ("train", "--states=none at all")
    plain = call(*usage).err
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    wrapped = call(*usage).err
    assert max(map(len, wrapped.splitlines())) <= 30 < len(plain)
    assert " ".join(wrapped.split()) == plain.strip()
