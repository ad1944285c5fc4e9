"""Models are measured in processes of their own, so that one does not wait for another."""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path
from queue import LifoQueue
from typing import Any

from experiments.stopping import Stop, Stopped
from experiments.trainings import Failed, share_of_processors

_asked: list[ctypes.c_bool] = []
"""In such a process: what says that there is no more time."""


class Measurers:
    """Up to so many processes, which begin when they are needed and end with this one.

    Each is a pool of its own, so that one that is killed, as where memory is short, is replaced
    and takes no other with it.
    """

    def __init__(self, number: int, *, beside: int = 0) -> None:
        self._context = get_context("spawn")  # CUDA knows no forks
        # No event: that has a lock, which a process killed at a bad moment would keep for ever.
        self._stopped = self._context.RawValue(ctypes.c_bool, False)
        self._threads = share_of_processors(number + beside)
        self._pools = [self._make_pool() for _ in range(number)]
        self._free = LifoQueue[int]()
        for place in range(number):
            self._free.put(place)

    def __enter__(self) -> "Measurers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.value = True
        for pool in self._pools:
            pool.shutdown()

    def measure(
        self, stop: Stop, what: Callable[..., Any], corpus: Path, *, verify: bool, **facts: Any
    ) -> Any:
        """What a function of `measuring` says of a corpus, unless a stop is due before.

        If its process is killed another one is asked, once.
        """
        place = self._free.get()
        try:
            for _ in ("at first", "again"):
                try:
                    return self._ask(self._pools[place], stop, (what, corpus, verify, facts))
                except BrokenProcessPool:
                    self._pools[place] = self._make_pool()
                    stop.check()  # a signal to all processes ends them too
                    print("A process that measures was killed.", file=sys.stderr, flush=True)
        finally:
            self._free.put(place)
        raise Failed(
            "The process that measured it was killed, and so was another, as where memory is "
            "short; the same command measures it again, with fewer --workers in less memory."
        )

    def _make_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, self._context, _begin, (self._stopped, self._threads))

    def _ask(self, pool: ProcessPoolExecutor, stop: Stop, asked: tuple[Any, ...]) -> Any:
        future = pool.submit(_measure, *asked)
        while not future.done():
            if stop.is_due:
                self._stopped.value = True
            time.sleep(0.02)
        return future.result()


def _begin(stopped: ctypes.c_bool, threads: int | None) -> None:
    os.setpgrp()  # a signal to the group is heard by the one that began it, which passes it on
    _asked.append(stopped)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """Also where that was killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _measure(what: Callable[..., Any], folder: Path, verify: bool, facts: dict[str, Any]) -> Any:
    import torch

    from hmmlm.data.shards import Corpus

    told = Stop()  # by a signal to this process, which ends by the next one

    def watch(_: int = 0) -> None:
        if told.is_due or _asked[0].value:
            raise Stopped

    with told.heard():
        watch()
        corpus = Corpus.open(folder, verify=verify)
        try:
            return what(corpus, watch, **facts)
        finally:
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
