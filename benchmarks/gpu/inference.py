"""Questions to a model: log_prob, counts, viterbi and sample_paths (one path a row).

`viterbi-z32768-k256-b64-t512` has 32,768 states in 128 blocks of 256, factors of width 256 from
N(0, 1/4), 10,000 words, 64 rows of 512 of them with Zipf's frequencies; in bf16 the factors are
rounded to it before they are normalised. `...-z4096-dense-...` has a table of all states,
`...-fp64` tables in float64. `ms` is what the caller waits for. A plain implementation that goes
step by step is timed on 32 steps, and its case says so.

Right first: rows of 16 tokens against float64. Log evidence and the best path's log-probability,
also as its states add up to, relative; counts as the share of the counted mass that lies elsewhere;
of 20,000 draws the states of every step against their posterior, and the mean log-probability of
the paths against its expectation, both in standard errors.

Floors. Of blocks: the tile of every step but the first, one K x K x H product each, three of them
for counts (tiles, and into both factors), at the rate of a large product in the same precision,
and the bytes of the tables at the rate of a copy. Of dense states: one (B, Z) x (Z, Z) product a
step in the same precision, three for counts; for viterbi one multiplication and one maximum for
each of the B Z Z cells of a step, by all float32 lanes (half as many of float64) at the highest
clock.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.gpu import answers
from benchmarks.gpu.clock import Bench
from benchmarks.gpu.steps import word_probs
from hmmlm.errors import InputError
from hmmlm.hmm import HMM, emission_table
from hmmlm.inference import counts, log_prob, sample_paths, viterbi
from hmmlm.products import BF16, FLOAT32
from hmmlm.support import Support
from hmmlm.transitions import Dense, Factored

WHAT = {
    "logprob": "log evidence",
    "counts": "expected counts",
    "viterbi": "best path",
    "sample": "a sampled path",
}
PATTERN = re.compile(rf"({'|'.join(WHAT)})-z(\d+)-(?:k(\d+)|dense)-b(\d+)-t(\d+)(-fp64)?")
ASKED = ("z32768-k256-b64-t512", "z4096-dense-b64-t512", "z512-dense-b64-t512")
# Whether kernels lose anywhere: few and many states for a word, one short text, float64.
EDGES = (
    "z2048-k16-b64-t512",
    "z8192-k64-b64-t512",
    "z65536-k1024-b16-t64",
    "z32768-k256-b1-t20",
    "z512-dense-b1-t20",
    "z32768-k256-b64-t64-fp64",
    "z512-dense-b64-t64-fp64",
)
CASES = tuple(f"{operation}-{size}" for size in (*ASKED, *EDGES) for operation in WHAT)
SMOKE = tuple(
    f"{operation}-{size}-b3-t6{double}"
    for size, double in (("z64-k16", ""), ("z24-dense", ""), ("z24-dense", "-fp64"))
    for operation in WHAT
)
WIDTH, WORDS, SPREAD = 256, 10_000, 0.5
SHORT = 32
"""Steps on which plain implementations are timed that take a second or more for all."""

DRAWS = 20_000
ALLOWED = {"logprob": 1e-5, "counts": 1e-4, "viterbi": 1e-4, "sample": 5.0}
ROUNDED_COUNTS = 5e-3
"""As `counts`, where tiles of counts are rounded to bf16 on their way into the factors."""


@dataclass(frozen=True)
class Case:
    operation: str
    states: int
    slots: int | None  # of a block; None where states are dense
    batch: int
    steps: int
    double: bool = False

    @staticmethod
    def parse(name: str) -> "Case":
        found = PATTERN.fullmatch(name)
        assert found, name
        states, slots, batch, steps = (None if n is None else int(n) for n in found.groups()[1:5])
        assert states and batch and steps, name
        return Case(found[1], states, slots, batch, steps, found[6] is not None)

    @property
    def name(self) -> str:
        kind = "dense" if self.slots is None else f"k{self.slots}"
        double = "-fp64" if self.double else ""
        return f"{self.operation}-z{self.states}-{kind}-b{self.batch}-t{self.steps}{double}"


def measure(name: str, bench: Bench) -> Iterator[dict]:
    whole = Case.parse(name)
    plain = "reference" if whole.operation == "viterbi" else "scaled"
    precisions = bench.precisions if whole.slots else ("fp32",)
    for precision in ("fp64",) if whole.double else precisions:
        hmm = make(whole, precision, bench)
        for implementation in ("kernel", plain):
            is_short = implementation != "kernel" and whole.operation in ("viterbi", "sample")
            case = replace(whole, steps=min(SHORT, whole.steps)) if is_short else whole
            line = {
                "case": case.name,
                "what": WHAT[case.operation],
                "implementation": implementation,
                "dtype": precision,
            }
            yield line | _line(case, hmm, implementation, precision, bench)
        del hmm


def _line(case: Case, hmm: HMM, implementation: str, precision: str, bench: Bench) -> dict:
    tokens = make_tokens(case, hmm, bench)
    allowed = ALLOWED[case.operation]
    if case.operation == "counts" and (implementation, precision) == ("kernel", "bf16"):
        allowed = ROUNDED_COUNTS
    try:
        error = check(case, hmm, tokens, implementation, draws=2000 if bench.smoke else DRAWS)
        if not error <= allowed:
            return {"wrong": f"float64 is {error:.1e} away (allowed {allowed:g})"}
        times = bench.time(question(case, hmm, tokens, implementation))
    except InputError as refusal:
        return {"skipped": str(refusal)}
    return {
        **times.fields(),
        "floor_ms": round(floor_ms(case, hmm, precision, bench), 4),
        "tokens_per_s": round(1e3 * tokens.numel() / times.ms),
        "error": error,
        **bench.facts,
    }


def question(
    case: Case, hmm: HMM, tokens: Tensor, implementation: str, *, draws: int = 1
) -> Callable[[], object]:
    """The call that is timed."""
    if case.operation == "sample":
        generator = torch.Generator(hmm.device).manual_seed(0)
        return lambda: sample_paths(
            hmm, tokens, num_samples=draws, generator=generator, implementation=implementation
        )
    ask = {"logprob": log_prob, "counts": counts, "viterbi": viterbi}[case.operation]
    return lambda: ask(hmm, tokens, implementation=implementation)


def check(case: Case, hmm: HMM, tokens: Tensor, implementation: str, *, draws: int) -> float:
    """How far a short answer is from float64's; a refusal to answer is raised."""
    short = tokens[:4, :16]
    if case.operation == "sample":
        short = tokens[:1, :8]
    answer = question(case, hmm, short, implementation, draws=draws)()
    exact = hmm.to(dtype=torch.float64)
    return getattr(answers, f"{case.operation}_error")(answer, exact, short)


def make(case: Case, precision: str, bench: Bench) -> HMM:
    """A model with random tables."""
    generator = torch.Generator(bench.device).manual_seed(0)

    def noise(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=bench.device)

    words = 8 * case.states if bench.smoke else WORDS
    if case.slots is None:
        support = Support.dense(words, case.states)
        table = Dense(torch.log_softmax(2 * noise(case.states, case.states), 1))
    else:
        support = Support.from_clusters(
            torch.arange(words) % (case.states // case.slots), case.slots
        )
        left, right = (SPREAD * noise(case.states, WIDTH) for _ in range(2))
        operand = BF16 if precision == "bf16" else FLOAT32
        table = Factored.normalise(operand.round(left), operand.round(right))
        table = replace(table, operand=operand)
    support = support.to(bench.device)
    emissions = emission_table(noise(words, support.width), support)
    hmm = HMM(torch.log_softmax(noise(case.states), 0), table, emissions, support)
    return _doubled(hmm) if precision == "fp64" else hmm


def _doubled(hmm: HMM) -> HMM:
    """The same in float64, whose rows sum to one by its digits."""
    hmm, table = hmm.to(dtype=torch.float64), hmm.transitions
    if isinstance(table, Dense):
        exact: Dense | Factored = Dense(table.log_trans.double().log_softmax(1))
    else:
        exact = Factored.normalise(table.left.double(), table.right.double())
    log_emit = emission_table(hmm.log_emit, hmm.support)
    return replace(hmm, transitions=exact, log_init=hmm.log_init.log_softmax(0), log_emit=log_emit)


def make_tokens(case: Case, hmm: HMM, bench: Bench) -> Tensor:
    """Rows of words with Zipf's frequencies, (B, T)."""
    generator = torch.Generator().manual_seed(1)
    often = word_probs(hmm.vocab_size, generator)
    tokens = torch.multinomial(often, case.batch * case.steps, True, generator=generator)
    return tokens.view(case.batch, case.steps).to(bench.device)


def floor_ms(case: Case, hmm: HMM, precision: str, bench: Bench) -> float:
    rates, links = bench.rates, case.batch * (case.steps - 1)
    times = 3 if case.operation == "counts" else 1
    rate = {"bf16": rates.bf16, "fp32": rates.fp32, "fp64": rates.fp64}[precision]
    tables = sum(field.nbytes for field in hmm.fields())
    if case.slots is not None:
        if precision == "bf16":  # of factors half of the bytes would do
            tables -= sum(factor.nbytes // 2 for factor in hmm.fields()[1:3])
        flops = times * links * 2 * case.slots**2 * WIDTH
    else:
        flops = times * links * 2 * case.states**2
        if case.operation == "viterbi":
            rate = rates.scalar / (2 if precision == "fp64" else 1)
    return 1e3 * (flops / rate + tables / rates.copy)
