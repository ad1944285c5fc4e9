"""From a small size to the whole one, as far as time and memory go; the rest is extrapolated."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from hmmlm.calibration.memory import peak_bytes, resident_bytes
from hmmlm.calibration.parts import PARTS, Part, Unit
from hmmlm.errors import InputError
from hmmlm.train.config import Config, make_config
from hmmlm.train.memory import free_memory

__all__ = ["PARTS", "Measured", "Task", "measure", "rungs"]

SHARES = (8, 4, 2, 1)
"""What a word's states are divided by, one after the other."""


class Task(NamedTuple):
    """What to measure: a part of `PARTS` on a configuration's tables, for about `seconds`.

    `blocks` is the number of those that a file of clusters makes, `tokens` the training text's.
    """

    part: str
    tables: dict[str, Any]
    vocab_size: int
    device: str
    seconds: float
    tokens: int
    blocks: int | None = None


class Measured(NamedTuple):
    """`tokens_per_second`, and the most bytes held: of a GPU's memory, or of the whole process.

    `base_bytes` are those of the process before it began, 0 on a GPU. `states` are those of the
    largest model that ran; where `is_extrapolated` the numbers follow from it and the one before,
    `also`, because of `why`: "time" or "memory". `free_bytes` could be had when it began, None
    where the system does not say. `facts` are the part's own.
    """

    part: str
    tokens_per_second: float
    bytes: int
    base_bytes: int
    states: int
    also: int
    is_extrapolated: bool
    why: str
    free_bytes: int | None
    facts: dict[str, float]

    @property
    def fits(self) -> bool:
        return self.free_bytes is None or self.bytes - self.base_bytes <= self.free_bytes


class _Rung(NamedTuple):
    """What came out with a model, and the seconds that it took to measure."""

    config: Config
    unit: Unit
    bytes: int
    took: float


def measure(task: Task) -> Measured:
    """Runs the part on models of more and more states, each about four times the work.

    Two sizes run whatever the time. Seconds that are extrapolated are linear in the operations,
    bytes above the libraries in proportion to what the part is known to hold, and no fewer than
    that adds.
    """
    config, device = make_config(task.tables), torch.device(task.device)
    states = _states(config)
    part = PARTS[task.part](task.vocab_size, task.blocks, device, task.tokens, states)
    free, base, ends = free_memory(device), 0, 0.0
    done, why = [], ""
    for one in rungs(config, task.blocks):
        needed = part.bytes(one)
        if free is not None and needed > free:
            if not done:
                raise InputError(
                    f"{task.part.capitalize()} needs about {needed / 1e9:,.1f} GB with "
                    f"{one.model.states:,} states but {free / 1e9:,.1f} GB are free; use fewer "
                    f"states or a smaller --vocab."
                )
            why = "memory"
            break
        if not done:
            part.run(one, 0.0)  # loads and compiles what it needs
            base = resident_bytes(device)
            ends = time.perf_counter() + task.seconds
        left = ends - time.perf_counter()
        if len(done) > 1 and _expected(part, done, one, [rung.took for rung in done]) > left:
            why = "time"
            break
        is_whole, began = _states(one) == _states(config), time.perf_counter()
        unit = part.run(one, left if is_whole else 0.0)
        held = peak_bytes(device) + unit.missing
        done.append(_Rung(one, unit, held, time.perf_counter() - began))
    last = done[-1]
    also = last if len(done) == 1 else done[-2]
    seconds, held, facts = last.unit.seconds, last.bytes, last.unit.facts
    if why:
        seconds = _expected(part, done, config, [rung.unit.seconds for rung in done])
        known, whole = part.bytes(last.config), part.bytes(config)
        held = max(base + round((held - base) * whole / known), held + whole - known)
        facts = part.facts(last.config, config, facts)
    return Measured(
        part=task.part,
        tokens_per_second=last.unit.tokens / seconds,
        bytes=held,
        base_bytes=base,
        states=_states(last.config),
        also=_states(also.config),
        is_extrapolated=bool(why),
        why=why,
        free_bytes=free,
        facts=facts,
    )


def rungs(config: Config, blocks: int | None) -> Iterator[Config]:
    """The configuration with an eighth, a quarter, half and all of a word's states."""
    model = config.model
    states, number = _states(config), blocks or model.blocks or 1
    whole, seen = model.states_per_word or states // number, set()
    for share in SHARES:
        each = max(1, whole // share)
        if model.states_per_word:
            fewer = {"states": max(1, states * each // whole), "states_per_word": each}
        elif model.uneven:
            fewer = {"states": max(number, states // share)}
        else:
            fewer = {"states": each * number}
        if fewer["states"] not in seen:
            seen.add(fewer["states"])
            yield dataclasses.replace(config, model=dataclasses.replace(model, **fewer))


def _expected(part: Part, done: list[_Rung], wanted: Config, seconds: list[float]) -> float:
    """Seconds by those of the two largest sizes, linear in operations."""
    if len(done) == 1:
        return seconds[0] * part.work(wanted) / part.work(done[0].config)
    works = [part.work(config) for config in (done[-2].config, done[-1].config, wanted)]
    before, last = seconds[-2:]
    if works[1] <= works[0] or last <= before:  # too small to tell
        return last * works[2] / works[1]
    return last + (last - before) * (works[2] - works[1]) / (works[1] - works[0])


def _states(config: Config) -> int:
    assert config.model.states is not None
    return config.model.states
