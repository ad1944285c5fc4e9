"""What the paper claims and what must be shown, each computed from the lines."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from experiments.chiu_rush_2020 import table1, table4, tables
from experiments.rows import BOTH
from experiments.verdicts import UNLIKE, Claim, Missing, Outcome, Verdict, is_less, judge_each

Line = Mapping[str, Any]
SMALL = ("None 1024", "Brown 1024, M = 4", "Brown 1024, M = 8")
COUNTS = {"ptb": (73_760, 82_430), "wikitext-2": (217_646, 245_569)}
"""Tokens for validation and testing that a perplexity must be of, `<eos>` once a line."""

TIMED = 0.05
"""Times that differ by less are level."""


class Found:
    """The newest line of each row and mode, of the settings that rows have now."""

    def __init__(self, lines: Iterable[Line]) -> None:
        runs = {
            (name, row.name, row.dataset): {row.run, row.shrink().run}
            for name, module in tables().items()
            for row in module.ROWS
        }
        self.lines = {
            _key(line): line
            for line in lines
            if line["config"]["run"] in runs.get(_key(line)[:3], ())
        }

    def get(self, table: str, row: str, dataset: str = "ptb", mode: str | None = None) -> Line:
        """A row's line, in the mode that it was trained for unless another is asked for."""
        experiment = f"chiu_rush_2020/{table}"
        for key, line in self.lines.items():
            is_mode = key[3] == (mode or line["config"]["trained_for"])
            if key[:3] == (experiment, row, dataset) and is_mode:
                return line
        raise Missing

    def other(self, line: Line) -> Line:
        """The same model's line in the other mode."""
        (mode,) = set(BOTH) - {line["mode"]}
        return self.get(line["experiment"].rpartition("/")[2], line["row"], line["dataset"], mode)

    def some(self, table: str, rows: Iterable[str], dataset: str = "ptb") -> dict[str, Line]:
        """The lines of those rows that are there."""
        found = {}
        for row in rows:
            try:
                found[row] = self.get(table, row, dataset)
            except Missing:
                continue
        return found


Check = Callable[[Found], tuple[Outcome, str]]


def judge(lines: Iterable[Line]) -> list[Verdict]:
    return judge_each(Found(lines), CLAIMS)


def _key(line: Line) -> tuple[str, str, str, str]:
    return line["experiment"], line["row"], line["dataset"], line["mode"]


def _bar(row: str, dataset: str, val: float | None, test: float | None = None) -> Check:
    """At most these perplexities."""

    def check(found: Found) -> tuple[Outcome, str]:
        line = found.get("table1", row, dataset)
        pairs = {key: most for key, most in (("val", val), ("test", test)) if most}
        named = f"{_perplexities(line, pairs)} ({_perplexities(found.other(line), pairs)})"
        counts = line["tokens_val"], line["tokens_test"]
        if counts != COUNTS[dataset]:
            return False, f"{named}, of {counts[0]:,} / {counts[1]:,} tokens"
        return all(line[key] <= most for key, most in pairs.items()), named

    return check


def _perplexities(line: Line, keys: Iterable[str]) -> str:
    return f"{' / '.join(f'{line[key]:.1f}' for key in keys)}, {line['mode']}"


def _streaming(dataset: str, val: float, test: float) -> Check:
    """Whether a model reaches these when it is read as the paper reads."""

    def check(found: Found) -> tuple[Outcome, str]:
        lines = [found.get("table1", row, dataset, "streaming") for row in OURS]
        named = [f"{line['row']} {line['val']:.1f} / {line['test']:.1f}" for line in lines]
        reached = any(line["val"] <= val and line["test"] <= test for line in lines)
        return reached, ", ".join(named)

    return check


def _fast(found: Found) -> tuple[Outcome, str]:
    line = found.get("table1", "VL-HMM 2^15 (packed)")
    is_there = "H200" in line["device"]
    told = f"{line['seconds']:.0f} s, {line['epochs']} epochs, {line['device']}"
    return is_there and line["seconds"] < 300, f"{told}, {line['config']['workers']} at once"


def _best(found: Found, dataset: str) -> Line:
    """The better VL-HMM on validation, each in the mode of its training."""
    if not (ours := found.some("table1", OURS, dataset)):
        raise Missing
    return min(ours.values(), key=lambda line: line["val"])


def _beats(*others: str, dataset: str = "ptb", quoted: Mapping[str, float] | None = None) -> Check:
    """The VL-HMM is below all of these on validation, and below what the paper quotes of others."""

    def check(found: Found) -> tuple[Outcome, str]:
        best = _best(found, dataset)
        theirs = {other: found.get("table1", other, dataset) for other in others}
        vals = {f"{other} ({line['mode']})": line["val"] for other, line in theirs.items()}
        vals |= quoted or {}
        named = ", ".join(f"{other} {val:.1f}" for other, val in vals.items())
        ours = f"{best['val']:.1f} ({best['mode']}) against {named}"
        return all(best["val"] < val for val in vals.values()), ours

    return check


def _loses(other: str, dataset: str) -> Check:
    def check(found: Found) -> tuple[Outcome, str]:
        holds, numbers = _beats(other, dataset=dataset)(found)
        return not holds, numbers

    return check


def _sizes(found: Found, mode: str | None = None) -> list[float]:
    names = [f"2^{power} states" for power in range(10, 17)]
    return [found.get("figure3", name, mode=mode)["val"] for name in names]


def _more_states(found: Found) -> tuple[Outcome, str]:
    vals = _sizes(found)
    return all(a > b for a, b in pairwise(vals)), ", ".join(f"{val:.1f}" for val in vals)


def _shrinking(found: Found) -> tuple[Outcome, str]:
    gains, streamed = (
        [100 * (1 - b / a) for a, b in pairwise(_sizes(found, mode))] for mode in BOTH
    )
    told, aside = (", ".join(f"{gain:.1f}" for gain in some) for some in (gains, streamed))
    return all(a > b for a, b in pairwise(gains)), f"{told}, sentence ({aside}, streaming)"


def _uniform(states: int, blocks: int, key: str, is_better: bool) -> Check:
    """Whether states by chance are better, or worse, than Brown's blocks."""

    def check(found: Found) -> tuple[Outcome, str]:
        names = (f"Uniform {states}, k = 128", f"Brown {states}, M = {blocks}")
        lines = [found.get("table3", name) for name in names]
        chance, brown = (line[key] for line in lines)
        told = f"uniform {chance:.1f}, Brown {brown:.1f}"
        if key == "val":
            streamed = [found.other(line)["val"] for line in lines]
            aside = (("test", [line["test"] for line in lines]), ("streaming", streamed))
            more = "; ".join(f"{name} {pair[0]:.1f}, {pair[1]:.1f}" for name, pair in aside)
            told = f"{told} ({more})"
        return is_less(*((chance, brown) if is_better else (brown, chance))), told

    return check


def _neural(key: str) -> Check:
    def check(found: Found) -> tuple[Outcome, str]:
        neural, scalar = (found.get("table2", row) for row in ("VL-HMM 2^14", "- neural param"))
        ours, theirs = neural[key], scalar[key]
        told = f"neural {_written(ours)}, scalar {_written(theirs)}"
        if key == "val":
            return is_less(ours, theirs), told
        if key == "train":
            return abs(ours / theirs - 1) <= 0.1, told
        if key == "parameters":
            return theirs >= 50 * ours, f"{told}: {theirs / ours:.0f} times"
        return UNLIKE, told + _beside([neural, scalar]) + _noise(found)

    return check


def _noise(found: Found) -> str:
    """How far times of a batch lie apart where the work is the same: models of all 2^14 states."""
    times = [line["ms_eval_batch"] for line in found.some("appendix_a2", DROPOUTS).values()]
    return f"; the same work has {min(times):.2f} to {max(times):.2f}" if times else ""


def _written(value: float) -> str:
    """A count in full; a perplexity or milliseconds with two digits after the point."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _dropout(found: Found) -> tuple[Outcome, str]:
    half, none = (found.get("table2", row)["val"] for row in ("VL-HMM 2^14", "- state dropout"))
    return is_less(half, none), f"half {half:.1f}, none {none:.1f}"


def _dropout_speed(times: float) -> Check:
    """At least so many times faster."""

    def check(found: Found) -> tuple[Outcome, str]:
        lines = [found.get("table2", row) for row in ("VL-HMM 2^14", "- state dropout")]
        half, none = (line["ms_train_step"] for line in lines)
        told = f"{half:.2f} against {none:.2f} ms a step, {none / half:.1f} times"
        return none > times * half, told + _beside(lines)

    return check


def _beside(lines: Sequence[Line]) -> str:
    """Where times were not taken alone."""
    if all(line["config"].get("is_timed_alone") for line in lines):
        return ""
    return f", up to {max(line['config']['workers'] for line in lines)} at once"


def _insensitive(found: Found) -> tuple[Outcome, str]:
    rows = [f"Brown 16384, M = {blocks}" for blocks in (32, 64, 128, 256)]
    vals = [found.get("table3", row)["val"] for row in rows]
    return max(vals) / min(vals) <= 1.03, ", ".join(f"{val:.1f}" for val in vals)


def _small(found: Found) -> list[float]:
    """The rows of 1,024 states that differ in their blocks alone."""
    return [found.get("table3", f"{row}, no dropout")["val"] for row in SMALL]


def _four_blocks(found: Found) -> tuple[Outcome, str]:
    none, four = _small(found)[:2]
    return abs(four / none - 1) <= 0.02, f"none {none:.1f}, M = 4 {four:.1f}"


def _eight_blocks(found: Found) -> tuple[Outcome, str]:
    none, eight = _small(found)[::2]
    return eight > 1.02 * none, f"none {none:.1f}, M = 8 {eight:.1f}"


def _factored(key: str) -> Check:
    def check(found: Found) -> tuple[Outcome, str]:
        names = (f"{name}, M = 128" for name in ("independent", "+ block emb"))
        lines = [found.get("table4", name) for name in names]
        alone, parts = (line[key] for line in lines)
        told = f"independent {_written(alone)}, factored {_written(parts)}"
        if key == "parameters":
            return parts < alone, told
        if key == "ms_eval_batch":
            return UNLIKE, told + _beside(lines) + _noise(found)
        return is_less(alone, parts, TIMED), told + _beside(lines)

    return check


def _slightly_worse(found: Found) -> tuple[Outcome, str]:
    pairs = [
        [found.get("table4", f"{name}, M = {blocks}") for name in ("independent", "+ block emb")]
        for blocks in table4.BLOCKS
    ]
    read = {
        "sentence": [[line["val"] for line in pair] for pair in pairs],
        "streaming": [[found.other(line)["val"] for line in pair] for pair in pairs],
    }
    told, aside = (
        f"{', '.join(f'{alone:.1f} / {parts:.1f}' for alone, parts in some)}, {mode}"
        for mode, some in read.items()
    )
    near = all(alone < parts <= 1.03 * alone for alone, parts in read["sentence"])
    return near, f"{told} ({aside})"


def _best_of(rows: tuple[str, ...], wanted: str) -> Check:
    def check(found: Found) -> tuple[Outcome, str]:
        vals = {row: found.get("appendix_a2", row)["val"] for row in rows}
        told = ", ".join(f"{row}: {val:.1f}" for row, val in vals.items())
        other = min(val for row, val in vals.items() if row != wanted)
        return is_less(vals[wanted], other), told

    return check


VL = "VL-HMM 2^15"
OURS = (f"{VL} (faithful)", f"{VL} (packed)")
DROPOUTS = tuple(f"dropout {rate}" for rate in (0.0, 0.25, 0.5, 0.75))
WIDTHS = tuple(f"H = {width}" for width in (128, 256, 512))
TARGET, BESIDE = "target", "beside"
BUYS = {"Buys et al. (quoted): HMM": 284.6, "HMM+RNN": 142.3}
WHY = {
    OURS[0]: "one seed; its rate had ended before the last epoch, by a plateau that counts every "
    "check without a new best, where the released code's takes slightly worse ones for better; the "
    "paper's patience of 8 checks was not tried",
    "2x256 LSTM": "the paper's may divide by tokens that were never scored, and has more epochs",
    "AWD-LSTM": "AdamW and fewer epochs than its authors' 500 (750 on WikiText-2)",
}


def _reproductions() -> list[Claim]:
    """Every row of table 1 with a number of the paper: ours reach it, baselines to 2%."""
    made = []
    for row in table1.ROWS:
        printed = [number for number in (row.paper_val, row.paper_test) if number]
        share = 1.0 if row.name.startswith(VL) else 1.02
        bars = [number and share * number for number in (row.paper_val, row.paper_test)]
        most = "at most" if share == 1 else "at most 2% above"
        text = f"{row.name} on {row.dataset}: {most} {' / '.join(map(str, printed))}"
        whose = BESIDE if "LSTM" in row.name else TARGET
        is_theirs = row.dataset == "wikitext-2" and not row.name.startswith(("KN", "AWD"))
        note = "the paper's text may be another one" if is_theirs else ""
        if printed:
            check = _bar(row.name, row.dataset, *bars)
            made.append(Claim(text, check, whose, WHY.get(row.name, ""), note))
    streamed = {row.dataset: row for row in table1.ROWS if row.name in OURS}
    for dataset, row in streamed.items():
        assert row.paper_val and row.paper_test
        text = f"Either VL-HMM 2^15 on {dataset}, read streaming as the paper reads: at most "
        text += f"{row.paper_val} / {row.paper_test}"
        check = _streaming(dataset, row.paper_val, row.paper_test)
        made.append(Claim(text, check, BESIDE))
    return made


CLAIMS: tuple[Claim, ...] = (
    *_reproductions(),
    Claim("AWD-LSTM on ptb: validation at most 68", _bar("AWD-LSTM", "ptb", 68.0), TARGET),
    Claim(
        "PTB training of 2^15 states (packed) in under five minutes on one H200, text and clusters "
        "prepared before",
        _fast,
        TARGET,
        note="with priority over those others; alone, in the run before, 251 s",
    ),
    Claim(
        "VL-HMM beats n-grams, the feed-forward model and the HMMs of Buys et al. on PTB",
        _beats("KN 5-gram", "256 FF 5-gram", quoted=BUYS),
    ),
    Claim(
        "It beats the other HMMs on PTB as they are trained here",
        _beats("HMM |Z| = 900", "HMM+RNN"),
        why="ours is an LSTM of 768 that moves 1,024 states, far better than the one they had",
    ),
    Claim("It does not beat the LSTM on PTB", _loses("2x256 LSTM", "ptb")),
    Claim(
        "On WikiText-2 it beats the feed-forward model",
        _beats("256 FF 5-gram", dataset="wikitext-2"),
    ),
    Claim("There it does not beat the LSTM either", _loses("2x256 LSTM", "wikitext-2")),
    Claim("There it beats the n-grams", _beats("KN 5-gram", dataset="wikitext-2"), BESIDE),
    Claim("More states are better, 2^10 to 2^16", _more_states),
    Claim("Gains per doubling shrink (in percent, by sentence)", _shrinking),
    Claim("Neural parameters are better than scalar ones on validation", _neural("val")),
    Claim(
        "They are alike on training (within 10%)",
        _neural("train"),
        why="scalar emissions stay within blocks here, with decay",
    ),
    Claim(
        "They are almost 100 times fewer (50 or more; 59 in its table)",
        _neural("parameters"),
        why="scalar emissions stay within blocks here, where the archived code had all words",
    ),
    Claim(
        "Scalar parameters are almost 3 times faster, a batch",
        _neural("ms_eval_batch"),
        why="the paper's batch makes the tables anew, ours has them at hand",
    ),
    Claim("State dropout is better than none", _dropout),
    Claim("Half of the states make a step faster", _dropout_speed(1.0)),
    Claim(
        "They make it 4 times faster (3 or more)",
        _dropout_speed(3.0),
        why="no table of all states is made here in either; of the paper's own batches, 100 and 40 "
        "ms, it is 2.5",
    ),
    Claim("At 2^14 states the number of blocks does not matter (within 3%)", _insensitive),
    Claim(
        "At 2^10 states 4 blocks match none (within 2%), none with dropout",
        _four_blocks,
        why="all by the recipe that the row without blocks needs; it is better by 9% than the "
        "paper's 180",
    ),
    Claim(
        "At 2^10 states 8 blocks are worse (by more than 2%), none with dropout",
        _eight_blocks,
        why="by the same recipe",
    ),
    *(
        Claim(
            f"{text}, 2^{states.bit_length() - 1} states", _uniform(states, blocks, key, is_better)
        )
        for states, blocks in ((2**13, 64), (2**14, 128))
        for text, key, is_better in (
            ("Uniform constraints are worse than Brown's on validation", "val", False),
            ("Uniform constraints fit training better", "train", True),
        )
    ),
    Claim("Factored embeddings are fewer numbers", _factored("parameters")),
    Claim(
        "Factored embeddings are slower, a batch",
        _factored("ms_eval_batch"),
        why="the paper's batch makes the tables anew, ours has them at hand",
    ),
    Claim("Factored embeddings are slower, a training step", _factored("ms_train_step")),
    Claim(
        "Factored embeddings are slightly worse (by up to 3%), M = 32 to 256, by sentence",
        _slightly_worse,
    ),
    Claim(
        "Of dropout 0, .25, .5, .75 at 2^14 .5 is best, as chosen",
        _best_of(DROPOUTS, DROPOUTS[2]),
        why="14 epochs here, 50 there",
    ),
    Claim("Of widths 128, 256, 512 at 2^14 256 is best, as chosen", _best_of(WIDTHS, WIDTHS[1])),
)
