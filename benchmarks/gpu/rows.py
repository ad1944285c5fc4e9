"""Row sums: how far sum_z' p(z' | z) is from one, as inference sees it, over 1,000 random rows.

The tiles are those of inference, by kernel and plain, under a normaliser by kernel and plain, in
each precision; the sums are taken in float64. `rows-z32768` has
factors from N(0, 1), wider than those of a trained network, in 128 blocks, or those of
`--checkpoint`.
"""

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.gpu.clock import Bench
from hmmlm.model import Model
from hmmlm.ops.normaliser import log_normaliser
from hmmlm.products import BF16, FLOAT32, TF32
from hmmlm.transitions import Factored

CASES = ("rows-z32768",)
SMOKE = ("rows-z96",)
PATTERN = re.compile(r"rows-z(\d+)")
ROWS, WIDTH, BLOCKS = 1000, 256, 128
ALLOWED = 1e-4
OPERANDS = {"bf16": BF16, "tf32": TF32, "fp32": FLOAT32}


def measure(name: str, bench: Bench) -> Iterator[dict]:
    (states,) = map(int, PATTERN.findall(name))
    yield from compare(name, *_factors(states, bench), bench)


def compare(name: str, left: Tensor, right: Tensor, blocks: Tensor, bench: Bench) -> Iterator[dict]:
    """A line for each way to make tiles and normaliser, in each precision."""
    exact, generator = (left, right), torch.Generator().manual_seed(0)
    sources = torch.randperm(len(left), generator=generator)[:ROWS].to(bench.device)
    for precision, operand in OPERANDS.items():
        if precision == "bf16" and not bench.is_gpu:  # wrong in the interpreter
            continue
        left, right = map(operand.round, exact)
        for normaliser in ("plain", "kernel"):
            norm = log_normaliser(left, right, operand=operand, implementation=normaliser)
            table = Factored(left, right, norm, operand)
            for tiles, sums in (("plain", sums_by_torch), ("kernel", sums_by_kernel)):
                error = float((sums(table, sources, blocks) - 1).abs().max())
                line = {
                    "case": name,
                    "what": "row sums",
                    "implementation": f"tiles {tiles}, normaliser {normaliser}",
                    "dtype": precision,
                    "max_row_error": error,
                    "rows": len(sources),
                    **bench.facts,
                }
                # Tensor cores cut the sums that they make of tf32, eight products at a time: with
                # factors as wide as N(0, 1) who made the normaliser should make the tiles. Said.
                is_mixed = precision == "tf32" and tiles != normaliser
                if not error <= ALLOWED and not is_mixed:
                    line["wrong"] = f"a row is off by {error:.1e} (allowed {ALLOWED:g})"
                yield line


def sums_by_kernel(table: Factored, sources: Tensor, blocks: Tensor) -> Tensor:
    """sum_z' p(z' | z) of each source, from the squares that kernels go through, (N,)."""
    from hmmlm.ops.tile_chain import tiles_kernel

    width = blocks.shape[1]
    groups = -(-len(sources) // width)
    chosen = torch.full((groups * width,), -1, device=sources.device)
    chosen[: len(sources)] = sources
    rows = torch.cat([blocks, chosen.view(groups, width)])
    totals = []
    for group in range(groups):
        here = torch.arange(len(blocks), device=sources.device)[None]
        where = tiles_kernel.Map(rows, here, torch.full_like(here, len(blocks) + group))
        dtype, precision = table.operand
        factors = table.left.to(dtype), table.right.to(dtype)
        squares = tiles_kernel.squares_of_factors(*factors, table.log_norm, where, precision)
        side = squares.side
        shrink = squares.shrink.double().repeat_interleave(side, 1).repeat_interleave(side, 2)
        scale = shrink[:, :width, :width] * squares.log_most.double().exp()[:, None, None]
        totals.append((squares.probs.double() * scale).sum((0, 2)))
    return torch.cat(totals)[: len(sources)]


def sums_by_torch(table: Factored, sources: Tensor, blocks: Tensor) -> Tensor:
    """The same from plain tiles."""
    totals = torch.zeros(len(sources), dtype=torch.float64, device=sources.device)
    for block in blocks:
        states = block[block >= 0]
        totals += table.tile(sources[None], states[None])[0].double().exp().sum(1)
    return totals


def _factors(states: int, bench: Bench) -> tuple[Tensor, Tensor, Tensor]:
    """The factors and the states of each block, padded with -1."""
    if bench.checkpoint is not None:
        hmm = Model.load(bench.checkpoint, device=bench.device).hmm
        if not isinstance(hmm.transitions, Factored) or hmm.num_states != states:
            raise SystemExit(
                f"{bench.checkpoint} must have {states:,} states and factored transitions."
            )
        return hmm.transitions.left, hmm.transitions.right, hmm.support.rows
    generator = torch.Generator(bench.device).manual_seed(0)
    left, right = (
        torch.randn(states, WIDTH, generator=generator, device=bench.device) for _ in range(2)
    )
    blocks = torch.arange(states, device=bench.device)
    return left, right, blocks.view(min(BLOCKS, max(1, states // 48)), -1)
