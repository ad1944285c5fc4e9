"""One implementation of one quantity in a process of its own, told what to do through its stdin.

`check FILE` answers the question once and saves it, `peak` gives the peak of memory, `time
SECONDS` calls it again and again and gives the milliseconds of each call and how many cores other
processes kept busy meanwhile. Answers are JSON lines.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from benchmarks.cases import Case, Problem
from benchmarks.floor import floor
from benchmarks.implementations import IMPLEMENTATIONS, truth
from benchmarks.machine import busy_seconds
from benchmarks.memory import peak_growth

LONGEST = 60.0
"""Seconds a call may take; slower ones are skipped."""


def main(name: str, what: str, implementation: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not get among the answers
    warnings.simplefilter("ignore")
    case = Case.parse(name)
    call: Callable[[], object] | None = None
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        try:
            if call is None:
                call = _prepare(case, what, implementation, argument)
            if command == "check":
                answer = {"checked": True, "seconds": _save(call, argument)}
            elif command == "peak":
                answer = {"peak_bytes": peak_growth(call)}
            else:
                answer = _time(call, float(argument))
        except _TooSlow as slow:
            answer = {"skipped": str(slow)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class _TooSlow(Exception):
    pass


def _prepare(case: Case, what: str, implementation: str, argument: str) -> Callable[[], object]:
    if implementation == "floor":
        return floor(case, what)
    problem = Problem.make(case)
    if implementation == "truth":
        first, second = truth(problem, what)
        _save(second, argument + "-second")
        return first
    one = IMPLEMENTATIONS[implementation]
    if one.try_one_row:
        row = one.prepare(replace(problem, tokens=problem.tokens[:1]), what)
        begin = time.perf_counter()
        row()
        seconds = (time.perf_counter() - begin) * case.batch
        if seconds > LONGEST:
            raise _TooSlow(f"one row of {case.batch} says {seconds:.0f} s, over {LONGEST:.0f} s")
    return one.prepare(problem, what)


def _save(call: Callable[[], object], path: str) -> float:
    begin = time.perf_counter()
    answer = call()
    seconds = time.perf_counter() - begin
    parts = answer if isinstance(answer, tuple) else (answer,)
    parts = [part() if callable(part) else part for part in parts]
    arrays = [np.asarray(part, dtype=np.float64) for part in parts]
    np.savez(path, *[arrays[0].sum()], *arrays[1:])
    return seconds


def _time(call: Callable[[], object], seconds: float) -> dict:
    times: list[float] = []
    busy, own, start = busy_seconds(), time.process_time(), time.perf_counter()
    while True:
        begin = time.perf_counter()
        call()
        end = time.perf_counter()
        times.append((end - begin) * 1e3)
        if end - start > seconds:
            break
    others = busy_seconds() - busy - (time.process_time() - own)
    return {"ms": times, "other_load": max(0.0, others / (time.perf_counter() - start))}


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main(*sys.argv[1:])
