"""The batches of epoch after epoch, of which the next one may be made before it is used."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from hmmlm.data.batches import Batch


@runtime_checkable
class Batches(Protocol):
    """The batches of an epoch: how many, and each in turn; iterating again is another epoch."""

    @property
    def num_batches(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


class Stream:
    """An endless iterator over batches; `peek` makes the one that comes next.

    `position` is that of the batches that were taken, whatever was peeked at; None where the
    batches have none.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self.rest = self._epochs()
        self.held: Batch | Exception | None = None
        self.before: Any = None  # the position of what is held

    def _epochs(self) -> Iterator[Batch]:
        while True:
            yield from self.batches

    @property
    def position(self) -> Any:
        return getattr(self.batches, "position", None) if self.held is None else self.before

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        held, self.held = self.held, None
        if isinstance(held, Exception):
            raise held
        return next(self.rest) if held is None else held

    def peek(self) -> Batch | None:
        """The next batch; None if it cannot be made, which whoever takes it hears."""
        if self.held is None:
            self.before = self.position
            try:
                self.held = next(self.rest)
            except Exception as error:
                self.held = error
        return self.held if isinstance(self.held, Batch) else None

    def put_back(self) -> None:
        """The batches stand where those that were taken end."""
        if self.held is not None and self.before is not None:
            self.batches.position = self.before  # pyright: ignore
        self.held = None
