"""Whether Triton kernels can run, and the arithmetic of their products."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from textwrap import shorten

import torch
from torch import Tensor

_allowed = ContextVar("allowed", default=True)


def are_allowed() -> bool:
    return _allowed.get()


@contextmanager
def without_kernels() -> Iterator[None]:
    """Within it kernels are chosen for nothing that has a plain way, nor for its gradients."""
    before = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(before)


def why_not(device: torch.device) -> str | None:
    """What keeps kernels from running on a device; None if nothing does."""
    return lacking(device) if are_allowed() else "kernels have failed before"


@cache
def lacking(device: torch.device) -> str | None:
    """What kernels need and a device, or this machine, has not."""
    if device.type != "cuda":
        return f"kernels run on a CUDA device, and this is {device.type}"
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed; pip install triton"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return f"kernels need bfloat16 (compute capability 8.0); this GPU has {major}.{minor}"
    return None


def describe(error: BaseException) -> str:
    """What went wrong, in a line: before a capture failed to end, something broke it."""
    while error.__context__ is not None and "capture" in str(error):
        error = error.__context__
    # Triton's compiler quotes source before it says what is wrong with it.
    said = getattr(error, "error_message", None) or str(error) or "no reason was given"
    return shorten(f"{type(error).__name__}: {said.strip().splitlines()[0]}", 240)


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on a CPU: small tiles are faster there."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def room(device: torch.device, share: int, most: int) -> int:
    """Float32 numbers that one part in `share` of a GPU's memory holds; at most `most`."""
    if device.type != "cuda":
        return most
    return min(most, torch.cuda.get_device_properties(device).total_memory // (4 * share))


def product(one: Tensor, other: Tensor, out: Tensor | None = None) -> Tensor:
    """A product of matrices summed in float32, or in float64 where they are."""
    if one.dtype.itemsize >= 4:
        return torch.mm(one, other, out=out)
    return torch.mm(one, other, out_dtype=torch.float32, out=out)
