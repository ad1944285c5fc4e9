"""Times, rates and the facts of a line: on a GPU or, to try a benchmark out, on a CPU."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.machine import describe

ROUNDS, SECONDS = 20, 3.0
"""Calls that are timed, and the seconds after which no further one begins."""

LANES = 128
"""float32 operations that a processor of the GPU begins in a cycle."""


class Times(NamedTuple):
    """Milliseconds that the caller waits, and the most memory of the device meanwhile."""

    ms: float
    q20: float
    q80: float
    peak_bytes: int | None

    def fields(self) -> dict:
        return {
            "ms": round(self.ms, 4),
            "q20": round(self.q20, 4),
            "q80": round(self.q80, 4),
            "peak_bytes": self.peak_bytes,
        }


class Rates(NamedTuple):
    """What the device does in a second, measured in the same run but for `scalar`.

    `bf16`, `tf32`, `fp32` and `fp64` are FLOP/s of a large product, `copy` the bytes read and
    written by a copy, `scalar` the float32 operations of all lanes at the highest clock, an FMA
    being one.
    """

    bf16: float
    tf32: float
    fp32: float
    fp64: float
    copy: float
    scalar: float


@dataclass(frozen=True)
class Bench:
    """Where cases are measured, and what was asked for."""

    device: torch.device
    commit: str | None = None
    smoke: bool = False
    data: Path | None = None
    checkpoint: Path | None = None
    rounds: int = ROUNDS
    seconds: float = SECONDS
    precisions: tuple[str, ...] = field(default=("bf16", "fp32"))

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @cached_property
    def rates(self) -> Rates:
        return _rates(self)

    @cached_property
    def facts(self) -> dict:
        machine = describe()
        name = torch.cuda.get_device_name(self.device) if self.is_gpu else machine["device"]
        read = {} if self.checkpoint is None else {"checkpoint": self.checkpoint.name}
        return read | {
            "device": name,
            "torch": torch.__version__,
            "triton": machine["versions"].get("triton", "?"),
            "commit": self.commit or machine["commit"],
        }

    def wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def time(self, run: Callable[[], object], *, warm: Callable[[], object] | None = None) -> Times:
        """A call after a first one, or after `warm`; each begins when the last one is over."""
        (warm or run)()
        self.wait()
        if self.is_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        taken: list[float] = []
        until = time.perf_counter() + self.seconds
        while not taken or (len(taken) < self.rounds and time.perf_counter() < until):
            began = time.perf_counter()
            run()
            self.wait()
            taken.append(1e3 * (time.perf_counter() - began))
        peak = torch.cuda.max_memory_allocated(self.device) if self.is_gpu else None
        low, middle, high = torch.tensor(taken).quantile(torch.tensor([0.2, 0.5, 0.8])).tolist()
        return Times(middle, low, high, peak)


def _rates(bench: Bench) -> Rates:
    size, room = (8192, 1 << 30) if bench.is_gpu else (128, 1 << 16)

    def median(run: Callable[[], object]) -> float:
        if not bench.is_gpu:
            return bench.time(run).ms
        from triton.testing import do_bench

        return float(torch.tensor(do_bench(run, return_mode="median")))

    def product(kind: torch.dtype, precision: str = "ieee") -> float:
        matrix = torch.randn(size, size, device=bench.device).to(kind)
        before = torch.backends.cuda.matmul.fp32_precision
        torch.backends.cuda.matmul.fp32_precision = precision
        try:
            return 2 * size**3 / (median(lambda: matrix @ matrix) / 1e3)
        finally:
            torch.backends.cuda.matmul.fp32_precision = before

    bf16, fp32 = product(torch.bfloat16), product(torch.float32)
    tf32, fp64 = product(torch.float32, "tf32"), product(torch.float64)
    large = torch.empty(room, dtype=torch.uint8, device=bench.device)
    other = torch.empty_like(large)
    copy = 2 * room / (median(lambda: other.copy_(large)) / 1e3)
    return Rates(bf16, tf32, fp32, fp64, copy, _scalar_rate(bench) or fp32 / 2)


def _scalar_rate(bench: Bench) -> float | None:
    if not bench.is_gpu:
        return None
    from triton.runtime import driver

    active: Any = driver.active
    known = active.utils.get_device_properties(torch.cuda.current_device())
    return known["multiprocessor_count"] * LANES * known["sm_clock_rate"] * 1e3  # it is in kHz
