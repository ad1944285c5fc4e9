"""Where and with what a line was measured."""

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = ("torch", "triton", "numpy", "numba", "hmmlearn", "pomegranate", "dynamax", "jax")


def describe() -> dict:
    return {
        "device": _processor(),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """The commit, with + where files that are tracked have changed since."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def busy_seconds() -> float:
    """Processor seconds that the whole machine has spent on anything but waiting; 0 if unknown."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, interrupts, soft, stolen = (int(field) for field in fields[:8])
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(patience: float, limit: float = 0.1) -> float:
    """Waits until the machine is idle, at most so many seconds; gives the load last seen."""
    until = time.monotonic() + patience
    while True:
        before, begin = busy_seconds(), time.monotonic()
        time.sleep(0.2)
        load = (busy_seconds() - before) / (time.monotonic() - begin)
        if load < limit or time.monotonic() > until:
            return load
