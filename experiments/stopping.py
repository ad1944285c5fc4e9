"""When to stop: at a time, or when a signal has come."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

TO_STOP = 120
"""Seconds that a training has to write a checkpoint; then it is ended."""


class Stopped(Exception):
    """There is no more time, or somebody asked to stop."""


@dataclass
class Stop:
    """When to stop: at a time, or when a signal has come."""

    at: float = float("inf")
    asked: bool = False

    @property
    def is_due(self) -> bool:
        return self.asked or time.monotonic() >= self.at

    def check(self, _: int = 0) -> None:
        if self.is_due:
            raise Stopped

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Within it SIGTERM and Ctrl-C ask to stop."""

        def ask(*_: Any) -> None:
            self.asked = True

        kinds = (signal.SIGTERM, signal.SIGINT)
        before = {kind: signal.signal(kind, ask) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)
