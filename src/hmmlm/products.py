"""What products of factors are made of, and torch's own products in full.

Tensor cores read 11 of the 24 digits of a float32 (tf32), 8 of a bfloat16. Products of such numbers
are made where they are asked for, of factors that were rounded first; and nowhere else, whatever a
process has set for torch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

_wanted = ContextVar("wanted", default=False)


class Operand(NamedTuple):
    """Numbers that factors are rounded to once: normaliser, tiles and counts read the same.

    `dtype` holds them; `precision` is how a product reads what it holds, in Triton's words.
    """

    dtype: torch.dtype
    precision: str

    def round(self, factor: Tensor) -> Tensor:
        """The nearest numbers of its kind, in the type of the factor."""
        if self == TF32:
            return round_to_tf32(factor)
        return factor.to(self.dtype).to(factor.dtype)

    @property
    def name(self) -> str:
        return "tf32" if self == TF32 else str(self.dtype).removeprefix("torch.")


FLOAT32 = Operand(torch.float32, "ieee")
TF32 = Operand(torch.float32, "tf32")
BF16 = Operand(torch.bfloat16, "tf32")


def wanted_operand(place: str) -> Operand:
    """What factors are rounded to here, on a type of device: `FLOAT32` where nothing was said."""
    if torch.is_autocast_enabled(place):
        return Operand(torch.get_autocast_dtype(place), "tf32")
    return TF32 if _wanted.get() else FLOAT32


@contextmanager
def tf32_products() -> Iterator[None]:
    """Within it models round factors to tf32."""
    before = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(before)


def round_to_tf32(values: Tensor) -> Tensor:
    """The nearest numbers with 11 digits, ties to even; a float32 that a product reads exactly."""
    bits = values.to(torch.float32).view(torch.int32)
    # Half a unit less one, and one more if the last digit kept is odd: as processors round.
    bits = bits + 0xFFF + (bits >> 13 & 1)
    rounded = (bits & ~0x1FFF).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values)


@contextmanager
def full_products() -> Iterator[None]:
    """Within it torch's products of float32 numbers, and LSTMs, read all their digits."""
    backends: Any = torch.backends  # part of which its stubs do not know
    places = backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.rnn
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "ieee"
        yield
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision
