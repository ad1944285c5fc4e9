"""python -m benchmarks.pyjuice_hmm: dense HMMs on a GPU, ours beside those of pyjuice.

`hmm-z512-v1000-b64-t64` has 512 states, 1,000 words and 64 rows of 64 tokens; everyone has the same
tables. Log evidence is pyjuice's forward pass, expected counts its forward and backward pass with
the flows of the parameters, replayed from CUDA graphs, as its own training does; `-fp32` forbids it
narrower products. Right first: log evidence against float64, and the counted mass against the
number of tokens; the `error` of pyjuice is stated. Where it cannot run, the line says how it
`failed`. The time that it takes to compile a circuit is `compile_seconds`.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu import append, make_bench, show
from benchmarks.gpu.clock import Bench
from hmmlm import HMM
from hmmlm.errors import InputError
from hmmlm.inference import counts, log_prob

CASES = tuple(f"hmm-z{z}-v1000-b64-t{t}" for z in (512, 2048, 4096) for t in (64, 512))
SMOKE = ("hmm-z16-v20-b3-t5",)
PATTERN = re.compile(r"hmm-z(\d+)-v(\d+)-b(\d+)-t(\d+)")
ALLOWED = {"hmmlm": 1e-5, "hmmlm-plain": 1e-5, "pyjuice": 0.1, "pyjuice-fp32": 0.1}
"""How far, relative to its size, the total log evidence, or the counted mass, may be off.

Of ours, for a line to be right; of pyjuice, to be an answer to the question at all: what it is off
by stands in its line.
"""


class Problem(NamedTuple):
    """Probabilities: start (Z,), transitions (Z, Z) and emissions (Z, V); and tokens (B, T)."""

    init: Tensor
    trans: Tensor
    emit: Tensor
    tokens: Tensor


class Prepared(NamedTuple):
    """Answers the log evidence of all rows, and with it the mass of all counts but emissions'."""

    log_evidence: Callable[[], Tensor]
    counts: Callable[[], tuple[Tensor, Callable[[], float]]]
    facts: dict


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.pyjuice_hmm", description=__doc__)
    parser.add_argument("--case", action="append", help="only this case (may be repeated)")
    parser.add_argument("--smoke", action="store_true", help="a tiny case")
    parser.add_argument("--commit", help="what to write where git does not know it")
    parser.add_argument("--out", type=Path, help="append the lines to this file as JSON")
    given = parser.parse_args()
    bench = make_bench(given.smoke, given.commit)
    wrong = []
    for name in given.case or (SMOKE if given.smoke else CASES):
        for line in measure(name, bench):
            print(show(line), flush=True)
            if "wrong" in line:
                wrong.append(f"{name}: {line['wrong']}")
            elif "skipped" not in line and given.out is not None:
                append(given.out, line)
    print(json.dumps({"ok": not wrong, "wrong": wrong}))
    return 1 if wrong else 0


def measure(name: str, bench: Bench) -> Iterator[dict]:
    problem = make(name)
    exact = _hmm(problem, torch.float64, bench)
    truth = float(
        log_prob(exact, problem.tokens.to(bench.device), implementation="scaled").log_evidence.sum()
    )
    in_full = {"force_use_fp32": True}
    circuit = cache(lambda: compile_circuit(problem, bench))
    for implementation, dtype, prepare in (
        ("hmmlm", "fp32", lambda: ours(problem, "kernel", bench)),
        ("hmmlm-plain", "fp32", lambda: ours(problem, "scaled", bench)),
        ("pyjuice", "its own", lambda: pyjuice(circuit(), problem, bench, {})),
        ("pyjuice-fp32", "fp32", lambda: pyjuice(circuit(), problem, bench, in_full)),
    ):
        line = {"case": name, "what": "-", "implementation": implementation, "dtype": dtype}
        allowed = ALLOWED[implementation]
        try:
            prepared = prepare()
            for what in ("log evidence", "expected counts"):
                yield line | {"what": what} | _line(problem, prepared, what, truth, allowed, bench)
        except InputError as refusal:
            yield line | {"skipped": str(refusal)}
        except Exception as error:
            if not implementation.startswith("pyjuice"):
                raise
            yield line | {"failed": f"{type(error).__name__}: {error}", **bench.facts}


def _line(
    problem: Problem, prepared: Prepared, what: str, truth: float, allowed: float, bench: Bench
) -> dict:
    if what == "log evidence":
        evidence, off = prepared.log_evidence(), 0.0
        run: Callable[[], object] = prepared.log_evidence
    else:
        evidence, mass = prepared.counts()
        off = abs(mass() / problem.tokens.numel() - 1)
        run = prepared.counts
    error = max(abs(float(evidence.double().sum()) / truth - 1), off)
    if not error <= allowed:
        return {"wrong": f"float64 is {error:.1e} away (allowed {allowed:g})"}
    times = bench.time(run)
    return {
        **times.fields(),
        "tokens_per_s": round(1e3 * problem.tokens.numel() / times.ms),
        "error": error,
        **prepared.facts,
        **bench.facts,
    }


def make(name: str) -> Problem:
    found = PATTERN.fullmatch(name)
    if found is None:
        raise SystemExit(f"No such case: {name}; write it like {CASES[0]}.")
    states, words, rows, steps = map(int, found.groups())
    generator = torch.Generator().manual_seed(0)

    def table(*size: int) -> Tensor:
        return torch.softmax(2 * torch.randn(size, generator=generator), -1)

    tokens = torch.randint(words, (rows, steps), generator=generator)
    return Problem(table(states), table(states, states), table(states, words), tokens)


def _hmm(problem: Problem, dtype: torch.dtype, bench: Bench) -> HMM:
    logs = [part.to(bench.device, dtype).log() for part in problem[:3]]
    return HMM.from_tables(logs[0], logs[1], logs[2])


def ours(problem: Problem, implementation: str, bench: Bench) -> Prepared:
    hmm, tokens = _hmm(problem, torch.float32, bench), problem.tokens.to(bench.device)

    def count() -> tuple[Tensor, Callable[[], float]]:
        made = counts(hmm, tokens, implementation=implementation)
        return made.log_evidence, lambda: sum(float(f.double().sum()) for f in made.fields()[:2])

    def score() -> Tensor:
        return log_prob(hmm, tokens, implementation=implementation).log_evidence

    return Prepared(score, count, {"ours": implementation})


class Circuit(NamedTuple):
    compiled: Any
    facts: dict


def compile_circuit(problem: Problem, bench: Bench) -> Circuit:
    """`structures.HMM`, whose `alpha` is p(to | from), for as many steps."""
    import pyjuice as juice

    steps, (states, words) = problem.tokens.shape[1], problem.emit.shape
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 100 * steps))  # it walks circuits so
    began = time.perf_counter()
    init, trans, emit, _ = problem
    root = juice.structures.HMM(steps, states, words, alpha=trans, beta=emit, gamma=init)
    compiled = juice.compile(root, verbose=False)
    compiled.to(bench.device)
    seconds = time.perf_counter() - began
    try:
        release = version("pyjuice")
    except PackageNotFoundError:  # a folder on the path
        release = "?"
    return Circuit(compiled, {"pyjuice": release, "compile_seconds": round(seconds, 2)})


def pyjuice(circuit: Circuit, problem: Problem, bench: Bench, how: dict[str, Any]) -> Prepared:
    compiled, tokens = circuit.compiled, problem.tokens.to(bench.device)

    @torch.no_grad()
    def score(**more: bool) -> Tensor:
        return compiled(tokens, **how, **more)[:, 0].clone()

    @torch.no_grad()
    def count(**more: bool) -> tuple[Tensor, Callable[[], float]]:
        evidence = score()
        compiled.backward(tokens, flows_memory=0.0, **how, **more)
        return evidence, lambda: float(compiled.param_flows.double().sum())

    # Its graphs do not tell one arithmetic from another.
    compiled._recorded_cuda_graphs.clear()
    # Once as they are, where kernels are compiled, then recorded; later calls replay.
    for more in ({}, {"record_cudagraph": True}):
        score(**more)
        count(**more)
    return Prepared(score, count, circuit.facts)


if __name__ == "__main__":
    raise SystemExit(main())
