"""Tags that nobody told: what is run, and what the page says of its lines."""

from pathlib import Path

import pytest
from experiments.report import main as report
from experiments.results import add_lines

from experiments import induction


def line(seed: int, share: float, text: str = "ewt", **more) -> dict:
    measures = dict.fromkeys(induction.MEASURES, share)
    about = {"row": "EM, dense", "dataset": "ewt", "tokens": 1000, "gold_tags": 17, "used": 45}
    about |= {"by": "path", "merge": None, "train": 300.0, "device": "here", "commit": "abc"}
    return {**about, "tags": "penn", "seed": seed, **measures, "config": {"text": text}, **more}


def test_the_section_has_means_and_spreads() -> None:
    lines = [line(1, 0.1), line(1, 0.5), line(2, 0.6), line(3, 0.7)]  # the newest of a seed counts
    text = induction.section(lines)
    cells = "60.0 ± 10.0 | 60.0 ± 10.0 | 60.0 ± 10.0 | 0.60 ± 0.10"
    assert f"| EM, dense | 45 | 45 ± 0 | 3 | 300.0 ± 0.0 |  | {cells} |" in text
    assert "the 17 penn tags" in text and "1,000 tokens" in text and "Commit: abc." in text
    one = induction.section([line(1, 0.5, merge=17)])
    assert "| EM, dense | 45 | 45 | 1 | 300.0 | 17 | 50.0 | 50.0 | 50.0 | 0.50 |" in one
    assert "Not run yet: EM, dense, SGD, dense, SGD, 32" in one  # only merged, so not whole
    assert "Not run yet: SGD, dense, SGD, 32 Brown blocks, " in text
    assert "Not run yet.\n" in induction.section([])


def test_lines_of_a_rehearsal_are_no_results(tmp_path: Path) -> None:
    add_lines(tmp_path / "lines", [line(1, 0.5, text="built-in")])
    with pytest.raises(SystemExit, match="has lines of --smoke, which are no results"):
        report(["--induced", str(tmp_path / "lines")])


def test_what_is_asked_for() -> None:
    with pytest.raises(SystemExit, match="Give --data DIR, or --smoke"):
        induction.main(["--commit=x"])
    with pytest.raises(SystemExit, match=r"no ewt/tagged.tsv or ewt/tagged.tsv.xz; give --data"):
        induction.find_gold(Path("/no"))


def test_clusters_of_words_are_states(tmp_path: Path) -> None:
    """The rows without a training, on made-up tags."""
    words = ["--smoke", "--work", str(tmp_path), "--commit=x", "--row=Brown clusters of words"]
    assert induction.main(words) == 0
    lines = induction.read_lines(tmp_path / "results.jsonl")
    assert [(one["tags"], one["merge"]) for one in lines] == [
        ("universal", None), ("penn", None), ("universal", 17), ("penn", 17),
    ]  # fmt: skip
    assert all(one["used"] == 45 and one["by"] == "path" for one in lines)
    fine, coarse = lines[0], lines[2]
    assert fine["many_to_one"] >= coarse["many_to_one"] > 0 and fine["seed"] == 1
