"""Perplexity of PTB's test text: `ptb-z32768-eval`, with the text in `--data DIR`.

The model is Chiu & Rush's network at width 256 with 128 blocks, not trained, or the one in
`--checkpoint`. Its tables are made once in float32, which is a line of its own. Read three ways:
every sentence from a cold start, one stream, and 16 streams of equal length, which is 16 cold
starts. The floor is that of `inference`'s log evidence, on as many tokens.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import exp
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu import answers
from benchmarks.gpu.clock import Bench
from benchmarks.ptb import Texts, quick_support, read_texts
from hmmlm.data.token_array import TokenArray
from hmmlm.errors import InputError
from hmmlm.evaluate import HmmLM, evaluate
from hmmlm.hmm import HMM
from hmmlm.inference import log_prob
from hmmlm.model import Model
from hmmlm.params import mlp
from hmmlm.transitions import Factored

CASES = ("ptb-z32768-eval",)
SMOKE = ("ptb-z64-eval",)
PATTERN = re.compile(r"ptb-z(\d+)-eval")
WIDTH, BLOCKS, STREAMS = 256, 128, 16
AGREES = 1e-5
"""How far, relative to its size, the log evidence of some rows may be from float64's."""


class Read(NamedTuple):
    """A way of reading the text, and the implementation that reads it."""

    what: str
    implementation: str


READ = (
    Read("sentence", "kernel"),
    Read("streaming", "kernel"),
    Read(f"{STREAMS} streams", "kernel"),
    # One step at a time, in which the single stream takes a minute or more.
    Read("sentence", "scaled"),
    Read(f"{STREAMS} streams", "scaled"),
)


def measure(name: str, bench: Bench) -> Iterator[dict]:
    if bench.data is None:
        yield {"case": name, "skipped": "it needs PTB's text: --data DIR"}
        return
    (states,) = map(int, PATTERN.findall(name))
    bench = replace(bench, rounds=min(5, bench.rounds), seconds=5.0)
    make_hmm, texts = _model(states, bench)
    times = bench.time(make_hmm)
    line = {"case": name, "what": "tables", "implementation": "plain", "dtype": "fp32"}
    yield line | times.fields() | bench.facts
    hmm, tokens = make_hmm(), texts.splits["test"]
    if bench.smoke:
        tokens = TokenArray.from_ids(tokens[0:64], eos_id=texts.tokenizer.eos_id)
    for read in READ:
        what = {"what": f"evaluation, {read.what}", "implementation": read.implementation}
        yield line | what | _line(hmm, tokens, read, bench)


def _line(hmm: HMM, tokens: TokenArray, read: Read, bench: Bench) -> dict:
    rows = torch.from_numpy(tokens[0:64]).view(4, 16).to(hmm.device)
    try:
        answer = log_prob(hmm, rows, implementation=read.implementation)
        error = answers.logprob_error(answer, hmm.to(dtype=torch.float64), rows)
        if not error <= AGREES:
            return {"wrong": f"log evidence is off by {error:.1e} (allowed {AGREES:g})"}
        said: list[float] = []
        few = TokenArray.from_ids(tokens[0:2048], eos_id=tokens.eos_id)
        times = bench.time(
            lambda: said.append(_perplexity(hmm, tokens, read)),
            warm=lambda: _perplexity(hmm, few, read),
        )
    except InputError as refusal:
        return {"skipped": str(refusal)}
    return {
        **times.fields(),
        "seconds": round(times.ms / 1e3, 4),
        "floor_ms": round(_floor_ms(hmm, len(tokens), bench), 4),
        "tokens_per_s": round(1e3 * len(tokens) / times.ms),
        "tokens": len(tokens),
        "perplexity": said[-1],
        "error": error,
        **bench.facts,
    }


def _perplexity(hmm: HMM, tokens: TokenArray, read: Read) -> float:
    if not read.what.endswith("streams"):
        model = HmmLM(hmm, read.implementation)
        made = evaluate(model, tokens, mode=read.what, eos_id=tokens.eos_id, device=hmm.device)
        return made.perplexity
    rows, lengths = _streams(tokens)
    given = rows.to(hmm.device), lengths.to(hmm.device)
    scored = log_prob(hmm, given[0], lengths=given[1], implementation=read.implementation)
    return exp(-float(scored.log_evidence.sum()) / len(tokens))


def _streams(tokens: TokenArray) -> tuple[Tensor, Tensor]:
    """The text as rows that differ by a token at most, padded, and their lengths."""
    ids = torch.from_numpy(tokens[0 : len(tokens)])
    parts = torch.tensor_split(ids, STREAMS)
    lengths = torch.tensor([len(part) for part in parts])
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True), lengths


def _model(states: int, bench: Bench) -> tuple[Callable[[], HMM], Texts]:
    """What makes the tables, and the text in its vocabulary."""
    assert bench.data is not None
    if bench.checkpoint is not None:
        model = Model.load(bench.checkpoint, device=bench.device)
        hmm = model.hmm
        if not isinstance(hmm.transitions, Factored) or hmm.num_states != states:
            raise SystemExit(
                f"{bench.checkpoint} must have {states:,} states and factored transitions."
            )

        def again() -> HMM:
            left, right, _ = hmm.transitions.fields()
            return replace(hmm, transitions=Factored.normalise(left, right))

        return again, read_texts(bench.data, model.tokenizer)
    texts = read_texts(bench.data)
    support = quick_support(texts, states, min(BLOCKS, states // 16))
    generator = torch.Generator().manual_seed(0)
    network = mlp.Settings(width=WIDTH).build(support, generator=generator).to(bench.device)

    def make() -> HMM:
        with torch.no_grad():
            return network().detach()

    return make, texts


def _floor_ms(hmm: HMM, tokens: int, bench: Bench) -> float:
    rates, tables = bench.rates, sum(4 * field.numel() for field in hmm.fields())
    width = hmm.fields()[1].shape[1]
    flops = tokens * 2 * hmm.support.width**2 * width
    return 1e3 * (flops / rates.fp32 + tables / rates.copy)
