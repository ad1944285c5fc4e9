"""Event files that TensorBoard reads."""

import os
import subprocess
import sys

import pytest

from commands import SOURCE
from hmmlm.train.loop import Progress
from hmmlm.train.tensorboard import SCALARS, open_log


def step(number: int, val: float | None = None) -> Progress:
    return Progress(number, 9, 1, 2.0 / number, 7.5 / number, 64 * number, 10.5, 0.25, val)


def read(folder) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in names}


def test_scalars_are_written_for_every_step(tmp_path):
    with open_log(tmp_path / "log") as log:
        for number, val in ((1, None), (2, 80.0), (4, None)):
            log.write(step(number, val))
    found = read(tmp_path / "log")
    assert set(found) == set(SCALARS)
    assert found["loss"] == [(1, 2.0), (2, 1.0), (4, 0.5)]
    assert found["perplexity"] == [(1, 7.5), (2, 3.75), (4, 1.875)]
    assert found["val"] == [(2, 80.0)]
    assert found["learning_rate"] == [(1, 0.25), (2, 0.25), (4, 0.25)]
    assert found["tokens_per_second"] == [(1, 10.5), (2, 10.5), (4, 10.5)]


def test_a_run_that_goes_on_replaces_the_steps_after_its_checkpoint(tmp_path):
    with open_log(tmp_path) as log:
        for number in (1, 2, 3):
            log.write(step(number))
    with open_log(tmp_path) as log:
        log.write(step(2)._replace(loss=7.0))
    assert read(tmp_path)["loss"] == [(1, 2.0), (2, 7.0)]


def test_what_was_written_before_an_error_is_there(tmp_path):
    with pytest.raises(KeyboardInterrupt), open_log(tmp_path) as log:
        for number in range(1, 2001):
            log.write(step(number))
        raise KeyboardInterrupt
    (file,) = tmp_path.iterdir()
    assert file.read_bytes().count(b"tokens_per_second") == 2000


def test_nothing_is_written_without_a_step(tmp_path):
    with open_log(tmp_path / "log"):
        pass
    assert not (tmp_path / "log").exists()


def test_nothing_is_written_where_tensorboard_is_not_installed(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with open_log(tmp_path / "log") as log:
        log.write(step(1))
        log.write(step(2))
    assert not (tmp_path / "log").exists()


def test_tensorboard_is_imported_only_for_a_step():
    code = "import sys, hmmlm.train.tensorboard; print('tensorboard' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
