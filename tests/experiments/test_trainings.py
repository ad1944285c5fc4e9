"""Commands of hmmlm that the runner begins."""

from pathlib import Path

import psutil
import pytest
from experiments.stopping import Stop
from experiments.trainings import Failed, last_words, run_hmmlm


def test_the_last_words_are_those_of_this_call(tmp_path: Path) -> None:
    """Of a log to which another training writes at the same time."""
    log = tmp_path / "a.log"
    before = "hmmlm: epochs is 0 but must be at least 1.\n"
    trained = "hmmlm: a is being trained by another process (number 7); wait for it.\n"
    log.write_text(before + trained + "step 12  loss 3.4\n\n")
    assert last_words(log, len(before), 2) == trained.strip()
    assert last_words(log, len(before), 1) == "step 12  loss 3.4"  # as the end of a traceback
    assert last_words(log, len(log.read_bytes()), 2) == "nothing"


def test_a_command_that_fails(tmp_path: Path) -> None:
    place = tmp_path / "runs/a"
    place.parent.mkdir()
    place.with_suffix(".log").write_text("hmmlm: of an earlier call.\n")
    seconds = []
    with pytest.raises(Failed, match=r"^hmmlm ended with 2: hmmlm: .*none") as error:
        run_hmmlm(["train", str(tmp_path / "none")], place, Stop(), threads=1, note=seconds.append)
    assert "earlier" not in str(error.value) and seconds[-1] > 0
    assert place.with_suffix(".log").read_text().startswith("hmmlm: of an earlier call.\nhmmlm: ")


def test_a_command_that_nobody_waits_for(tmp_path: Path) -> None:
    class Lost(Stop):
        @property
        def is_due(self) -> bool:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        run_hmmlm(["demo"], tmp_path / "a", Lost(), threads=1)
    words = [child.cmdline() for child in psutil.Process().children()]
    assert not [line for line in words if "experiments.trainings" in line]
