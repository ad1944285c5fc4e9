"""The examples: every script says what its docstring promises, and the notebooks run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hmmlm

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = str(Path(hmmlm.__file__).parents[1])
LIMIT = 300
"""Seconds; each takes under a minute on two cores that have nothing else to do."""


def run(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == ""
    return done.stdout


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not in\n{text}"
    return float(found[1].replace(",", ""))


def test_an_hmm_of_your_text_knows_what_ngrams_do_not(tmp_path: Path) -> None:
    said = run("train_on_your_text", tmp_path)
    hmm = number(r"HMM, 1,040 states +([\d.]+)", said)
    bigram, trigram = (number(rf"Ney {name} +([\d.]+)", said) for name in ("bigram", "trigram"))
    assert hmm < bigram and number(r"half each +([\d.]+)", said) < min(hmm, trigram) - 4
    unseen = re.search(r"never seen .* HMM +([\d.]+) +trigram +([\d.]+)", said)
    assert unseen and float(unseen[1]) < float(unseen[2])
    answer = [sys.executable, "-m", "hmmlm", "next", "runs/my-text", "the value of"]
    told = subprocess.run(answer, cwd=tmp_path, env={**os.environ, "PYTHONPATH": SOURCE}, text=True,
                          capture_output=True, timeout=LIMIT)  # fmt: skip
    assert told.returncode == 0 and "the" in told.stdout.split()


def test_gaps_know_their_right_side(tmp_path: Path) -> None:
    said = run("fill_and_ask", tmp_path)
    integers = said.split("a ? of integers .")[1].splitlines()
    assert re.search(r"given all of it +(list|number|sequence)", integers[1])
    assert re.search(r"given the left +class", integers[2])
    drawn = re.findall(r"^  \S+e-\d+  (the \S+ of the \S+ is .*)$", said, re.M)
    assert len(drawn) == 5
    best, hundred = number(r"only ([\d.]+)% of p", said), number(r"best are ([\d.]+)% of it", said)
    assert 0 < best < hundred < 100
    sure = re.findall(r"^ +\S+  ([01]\.\d{3})  ([01]\.\d{3})$", said, re.M)
    better = sum(float(both) > float(left) for left, both in sure)
    assert len(sure) == 11 and better >= 8  # what comes after a word tells something of it


def test_all_texts_meet_their_constraint(tmp_path: Path) -> None:
    said = run("constrained_text", tmp_path)
    assert said.count("   met:  ") == 18 and "NOT MET" not in said and "<unk>" not in said
    pairs = re.findall(r"p = (\S+); of the free texts ([\d,]+), ", said)
    assert len(pairs) == 6
    for told, count in pairs:  # within five standard errors, and one text
        expected, drawn = 2000 * float(told), int(count.replace(",", ""))
        assert abs(drawn - expected) < 5 * expected**0.5 + 1
    assert 0 < float(pairs[-1][0]) < 1e-5  # what drawing freely would not find


def test_a_steered_llm_has_the_words_where_they_fit(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    said = run("steer_an_llm", tmp_path)
    met = {name: number(rf"{name}: (\d+) of 40", said) for name in ("free", "mask", "guided")}
    assert met["free"] < 10 and met["mask"] == met["guided"] == 40
    nats = {name: number(rf"{name}: .*; ([\d.]+) nats", said) for name in met}
    assert nats["guided"] < nats["free"] + 0.5 < nats["mask"]


def test_more_states_come_nearer_to_the_optimum(tmp_path: Path) -> None:
    said = run("known_optimum", tmp_path)
    gaps = [number(rf"HMM, {states} states +([\d.]+)", said) for states in (15, 60, 240)]
    assert gaps[0] > gaps[1] > gaps[2] > 0 and gaps[2] < 0.1
    assert gaps[2] < number(r"Kneser-Ney, order 5 +([\d.]+)", said)


def test_a_parameterisation_of_ones_own_knows_more(tmp_path: Path) -> None:
    said = run("your_own_parameterisation", tmp_path)
    truth = number(r"truth +([\d.]+)", said)
    clock, free = (
        re.search(rf"{name} +([\d.]+) from 10 diaries, ([\d.]+) from 80", said)
        for name in ("clock", "free tables")
    )
    assert clock and free
    for mine, theirs in zip(clock.groups(), free.groups(), strict=True):
        assert truth < float(mine) < float(theirs)
    assert "lunch work work tea work train shop cook dinner read bath sleep" in said


def test_every_script_is_run_and_told_of() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    mine = Path(__file__).read_text()
    assert len(scripts) == 6 and all(f'run("{name}"' in mine for name in scripts)
    page = (EXAMPLES.parent / "docs/examples.md").read_text()
    for path in (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")):
        assert f"../examples/{path.name}" in page, path.name


@pytest.mark.parametrize("name", ["tour", "induced_tags"])
def test_a_notebook_runs_and_was_kept_with_its_figures(name: str, monkeypatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    path = EXAMPLES / f"{name}.ipynb"
    assert path.stat().st_size < 300_000
    kept = nbformat.read(path, 4)
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    again = nbformat.from_dict(kept)
    nbclient.NotebookClient(
        again, timeout=LIMIT, resources={"metadata": {"path": str(EXAMPLES)}}
    ).execute()
    pictures = 0
    for old, new in zip(nbformat.read(path, 4).cells, again.cells, strict=True):
        if old.cell_type != "code":
            continue
        kinds = [{output.output_type for output in cell.outputs} for cell in (old, new)]
        assert kinds[0] == kinds[1] and "error" not in kinds[0], old.source
        pictures += "display_data" in kinds[0]
    assert pictures >= 2
