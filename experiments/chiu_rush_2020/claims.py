"""What the paper claims and what must be shown, each computed from the lines."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from experiments.verdicts import Missing, Verdict, judge_each

Line = Mapping[str, Any]
SMALL = ("None 1024", "Brown 1024, M = 4", "Brown 1024, M = 8")
COUNTS = {"ptb": (73_760, 82_430), "wikitext-2": (217_646, 245_569)}
"""Tokens for validation and testing that a perplexity must be of, `<eos>` once a line."""


class Found:
    """The newest line of each row and mode."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = {_key(line): line for line in lines}

    def get(self, table: str, row: str, dataset: str = "ptb", mode: str | None = None) -> Line:
        """A row's line, in the mode that it was trained for unless another is asked for."""
        experiment = f"chiu_rush_2020/{table}"
        for key, line in self.lines.items():
            is_mode = key[3] == (mode or line["config"]["trained_for"])
            if key[:3] == (experiment, row, dataset) and is_mode:
                return line
        raise Missing

    def some(self, table: str, rows: Iterable[str], dataset: str = "ptb") -> dict[str, Line]:
        """The lines of those rows that are there."""
        found = {}
        for row in rows:
            try:
                found[row] = self.get(table, row, dataset)
            except Missing:
                continue
        return found


Check = Callable[[Found], tuple[bool, str]]


def judge(lines: Iterable[Line]) -> list[Verdict]:
    return judge_each(Found(lines), CLAIMS)


def _key(line: Line) -> tuple[str, str, str, str]:
    return line["experiment"], line["row"], line["dataset"], line["mode"]


def _bar(row: str, dataset: str, val: float | None, test: float | None = None) -> Check:
    """At most these perplexities."""

    def check(found: Found) -> tuple[bool, str]:
        line = found.get("table1", row, dataset)
        pairs = [(line[key], most) for key, most in (("val", val), ("test", test)) if most]
        named = " / ".join(f"{value:.1f}" for value, _ in pairs) + f", {line['mode']}"
        counts = line["tokens_val"], line["tokens_test"]
        if counts != COUNTS[dataset]:
            return False, f"{named}, of {counts[0]:,} / {counts[1]:,} tokens"
        return all(value <= most for value, most in pairs), named

    return check


def _fast(found: Found) -> tuple[bool, str]:
    line = found.get("table1", "VL-HMM 2^15 (packed)")
    is_there = "H200" in line["device"]
    told = f"{line['seconds']:.0f} s, {line['epochs']} epochs, {line['device']}"
    return is_there and line["seconds"] < 300, f"{told}, {line['config']['workers']} at once"


def _beats(*others: str) -> Check:
    """The better VL-HMM is below all of these on validation, each in the mode of its training."""

    def check(found: Found) -> tuple[bool, str]:
        ours = found.some("table1", ("VL-HMM 2^15 (packed)", "VL-HMM 2^15 (faithful)"))
        if not ours:
            raise Missing
        best = min(line["val"] for line in ours.values())
        vals = [found.get("table1", other)["val"] for other in others]
        named = ", ".join(f"{o} {v:.1f}" for o, v in zip(others, vals, strict=True))
        return all(best < val for val in vals), f"{best:.1f} against {named}"

    return check


def _lstm(found: Found) -> tuple[bool, str]:
    holds, numbers = _beats("2x256 LSTM")(found)
    return not holds, numbers


def _sizes(found: Found) -> list[float]:
    return [found.get("figure3", f"2^{power} states")["val"] for power in range(10, 17)]


def _more_states(found: Found) -> tuple[bool, str]:
    vals = _sizes(found)
    return all(a > b for a, b in pairwise(vals)), ", ".join(f"{val:.1f}" for val in vals)


def _shrinking(found: Found) -> tuple[bool, str]:
    gains = [100 * (1 - b / a) for a, b in pairwise(_sizes(found))]
    told = ", ".join(f"{gain:.1f}%" for gain in gains)
    return all(a > b for a, b in pairwise(gains)), told


def _uniform(states: int, blocks: int, key: str, is_better: bool) -> Check:
    """Whether states by chance are better, or worse, than Brown's blocks."""

    def check(found: Found) -> tuple[bool, str]:
        chance = found.get("table3", f"Uniform {states}, k = 128")[key]
        brown = found.get("table3", f"Brown {states}, M = {blocks}")[key]
        return (chance < brown) == is_better, f"uniform {chance:.1f}, Brown {brown:.1f}"

    return check


def _neural(key: str) -> Check:
    def check(found: Found) -> tuple[bool, str]:
        neural, scalar = (found.get("table2", row) for row in ("VL-HMM 2^14", "- neural param"))
        ours, theirs = neural[key], scalar[key]
        told = f"neural {_written(ours)}, scalar {_written(theirs)}"
        if key == "val":
            return ours < theirs, told
        if key == "train":
            return abs(ours / theirs - 1) <= 0.1, told
        return theirs >= 20 * ours, f"{told}: {theirs / ours:.0f} times"

    return check


def _written(value: float) -> str:
    """A count in full; a perplexity or milliseconds with two digits after the point."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _dropout(found: Found) -> tuple[bool, str]:
    half, none = (found.get("table2", row)["val"] for row in ("VL-HMM 2^14", "- state dropout"))
    return half < none, f"half {half:.1f}, none {none:.1f}"


def _dropout_speed(found: Found) -> tuple[bool, str]:
    lines = [found.get("table2", row) for row in ("VL-HMM 2^14", "- state dropout")]
    half, none = (line["ms_train_step"] for line in lines)
    told = f"{half:.2f} against {none:.2f} ms a step, {none / half:.1f} times"
    return none > half, told + _beside(lines)


def _beside(lines: Sequence[Line]) -> str:
    """Where times were not taken alone."""
    if all(line["config"].get("is_timed_alone") for line in lines):
        return ""
    return f", up to {max(line['config']['workers'] for line in lines)} at once"


def _insensitive(found: Found) -> tuple[bool, str]:
    rows = [f"Brown 16384, M = {blocks}" for blocks in (32, 64, 128, 256)]
    vals = [found.get("table3", row)["val"] for row in rows]
    return max(vals) / min(vals) <= 1.03, ", ".join(f"{val:.1f}" for val in vals)


def _small(found: Found) -> list[float]:
    """The rows of 1,024 states that differ in their blocks alone."""
    return [found.get("table3", f"{row}, no dropout")["val"] for row in SMALL]


def _four_blocks(found: Found) -> tuple[bool, str]:
    none, four = _small(found)[:2]
    return abs(four / none - 1) <= 0.02, f"none {none:.1f}, M = 4 {four:.1f}"


def _eight_blocks(found: Found) -> tuple[bool, str]:
    none, eight = _small(found)[::2]
    return eight > 1.02 * none, f"none {none:.1f}, M = 8 {eight:.1f}"


def _factored(key: str) -> Check:
    def check(found: Found) -> tuple[bool, str]:
        names = (f"{name}, M = 128" for name in ("independent", "+ block emb"))
        lines = [found.get("table4", name) for name in names]
        alone, parts = (line[key] for line in lines)
        told = f"independent {_written(alone)}, factored {_written(parts)}"
        if key == "val":
            return alone < parts <= 1.03 * alone, told
        if key == "parameters":
            return parts < alone, told
        return parts > alone, told + _beside(lines)

    return check


def _best_of(rows: tuple[str, ...], wanted: str) -> Check:
    def check(found: Found) -> tuple[bool, str]:
        vals = {row: found.get("appendix_a2", row)["val"] for row in rows}
        told = ", ".join(f"{row}: {val:.1f}" for row, val in vals.items())
        return min(vals, key=lambda row: vals[row]) == wanted, told

    return check


VL, BARS = "VL-HMM 2^15", (("ptb", 125.0, 116.0), ("wikitext-2", 166.6, 158.2))
DROPOUTS = tuple(f"dropout {rate}" for rate in (0.0, 0.25, 0.5, 0.75))
WIDTHS = tuple(f"H = {width}" for width in (128, 256, 512))

CLAIMS: tuple[tuple[str, Check], ...] = (
    *(
        (f"{VL} ({how}) on {data}: at most {val} / {test}", _bar(f"{VL} ({how})", data, val, test))
        for data, val, test in BARS
        for how in ("packed", "faithful")
    ),
    ("The whole PTB training of 2^15 states in under five minutes on one H200", _fast),
    (
        "VL-HMM beats the other HMMs, n-grams and the feed-forward model on PTB",
        _beats("HMM |Z| = 900", "HMM+RNN", "KN 5-gram", "256 FF 5-gram"),
    ),
    ("It does not beat the LSTM", _lstm),
    ("More states are better, 2^10 to 2^16", _more_states),
    ("Gains per doubling shrink (in percent)", _shrinking),
    ("Neural parameters are better than scalar ones on validation", _neural("val")),
    ("They are alike on training (within 10%)", _neural("train")),
    ("They are many times fewer (20 or more; the paper: almost 100)", _neural("parameters")),
    ("State dropout is better than none", _dropout),
    ("Half of the states make a step faster (the paper: 4 times)", _dropout_speed),
    ("At 2^14 states the number of blocks does not matter (within 3%)", _insensitive),
    ("At 2^10 states 4 blocks match none (within 2%)", _four_blocks),
    ("At 2^10 states 8 blocks are worse (by more than 2%)", _eight_blocks),
    *(
        (f"{text}, 2^{states.bit_length() - 1} states", _uniform(states, blocks, key, is_better))
        for states, blocks in ((2**13, 64), (2**14, 128))
        for text, key, is_better in (
            ("Uniform constraints are worse than Brown's on validation", "val", False),
            ("Uniform constraints fit training better", "train", True),
        )
    ),
    ("Factored embeddings are fewer numbers", _factored("parameters")),
    ("Factored embeddings make a step slower", _factored("ms_train_step")),
    ("Factored embeddings are slightly worse (by up to 3%)", _factored("val")),
    ("Of dropout 0, .25, .5, .75 at 2^14 .5 is best, as chosen", _best_of(DROPOUTS, DROPOUTS[2])),
    ("Of widths 128, 256, 512 at 2^14 256 is best, as chosen", _best_of(WIDTHS, WIDTHS[1])),
    *(
        (
            f"{row} on {data} is at most 2% above the paper's number",
            _bar(row, data, val and 1.02 * val, test and 1.02 * test),
        )
        for row, data, val, test in (
            ("KN 5-gram", "ptb", None, 141.2),
            ("KN 5-gram", "wikitext-2", None, 234.3),
            ("256 FF 5-gram", "ptb", None, 152.0),
            ("256 FF 5-gram", "wikitext-2", None, 195.0),
            ("HMM |Z| = 900", "ptb", 284.6, None),
            ("HMM+RNN", "ptb", 142.3, None),
        )
    ),
    ("AWD-LSTM on PTB: validation at most 68", _bar("AWD-LSTM", "ptb", 68.0)),
)  # fmt: skip
