"""Rows of Lee & Berg-Kirkpatrick 2025: trainings of the paper's protocol, and their teachers."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from experiments.lee_berg_kirkpatrick_2025 import (
    baum_welch,
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    figure8,
    ptb,
    table1,
    table2,
    table3,
    table4,
    tables,
)
from experiments.lee_berg_kirkpatrick_2025.claims import judge
from experiments.lee_berg_kirkpatrick_2025.page import draw, section
from experiments.lee_berg_kirkpatrick_2025.recipes import MODELS, OURS, lvd, train
from experiments.results import make_lines
from experiments.rows import Row

from hmmlm.baselines.kinds import NEURAL
from hmmlm.distill.labels import LabelSettings
from hmmlm.distill.teachers import TeacherSettings
from hmmlm.train.config import make_config
from hmmlm.train.tables import override, take

EVERY = {name: module.ROWS for name, module in tables().items()}
OF_WEB = [name for name, rows in EVERY.items() if rows[0].dataset == "web"]


def heard(row: Row) -> list[str]:
    """What a row is told where its teacher is."""
    begins = "model.checkpoint" if row.kind == "pretrained" else "train.start"
    places = {"data.states": row.taught, begins: row.layers}
    return [f"{name}=x" for name, part in places.items() if part is not None]


@pytest.mark.parametrize("name", OF_WEB)
def test_every_row_is_a_training_of_the_protocol(name: str) -> None:
    for row in EVERY[name]:
        config = make_config(override({}, [*row.changes, *heard(row)]), NEURAL)
        data, how = config.data, config.train
        assert (data.layout, data.batch_size, data.length) == ("windows", 200, 64)
        known = (80_000_000,) if row.dataset == "web-smollm2" else (10**7, 25 * 10**6, 10**8)
        assert not data.reset and data.tokens in known
        assert config.seed == row.seed and how.epochs == 1 and config.dropout.rate == 0
        if config.learner.optimiser == "adamw":
            assert (how.beta1, how.beta2, how.weight_decay) == (0.9, 0.95, 0.1)
            assert how.warmup_steps == data.tokens // 12_800 // 20 and how.final_rate == 0.1
        tiny = make_config(override({}, [*row.shrink().changes, *heard(row)]), NEURAL)
        assert tiny.data.tokens == 0 and tiny.model.states == 32


@pytest.mark.parametrize("name", EVERY)
def test_a_name_stands_for_its_seeds(name: str) -> None:
    seen = Counter((row.name, row.dataset, row.seed) for row in EVERY[name])
    assert max(seen.values()) == 1
    seeds = Counter((row.name, row.dataset) for row in EVERY[name])
    assert set(seeds.values()) <= {1, 3}


def test_tables_share_their_trainings() -> None:
    def runs(module, name: str) -> list[str]:
        return [row.run for row in module.ROWS if row.name == name]

    plain = runs(table1, "HMM")
    assert len(set(plain)) == 3
    for module, name in (
        (table2, "none"),
        (figure1, "HMM, 512 states"),
        (figure3, "no teacher"),
        (figure4, "HMM"),
        (figure8, "none"),
    ):
        assert runs(module, name) == plain
    taught = runs(figure4, "HMM, LVD")
    assert taught == runs(figure3, "decoder, 100M tokens") != plain
    assert runs(table1, "Ablation B (split H)") == runs(table2, "a, b, pi")
    assert len(table3.VARIANTS) == 7


def test_networks_have_the_size_they_are_named_for() -> None:
    for name in figure2.NAMES:
        for power in (20, 22, 26):
            model = figure2.of_size(MODELS[name], 512, 2**power)
            assert figure2.parameters(model, 512) == pytest.approx(2**power, rel=0.13)


def test_what_a_teacher_is_told_is_known() -> None:
    for row in (row for rows in EVERY.values() for row in rows if row.taught is not None):
        taught = row.taught
        told = [*taught.teacher.options, *taught.settings]
        asked = override({}, ["distill.teacher=x", *told])["distill"]
        known = [TeacherSettings, LabelSettings]
        how = take(LabelSettings, asked, "distill", known)
        assert take(TeacherSettings, asked, "distill", known).teacher == "x"
        assert how.tokens >= int(row.table.get("data.shown", 0))
        if not taught.teacher.folder:
            changes = ["model.kind=decoder", *taught.teacher.settings]
            assert make_config(override({}, changes), NEURAL).train.epochs in (1, 20)


def test_lines_say_who_taught() -> None:
    (row,) = train("x", MODELS["HMM"], seeds=(42,), taught=lvd())
    assert row.run != replace(row, taught=None).run
    measured = {"parameters": 5, "train": 8.0, "tokens_val": 1, "tokens_test": 2, "epochs": 1}
    measured |= {"ms_train_step": 1.0, "ms_eval_batch": 1.0, "tokens_trained": 9, "device": "a"}
    measured |= {"modes": {"window 64": {"val": 9.0, "test": 8.0, "bits_per_byte": 1.5}}}
    measured |= {"train_mode": "window 64 of 9 tokens"}
    notes = {"measured": measured, "workers": 1, "peak_bytes": None, "seconds": 2.0}
    (line,) = make_lines([("lee_berg_kirkpatrick_2025/x", row)], notes, "none")
    assert line["bits_per_byte"] == 1.5 and line["mode"] == "window 64" and line["seed"] == 42
    assert line["config"]["taught"]["teacher"]["name"] == OURS.name
    assert line["config"]["train_mode"] == "window 64 of 9 tokens"
    json.dumps(line)


def test_rows_without_a_teacher_keep_their_names() -> None:
    """Lines of runs are found by it."""
    row = Row("2^10 states", "ptb", states=4, settings=("train.dropout=0.5",))
    assert row.run == "ptb-mlp-aaa29efba0"


def lines_of(module, values: dict[str, float], spread: float = 1.0) -> list[dict]:
    """Lines of a table as if they had run: a test perplexity for each name."""
    made = []
    for row in module.ROWS:
        if row.name in values:
            test = values[row.name] + spread * (row.seed - 52) / 10
            made.append(
                {
                    "experiment": module.EXPERIMENT,
                    "row": row.name,
                    "dataset": row.dataset,
                    "states": row.states,
                    "parameters": 7,
                    "seed": row.seed,
                    "test": test,
                    "val": test,
                    "train": test,
                    "bits_per_byte": 1.5,
                    "seconds": 30.0 if "Baum" in row.name else 20.0,
                    "ms_train_step": 3.0 if "Baum" in row.name else 2.0,
                    "device": "a",
                    "commit": "none",
                    "mode": row.mode,
                    "config": {
                        "workers": 1,
                        "run": row.run,
                        "text": row.dataset,
                        "trained_for": row.mode,
                    },
                }
            )
    return made


def as_the_paper_says() -> list[dict]:
    first = dict(table1.PAPER)
    lines = lines_of(table1, first)
    lines += lines_of(table2, {name: paper for name, (_, paper) in table2.PAPER.items()})
    sizes = {f"HMM, {n} states": 500 + n / 100 for n in figure1.STATES}
    lines += lines_of(figure1, sizes | {f"best, {n} states": 400 - n / 10 for n in figure1.STATES})
    curve = {18: 420, 19: 400, 20: 380, 21: 370}
    nets = {
        f"{title}, 512 states, 2^{power}": curve.get(power, 360) + 50 * (title == "TRF")
        for title in figure2.NAMES.values()
        for power in figure2.POWERS
    }
    lines += lines_of(figure2, nets | {"HMM, 512 states": 540})
    teachers = {"no teacher": 540, "decoder, random": 500}
    lines += lines_of(figure3, teachers | {f"decoder, {n}M tokens": 450 for n in (1, 10, 100)})
    plain = dict.fromkeys(figure4.NAMES, 350.0) | {"HMM": 540}
    lines += lines_of(figure4, plain)
    lines += lines_of(figure4, {f"{n}, LVD": value - 20 for n, value in plain.items()}, spread=0.5)
    drawn = {f"drawn, rate {rate}": 350 + 1000 * rate for rate in figure6.RATES}
    given = {f"layers of the decoder, rate {rate}": 340 + 1400 * rate for rate in figure6.RATES}
    lines += lines_of(figure6, drawn | given)
    shown = dict(zip(figure8.SHOWN, (530, 500, 470, 450, 449), strict=True))
    names = {f"{tokens / 1e6:g}M tokens": value for tokens, value in shown.items()}
    lines += lines_of(figure8, names | {"none": 540, "all 100M tokens": 700})
    begun = {"LVD": 300.0} | {title: 310.0 for title in figure5.BEGINNINGS.values()}
    lines += lines_of(figure5, begun | {f"{title}, frozen": 305 for title in begun})
    lines += lines_of(figure7, {f"decoder, {number}M tokens": 333 for number in (1, 10, 100)})
    lines += lines_of(table4, {name: paper for name, (_, _, paper) in table4.PAPER.items()})
    lines += lines_of(ptb, {"no teacher": 126, "decoder": 124})
    slow = dict.fromkeys((row.name for row in baum_welch.ROWS if "Baum" in row.name), 700.0)
    return lines + lines_of(baum_welch, slow | {"descent": 540})


def test_claims_are_computed() -> None:
    assert {made.word for made in judge([])} == {"not run yet"}
    lines = as_the_paper_says()
    said = {made.claim: (made.word, made.numbers) for made in judge(lines)}
    assert {word for word, _ in said.values()} == {"holds"}, said
    assert said["Reparameterisation helps"][1] == (
        "Chiu and Rush 357.0 (356.0-358.0), HMM 540.0 (539.0-541.0)"
    )
    for line in lines:  # the other way round
        line["test"] = 1e5 / line["test"]
        line["train"], line["ms_train_step"] = 2 * line["test"], 1 / line["ms_train_step"]
    words = [made.word for made in judge(lines)]
    assert words.count("does not") > 12
    # Lines of other settings than a row has now are no news of it, and two seeds are not three.
    lines = as_the_paper_says()
    for line in lines[:1]:
        line["config"]["run"] = "another"
    assert judge(lines)[2].word == "not run yet" and judge(lines)[0].word == "holds"
    assert "701" in section(lines, {}) and "711.5" in section(lines, {})


def test_a_page_of_lines_and_one_of_none(tmp_path) -> None:
    empty = section([], draw([], tmp_path))
    assert "Not run yet: 4 rows." in empty and not list(tmp_path.iterdir())
    lines = as_the_paper_says()
    pictures = draw(lines, tmp_path)
    assert set(pictures.values()) == {f"lee-figure{number}.svg" for number in range(1, 9)}
    text = section(lines, pictures)
    assert "| HMM | web | 512 | 7 | 540 | 540.0 (539.0-541.0) |" in text
    assert all(f"({name})" in text for name in pictures.values())
