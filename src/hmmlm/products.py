"""Products of float32 numbers by tensor cores, which read 11 of their 24 digits (tf32).

They are made where they are asked for, within `tf32_products`, of numbers that were rounded first;
and nowhere else, whatever a process has set for torch's own products.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

_wanted = ContextVar("wanted", default=False)


@contextmanager
def tf32_products() -> Iterator[None]:
    """Within it models round the factors of transitions to tf32 and sum their products up in it."""
    before = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(before)


def is_wanted() -> bool:
    return _wanted.get()


def round_to_tf32(values: Tensor) -> Tensor:
    """The nearest numbers with 11 digits, ties to even; a float32 that a product reads exactly."""
    bits = values.to(torch.float32).view(torch.int32)
    # Half a unit less one, and one more if the last digit kept is odd: as processors round.
    bits = bits + 0xFFF + (bits >> 13 & 1)
    rounded = (bits & ~0x1FFF).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values)


@contextmanager
def full_products() -> Iterator[None]:
    """Within it torch's products of float32 numbers read all their digits."""
    cpu: Any = torch.backends.mkldnn  # part of which its stubs do not know
    places = torch.backends.cuda.matmul, cpu.matmul
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "ieee"
        yield
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision
