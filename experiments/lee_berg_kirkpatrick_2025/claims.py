"""What the paper claims, each computed from the test perplexities of three seeds."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from statistics import mean
from typing import Any, NamedTuple

from experiments.lee_berg_kirkpatrick_2025 import (
    figure1,
    figure2,
    figure4,
    figure5,
    figure6,
    figure7,
    figure8,
    table4,
    tables,
)
from experiments.lee_berg_kirkpatrick_2025.baum_welch import RATES as WEIGHTS
from experiments.lee_berg_kirkpatrick_2025.recipes import decoder
from experiments.verdicts import Claim, Missing, Verdict, judge_each

Line = Mapping[str, Any]
B, CHIU_RUSH = "Ablation B (split H)", "Chiu and Rush"


class Spread(NamedTuple):
    """The mean of some numbers, and between what they lie."""

    middle: float
    low: float
    high: float
    number: int

    def __str__(self) -> str:
        ends = f" ({self.low:.1f}-{self.high:.1f})" if self.number > 1 else ""
        return f"{self.middle:.1f}{ends}"


class Found:
    """The newest line of each row and seed, of the settings that rows have now.

    Where it `is_whole`, rows are missing until all of their seeds are there.
    """

    def __init__(self, lines: Iterable[Line], *, is_whole: bool = True) -> None:
        runs = {
            (name.partition("/")[2], row.name, row.seed): row.run
            for name, module in tables().items()
            for row in module.ROWS
        }
        self.seeds = Counter(key[:2] for key in runs) if is_whole else Counter()
        self.lines: dict[tuple[str, str, int], Line] = {}
        for line in lines:
            key = line["experiment"].partition("/")[2], line["row"], line["seed"]
            config = line["config"]
            if line["mode"] == config["trained_for"] and config["run"] == runs.get(key):
                self.lines[key] = line

    def rows(self, table: str, row: str) -> list[Line]:
        """The lines of a row, one for each seed."""
        made = [line for key, line in self.lines.items() if key[:2] == (table, row)]
        if len(made) < max(1, self.seeds[table, row]):
            raise Missing
        return made

    def spread(self, table: str, row: str, key: str = "test") -> Spread:
        values = [line[key] for line in self.rows(table, row)]
        return Spread(mean(values), min(values), max(values), len(values))

    def __call__(self, table: str, row: str) -> float:
        return self.spread(table, row).middle


Check = Callable[[Found], tuple[bool, str]]


def judge(lines: Iterable[Line]) -> list[Verdict]:
    return judge_each(Found(lines), (Claim(*one) for one in CLAIMS))


def _less(table: str, low: str, high: str, within: float | None = None) -> Check:
    """One row is lower than another, or at most so much above it."""

    def check(found: Found) -> tuple[bool, str]:
        ours, theirs = found.spread(table, low), found.spread(table, high)
        limit = theirs.middle * (1 + within) if within is not None else theirs.middle
        return ours.middle < limit, f"{low} {ours}, {high} {theirs}"

    return check


def _emission(found: Found) -> tuple[bool, str]:
    none, alone, every = (found("table2", row) for row in ("none", "b", "a, b, pi"))
    share = (none - alone) / (none - every) if none != every else 0.0
    return (
        every < none and share > 0.5,
        f"none {none:.1f}, b {alone:.1f}, all {every:.1f}: {share:.0%} of the gain",
    )


def _saturates(found: Found) -> tuple[bool, str]:
    values = [found("figure8", f"{tokens / 1e6:g}M tokens") for tokens in figure8.SHOWN]
    told = ", ".join(f"{n / 1e6:g}M {v:.1f}" for n, v in zip(figure8.SHOWN, values, strict=True))
    five, ten = values[-2:]
    return abs(five / ten - 1) <= 0.02 and values[0] > 1.02 * ten, told


def _strength(found: Found) -> tuple[bool, str]:
    names = [f"decoder, {number}M tokens" for number in (1, 10, 100)]
    values = [found("figure3", name) for name in names]
    told = ", ".join(f"{n} {v:.1f}" for n, v in zip(names, values, strict=True))
    return max(values) <= 1.03 * min(values), told


def _complementary(found: Found) -> tuple[bool, str]:
    both, products, taught = (
        found("figure4", row) for row in (f"{B}, LVD", B, "HMM, LVD")
    )  # fmt: skip
    told = f"both {both:.1f}, products alone {products:.1f}, LVD alone {taught:.1f}"
    return both < min(products, taught), told


def _larger(kind: str, better: bool) -> Check:
    """Every doubling is better; or, of what does not use its states, the last is not the best."""

    def check(found: Found) -> tuple[bool, str]:
        values = [found("figure1", f"{kind}, {states} states") for states in figure1.STATES]
        told = ", ".join(f"{value:.1f}" for value in values)
        if better:
            return all(big < small for small, big in pairwise(values)), told
        return values[-1] > min(values), told

    return check


def _curve(found: Found, name: str) -> list[float]:
    title = figure2.NAMES[name]
    return [found("figure2", f"{title}, 512 states, 2^{power}") for power in figure2.POWERS]


def _stop(found: Found) -> tuple[bool, str]:
    """From 2^22 on nothing is gained, by more than 2%; below it is lost."""
    values = _curve(found, CHIU_RUSH)
    at = values[list(figure2.POWERS).index(22)]
    told = ", ".join(f"{value:.1f}" for value in values)
    return min(values) > 0.98 * at and values[0] > 1.02 * at, told


def _small(found: Found) -> tuple[bool, str]:
    """A network of 2^20 parameters beats the tables, which are 16 million numbers."""
    small = found("figure2", f"{figure2.NAMES[CHIU_RUSH]}, 512 states, 2^20")
    plain = found("figure2", "HMM, 512 states")
    return small < plain, f"2^20 parameters {small:.1f}, the HMM {plain:.1f}"


def _worst(found: Found) -> tuple[bool, str]:
    values = {name: mean(_curve(found, name)) for name in figure2.NAMES}
    told = ", ".join(f"{name} {value:.1f}" for name, value in values.items())
    return max(values, key=lambda name: values[name]) == "TRF", f"means over sizes: {told}"


def _calmer(found: Found) -> tuple[bool, str]:
    """In more than half of the architectures the seeds lie closer, beside their mean."""
    told, closer = [], 0
    for name in figure4.NAMES:
        spreads = [found.spread("figure4", row) for row in (name, f"{name}, LVD")]
        widths = [100 * (part.high - part.low) / part.middle for part in spreads]
        closer += widths[1] < widths[0]
        told.append(f"{name} {widths[0]:.1f}% to {widths[1]:.1f}%")
    return closer > len(figure4.NAMES) / 2, "; ".join(told)


def _transfer(found: Found) -> tuple[bool, str]:
    """It is better at the best rate of each, and not at the highest rate."""
    drawn, given = (
        {rate: found("figure6", f"{name}, rate {rate}") for rate in figure6.RATES}
        for name in ("drawn", "layers of the decoder")
    )
    told = ", ".join(f"{rate}: {drawn[rate]:.1f} / {given[rate]:.1f}" for rate in figure6.RATES)
    high = max(figure6.RATES)
    helps = min(given.values()) < min(drawn.values())
    return helps and given[high] > 0.99 * drawn[high], f"drawn / given, {told}"


def _checkpoints(found: Found) -> tuple[bool, str]:
    """Of decoders that have read more the tables are not better."""
    names = [decoder(length).name for length in figure7.LENGTHS]
    values = [found("figure7", name) for name in names]
    told = ", ".join(f"{n} {v:.1f}" for n, v in zip(names, values, strict=True))
    return values[-1] > 0.99 * values[0], told


def _little(found: Found) -> tuple[bool, str]:
    values = {row: found.spread("table4", row) for row in table4.PAPER}
    told = ", ".join(f"{row} {value}" for row, value in values.items())
    return values["pretrained, LVD"].middle >= 0.98 * values["random, LVD"].middle, told


def _beginnings(found: Found) -> tuple[bool, str]:
    titles = figure5.BEGINNINGS.values()
    rows = [row for title in titles for row in (title, f"{title}, frozen")]
    values = {row: found.spread("figure5", row) for row in ("LVD", *rows)}
    told = ", ".join(f"{row} {value}" for row, value in values.items())
    return all(values[row].middle > values["LVD"].middle for row in rows), told


def _beats_baum_welch(found: Found) -> tuple[bool, str]:
    rows = [f"Baum-Welch, rate {rate}" for rate in WEIGHTS] + ["Baum-Welch, power schedule"]
    best = min(rows, key=lambda row: found("baum_welch", row))
    ours, theirs = found("baum_welch", "descent"), found("baum_welch", best)
    steps = ("descent", best)
    times = [found.spread("baum_welch", row, "ms_train_step").middle for row in steps]
    told = f"descent {ours:.1f}, {times[0]:.2f} ms a step, {best} {theirs:.1f}, {times[1]:.2f} ms"
    return ours < theirs and times[0] < times[1], told


def _alike(found: Found) -> tuple[bool, str]:
    told, far = [], []
    for row in ("HMM", B, CHIU_RUSH):
        train, test = (found.spread("table1", row, key).middle for key in ("train", "test"))
        far.append(abs(test / train - 1))
        told.append(f"{row} {train:.1f} / {test:.1f}")
    return max(far) <= 0.05, ", ".join(told)


CLAIMS: tuple[tuple[str, Check], ...] = (
    ("Reparameterisation helps", _less("table1", CHIU_RUSH, "HMM")),
    ("Linear (B) is within 3% of neural, or better", _less("table1", B, CHIU_RUSH, 0.03)),
    ("Ablation A is worse than the HMM", _less("table1", "HMM", "Ablation A (single H)")),
    ("Most of the gain is that of the emissions", _emission),
    ("LVD helps", _less("figure4", "HMM, LVD", "HMM")),
    ("It saturates at about 5M tokens (within 2% of 10M)", _saturates),
    ("Throughout it hurts", _less("figure8", "none", "all 100M tokens")),
    ("A random teacher helps", _less("figure3", "decoder, random", "no teacher")),
    ("The teacher's strength hardly matters (within 3%)", _strength),
    ("Products and LVD are complementary", _complementary),
    ("With both, more states are better", _larger("best", True)),
    ("Without, they are not", _larger("HMM", False)),
    ("Gains stop near 2^22 parameters, and shrink below", _stop),
    ("A network smaller than the HMM helps", _small),
    ("The non-monolithic transformer is the worst", _worst),
    ("LVD brings seeds closer together", _calmer),
    ("Transfer helps, unless the rate is high", _transfer),
    ("A stronger checkpoint is no better (by more than 1%)", _checkpoints),
    ("Transfer adds little to LVD (at most 2%)", _little),
    ("Centres and the head as a beginning hurt, frozen or not", _beginnings),
    ("Descent beats mini-batch Baum-Welch, in perplexity and in time", _beats_baum_welch),
    ("Training and test text are nearly alike (within 5%)", _alike),
    (
        "Beyond the paper: LVD within blocks lowers the perplexity of 2^14 states on PTB",
        _less("ptb", "decoder", "no teacher"),
    ),
)
