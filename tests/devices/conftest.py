"""The device of these tests."""

from collections.abc import Iterator

import pytest
import torch

from pretend_gpu import pretend_gpu


@pytest.fixture
def device() -> Iterator[str]:
    """A GPU, or on a machine without one, what pretends to be one."""
    if torch.cuda.is_available():
        yield "cuda"
        return
    with pretend_gpu():
        yield "cuda"
