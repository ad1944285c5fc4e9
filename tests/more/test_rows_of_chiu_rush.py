"""Every table of Chiu & Rush 2020 runs, in its smallest form."""

from pathlib import Path

import pytest

from experimenting import read, run
from hmmlm.data.shards import Corpus
from hmmlm.evaluate import evaluate
from hmmlm.neural_model import load_model

TABLES = {"table1": 16, "figure3": 7, "table2": 3, "table3": 14, "table4": 10, "appendix_a2": 7}
TABLES["awd_lstm"] = 3
"""The files of Chiu & Rush 2020 and how many rows they have."""


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """One folder for all tables: those of the same settings share a training there."""
    return tmp_path_factory.mktemp("work")


@pytest.mark.parametrize("table", TABLES)
def test_tables_of_chiu_and_rush(table: str, work: Path) -> None:
    said = run(f"chiu_rush_2020.{table}", "--smoke", "--work", str(work), "--workers", "2")
    assert said == {"rows": TABLES[table], "done": TABLES[table], "left": [], "failed": []}
    lines = [line for line in read(work / "results.jsonl") if line["experiment"].endswith(table)]
    assert len(lines) == 2 * TABLES[table]
    assert {line["mode"] for line in lines} == {"sentence", "streaming"}
    for line in lines:
        assert 10 < line["val"] < 600 and 10 < line["test"] < 600 and 1 < line["train"] < 600
        assert (line["tokens_val"], line["tokens_test"]) == (2802, 5527)
        assert line["ms_eval_batch"] > 0 and line["parameters"] > 1000


def test_numbers_are_those_of_the_models(work: Path) -> None:
    """Of one that is there: its perplexities are read again, each of its own text."""
    run("chiu_rush_2020.table2", "--smoke", "--work", str(work), "--row", "VL-HMM 2^14")
    lines = [line for line in read(work / "results.jsonl") if line["row"] == "VL-HMM 2^14"]
    assert len(lines) == 2
    for line in lines:
        lm = load_model(work / "runs" / line["config"]["run"], device="cpu").lm
        corpus = Corpus.open(work / "built-in.corpus")
        for key, split, mode in (
            ("val", "valid", line["mode"]),
            ("test", "test", line["mode"]),
            ("train", "train", "sentence"),
        ):
            found = evaluate(lm, corpus.split(split), mode=mode, eos_id=corpus.tokenizer.eos_id)
            assert found.perplexity == pytest.approx(line[key], rel=1e-6)


def test_the_page_of_all_tables(work: Path) -> None:
    """After the tests above; all is there, and what stands there is what the lines say."""
    page = work / "docs/results.md"
    words = ["--lines", str(work / "results.jsonl"), "--distilled", str(work / "none.jsonl")]
    said = run("report", *words, "--out", str(page))
    assert said["lines"] == 2 * sum(TABLES.values())
    text, _, others = page.read_text().partition("# Lee & Berg-Kirkpatrick 2025\n")
    assert "not run yet" not in text and "A rehearsal" in text and "not run yet" in others
    val = next(line["val"] for line in read(work / "results.jsonl") if line["row"] == "KN 5-gram")
    assert f"**{val:.1f}**" in text
    for name in ("figure3.svg", "figure4.svg"):
        assert f"({name})" in text and (page.parent / name).read_text().startswith("<?xml")
