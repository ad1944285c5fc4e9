"""The scalars of a training for TensorBoard, where it is installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hmmlm.train.loop import Progress

SCALARS = ("loss", "perplexity", "val", "learning_rate", "tokens_per_second")


class Log:
    """Event files in a folder, from the first step that is written; without tensorboard, none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._missing = False

    def write(self, step: Progress) -> None:
        """Writes the scalars of a step, `val` only where it was measured."""
        if self._writer is None and not self._missing:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                self._missing = True
                return
            # A run that goes on from a checkpoint drops what an earlier one wrote after it.
            self._writer = SummaryWriter(str(self._folder), purge_step=step.step, flush_secs=10)
        if self._writer is None:
            return
        for name in SCALARS:
            value = getattr(step, name)
            if value is not None:
                self._writer.add_scalar(name, value, step.step)

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            self._writer.close()


@contextmanager
def open_log(folder: Path) -> Iterator[Log]:
    """A log that is closed at the end of the block, whole also after an error."""
    log = Log(folder)
    try:
        yield log
    finally:
        log.close()
