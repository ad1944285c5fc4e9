"""What products of factors are made of, and torch's own products in full.

Tensor cores read 11 of the 24 digits of a float32 (tf32), 8 of a bfloat16. Products of such numbers
are made where they are asked for, of factors that were rounded first; and nowhere else, whatever a
process has set for torch, or for the code that it calls us from (autocast).
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Operand(NamedTuple):
    """Numbers that factors are rounded to once: normaliser, tiles and counts read the same.

    `dtype` holds them; `precision` is how a product reads what it holds, in Triton's words.
    """

    dtype: torch.dtype
    precision: str

    def narrow(self, factor: Tensor) -> Tensor:
        """The nearest numbers of its kind, in its own type."""
        return (round_to_tf32(factor) if self == TF32 else factor).to(self.dtype)

    def round(self, factor: Tensor) -> Tensor:
        """The nearest numbers of its kind, in the type of the factor."""
        return self.narrow(factor).to(factor.dtype)

    @property
    def name(self) -> str:
        return "tf32" if self == TF32 else str(self.dtype).removeprefix("torch.")


FLOAT32 = Operand(torch.float32, "ieee")
TF32 = Operand(torch.float32, "tf32")
BF16 = Operand(torch.bfloat16, "tf32")

_wanted = ContextVar("wanted", default=FLOAT32)


def wanted_operand(place: str) -> Operand:
    """What factors are rounded to here, on a type of device: `FLOAT32` where nothing was said."""
    if torch.is_autocast_enabled(place):
        dtype = torch.get_autocast_dtype(place)
        return FLOAT32 if dtype == torch.float32 else Operand(dtype, "tf32")
    return _wanted.get()


@contextmanager
def tf32_products() -> Iterator[None]:
    """Within it models round factors to tf32."""
    before = _wanted.set(TF32)
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


class _Full:
    """Torch's settings of products while someone, on whatever thread, wants them in full.

    They belong to the process: the first to come notes and changes them, the last to go puts them
    back. What a setting only inherits it inherits again.
    """

    def __init__(self) -> None:
        self.lock, self.inside, self.before = threading.Lock(), 0, {}

    def enter(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                for place, parent in _settings():
                    if place.fp32_precision not in ("ieee", "none"):
                        self.before[place] = _own(place, parent)
                        place.fp32_precision = "ieee"

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                for place, found in self.before.items():
                    place.fp32_precision = found
                self.before = {}


def _settings() -> tuple[tuple[Any, Any], ...]:
    """Where torch keeps the precision of products, each with what it inherits from."""
    backends: Any = torch.backends  # part of which its stubs do not know
    return (
        (backends.cuda.matmul, backends),
        (backends.mkldnn.matmul, backends.mkldnn),
        (backends.cudnn.rnn, backends.cudnn),
    )


def _own(place: Any, parent: Any) -> str:
    """What was said of a place itself: "none" where it inherits."""
    found = place.fp32_precision
    return "none" if found == parent.fp32_precision else found


_full = _Full()


@contextmanager
def torch_tf32() -> Iterator[None]:
    """Within it torch makes products of float32 numbers, and LSTMs, in tf32 where a device has it.

    On all threads: torch's settings belong to the process.
    """
    with full_products():
        before = {place: _own(place, parent) for place, parent in _settings()}
        try:
            for place in before:
                place.fp32_precision = "tf32"
            yield
        finally:
            for place, found in before.items():
                place.fp32_precision = found


@contextmanager
def full_products() -> Iterator[None]:
    """Within it products of float32 numbers, and LSTMs, read all digits, under autocast too."""
    _full.enter()
    try:
        with ExitStack() as stack:
            for place in ("cpu", "cuda"):
                if torch.is_autocast_enabled(place):
                    stack.enter_context(torch.autocast(place, enabled=False))
            yield
    finally:
        _full.leave()
