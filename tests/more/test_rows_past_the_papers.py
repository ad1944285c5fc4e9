"""Every table that goes past the papers runs, in its smallest form."""

from pathlib import Path

import pytest
from experiments.past.topics import EXPERIMENT as TOPICS

from experimenting import read, run
from hmmlm.data.shards import Corpus
from hmmlm.evaluate import evaluate
from hmmlm.model import Model


@pytest.fixture(scope="module")
def past(tmp_path_factory) -> Path:
    """One folder for all tables: those of the same settings share a training there."""
    return tmp_path_factory.mktemp("past")


@pytest.mark.parametrize(
    "table", ["small", "laptop", "search", "drawn", "final", "ablation", "million"]
)
def test_rows_past_the_papers(table: str, past: Path) -> None:
    said = run(f"past.{table}", "--smoke", "--work", str(past), "--workers", "2")
    assert said["rows"] == said["done"] > 0 and not said["left"] and not said["failed"]
    lines = [line for line in read(past / "results.jsonl") if line["experiment"].endswith(table)]
    is_tested = table in ("laptop", "final", "million")
    assert lines and all(10 < line["val"] < 900 for line in lines)
    assert all((line["test"] is not None) == is_tested for line in lines)
    if table == "drawn":
        assert len({line["tokens_trained"] for line in lines}) > 1  # more beside drawn text
        assert len(list((past / "drawn").glob("*.corpus"))) == 2
    if table == "final":
        assert run("past.mixture", "--smoke", "--work", str(past))["made"] > 0
        alone, _, _, mixed, flatter = read(past / "results.jsonl")[-5:]
        single = next(line for line in lines if line["mode"] == "sentence")
        assert mixed["val"] == pytest.approx(single["val"], rel=1e-3)  # of one training thrice
        assert alone["row"].endswith("seed 1111, flatter") and alone["val"] <= single["val"]
        assert flatter["row"] == f"{mixed['row']}, flatter"
        for line in (alone, mixed, flatter):  # from the parts, as the one HMM has it
            model = Model.load(past / "mixtures" / line["config"]["run"])
            text = Corpus.open(past / f"{line['config']['text']}.corpus").split("valid")
            found = evaluate(model.lm, text, mode="sentence", eos_id=model.tokenizer.eos_id)
            assert line["val"] == pytest.approx(found.perplexity, rel=1e-5)
        assert flatter["val"] == pytest.approx(alone["val"], rel=1e-3)
        assert run("past.mixture", "--smoke", "--work", str(past))["made"] == 0
    if table == "laptop":
        for _ in range(2):  # a second time nothing is made
            told = run("past.topics", "--smoke", "--work", str(past), "--of=laptop")
            assert told == {"made": 2, "left": []}  # of both texts, which are one here
            made = [one for one in read(past / "results.jsonl") if one["experiment"] == TOPICS]
            assert [line["mode"] for line in made] == ["sentence", "streaming"] * 3
        *tried, sentence, streaming = made
        assert all(line["test"] is None for line in tried)
        best = min(tried[1::2], key=lambda line: line["val"])
        assert best["config"] == streaming["config"] and best["val"] == streaming["val"]
        assert 10 < streaming["test"] < 900 and sentence["test"] != streaming["test"]
