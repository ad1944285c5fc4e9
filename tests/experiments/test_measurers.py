"""Models are measured in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from experiments.measurers import Measurers
from experiments.measuring import measure_kneser_ney
from experiments.stopping import Stop, Stopped
from experiments.texts import write_builtin
from experiments.trainings import Failed

import measured_slowly
from experimenting import ROOT
from hmmlm.data.shards import Corpus
from hmmlm.errors import InputError
from measured_slowly import measure_and_die, measure_process, measure_until_stopped


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "built-in.corpus"
    write_builtin(folder)
    return folder


def wait_for(is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.05)


def is_gone(number: int) -> bool:
    """A process that nobody has asked about after its end is gone too."""
    try:
        return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_what_is_measured_elsewhere_is_what_is_measured_here(folder: Path) -> None:
    with Measurers(1) as measurers:
        found = measurers.measure(Stop(), measure_kneser_ney, folder, verify=True)
    here = measure_kneser_ney(Corpus.open(folder), lambda _: None)
    for key in ("parameters", "modes", "train", "tokens_test"):
        assert found[key] == here[key]


def test_a_stop_ends_what_is_measured_and_what_waits(folder: Path, tmp_path: Path) -> None:
    stop, ends, file = Stop(), [], tmp_path / "measured-by"

    def measure() -> None:
        with pytest.raises(Stopped):
            measurers.measure(stop, measure_until_stopped, folder, verify=False, file=file)
        ends.append(time.monotonic())

    with Measurers(1) as measurers:
        both = [threading.Thread(target=measure) for _ in range(2)]
        for one in both:
            one.start()
        wait_for(file.exists)
        stop.asked = True
        for one in both:
            one.join(60)
        assert len(ends) == 2
    with pytest.raises(RuntimeError, match="shutdown"):  # they have ended
        measurers.measure(Stop(), measure_kneser_ney, folder, verify=False)


def test_perplexities_are_watched_while_they_are_read(folder: Path) -> None:
    seen = []

    def watch(tokens: int) -> None:
        seen.append(tokens)
        if len(seen) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        measure_kneser_ney(Corpus.open(folder), watch)
    assert len(seen) == 2 and seen[0] > 0


def test_what_a_measurement_raises_is_raised_here(tmp_path: Path) -> None:
    with Measurers(1) as measurers, pytest.raises(InputError, match="corpus"):
        measurers.measure(Stop(), measure_kneser_ney, tmp_path / "none", verify=True)


def test_a_process_that_is_killed_is_replaced_once(folder: Path, tmp_path: Path, capfd) -> None:
    """Nor does its end reach what is measured beside it."""
    stop, beside, ends = Stop(), tmp_path / "measured-by", []

    def die(times: int) -> int:
        file = tmp_path / str(times)
        return measurers.measure(
            Stop(), measure_and_die, folder, verify=False, file=file, times=times
        )

    def measure() -> None:
        with pytest.raises(Stopped):
            measurers.measure(stop, measure_until_stopped, folder, verify=False, file=beside)
        ends.append(beside.read_text())

    with Measurers(2) as measurers:
        other = threading.Thread(target=measure)
        other.start()
        wait_for(beside.exists)
        process = beside.read_text()
        assert die(1) == 1
        with pytest.raises(Failed, match="was killed, and so was another, as where memory is sh"):
            die(2)
        assert die(0) == 0  # the next row
        assert not is_gone(int(process)) and not ends
        stop.asked = True
        other.join(60)
    assert ends == [process]
    assert capfd.readouterr().err.count("A process that measures was killed.") == 3


def test_a_process_and_its_threads(folder: Path, monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    with Measurers(1, beside=1) as measurers:
        found = measurers.measure(Stop(), measure_process, folder, verify=False)
    assert found["threads"] == 3
    assert found["group"] == found["process"] != os.getpid()


def test_a_signal_to_one_process(folder: Path, tmp_path: Path) -> None:
    """It ends what it measures; one that measures nothing ends itself, and is replaced."""
    file = tmp_path / "measured-by"
    with Measurers(1) as measurers:
        before = measurers.measure(Stop(), measure_process, folder, verify=False)["process"]
        os.kill(before, signal.SIGTERM)
        wait_for(lambda: is_gone(before))

        def end() -> None:
            wait_for(file.exists)
            os.kill(int(file.read_text()), signal.SIGTERM)

        threading.Thread(target=end).start()
        with pytest.raises(Stopped):
            measurers.measure(Stop(), measure_until_stopped, folder, verify=False, file=file)
        after = measurers.measure(Stop(), measure_process, folder, verify=False)["process"]
        assert after == int(file.read_text())


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_to_the_runner_while_it_measures(kind: signal.Signals, tmp_path: Path) -> None:
    """As a whole: of `timeout`, of Ctrl-C, or where memory is short."""
    file = tmp_path / "measured-by"
    with subprocess.Popen(
        [sys.executable, measured_slowly.__file__, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        wait_for(file.exists)
        os.killpg(process.pid, kind)
        told, errors = process.communicate(timeout=60)
    wait_for(lambda: is_gone(int(file.read_text())))
    if kind != signal.SIGKILL:
        said = json.loads(told.splitlines()[-1])
        assert said == {"rows": 1, "done": 0, "left": ["ptb: KN 5-gram"], "failed": []}
        assert process.returncode == 0 and not errors
