"""python -m benchmarks.run gpu: whole training steps on a GPU, beside the products in them.

Cases: `ptb-z32768-m128-d50-b512tok` is Chiu & Rush's network at width 256, 10,000 words, 128 blocks
with half of the states kept, 512 tokens in packed rows of 64; `slim-z512-v32000-b200-t64-lowrank`
is Lee & Berg-Kirkpatrick's setting, dense. A step is everything: kept states, tables, recursion,
gradient, clip, AdamW. `ms` is the step on the device, `loop_ms` what the training loop waits for.

The floor is the arithmetic that no way around is known for, at the rate that a large bf16 product
reaches in the same run, and the bytes of the weights and AdamW's state, once in and once out, at
the rate of a copy: of blocks the normaliser's four products over all kept states; of dense states
two passes, the pairs, and three products each for transitions and emissions.
"""

import argparse
import json
import re
import time
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.machine import describe
from hmmlm.data.batches import Batch
from hmmlm.inference import log_prob
from hmmlm.params import lowrank, mlp, scalar
from hmmlm.support import Support
from hmmlm.train.loop import TrainSettings
from hmmlm.train.loss import Dropout, HmmLoss
from hmmlm.train.sgd import Sgd

CASES = (
    "ptb-z16384-m128-d50-b512tok",
    "ptb-z32768-m128-d50-b512tok",
    "ptb-z65536-m128-d50-b512tok",
    "slim-z512-v32000-b200-t64-scalar",
    "slim-z512-v32000-b200-t64-lowrank",
    "slim-z4096-v32000-b200-t64-lowrank",
)
WIDTH, LENGTH, SENTENCE = 256, 64, 22
AGREES = 1e-3
"""How far, relative to its size, a loss in bf16 may be from the same tables' in float64."""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.run gpu", description=__doc__)
    parser.add_argument("--case", action="append", help="only this case (may be repeated)")
    parser.add_argument("--commit", help="what to write where git does not know it")
    parser.add_argument("--out", type=Path, help="write the lines to this file as JSON")
    given = parser.parse_args(words)
    if not torch.cuda.is_available():
        raise SystemExit("There is no CUDA device here; this benchmark is of one.")
    rates = _rates()
    print(
        f"{torch.cuda.get_device_name()}: {rates[0] / 1e12:.0f} TFLOP/s, {rates[1] / 1e12:.2f} TB/s"
    )
    lines, wrong = [], []
    for name in given.case or CASES:
        line = measure(name, rates, given.commit)
        (lines if line["loss_error"] < AGREES else wrong).append(line)
        print(
            f"{name}: {line['ms']:.3f} ms (20% {line['q20']:.3f}, 80% {line['q80']:.3f}), "
            f"{line['ms'] / line['floor_ms']:.2f} x floor of {line['floor_ms']:.3f} ms; loop "
            f"{line['loop_ms']:.3f} ms; {line['tokens_per_s']:,} tokens/s; peak "
            f"{line['peak_bytes'] / 2**30:.2f} GiB; loss off by {line['loss_error']:.1e}",
            flush=True,
        )
    if given.out is not None:
        given.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(json.dumps({"ok": not wrong, "wrong": [line["case"] for line in wrong]}))
    return 1 if wrong else 0


def measure(name: str, rates: tuple[float, float], commit: str | None) -> dict:
    from triton.testing import do_bench

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model, support, batches, dropout = make(name)
    loss = HmmLoss(model, support, dropout=Dropout(dropout))
    sgd = Sgd(model, loss, TrainSettings(precision="bf16"))
    assert sgd.graphed is not None, sgd.why_no_graph
    error = _loss_error(sgd, batches[0])
    for number in range(10):
        sgd.step(iter([batches[number % len(batches)]]), 1e-3, 0.0)
    peak = torch.cuda.max_memory_allocated()
    (replay,) = sgd.graphed.graphs.values()
    middle, low, high = do_bench(replay.graph.replay, rep=500, quantiles=[0.5, 0.2, 0.8])
    began, rounds = time.perf_counter(), 100
    for number in range(rounds):
        sgd.step(iter([batches[number % len(batches)]]), 1e-3, 0.0)
    loop = (time.perf_counter() - began) / rounds * 1e3
    flops, weights = _flops(name), 28 * sum(p.numel() for p in model.parameters())
    machine = describe()
    return {
        "case": name,
        "what": "training step",
        "implementation": "kernel",
        "dtype": "bf16",
        "ms": round(middle, 4),
        "q20": round(low, 4),
        "q80": round(high, 4),
        "loop_ms": round(loop, 4),
        "floor_ms": round(1e3 * (flops / rates[0] + weights / rates[1]), 4),
        "tokens_per_s": round(1e3 * batches[0].num_tokens / middle),
        "peak_bytes": peak,
        "loss_error": error,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": machine["versions"].get("triton", "?"),
        "commit": commit or machine["commit"],
    }


def make(name: str) -> tuple[torch.nn.Module, Support, list[Batch], float]:
    """The model of a case and eight batches of words with Zipf's frequencies."""
    generator = torch.Generator().manual_seed(0)
    if found := re.fullmatch(r"ptb-z(\d+)-m(\d+)-d(\d+)-b(\d+)tok", name):
        states, blocks, percent, tokens = map(int, found.groups())
        words, size, dropout = 10_000, (max(1, tokens // LENGTH), LENGTH), percent / 100
        sizes = torch.rand(blocks, generator=generator).exp() ** 2
        clusters = torch.multinomial(sizes, words - blocks, True, generator=generator)
        clusters = torch.cat([torch.arange(blocks), clusters])
        support = Support.from_clusters(clusters, states // blocks)
        settings, fresh = mlp.Settings(width=WIDTH), 1 / SENTENCE
    elif found := re.fullmatch(r"slim-z(\d+)-v(\d+)-b(\d+)-t(\d+)-(scalar|lowrank)", name):
        states, words, rows, steps = map(int, found.groups()[:4])
        support, size, dropout, fresh = Support.dense(words, states), (rows, steps), 0.0, 0.0
        kind = found.group(5)
        settings = scalar.Settings() if kind == "scalar" else lowrank.Settings(width=WIDTH)
    else:
        raise SystemExit(f"No such case: {name}; write it like {CASES[0]} or {CASES[-1]}.")
    model = settings.build(support, generator=generator).cuda()
    often = 1 / torch.arange(1, words + 1)[torch.randperm(words, generator=generator)]

    def batch() -> Batch:
        tokens = torch.multinomial(often, size[0] * size[1], True, generator=generator).view(size)
        restart = torch.rand(size, generator=generator) < fresh
        restart[:, 0] = True
        return Batch(tokens, torch.full(size[:1], size[1]), restart, tokens.numel())

    return model, support, [batch() for _ in range(8)], dropout


def _loss_error(sgd: Sgd, batch: Batch) -> float:
    """The loss of a step in bf16 against log p of the same tables in float64."""
    from hmmlm.inference.kernels import count

    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        hmm = sgd.model()
    given = [part.cuda() for part in (batch.tokens, batch.restart, batch.lengths)]
    ours = count(hmm, *given, torch.ones(len(batch.tokens), device="cuda"))
    exact = log_prob(
        hmm.to(dtype=torch.float64), given[0], restart=given[1], implementation="scaled"
    )
    truth = float(exact.log_evidence.sum())
    return abs(float(ours.log_scales.sum(dtype=torch.float64)) - truth) / abs(truth)


def _flops(name: str) -> float:
    numbers = [int(number) for number in re.findall(r"\d+", name)]
    if name.startswith("ptb"):
        kept = numbers[0] * (100 - numbers[2]) // 100
        return 4 * 2 * kept**2 * WIDTH
    states, words, rows, steps = numbers[:4]
    chain = 3 * 2 * rows * steps * states**2
    if name.endswith("scalar"):
        return chain
    return chain + 3 * 2 * states * WIDTH * (states + words)


def _rates() -> tuple[float, float]:
    """FLOP/s of a large bf16 product, and bytes/s of a copy, read and written."""
    from triton.testing import do_bench

    matrix = torch.randn(8192, 8192, device="cuda").bfloat16()
    flops = 2 * 8192**3 / (do_bench(lambda: matrix @ matrix, return_mode="median") / 1e3)
    large: Tensor = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(large)
    copy = 2 * large.numel() / (do_bench(lambda: other.copy_(large), return_mode="median") / 1e3)
    return flops, copy
