"""Checkpoints of a training: each a folder that is there as a whole, or not at all."""

import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hmmlm import __version__
from hmmlm.errors import InputError
from hmmlm.storage import new_folder
from hmmlm.train.loop import State

FORMAT = "hmmlm-checkpoint-1"
_NAME = re.compile(r"step-[0-9]+")
_DAMAGE = (OSError, ValueError, KeyError, TypeError, RecursionError)
TENSORS, NUMBERS = "state.safetensors", "state.json"


@dataclass(frozen=True)
class Saving:
    """When a checkpoint is due: after so many `save_steps` (0: never), or `save_minutes`.

    The newest `keep` of them stay, and that of the step whose weights were best if one was written
    then; each has the best weights so far.
    """

    save_steps: int = 0
    save_minutes: float = 5.0
    keep: int = 3

    def __post_init__(self) -> None:
        for name, least in (("save_steps", 0), ("save_minutes", 0), ("keep", 1)):
            if not getattr(self, name) >= least:
                raise InputError(f"{name} is {getattr(self, name)} but must be at least {least}.")


class Checkpoints:
    """The checkpoints of a run in a folder.

    `about` says what run that is, in plain values: a checkpoint of another one is refused.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], saving: Saving) -> None:
        self.folder, self.saving = folder, saving
        self.about = json.loads(json.dumps({**about, "hmmlm_version": __version__}))
        self.saved = time.monotonic()

    def due(self, step: int) -> bool:
        """Whether one should be written after a step."""
        every = self.saving.save_steps
        return bool(every and step % every == 0) or self.is_late

    @property
    def is_late(self) -> bool:
        """Whether the last one was written more than `save_minutes` ago."""
        return time.monotonic() - self.saved > 60 * self.saving.save_minutes

    def write(self, state: State) -> None:
        """Writes a checkpoint and removes those that need not be kept."""
        self.saved = time.monotonic()
        path = self.folder / f"step-{state.numbers['step']:09d}"
        if path.exists():  # of a run that has made no step since
            return
        held = {"format": FORMAT, "about": self.about, "numbers": _without_inf(state.numbers)}
        held["tensors"] = _shapes(state.tensors)
        with new_folder(path) as temporary:
            tensors = {name: tensor.contiguous() for name, tensor in state.tensors.items()}
            save_file(tensors, temporary / TENSORS)
            (temporary / NUMBERS).write_text(json.dumps(held, indent=1) + "\n")
            for file in (*temporary.iterdir(), temporary):
                _to_disk(file)
        _to_disk(self.folder)
        best = state.numbers["best"]["step"]
        for step, old in list(self._found())[: -self.saving.keep]:
            if step != best:
                shutil.rmtree(old)

    def newest(self) -> int | None:
        """The step of the newest checkpoint."""
        return max((step for step, _ in self._found()), default=None)

    def read(self) -> State | None:
        """The newest checkpoint, None if there is none; one that is damaged is an error."""
        found = list(self._found())
        odd = [path for path in self.folder.glob("step-*") if not _NAME.fullmatch(path.name)]
        if not odd and not found:
            return None
        step, path = (None, odd[0]) if odd else found.pop()
        before = [step for step, _ in found]
        way_out = "remove that folder to go on from "
        way_out += f"step {before[-1]:,}" if before else "the start: there is no other"
        try:
            if step is None:
                raise ValueError("its name has no step")
            held = json.loads((path / NUMBERS).read_bytes())
            given, about, numbers = held["format"], held["about"], held["numbers"]
            tensors = load_file(path / TENSORS)
            if given == FORMAT and about == self.about:
                _check(numbers, step)
                _check_shapes(_shapes(tensors), held["tensors"])
        except (*_DAMAGE, SafetensorError) as error:
            raise InputError(f"The checkpoint {path} is damaged ({error}); {way_out}.") from None
        if given != FORMAT:
            raise InputError(
                f"The checkpoint {path} has the format {given!r} but this version reads {FORMAT!r};"
                f" go on with the version of hmmlm that wrote it."
            )
        if about != self.about:
            raise InputError(
                f"The checkpoint {path} is of another run: {describe_difference(about, self.about)}"
                f". Go on with what it was begun with, or train anew in another folder."
            )
        numbers["best"]["val"] = _with_inf(numbers["best"]["val"])
        return State(tensors, numbers)

    def sweep(self) -> None:
        """Removes what a process that was killed left half written."""
        for path in self.folder.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _found(self) -> Iterator[tuple[int, Path]]:
        for path in sorted(self.folder.glob("step-*")):
            if _NAME.fullmatch(path.name):
                yield int(path.name.removeprefix("step-")), path


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def _check_shapes(found: dict[str, list[int]], written: Mapping[str, Any]) -> None:
    for name in sorted({**found, **written}):
        if found.get(name) != written.get(name):
            raise ValueError(f"{name} is not as it was written")


def _check(numbers: Mapping[str, Any], step: int) -> None:
    """Refuses numbers that no training of that step can have written."""
    best = numbers["best"]
    least = [(best, "step", 0), (best, "waited", 0), (best, "bad", 0), (best, "divisor", 1)]
    for held, name, value in [*least, (numbers, "tokens", 0), (numbers, "seconds", 0)]:
        if type(held[name]) not in (int, float) or not value <= held[name] < math.inf:
            raise ValueError(f"{name} is {held[name]!r}")
    if numbers["step"] != step:
        raise ValueError(f"step is {numbers['step']!r} but the folder's {step}")
    if best["val"] is not None and type(best["val"]) not in (int, float):
        raise ValueError(f"val is {best['val']!r}")
    position = numbers["position"]
    places = position.values() if isinstance(position, dict) else [None]
    if position is not None and not all(type(place) is int for place in places):
        raise ValueError(f"position is {position!r}")


def describe_difference(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    """The first settings in which two descriptions differ, with both values."""
    a, b = flatten(theirs), flatten(mine)
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    found = [f"{name} was {a.get(name)!r} and is {b.get(name)!r}" for name in names[:3]]
    return "; ".join(found) + (f"; and {len(names) - 3:,} more" if len(names) > 3 else "")


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """What is in tables within tables, by "table.key"."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        inner = isinstance(value, Mapping)
        flat |= flatten(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def _without_inf(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no infinity, the value of the best before the first check."""
    best = dict(numbers["best"])
    best["val"] = best["val"] if math.isfinite(best["val"]) else None
    return {**numbers, "best": best}


def _with_inf(val: float | None) -> float:
    return math.inf if val is None else val


def _to_disk(path: Path) -> None:
    """Waits until a file or folder would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
