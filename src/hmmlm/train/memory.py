"""Whether tables fit the memory that is free."""

from pathlib import Path

import torch

from hmmlm.errors import InputError
from hmmlm.support import Support

BYTES = 36
"""Of each number of the tables: the model, the best one, sums in float64, a batch's counts."""


def check_tables(support: Support, device: str | torch.device = "cpu") -> None:
    """Refuses tables of a support whose expected counts do not fit the memory that is free."""
    states, words, width = support.num_states, support.vocab_size, support.width
    needed, free = BYTES * (states**2 + words * width), free_memory(torch.device(device))
    if free is not None and needed > free:
        raise InputError(
            f"Tables of {states:,} x {states:,} transitions and {words:,} x {width:,} emissions "
            f"need about {needed / 1e9:,.1f} GB to count in but {free / 1e9:,.1f} GB are free; use "
            f"fewer states, or optimiser adamw with kind lowrank, which makes no such table."
        )


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be taken; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None
