"""Whole training steps, beside the products in them.

`ptb-z32768-m128-d50-b512tok` is Chiu & Rush's network at width 256, 10,000 words, 128 blocks
with half of the states kept, 512 tokens in packed rows of 64, or of 16 with `-t16`, in bf16 or
`-tf32`;
`slim-z512-v32000-b200-t64-lowrank` is Lee & Berg-Kirkpatrick's setting, dense. A step is
everything: kept states, tables, recursion, gradient, clip, AdamW. `ms` is the step on the device,
`loop_ms` what the training loop waits for. The same without kernels has `loop_ms` alone in both.

The floor is the arithmetic that no way around is known for, at the rate that a large product in
bf16 (or tf32) reaches in the same run, and the bytes of the weights and AdamW's state, once in and
once out, at the rate of a copy: of blocks the normaliser's four products over all kept states;
of dense states two passes, the pairs, and three products each for transitions and emissions.
"""

import copy
import gc
import re
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.clock import Bench
from hmmlm.data.batches import Batch
from hmmlm.ops.kernels import without_kernels
from hmmlm.params import lowrank, mlp, scalar
from hmmlm.support import Support
from hmmlm.train.loss import Dropout, HmmLoss
from hmmlm.train.schedule import TrainSettings
from hmmlm.train.sgd import Sgd

CASES = (
    # Of 128 blocks, under 4,096 states, fewer than 16 would be kept, the least that a product of
    # a GPU's tensor cores takes: the smallest models have fewer blocks instead.
    "ptb-z1024-m32-d50-b512tok",
    "ptb-z2048-m64-d50-b512tok",
    "ptb-z4096-m128-d50-b512tok",
    "ptb-z8192-m128-d50-b512tok",
    "ptb-z16384-m128-d50-b512tok",
    "ptb-z32768-m128-d50-b512tok",
    "ptb-z65536-m128-d50-b512tok",
    "ptb-z32768-m128-d50-b512tok-tf32",
    "ptb-z32768-m128-d50-b512tok-t16",
    "ptb-z32768-m128-d50-b512tok-t256",
    "ptb-z32768-m128-d50-b512tok-t512",
    "slim-z512-v32000-b200-t64-scalar",
    "slim-z512-v32000-b200-t64-lowrank",
    "slim-z4096-v32000-b200-t64-lowrank",
)
SMOKE = ("ptb-z64-m4-d50-b64tok", "slim-z16-v40-b2-t8-scalar")
BLOCKS = r"ptb-z(\d+)-m(\d+)-d(\d+)-b(\d+)tok(?:-t(\d+))?(?:-(tf32))?"
DENSE = r"slim-z(\d+)-v(\d+)-b(\d+)-t(\d+)-(scalar|lowrank)"
PATTERN = re.compile(f"{BLOCKS}|{DENSE}")
WIDTH, LENGTH, SENTENCE = 256, 64, 22
ALLOWED = 1e-3, 0.1
"""How far, relative to its size, a loss in bf16 may be from that in float64, and its gradient: on a
CPU plain products of rounded factors were off by up to 1e-4 and 0.033."""


def measure(name: str, bench: Bench) -> Iterator[dict]:
    model, support, batches, dropout = make(name, bench.device)
    loss = HmmLoss(model, support, dropout=Dropout(dropout))
    # In the interpreter products of bf16 are wrong.
    dtype = "tf32" if name.endswith("tf32") else "bf16" if bench.is_gpu else "fp32"
    precision = "float32" if dtype == "fp32" else dtype
    sgd = Sgd(model, loss, TrainSettings(precision=precision))
    line = {
        "case": name,
        "what": "training step",
        "implementation": "kernel" if bench.is_gpu else "scaled",
        "dtype": dtype,
    }
    errors = compare(model, support, batches[0], dropout, precision)
    for what, error, most in zip(("loss", "gradient"), errors, ALLOWED, strict=True):
        if not error < most:
            told = f"the {what} is off by {error:.1e} of its size (allowed {most:g})"
            yield line | {"wrong": told}
            return
    if bench.is_gpu:
        gc.collect()  # what float64 took, and the graphs of the case before
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    rounds = 10 if bench.is_gpu else 2

    def step(number: int) -> None:
        sgd.peek = lambda: batches[(number + 1) % len(batches)]  # as the training loop does
        sgd.step(iter([batches[number % len(batches)]]), 1e-3, 0.0)

    for number in range(rounds):
        step(number)
    if bench.is_gpu:
        from triton.testing import do_bench

        assert sgd.graphed is not None, sgd.why_no_graph
        peak = torch.cuda.max_memory_allocated()
        (replay,) = sgd.graphed.graphs.values()
        spread: Any = do_bench(replay.graph.replay, rep=500, quantiles=[0.5, 0.2, 0.8])
        middle, low, high = spread
    else:
        middle, low, high, peak = bench.time(lambda: step(0))
    began = time.perf_counter()
    for number in range(10 * rounds):
        step(number)
    loop = (time.perf_counter() - began) / (10 * rounds) * 1e3  # a step waits for its loss
    flops, weights = _flops(name), 28 * sum(p.numel() for p in model.parameters())
    rate = bench.rates.tf32 if dtype == "tf32" else bench.rates.bf16
    yield line | {
        "ms": round(middle, 4),
        "q20": round(low, 4),
        "q80": round(high, 4),
        "loop_ms": round(loop, 4),
        "floor_ms": round(1e3 * (flops / rate + weights / bench.rates.copy), 4),
        "tokens_per_s": round(1e3 * batches[0].num_tokens / middle),
        "peak_bytes": peak,
        "loss_error": errors[0],
        "gradient_error": errors[1],
        **bench.facts,
    }
    if bench.is_gpu:
        del sgd, loss
        plain = HmmLoss(model, support, dropout=Dropout(dropout), implementation="scaled")
        slow = Sgd(model, plain, TrainSettings(precision=precision))
        with without_kernels():
            times = bench.time(lambda: slow.step(iter(batches[:1]), 1e-3, 0.0))
        line |= {"implementation": "scaled", **times.fields(), "loop_ms": round(times.ms, 4)}
        yield line | {"tokens_per_s": round(1e3 * batches[0].num_tokens / times.ms), **bench.facts}


def make(name: str, device: torch.device) -> tuple[torch.nn.Module, Support, list[Batch], float]:
    """The model of a case and eight batches of words with Zipf's frequencies."""
    generator = torch.Generator().manual_seed(0)
    if found := re.fullmatch(BLOCKS, name):
        states, blocks, percent, tokens = map(int, found.groups()[:4])
        length = int(found.group(5) or LENGTH)
        words, size, dropout = 10_000, (max(1, tokens // length), length), percent / 100
        sizes = torch.rand(blocks, generator=generator).exp() ** 2
        clusters = torch.multinomial(sizes, words - blocks, True, generator=generator)
        clusters = torch.cat([torch.arange(blocks), clusters])
        support = Support.from_clusters(clusters, states // blocks)
        settings, fresh = mlp.Settings(width=WIDTH), 1 / SENTENCE
    elif found := re.fullmatch(DENSE, name):
        states, words, rows, steps = map(int, found.groups()[:4])
        support, size, dropout, fresh = Support.dense(words, states), (rows, steps), 0.0, 0.0
        kind = found.group(5)
        settings = scalar.Settings() if kind == "scalar" else lowrank.Settings(width=WIDTH)
    else:
        raise SystemExit(f"No such case: {name}; write it like {CASES[0]} or {CASES[-1]}.")
    model = settings.build(support, generator=generator).to(device)
    often = word_probs(words, generator)

    def batch() -> Batch:
        tokens = torch.multinomial(often, size[0] * size[1], True, generator=generator).view(size)
        restart = torch.rand(size, generator=generator) < fresh
        restart[:, 0] = True
        return Batch(tokens, torch.full(size[:1], size[1]), restart, tokens.numel())

    return model, support, [batch() for _ in range(8)], dropout


def word_probs(words: int, generator: torch.Generator) -> Tensor:
    """Zipf's frequencies, not normalised, of words in any order, (V,)."""
    return 1 / torch.arange(1, words + 1)[torch.randperm(words, generator=generator)]


def compare(
    model: torch.nn.Module, support: Support, batch: Batch, rate: float, precision: str
) -> tuple[float, float]:
    """How far the loss of a step and its gradient are from a float64 copy's, over their sizes.

    Both by dropout that keeps the same states; the copy makes all of its tables anew, plainly.
    """
    device = next(model.parameters()).device
    exact = copy.deepcopy(model).double()
    ours = HmmLoss(model, support, dropout=Dropout(rate))
    theirs = HmmLoss(exact, support, dropout=Dropout(rate), implementation="scaled")
    level = ours.fit(batch, 0.0)
    assert level is not None
    tokens, restart, ends = (
        part.to(device) for part in (batch.tokens, batch.restart, batch.lengths)
    )
    value = ours.differentiate(tokens, restart, ends, level, precision).value
    with without_kernels():
        loss = theirs(batch, 0.0)
        loss.backward()
    truth = loss.detach()
    pairs = [
        (p.grad.double(), q.grad)
        for p, q in zip(model.parameters(), exact.parameters(), strict=True)
        if p.grad is not None and q.grad is not None
    ]
    off = torch.stack([(p - q).norm() for p, q in pairs]).norm()
    size = torch.stack([q.norm() for _, q in pairs]).norm()
    model.zero_grad()
    return float((value - truth).abs() / truth.abs()), float(off / size)


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
