"""Models are measured in processes of their own."""

import threading
import time
from pathlib import Path

import pytest
from experiments.measurers import Measurers
from experiments.measuring import measure_kneser_ney
from experiments.runner import _write_builtin
from experiments.stopping import Stop, Stopped

from hmmlm.data.shards import Corpus
from hmmlm.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "built-in.corpus"
    _write_builtin(folder)
    return folder


def test_what_is_measured_elsewhere_is_what_is_measured_here(folder: Path) -> None:
    with Measurers(1) as measurers:
        found = measurers.measure(Stop(), "measure_kneser_ney", folder, verify=True)
    here = measure_kneser_ney(Corpus.open(folder), lambda _: None)
    for key in ("parameters", "modes", "train", "tokens_test"):
        assert found[key] == here[key]


def test_a_stop_ends_what_is_measured_and_what_waits(folder: Path) -> None:
    stop, ends = Stop(), []

    def measure() -> None:
        with pytest.raises(Stopped):
            measurers.measure(stop, "measure_kneser_ney", folder, verify=False)
        ends.append(time.monotonic())

    with Measurers(1) as measurers:
        both = [threading.Thread(target=measure) for _ in range(2)]
        for one in both:
            one.start()
        stop.asked = True
        for one in both:
            one.join(60)
        assert len(ends) == 2
    with pytest.raises(RuntimeError, match="shutdown"):  # they have ended
        measurers.measure(Stop(), "measure_kneser_ney", folder, verify=False)


def test_what_a_measurement_raises_is_raised_here(tmp_path: Path) -> None:
    with Measurers(1) as measurers, pytest.raises(InputError, match="corpus"):
        measurers.measure(Stop(), "measure_kneser_ney", tmp_path / "none", verify=True)
