"""What is said of the claims of Chiu & Rush 2020, each way."""

from dataclasses import replace
from pathlib import Path

import pytest
from experiments.chiu_rush_2020 import appendix_a2, figure3, table1, table2, table3, table4
from experiments.chiu_rush_2020.claims import CLAIMS, judge
from experiments.report import page

from result_lines import lines_of, row_of


def verdict(lines: list[dict], begins: str) -> tuple[str, str]:
    (found,) = (one for one in judge(lines) if one.claim.startswith(begins))
    return found.word, found.numbers


def test_claims_are_computed() -> None:
    assert all(one.word == "not run yet" and not one.numbers for one in judge([]))
    packed, bar = row_of(table1, "VL-HMM 2^15 (packed)"), "VL-HMM 2^15 (packed) on ptb"
    good = lines_of(table1, packed, 124.0)
    both = "124.0 / 115.0, sentence (124.0 / 115.0, streaming)"
    assert verdict(good, bar) == ("holds", both)
    assert verdict(lines_of(table1, packed, 125.1), bar)[0] == "does not"
    less = verdict(lines_of(table1, packed, 124.0, tokens_val=5), bar)
    assert less == ("does not", f"{both}, of 5 / 82,430 tokens")
    apart = {"sentence": {"val": 124.0, "test": 115.0}, "streaming": {"val": 133.0, "test": 123.0}}
    assert verdict(lines_of(table1, packed, modes=apart), bar)[1] == (
        "124.0 / 115.0, sentence (133.0 / 123.0, streaming)"
    )
    faithful, streamed = row_of(table1, "VL-HMM 2^15 (faithful)"), "Either VL-HMM 2^15 on ptb"
    assert verdict(good, streamed)[0] == "not run yet"
    worse = [*lines_of(table1, packed, modes=apart), *lines_of(table1, faithful, 126.0)]
    told = "VL-HMM 2^15 (faithful) 126.0 / 117.0, VL-HMM 2^15 (packed) 133.0 / 123.0"
    assert verdict(worse, streamed) == ("does not", told)
    assert verdict([*worse, *lines_of(table1, faithful, 125.0)], streamed)[0] == "holds"
    sizes = [line for n, row in enumerate(figure3.ROWS) for line in lines_of(figure3, row, 99 - n)]
    assert verdict(sizes, "More states")[0] == "holds"
    assert verdict(sizes, "Gains per doubling")[0] == "does not"  # one less each time
    halved = [100 + 64 / 2**n for n in range(7)]
    more = zip(figure3.ROWS, halved, strict=True)
    lines = [line for row, val in more for line in lines_of(figure3, row, val)]
    assert verdict(lines, "Gains per doubling")[0] == "holds"
    again = [*sizes, *lines_of(figure3, figure3.ROWS[0], 50.0)]
    assert verdict(again, "More states")[0] == "does not"  # the newest line counts


def test_lines_of_other_settings_do_not_count() -> None:
    packed, bar = row_of(table1, "VL-HMM 2^15 (packed)"), "VL-HMM 2^15 (packed) on ptb"
    lines = [*lines_of(table1, packed, 124.0), *lines_of(table1, replace(packed, epochs=1), 999.0)]
    assert verdict(lines, bar)[0] == "holds"
    assert "999" not in page(lines, {}, Path("lines.jsonl"))


PACKED, VL14, SCALAR, NO_DROPOUT = (
    (table1, "VL-HMM 2^15 (packed)"),
    (table2, "VL-HMM 2^14"),
    (table2, "- neural param"),
    (table2, "- state dropout"),
)
WHOLE, PARTS = (table4, "independent, M = 128"), (table4, "+ block emb, M = 128")
FACTORED = [
    (table4, f"{name}, M = {blocks}")
    for name in ("independent", "+ block emb")
    for blocks in (32, 64, 128, 256)
]
SMALL = [(table3, f"{n}, no dropout") for n in ("None 1024", "Brown 1024, M = 4")]
EIGHT = (table3, "Brown 1024, M = 8, no dropout")
RATES = [(appendix_a2, f"dropout {rate}") for rate in (0.0, 0.25, 0.5, 0.75)]
WIDTHS = [(appendix_a2, f"H = {width}") for width in (128, 256, 512)]
BLOCKS = [(table3, f"Brown 16384, M = {blocks}") for blocks in (32, 64, 128, 256)]
BY_CHANCE, BROWN = (table3, "Uniform 16384, k = 128"), BLOCKS[2]
CHANCE_13, BROWN_13 = (table3, "Uniform 8192, k = 128"), (table3, "Brown 8192, M = 64")
KN, FF, LSTM, AWD, HMM, RNN = (
    (table1, name)
    for name in ("KN 5-gram", "256 FF 5-gram", "2x256 LSTM", "AWD-LSTM", "HMM |Z| = 900", "HMM+RNN")
)
WIKI = "wikitext-2"

HELD = [  # the claim, of which number, rows with one that holds and one that does not
    ("HMM |Z| = 900 on ptb", "val", {HMM: (290, 291)}),
    ("HMM+RNN on ptb", "val", {RNN: (145, 146)}),
    ("KN 5-gram on ptb", "val", {KN: (153, 154)}),
    ("KN 5-gram on wikitext-2", "val", {(*KN, WIKI): (247, 249)}),
    ("256 FF 5-gram on ptb", "val", {FF: (163, 164)}),
    ("256 FF 5-gram on wikitext-2", "val", {(*FF, WIKI): (207, 209)}),
    ("2x256 LSTM on ptb", "val", {LSTM: (95, 96)}),
    ("2x256 LSTM on wikitext-2", "val", {(*LSTM, WIKI): (126, 128)}),
    ("AWD-LSTM on ptb: at most", "val", {AWD: (61, 62)}),
    ("AWD-LSTM on wikitext-2", "val", {(*AWD, WIKI): (69, 71)}),
    ("AWD-LSTM on ptb: validation", "val", {AWD: (68, 68.1)}),
    ("PTB training of 2^15", "seconds", {PACKED: (299.0, 301.0)}),
    ("PTB training of 2^15", "device", {PACKED: ("NVIDIA H200", "a laptop")}),
    (
        "VL-HMM beats n-grams",
        "val",
        {PACKED: (124, 124), KN: (148, 148), FF: (160, 9)},
    ),
    (
        "VL-HMM beats n-grams",  # what the paper quotes
        "val",
        {PACKED: (142, 143), KN: (148, 148), FF: (160, 160)},
    ),
    (
        "It beats the other HMMs",
        "val",
        {PACKED: (124, 124), HMM: (200, 200), RNN: (142, 91)},
    ),
    ("It does not beat the LSTM on", "val", {PACKED: (124, 124), LSTM: (96, 125)}),
    ("There it beats the n-grams", "val", {(*PACKED, WIKI): (160, 160), (*KN, WIKI): (235, 159)}),
    (
        "On WikiText-2 it beats",
        "val",
        {(*PACKED, WIKI): (160, 160), (*FF, WIKI): (213, 159)},
    ),
    (
        "There it does not beat",
        "val",
        {(*PACKED, WIKI): (160, 160), (*LSTM, WIKI): (114, 161)},
    ),
    ("Neural parameters are better", "val", {VL14: (135, 160), SCALAR: (156, 156)}),
    ("They are alike on training", "train", {VL14: (94, 94), SCALAR: (100, 73)}),
    ("They are almost 100 times", "parameters", {VL14: (7, 7), SCALAR: (350, 349)}),
    ("State dropout is better", "val", {VL14: (135, 147), NO_DROPOUT: (144, 144)}),
    ("Half of the states", "ms_train_step", {VL14: (1.4, 2.5), NO_DROPOUT: (2.5, 2.4)}),
    ("They make it 4 times", "ms_train_step", {VL14: (1.0, 1.4), NO_DROPOUT: (3.5, 2.5)}),
    ("At 2^14 states the number", "val",
     dict(zip(BLOCKS, [(135, 135), (136, 136), (135, 135), (139, 140)], strict=True))),
    ("At 2^10 states 4", "val", {SMALL[0]: (180, 164), SMALL[1]: (182, 182), EIGHT: (194, 194)}),
    ("At 2^10 states 8", "val", {SMALL[0]: (180, 191), SMALL[1]: (182, 182), EIGHT: (194, 194)}),
    ("Uniform constraints are worse than Brown's on validation, 2^14", "val",
     {BY_CHANCE: (146, 130), BROWN: (136, 136)}),
    ("Uniform constraints fit training better, 2^14", "train",
     {BY_CHANCE: (90, 96), BROWN: (94, 94)}),
    ("Uniform constraints are worse than Brown's on validation, 2^13", "val",
     {CHANCE_13: (150, 130), BROWN_13: (142, 142)}),
    ("Uniform constraints fit training better, 2^13", "train",
     {CHANCE_13: (90, 96), BROWN_13: (94, 94)}),
    ("Factored embeddings are fewer", "parameters", {WHOLE: (7, 7), PARTS: (6, 8)}),
    ("Factored embeddings are slower, a training", "ms_train_step", {WHOLE: (1, 3), PARTS: (2, 2)}),
    ("Factored embeddings are slightly", "val",
     dict(zip(FACTORED, [(134, 134)] * 4 + [(136, 136)] * 3 + [(138, 139)], strict=True))),
    ("Of dropout", "val",
     dict(zip(RATES, [(157, 157), (140, 132), (134, 134), (150, 150)], strict=True))),
    ("Of widths", "val", dict(zip(WIDTHS, [(140, 130), (134, 134), (140, 140)], strict=True))),
]  # fmt: skip


def lines_with(key: str, rows: dict, place: int) -> list[dict]:
    lines = []
    for (module, name, *dataset), numbers in rows.items():
        row = row_of(module, name, *dataset)
        facts = {"val": 100.0, key: numbers[place]}
        lines += lines_of(module, row, **facts)
    return lines


@pytest.mark.parametrize(("begins", "key", "rows"), HELD, ids=[case[0] for case in HELD])
def test_a_claim_that_holds_and_one_that_does_not(begins: str, key: str, rows: dict) -> None:
    assert verdict(lines_with(key, rows, 0), begins)[0] == "holds"
    assert verdict(lines_with(key, rows, 1), begins)[0] == "does not"
    assert verdict(lines_with(key, rows, 0)[2:], begins)[0] == "not run yet"


def test_every_claim_is_tried_both_ways() -> None:
    begun = [begins for begins, _, _ in HELD] + ["VL-HMM 2^15", "More states", "Gains per"]
    begun += ["Either VL-HMM", "Scalar parameters", "Factored embeddings are slower, a batch"]
    assert not [one.text for one in CLAIMS if not one.text.startswith(tuple(begun))]


def test_what_is_too_close_to_say() -> None:
    for begins, key, rows in (
        ("Uniform constraints are worse", "val", {CHANCE_13: (153.6,), BROWN_13: (153.0,)}),
        (
            "Factored embeddings are slower, a training",
            "ms_train_step",
            {WHOLE: (3.4,), PARTS: (3.3,)},
        ),
        ("Of widths", "val", dict(zip(WIDTHS, [(136.7,), (135.6,), (136.8,)], strict=True))),
    ):
        lines = lines_with(key, rows, 0)
        found = [one for one in judge(lines) if one.claim.startswith(begins) and one.numbers]
        assert [one.word for one in found] == ["level"]
    (why,) = (
        one
        for one in judge(lines_with("val", HELD[6][2], 1))
        if "LSTM on ptb" in one.claim and one.numbers
    )
    assert why.numbers.endswith("has more epochs") and why.whose == "beside"


def test_what_is_not_what_was_claimed() -> None:
    """Times of another batch say nothing, however far apart they are."""
    lines = lines_with("ms_eval_batch", {VL14: (40,), SCALAR: (14,), WHOLE: (40,), PARTS: (48,)}, 0)
    for begins in ("Scalar parameters", "Factored embeddings are slower, a batch"):
        word, told = verdict(lines, begins)
        assert word == "not comparable" and told.endswith("ours has them at hand")
    rates = lines_with("ms_eval_batch", dict(zip(RATES, [(3,), (5,), (4,), (3,)], strict=True)), 0)
    assert "; the same work has 3.00 to 5.00; " in verdict([*lines, *rates], "Scalar parameters")[1]


def test_modes_that_say_different_things_are_both_told() -> None:
    halved = [100 + 64 / 2**n for n in range(7)]
    lines = []
    for n, row in enumerate(figure3.ROWS):
        modes = {"sentence": halved[n], "streaming": 99.0 - n}
        lines += lines_of(figure3, row, modes={m: {"val": v, "test": v} for m, v in modes.items()})
    word, told = verdict(lines, "Gains per doubling")
    assert word == "holds" and told.endswith("(1.0, 1.0, 1.0, 1.0, 1.1, 1.1, streaming)")
    wiki = lines_of(table1, row_of(table1, "VL-HMM 2^15 (packed)", WIKI), 160.0)
    assert verdict(wiki, f"VL-HMM 2^15 (packed) on {WIKI}")[1].endswith("may be another one")
