"""python -m benchmarks.precision: an epoch of PTB in bf16 beside the same in fp32.

Chiu & Rush's network at width 256, 128 blocks, dropout 0.5, 512 tokens a step in packed rows of 64,
AdamW at 0.01 with a cosine schedule. A seed draws the weights, the order of the sentences and the
states that are kept. Curves are the mean loss of each 50 steps, in nats; the perplexity is that of
the validation text, sentence by sentence, from float32 tables. What bf16 changes is printed beside
what another seed changes. Then the row sums of the last model, as `gpu/rows` takes them.
"""

import argparse
import json
import math
import time
from itertools import combinations
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.gpu import append, make_bench, rows
from benchmarks.gpu import show as show_line
from benchmarks.gpu.clock import Bench
from benchmarks.ptb import Texts, quick_support, read_texts
from hmmlm.data.batches import Packed
from hmmlm.evaluate import HmmLM, evaluate
from hmmlm.hmm import HMM
from hmmlm.params import mlp
from hmmlm.train.graph import why_no_graph
from hmmlm.train.loss import Dropout, HmmLoss
from hmmlm.train.schedule import TrainSettings
from hmmlm.train.sgd import train

PRECISIONS = {"bf16": "bf16", "tf32": "tf32", "fp32": "float32"}
WIDTH, BLOCKS, ROWS, LENGTH, RATE = 256, 128, 8, 64, 0.01
EVERY = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.precision", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of PTB's text")
    parser.add_argument("--states", type=int, default=1 << 15)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--dtype", choices=PRECISIONS, action="append", help="only this precision")
    parser.add_argument("--steps", type=int, help="stop so early instead of after an epoch")
    parser.add_argument("--smoke", action="store_true", help="few steps of a tiny model")
    parser.add_argument("--commit", help="what to write where git does not know it")
    parser.add_argument("--out", type=Path, help="append the lines to this file as JSON")
    given = parser.parse_args()
    bench = make_bench(given.smoke, given.commit)
    texts = read_texts(given.data)
    states, steps = (64, 4) if given.smoke else (given.states, given.steps)
    runs, wrong = {}, []
    for seed in range(given.seeds):
        for precision in given.dtype or PRECISIONS:
            run, hmm = learn(texts, states, precision, seed, steps, bench)
            runs[precision, seed] = run
            print(
                f"{precision}, seed {seed}: {run['steps']:,} steps in {run['seconds']:.0f} s, loss "
                f"{run['losses'][-1]:.4f}, validation perplexity {run['perplexity']:.2f}",
                flush=True,
            )
            if given.out is not None:
                append(given.out, run)
    table = compare(runs)
    print(show(table))
    factors = hmm.transitions.fields()[:2]
    for line in rows.compare(f"rows-z{states}-trained", *factors, hmm.support.rows, bench):
        print(show_line(line), flush=True)
        wrong += [line["wrong"]] if "wrong" in line else []
        if given.out is not None:
            append(given.out, line)
    fine = not wrong and all(math.isfinite(run["perplexity"]) for run in runs.values())
    print(json.dumps({"ok": fine, "states": states, "differences": table}))
    return 0 if fine else 1


def learn(
    texts: Texts, states: int, precision: str, seed: int, steps: int | None, bench: Bench
) -> tuple[dict, HMM]:
    """An epoch, or some steps of it: the line, and the model's tables."""
    support = quick_support(texts, states, min(BLOCKS, states // 16))
    generator = torch.Generator().manual_seed(seed)
    width = 16 if bench.smoke else WIDTH
    model = mlp.Settings(width=width).build(support, generator=generator).to(bench.device)
    # The kernels that a step in bf16 is captured from also know fp32.
    how = "kernel" if bench.is_gpu else "auto"
    loss = HmmLoss(model, support, dropout=Dropout(0.5), seed=seed, implementation=how)
    batches = Packed(texts.splits["train"], ROWS, LENGTH, seed=seed)
    settings = TrainSettings(epochs=1, learning_rate=RATE, precision=PRECISIONS[precision])
    losses, began = [], time.perf_counter()
    for progress in train(model, loss, batches, settings=settings):
        losses.append(progress.loss)
        if progress.step == steps:
            break
    seconds = time.perf_counter() - began
    with torch.no_grad():
        hmm = model().detach()
    valid = texts.splits["valid"]
    read = HmmLM(hmm, how)
    made = evaluate(read, valid, mode="sentence", eos_id=valid.eos_id, device=bench.device)
    line = {
        "case": f"precision-z{states}",
        "what": "an epoch",
        "dtype": precision,
        "seed": seed,
        "steps": len(losses),
        "seconds": round(seconds, 2),
        "every": EVERY,
        "losses": [round(fmean(part), 5) for part in _parts(losses)],
        "perplexity": made.perplexity,
        "max_row_error": made.max_row_error,
        "why_no_graph": why_no_graph(loss, model, settings, ranks=1),
        **bench.facts,
    }
    return line, hmm


def compare(runs: dict[tuple[str, int], dict]) -> dict[str, dict[str, float]]:
    """Differences of pairs of runs: the largest and mean of the curves, and of the perplexity."""
    seeds = sorted({seed for _, seed in runs})
    precisions, pairs = sorted({precision for precision, _ in runs}), {}
    for precision in precisions:
        if precision != "fp32" and "fp32" in precisions:
            for seed in seeds:
                pairs[f"{precision} and fp32, seed {seed}"] = (precision, seed), ("fp32", seed)
    for precision in precisions:
        for one, other in combinations(seeds, 2):
            pairs[f"seeds {one} and {other}, {precision}"] = (precision, one), (precision, other)
    table = {}
    for name, (one, other) in pairs.items():
        curves = zip(runs[one]["losses"], runs[other]["losses"], strict=True)
        gaps = [abs(a - b) for a, b in curves]
        table[name] = {
            "largest": max(gaps),
            "mean": fmean(gaps),
            "last": runs[one]["losses"][-1] - runs[other]["losses"][-1],
            "perplexity": runs[one]["perplexity"] - runs[other]["perplexity"],
        }
    return table


def show(table: dict[str, dict[str, float]]) -> str:
    lines = [f"{'difference of':28}{'largest':>10}{'mean':>10}{'last':>10}{'valid. ppl':>12}"]
    for name, row in table.items():
        lines.append(
            f"{name:28}{row['largest']:10.4f}{row['mean']:10.4f}{row['last']:+10.4f}"
            f"{row['perplexity']:+12.2f}"
        )
    return "\n".join(lines)


def _parts(losses: list[float]) -> list[list[float]]:
    return [losses[start : start + EVERY] for start in range(0, len(losses), EVERY)]


if __name__ == "__main__":
    raise SystemExit(main())
