"""An experiment whose measurement ends only when it is asked to, and what others measure."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.chiu_rush_2020 import table1
from experiments.runner import main

from experiments import measuring


def measure_until_stopped(_: Any, watch: Callable[[], None], file: Path) -> None:
    """Writes the number of its process down, and lasts."""
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").replace(file)
    while True:
        watch()
        time.sleep(0.01)


def measure_process(*_: Any) -> dict[str, int]:
    import torch

    group, number = os.getpgrp(), os.getpid()
    return {"process": number, "group": group, "threads": torch.get_num_threads()}


def measure_and_die(_: Any, __: Any, file: Path, times: int) -> int:
    """Is killed so many times, as where memory is short; then says how often."""
    with file.open("a") as done:
        done.write("x")
    if (deaths := len(file.read_text())) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return deaths - 1


def measure_in_work(corpus: Any, watch: Callable[[], None]) -> None:
    measure_until_stopped(corpus, watch, Path(WORK) / "measured-by")


WORK = sys.argv[-1]
if __name__ == "__main__":
    measuring.measure_kneser_ney = measure_in_work
    words = ["--smoke", "--row=KN 5-gram", "--dataset=ptb", "--work", WORK]
    raise SystemExit(main({table1.EXPERIMENT: table1.ROWS}, "", words))
