"""Blocks of text shared among processes, with the results in the order of the text."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import TypeVar

from hmmlm.errors import check_count

Part = TypeVar("Part")
Result = TypeVar("Result")


def num_processors() -> int:
    """Those that this process may use."""
    ask = getattr(os, "sched_getaffinity", None)  # not on every system
    return max(1, len(ask(0)) if ask is not None else os.cpu_count() or 1)


class Processes:
    """Processes that are there until the block ends; one is this process itself."""

    def __init__(self, number: int) -> None:
        check_count("workers", number)
        self.number = number
        self._pool = None
        if number > 1:
            # Not forked: this process has threads, and a fork copies the locks that they hold.
            self._pool = ProcessPoolExecutor(number, get_context("spawn"), _start_worker)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(
        self, function: Callable[[Part], Result], blocks: Iterable[Part]
    ) -> Iterator[tuple[Part, Result]]:
        """Each block with what the function makes of it; some blocks are read ahead."""
        if self._pool is None:
            for block in blocks:
                yield block, function(block)
            return
        waiting = deque[tuple[Part, Future[Result]]]()
        try:
            for block in blocks:
                waiting.append((block, self._pool.submit(function, block)))
                if len(waiting) > self.number + 2:
                    done, future = waiting.popleft()
                    yield done, future.result()
            for done, future in waiting:
                yield done, future.result()
        except BrokenProcessPool:
            raise ChildProcessError(
                "A process that shared the work was killed, perhaps for want of memory; run the "
                "same command again to go on, with fewer --workers"
            ) from None


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started it
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot tell its workers to end."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
