"""How much memory something takes: tensors of this process, or another process as a whole."""

import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import IO

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SOURCE = str(Path(__file__).parents[1] / "src")

STATUS = """
import json, sys

def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1]) * 1024

def restart_peak():
    open("/proc/self/clear_refs", "w").write("5")
"""


def run_measured(
    script: str,
    folder: Path,
    *arguments: str,
    stdout: int | IO[str] = subprocess.PIPE,
) -> dict[str, float]:
    """The numbers that are the last line a script writes to stderr.

    It has `status("VmRSS")`, its bytes in memory, `status("VmHWM")`, the most there were, and
    `restart_peak()`.
    """
    done = subprocess.run(
        [sys.executable, "-c", STATUS + script, *arguments],
        cwd=folder,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stderr.splitlines()[-1])


class Held(TorchDispatchMode):
    """The most bytes that tensors held at one time."""

    def __init__(self):
        super().__init__()
        self.known, self.now, self.peak = set(), 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return out

    def _see(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key, size):
        self.known.discard(key)
        self.now -= size
