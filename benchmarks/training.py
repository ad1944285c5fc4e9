"""python -m benchmarks.training: a whole training step on the CPU, beside the products in it.

The case names states, blocks, dropout in percent and tokens: `ptb-z4096-m64-d50-b512tok` is Chiu &
Rush's network at width 256 with 10,000 words. The floor is every matrix product of the step
(forward and backward, the same shapes) by `torch.mm` and `torch.bmm`, timed in turn with the step.
"""

import argparse
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles

import torch
from torch import Tensor

from benchmarks.machine import describe
from hmmlm.data.batches import Batch
from hmmlm.params import mlp
from hmmlm.support import Support
from hmmlm.train.config import make_config
from hmmlm.train.estimate import estimate
from hmmlm.train.loss import Dropout, HmmLoss

CASES = ["ptb-z4096-m64-d50-b512tok"]
SMOKE = ["ptb-z64-m4-d50-b64tok"]
WORDS, WIDTH, LENGTH = 10_000, 256, 64


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.training", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a tiny case")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="write the lines to this file as JSON")
    given = parser.parse_args()
    lines = [measure(name, given.rounds) for name in (SMOKE if given.smoke else CASES)]
    if given.out is not None:
        given.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(json.dumps({"cases": [line["case"] for line in lines], "worst": lines[0]["of_floor"]}))
    return 0


def measure(name: str, rounds: int) -> dict:
    """The step and its floor in turn; peak memory above the model's libraries."""
    found = re.fullmatch(r"ptb-z(\d+)-m(\d+)-d(\d+)-b(\d+)tok", name)
    assert found, name
    states, blocks, dropout, tokens = map(int, found.groups())
    rows = max(1, tokens // LENGTH)
    make_step(16, 4, 0.5, (2, 8), words=20)()  # loads libraries: memory is to be the step's own
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    step = make_step(states, blocks, dropout / 100, (rows, tokens // rows), words=WORDS)
    for _ in range(3):
        step()
    peak = _memory("VmHWM") - before
    kept = states // blocks - states // blocks * dropout // 100
    products = _products(blocks, kept, tokens)
    times: dict[str, list[float]] = {"step": [], "floor": []}
    for _ in range(rounds):
        for what, work in (("step", step), ("floor", lambda: _multiply(products))):
            began = time.perf_counter()
            work()
            times[what].append(time.perf_counter() - began)
    tables = {"model": {"kind": "mlp", "states": states, "blocks": blocks}}
    tables |= {"train": {"dropout": dropout / 100}, "data": {"batch_size": rows, "length": LENGTH}}
    expected = estimate(make_config(tables), WORDS)
    low, middle, high = (1e3 * q for q in (quantiles(times["step"], n=10)[i] for i in (1, 4, 7)))
    floor = 1e3 * quantiles(times["floor"], n=10)[4]
    line = {
        "case": name,
        "what": "training step",
        "implementation": "hmmlm",
        "dtype": "float32",
        "ms": round(middle, 2),
        "q20": round(low, 2),
        "q80": round(high, 2),
        "floor_ms": round(floor, 2),
        "of_floor": round(floor / middle, 3),
        "tokens_per_s": round(1e3 * tokens / middle),
        "peak_bytes": peak,
        "estimated_bytes": expected.total_memory,
        "parameters": expected.parameters,
        **describe(),
    }
    print(
        f"{name}: {middle:.1f} ms (20% {low:.1f}, 80% {high:.1f}), floor {floor:.1f} ms, "
        f"{line['of_floor']:.0%} of it; {line['tokens_per_s']:,} tokens/s; peak "
        f"{peak / 1e6:,.0f} MB, estimated {expected.total_memory / 1e6:,.0f} MB"
    )
    return line


def make_step(
    states: int, blocks: int, dropout: float, size: tuple[int, int], *, words: int
) -> Callable[[], None]:
    """A training step of Chiu & Rush's network on words drawn at random, in `size` rows."""
    generator = torch.Generator().manual_seed(0)
    support = Support.from_clusters(torch.arange(words) % blocks, states // blocks)
    model = mlp.Settings(width=WIDTH).build(support, generator=generator)
    loss = HmmLoss(model, support, dropout=Dropout(dropout))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    text = torch.randint(words, size, generator=generator)
    restart = torch.rand(size, generator=generator) < 0.05
    batch = Batch(text, torch.full(size[:1], size[1]), restart, text.numel())
    best = {key: value.clone() for key, value in model.state_dict().items()}

    def step(kept: dict[str, Tensor] = best) -> None:  # as training keeps them
        optimiser.zero_grad()
        loss(batch, 0.0).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()

    return step


def _products(blocks: int, kept: int, tokens: int) -> list[tuple[Tensor, Tensor]]:
    """Every product of a step, as pairs of factors of their shapes."""
    total, words = blocks * kept, -(-WORDS // blocks)

    def pair(rows: int, depth: int, columns: int, batch: int = 0) -> tuple[Tensor, Tensor]:
        size = (batch,) if batch else ()
        return torch.randn(*size, rows, depth), torch.randn(*size, depth, columns)

    forward = [pair(total, WIDTH, WIDTH)] * 6  # three networks of two layers
    forward += [pair(total, WIDTH, total)]  # the normaliser
    forward += [pair(kept, WIDTH, words, blocks)]  # emissions
    forward += [pair(kept, WIDTH, kept, tokens)]  # tiles, one for each token
    # The gradient of a product is two more of the same size.
    return [one for one in forward for _ in range(3)]


def _multiply(products: list[tuple[Tensor, Tensor]]) -> None:
    for left, right in products:
        torch.matmul(left, right)


def _memory(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


if __name__ == "__main__":
    raise SystemExit(main())
