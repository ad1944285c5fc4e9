"""python -m benchmarks.run gpu: steps, questions, evaluation and row sums on a GPU.

The cases are those of `steps`, `rows`, `inference` and `evaluation`, which say what they measure
and what their floors are. No number for what is wrong: then the exit status is 1. `--smoke` takes
tiny cases, also on a CPU, where Triton's interpreter runs the kernels.
"""

import argparse
import fnmatch
import json
import os
import traceback
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.gpu import evaluation, inference, rows, steps
from benchmarks.gpu.clock import Bench

FAMILIES = (steps, rows, inference, evaluation)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.run gpu", description=__doc__)
    parser.add_argument(
        "--case", action="append", help="only this case, or those like it: 'viterbi-*' (repeatable)"
    )
    parser.add_argument("--smoke", action="store_true", help="tiny cases, in seconds")
    parser.add_argument("--data", type=Path, help="the folder of PTB's text, for the evaluation")
    parser.add_argument(
        "--checkpoint", type=Path, help="a model folder to evaluate and whose rows to sum"
    )
    parser.add_argument("--commit", help="what to write where git does not know it")
    parser.add_argument("--out", type=Path, help="append the lines to this file as JSON")
    given = parser.parse_args(words)
    bench = make_bench(given.smoke, given.commit, given.data, given.checkpoint)
    rates = bench.rates
    print(
        f"{bench.facts['device']}: products {rates.bf16 / 1e12:.1f} TFLOP/s in bf16, "
        f"{rates.fp32 / 1e12:.1f} in fp32; {rates.scalar / 1e12:.1f} T float32 operations/s; "
        f"{rates.copy / 1e12:.2f} TB/s",
        flush=True,
    )
    number, wrong = 0, []
    for name in _names(given.case, given.smoke):
        for line in _measure(name, bench):
            print(show(line), flush=True)
            if "wrong" in line:
                wrong.append(f"{line['case']}: {line['wrong']}")
            elif "skipped" not in line:
                number += 1
                if given.out is not None:
                    append(given.out, line)
    print(json.dumps({"ok": not wrong, "lines": number, "wrong": wrong}))
    return 1 if wrong else 0


def make_bench(
    smoke: bool,
    commit: str | None = None,
    data: Path | None = None,
    checkpoint: Path | None = None,
) -> Bench:
    """A GPU, or a CPU where only tiny cases are asked for and there is none."""
    if find_spec("triton") is None:
        raise SystemExit("This benchmark is of Triton's kernels; pip install triton.")
    if torch.cuda.is_available():
        device, precisions = torch.device("cuda"), ("bf16", "fp32")
    elif smoke:
        # Read when the kernels are imported. bf16 products are wrong in the interpreter.
        os.environ["TRITON_INTERPRET"] = "1"
        device, precisions = torch.device("cpu"), ("fp32",)
    else:
        raise SystemExit(
            "There is no CUDA device here; this benchmark is of one; --smoke runs anywhere."
        )
    short = {"rounds": 1} if smoke else {}
    return Bench(device, commit, smoke, data, checkpoint, precisions=precisions, **short)


def append(path: Path, line: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def show(line: dict) -> str:
    """A line for people."""
    kind = " ".join(str(line[key]) for key in ("implementation", "dtype") if key in line)
    head = f"{line['case']}, {line['what']} ({kind}): " if kind else f"{line['case']}: "
    for key in ("wrong", "failed", "skipped"):
        if key in line:
            return f"{head}{key.upper() if key == 'wrong' else key}: {line[key]}"
    parts = []
    if "ms" in line:
        parts.append(f"{line['ms']:.3f} ms (20% {line['q20']:.3f}, 80% {line['q80']:.3f})")
    if line.get("floor_ms"):
        ratio = line["ms"] / line["floor_ms"]
        parts.append(f"{ratio:.2f} x floor of {line['floor_ms']:.3f} ms")
    if "loop_ms" in line:
        parts.append(f"loop {line['loop_ms']:.3f} ms")
    if "tokens_per_s" in line:
        parts.append(f"{line['tokens_per_s']:,} tokens/s")
    if line.get("peak_bytes"):
        parts.append(f"peak {line['peak_bytes'] / 2**30:.2f} GiB")
    for key in ("perplexity", "loss_error", "gradient_error", "error", "max_row_error"):
        if key in line:
            parts.append(f"{key.replace('_', ' ')} {line[key]:.4g}")
    return head + "; ".join(parts)


def _names(asked: list[str] | None, smoke: bool) -> list[str]:
    known = [name for family in FAMILIES for name in (family.SMOKE if smoke else family.CASES)]
    if not asked:
        return known
    names = []
    for pattern in asked:
        names += fnmatch.filter(known, pattern) or [pattern]
    return names


def _measure(name: str, bench: Bench) -> Iterator[dict]:
    family = next((family for family in FAMILIES if family.PATTERN.fullmatch(name)), None)
    if family is None:
        examples = ", ".join(family.CASES[0] for family in FAMILIES)
        raise SystemExit(f"No such case: {name}; write it like one of {examples}.")
    try:
        yield from family.measure(name, bench)
    except Exception as error:  # the other cases are still worth having
        traceback.print_exc()
        yield {"case": name, "wrong": f"{type(error).__name__}: {error}"}
