"""Commands of hmmlm, such as trainings, as processes that end with the one that began them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from experiments.stopping import TO_STOP, Stop

MISTAKE = 2
"""What hmmlm ends with where a sentence says why; else the last line of a traceback does."""


class Failed(Exception):
    """A process ended with an error: its last words."""


def share_of_processors(number: int) -> int | None:
    """The threads of one of so many processes; None where OMP_NUM_THREADS says them."""
    return None if "OMP_NUM_THREADS" in os.environ else max(1, (os.cpu_count() or 1) // number)


def run_hmmlm(
    words: Sequence[str],
    place: Path,
    stop: Stop,
    *,
    threads: int | None,
    note: Callable[[float], None] = lambda _: None,
) -> str:
    """What a command says; it is written into files beside a place, .out and, of all calls, .log.

    `note` is told how many seconds it runs, every few of them and when it has ended.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    said, log = (place.with_name(f"{place.name}.{kind}") for kind in ("out", "log"))
    begin = log.stat().st_size if log.exists() else 0
    with _started(words, said, log, threads) as process:
        status = _wait(process, stop, note)
    if status == 0:
        return said.read_text()
    stop.check()
    raise Failed(f"hmmlm ended with {status}: {last_words(log, begin, status)}")


def last_words(log: Path, begin: int, status: int) -> str:
    """Why a command failed that began at a place of a log, in which another may write as well."""
    lines = log.read_bytes()[begin:].decode(errors="replace").splitlines()
    lines = [line for line in lines if line.strip()]
    told = [line for line in lines if line.startswith("hmmlm: ") and status == MISTAKE]
    return (told or lines or ["nothing"])[-1]


@contextmanager
def _started(
    words: Sequence[str], said: Path, log: Path, threads: int | None
) -> Iterator[subprocess.Popen[bytes]]:
    environment = dict(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    with said.open("w") as out, log.open("a") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "experiments.trainings", str(os.getpid()), *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment,
            process_group=0,  # Ctrl-C comes to this process alone, which passes it on once
        )
    try:
        yield process
    finally:
        process.kill()  # unless it has ended
        process.wait()


def _wait(process: subprocess.Popen[bytes], stop: Stop, note: Callable[[float], None]) -> int:
    began = noted = time.monotonic()
    asked = float("inf")
    while (status := process.poll()) is None:
        now = time.monotonic()
        if stop.is_due and asked == float("inf"):
            process.send_signal(signal.SIGTERM)
            asked = now
        elif now > asked + TO_STOP:
            process.kill()
        if now > noted + 5:
            note(now - began)
            noted = now
        time.sleep(0.05)
    note(time.monotonic() - began)
    return status


def _end_with(parent: int) -> None:
    """Also where that was killed; a training writes a checkpoint before."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(TO_STOP)
    os._exit(1)


def _answer() -> None:
    """The other process: a command of hmmlm, and who began it."""
    parent = int(sys.argv.pop(1))
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    from hmmlm.cli import main

    main()


if __name__ == "__main__":
    _answer()
