"""The rows past both papers: each is a training, and only what is claimed is tested."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from experiments.chiu_rush_2020 import table1
from experiments.past import (
    ablation,
    drawn,
    final,
    laptop,
    million,
    mixture,
    search,
    small,
    tables,
)
from experiments.past.mixture import mixtures
from experiments.past.page import section
from experiments.past.recipes import SEEDS
from experiments.results import is_done, take_over
from experiments.rows import BOTH, Row
from experiments.runner import make_jobs

from hmmlm.train.config import make_config
from hmmlm.train.estimate import count_parameters
from hmmlm.train.tables import override
from result_lines import lines_of, row_of

EVERY = [(name, row) for name, module in tables().items() for row in module.ROWS]


@pytest.mark.parametrize(("name", "row"), EVERY, ids=lambda part: getattr(part, "name", ""))
def test_every_row_is_a_training(name: str, row: Row) -> None:
    for one in (row, row.shrink()):
        config = make_config(override({}, one.changes))
        assert config.train.epochs == one.epochs
    assert row.tested == (name in (laptop.EXPERIMENT, final.EXPERIMENT, million.EXPERIMENT))


def test_names_and_numbers() -> None:
    names = [(name, row.name, row.dataset) for name, row in EVERY]
    assert len(set(names)) == len(names)
    for module in (laptop, search, drawn, final, ablation, million):
        assert len({row.run for row in module.ROWS}) == len(module.ROWS)
    assert {len(rows) for rows in mixtures().values()} == {len(SEEDS)}
    assert sorted(row.states for row in million.ROWS if row.name.endswith("256"))[-1] == 2**20
    largest = row_of(million, "2^20 states, K = 256", "web")
    assert (largest.blocks, largest.clusters) == (4096, ("exchange", 4094))
    config = make_config(override({}, largest.changes))
    assert config.dropout.at(0.0, 2**20, 4096) == 1 - 1 / 16
    assert count_parameters(config, 32000) * 4 * 6 < 100e9  # with moments, gradient and copies


def test_what_is_taken_away_shares_trainings_with_the_search() -> None:
    """Of one seed: they are not made twice, and say the same of the same recipe."""
    searched = {row.run: row.name for row in search.ROWS}
    shared = {row.name: searched[row.run] for row in ablation.ROWS if row.run in searched}
    assert shared == {
        f"{name}, seed 1111": f"{other}, 2^14"
        for name, other in (
            ("all of it", "dropout 0.5 to 0.1, averaged, exchange, uneven 0.5"),
            ("- falling dropout (0.3 throughout)", "dropout 0.3, averaged, exchange, uneven 0.5"),
            ("- all four: packed", "packed"),
        )
    }


def test_lines_of_a_mixture_say_what_others_do(tmp_path: Path, monkeypatch) -> None:
    called = []
    monkeypatch.setattr(mixture, "_call", lambda *words: called.append(words))
    monkeypatch.setattr(mixture, "_read", lambda *given: {"config": {}, "val": 2.0})
    rows = [replace(row, text="head") for row in final.ROWS[:3]]
    lines = mixture.measure(rows, tmp_path, "cpu", "none")
    assert [line["row"] for line in lines] == [
        *(f"{row.name}, flatter" for row in rows),
        "3 x 32,768 states",
        "3 x 32,768 states, flatter",
    ]
    for line in lines:
        assert (line["config"]["text"], line["config"]["workers"]) == ("head", 1)
    for line, row in zip(lines, rows, strict=False):
        assert line["config"]["runs"] == [row.run] and line["seed"] == row.seed
    for line in lines[3:]:
        assert line["config"]["runs"] == [row.run for row in rows] and line["seed"] is None
    # Each is flattened by itself, then they are mixed: as they are, and the flatter ones.
    verbs = [words[0] for words in called]
    assert verbs == ["temper"] * 3 + ["mix"] * 2
    flat = [words[2].removeprefix("--out=") for words in called[:3]]
    assert [str(part) for part in called[4][1:4]] == flat
    assert [str(part) for part in called[3][1:4]] == [str(words[1]) for words in called[:3]]


def test_a_row_that_was_compared_is_not_one_that_was_tested(tmp_path: Path) -> None:
    compared = row_of(small, "low-rank")
    tested = replace(compared, name="the same", tested=True)
    lines = [{**line, "test": None} for line in lines_of(small, compared)]
    assert is_done(lines, small.EXPERIMENT, compared)
    assert not take_over(lines, [(small.EXPERIMENT, tested)])
    assert not is_done(lines, small.EXPERIMENT, replace(compared, tested=True))
    (job,) = make_jobs([("a", compared), ("b", tested)], [], tmp_path)
    assert job.row.tested and [row.name for _, row in job.wanted] == ["low-rank", "the same"]


def test_the_section_has_means_of_seeds_and_what_has_not_run() -> None:
    empty = section([])
    assert "# Past both papers" in empty and "past/final" in empty.split("Not run yet: ")[1]
    untested = lines_of(search, search.ROWS[0], 99.0, modes={"sentence": {"val": 9, "test": None}})
    text = section([*finals((110.0, 111.0, 115.0)), *untested])
    assert "| 2^15 states | ptb |  | 3 | 112.0 (110.0-115.0) |" in text
    assert "Not run yet: `past/mixture`, `past/ablation`, `past/million`." in text
    assert "search" not in text and "99.0" not in text


def finals(vals: Sequence[float], power: int = 15) -> list[dict]:
    """Lines of as many seeds, whose test text has 9 less than validation in either mode."""
    rows = [row for row in final.ROWS if (row.dataset, row.states) == ("ptb", 2**power)]
    pairs = zip(rows, vals, strict=False)
    return [line for row, val in pairs for line in lines_of(final, row, val)]


def test_goals_are_of_what_was_best_on_validation_of_three_seeds() -> None:
    lines = finals((110.0, 111.0, 115.0))
    said = "**103.0** streaming and 103.0 by sentence (2^15 states): met in both modes."
    assert said in section(lines)
    topical = finals((120.0,) * 3)
    for line in topical:
        line |= {"test": 90.0, "config": {**line["config"], "topics": 5, "learning_rate": 0.25}}
    assert "| 5 (rate 0.25) | 3 |" in section(topical)
    assert "**103.0**" in section([*topical, *lines])
    few = finals((100.0, 100.0), power=16)
    assert "**103.0**" in section([*few, *lines])
    assert "**107.0** streaming" in section(finals((116.0,) * 3))
    assert section(finals((116.0,) * 3)).count("missed.") == 1
    for mode in BOTH:
        one = [line for line in lines if line["mode"] == mode]
        assert section(one).count("no such model has been read in both modes") == 2
        assert section([*one, *lines[:2]]).count("no such model has been read in both modes") == 2
        other = [{**line, "test": 200.0} if line["mode"] != mode else line for line in lines]
        assert f": met, {mode}." in section(other)
    lstm = lines_of(table1, row_of(table1, "2x256 LSTM"), 109.0)
    told = "The LSTM has 100.0 and 100.0, so the HMM is 3.0 percent worse streaming and 3.0 percent"
    assert told in section(lines, lstm) and told not in section(lines)
    assert "7.0 percent better by" in section(finals((102.0,) * 3), lstm)
