"""Whether tables fit the memory that is free."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from hmmlm.errors import InputError, rounded
from hmmlm.support import Support

BYTES = 36
"""Of each number of the tables: the model, the best one, sums in float64, a batch's counts."""

FAR = {"cpu": 2, "cuda": 10}
"""How many times the free memory an estimate must be to be believed, by the type of device.

It is that of a CPU, right within a quarter where it was measured; kernels of a GPU keep less.
"""

GROUPS = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By the controllers that a line of /proc/self/cgroup names: the folder below /sys/fs/cgroup, the
files with the limit and with what is taken, and what of that the system gives back when asked."""


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


FEWER = "use fewer states, or --blocks (model.blocks), more of them if there are some"


def check_training(
    memory: Mapping[str, int], device: str | torch.device = "cpu", *, advice: str = FEWER
) -> None:
    """Refuses a training whose estimated bytes, by part, are far beyond the memory that is free."""
    place = torch.device(device)
    needed = sum(memory.values()) - memory.get("tiles", 0)  # large ones are fewer than estimated
    free = free_memory(place)
    if free is not None and needed > FAR.get(place.type, max(FAR.values())) * free:
        raise InputError(
            f"This training needs about {rounded(needed, 'B')} and {rounded(free, 'B')} are free; "
            f"{advice}."
        )


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be taken; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = _read(Path("/proc/meminfo")).splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min([*found, *left_in_groups()], default=None)


def left_in_groups(root: Path = Path("/")) -> Iterator[int]:
    """What the limits of control groups, such as a container's or a job's, leave to this process.

    A group within others has their limits too.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, place = line.split(":", 2)
        for controller in {"", "memory"} & set(controllers.split(",")):
            folder, limit, used, spare = GROUPS[controller]
            top = root / "sys/fs/cgroup" / folder
            group = top / place.strip("/")
            for inner in (group, *group.parents):
                most, taken = _read(inner / limit).strip(), _read(inner / used).strip()
                if most.isdigit() and taken.isdigit():  # not where it says max
                    entries = _read(inner / "memory.stat").splitlines()
                    given_back = dict(entry.split() for entry in entries).get(spare, 0)
                    yield max(0, int(most) - int(taken) + int(given_back))
                if inner == top:
                    break


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
