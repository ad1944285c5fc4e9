"""Whether kernels may make tables: where they fail, the plain ways do."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_allowed = ContextVar("allowed", default=True)


def are_allowed() -> bool:
    return _allowed.get()


@contextmanager
def without_kernels() -> Iterator[None]:
    """Within it, kept states and tables are made without kernels, and so are their gradients."""
    before = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(before)


def allowed(choice: tuple[str, str]) -> str:
    """The implementation that an op chose, or its plain one where kernels are not allowed."""
    return choice[0] if are_allowed() else "plain"
