"""The most memory held since it was last forgotten: of a GPU, or of the whole process."""

from contextlib import suppress
from pathlib import Path

import torch


def peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _resident("VmHWM")


def resident_bytes(device: torch.device) -> int:
    """What the process has in memory now; 0 of a GPU, whose libraries are not counted."""
    return 0 if device.type == "cuda" else _resident("VmRSS")


def forget_peak(device: torch.device) -> None:
    """Begins anew, where the system lets it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def _resident(key: str) -> int:
    """As Linux counts it; elsewhere the most there ever was."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS: bytes
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))
