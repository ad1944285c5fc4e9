"""The scalars of a training for TensorBoard, where it is installed."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hmmlm.train.loop import Progress

SCALARS = ("loss", "perplexity", "val", "learning_rate", "tokens_per_second")


class Log:
    """An event file in a folder, from the first step that is written; without tensorboard, none.

    torch's writer has a thread of its own, which ends with a traceback where the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._missing = False

    def write(self, step: Progress) -> None:
        """Writes the scalars of a step, `val` only where it was measured."""
        if self._missing:
            return
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
        except ImportError:
            self._missing = True
            return
        events, summaries = _untyped(event_pb2), _untyped(summary_pb2)
        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            name = f"events.out.tfevents.{time.time():.6f}.{os.getpid()}"
            self._file = (self._folder / name).open("xb", buffering=0)
            self._add(events.Event(file_version="brain.Event:2"))
            # A run that goes on from a checkpoint drops what an earlier one wrote after it.
            start = events.SessionLog(status=events.SessionLog.SessionStatus.START)
            self._add(events.Event(step=step.step, session_log=start))
        numbers = {name: getattr(step, name) for name in SCALARS}
        values = [
            summaries.Summary.Value(tag=name, simple_value=number)
            for name, number in numbers.items()
            if number is not None
        ]
        self._add(events.Event(step=step.step, summary=summaries.Summary(value=values)))

    def _add(self, event: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        event.wall_time = time.time()
        RecordWriter(self._file).write(event.SerializeToString())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _untyped(module: Any) -> Any:
    """A module whose classes are made when it is imported, where no type checker sees them."""
    return module


@contextmanager
def open_log(folder: Path) -> Iterator[Log]:
    """A log that is closed at the end of the block, also after an error."""
    log = Log(folder)
    try:
        yield log
    finally:
        log.close()
