"""`hmmlm plot`."""

import json
import re
import sys
from pathlib import Path

import pytest

from commands import tree

GOOD = (
    '{"step": 1, "steps": 1, "epoch": 1, "loss": 2.0, "perplexity": 7.4, "tokens": 8, '
    '"tokens_per_second": 3.0, "learning_rate": 0.1, "val": 9.0}\n'
)


def test_one_is_not_many(place, call):
    Path("model/metrics.jsonl").write_text(GOOD.replace('"tokens": 8', '"tokens": 1'))
    assert call("plot", "model").out.startswith("model: 1 step, 1 token, best on validation")


def test_a_picture_of_a_run(place, call):
    before = tree(place / "model")
    answer = call("plot", "model", "--json")
    assert answer.status == 0, answer.err
    assert Path("model-curves.svg").read_text().startswith("<?xml")
    steps = [json.loads(line) for line in Path("model/metrics.jsonl").read_text().splitlines()]
    best = min((step for step in steps if step["val"]), key=lambda step: step["val"])
    result = json.loads(answer.out.splitlines()[-1])
    assert result == {
        "file": "model-curves.svg",
        "runs": [
            {
                "name": "model",
                "folder": "model",
                "steps": steps[-1]["step"],
                "tokens": steps[-1]["tokens"],
                "val": best["val"],
                "best_step": best["step"],
            }
        ],
    }
    assert f"best on validation {best['val']:.2f} at {best['step']:,}\n" in answer.out
    assert tree(place / "model") == before  # the folder stays as it was saved


def test_the_default_name_goes_on_to_the_next_free_one(place, call):
    for expected in ("model-curves.svg", "model-curves-2.svg", "model-curves-3.svg"):
        assert call("plot", "model").out.endswith(f"wrote {expected}\n")
        assert Path(expected).exists()


@pytest.mark.parametrize(
    ("name", "start"), [("x.png", b"\x89PNG"), ("x.svg", b"<?xml"), ("x.pdf", b"%PDF")]
)
def test_several_runs_in_each_kind_of_picture(place, call, name, start):
    Path("other/model").mkdir(parents=True)
    Path("other/model/metrics.jsonl").write_text(GOOD)
    answer = call("plot", "model", "other/model", "--x=steps", "--out", name, "--json")
    assert answer.status == 0, answer.err
    assert Path(name).read_bytes().startswith(start)
    result = json.loads(answer.out.splitlines()[-1])
    assert [run["name"] for run in result["runs"]] == ["model", "other/model"]
    assert call("plot", "model", "other/model").out.endswith("wrote curves.svg\n")


METRICS = {  # what is wrong, what the file has, and what is said
    "empty": ("", "bad/metrics.jsonl is empty; train for at least one step."),
    "broken": (
        GOOD + "{\n",
        "bad/metrics.jsonl, line 2 is not a JSON object; remove the line or train again.",
    ),
    "deep": (
        "[" * 100_000 + "\n",
        "bad/metrics.jsonl, line 1 is not a JSON object; remove the line or train again.",
    ),
    "true": (
        GOOD.replace("2.0", "true"),
        "bad/metrics.jsonl, line 1: loss is true but must be a finite number; remove the line or "
        "train again.",
    ),
    "huge": (
        GOOD.replace("2.0", "1" + 400 * "0"),
        f"bad/metrics.jsonl, line 1: loss is 1{400 * '0'} but must be a finite number; remove the "
        "line or train again.",
    ),
    "list": (
        "[]\n",
        "bad/metrics.jsonl, line 1 is not a JSON object; remove the line or train again.",
    ),
    "null": (
        GOOD.replace("2.0", "null"),
        "bad/metrics.jsonl, line 1: loss is null but must be a finite number; remove the line or "
        "train again.",
    ),
    "nan": (
        GOOD + GOOD.replace("2.0", "NaN"),
        "bad/metrics.jsonl, line 2: loss is NaN but must be a finite number; remove the line or "
        "train again.",
    ),
    "missing": (
        GOOD.replace("tokens", "words"),
        "bad/metrics.jsonl, line 1: tokens is missing but must be a number above 0; remove the "
        "line or train again.",
    ),
    "text": (
        GOOD.replace("0.1", '"high"'),
        'bad/metrics.jsonl, line 1: learning_rate is "high" but must be a finite number; remove '
        "the line or train again.",
    ),
    "zero": (
        GOOD.replace("9.0", "0"),
        "bad/metrics.jsonl, line 1: val is 0 but must be a number above 0; remove the line or "
        "train again.",
    ),
}


@pytest.mark.parametrize(("text", "said"), METRICS.values(), ids=METRICS)
def test_metrics_that_cannot_be_drawn(place, refused, text, said):
    Path("bad").mkdir()
    Path("bad/metrics.jsonl").write_text(text)
    assert refused("plot", "model", "bad") == said


def test_metrics_that_are_not_text(place, refused):
    Path("bad").mkdir()
    Path("bad/metrics.jsonl").write_bytes(b"\xff\n")
    said = "bad/metrics.jsonl is not UTF-8 text; copy the folder again or train again."
    assert refused("plot", "bad") == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no"], "no is not a folder; give the model folder of a training."),
        (["text.txt"], "text.txt is not a folder; give the model folder of a training."),
        (
            ["corpus"],
            "corpus has no metrics.jsonl; give the model folder that hmmlm train wrote.",
        ),
        (["model", "model"], "model is given twice; name each run once."),
        (
            ["model", "--out=x.gif"],
            "x.gif does not end in one of .svg, .png, .pdf; choose one of these kinds of picture.",
        ),
        (
            ["model", "--out=x"],
            "x does not end in one of .svg, .png, .pdf; choose one of these kinds of picture.",
        ),
        (
            ["model", "--out=old.svg"],
            "old.svg already exists and is never overwritten; choose another name or remove it "
            "first.",
        ),
        (["model", "--x=hours"], "Invalid value for '--x': 'hours' is not one of tokens, steps; "),
        ([], "Missing argument 'RUN'; see hmmlm plot --help."),
    ],
)
def test_what_plot_refuses(place, refused, arguments, said):
    Path("old.svg").write_text("old")
    assert refused("plot", *arguments).startswith(said)


def test_matplotlib_is_asked_for_by_its_extra(place, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = r"Curves are drawn with matplotlib, .*; run pip install 'hmmlm\[explore\]'\."
    assert re.fullmatch(said, refused("plot", "model"))
