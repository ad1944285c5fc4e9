"""Models are measured in processes of their own, so that one does not wait for another."""

import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from experiments.stopping import Stop, Stopped

_asked: list[Event] = []
"""In such a process: what says that there is no more time."""


class Measurers:
    """Up to so many processes, which begin when they are needed and end with this one."""

    def __init__(self, number: int) -> None:
        context = get_context("spawn")  # CUDA knows no forks
        self._stopped = context.Event()
        self._pool = ProcessPoolExecutor(number, context, _begin, (self._stopped,))

    def __enter__(self) -> "Measurers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._pool.shutdown()

    def measure(self, stop: Stop, what: str, corpus: Path, *, verify: bool, **facts: Any) -> Any:
        """What a function of `measuring` says of a corpus, unless a stop is due before."""
        future = self._pool.submit(_measure, what, corpus, verify, facts)
        while not future.done():
            if stop.is_due:
                self._stopped.set()
            time.sleep(0.02)
        return future.result()


def _begin(stopped: Event) -> None:
    _asked.append(stopped)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is heard by the one that began it
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Also where that was killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _watch(_: int = 0) -> None:
    if _asked[0].is_set():
        raise Stopped


def _measure(what: str, folder: Path, verify: bool, facts: dict[str, Any]) -> Any:
    import torch

    from experiments import measuring
    from hmmlm.data.shards import Corpus

    _watch()
    corpus = Corpus.open(folder, verify=verify)
    try:
        return getattr(measuring, what)(corpus, _watch, **facts)
    finally:
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
