"""`hmmlm fill` as people run it."""

import json
import re

import pytest

from hmmlm.model import Model

PATTERN = "the ? dog sees a ? ."


def test_lines_with_their_probabilities(call, made):
    model = made.folder / "model"
    answer = call("fill", model, PATTERN, "-n", 3, "--seed=1", "--top=2")
    assert answer.status == 0 and answer.err == ""
    lines = answer.out.splitlines()
    fills = Model.load(model).fill(PATTERN, 3, seed=1)
    assert lines[:3] == [f"{fill.prob:.3e}  {fill.text}" for fill in fills]
    (first, second), (third, fourth) = Model.load(model).gap_words(PATTERN, 2)
    assert lines[3] == f"? 1: {first[0]} {first[1]:.4f}  {second[0]} {second[1]:.4f}"
    assert lines[4] == f"? 2: {third[0]} {third[1]:.4f}  {fourth[0]} {fourth[1]:.4f}"
    assert len(lines) == 5


def test_json_says_the_same(call, made):
    model = made.folder / "model"
    answer = call("fill", model, "the red * .", "--length=1..3", "--seed=2", "--json")
    found = json.loads(answer.out.splitlines()[-1])
    truth = Model.load(model).fill("the red * .", length=(1, 3), seed=2)
    assert found == {"fills": [json.loads(json.dumps(line._asdict())) for line in truth]}
    assert {len(line["words"]) for line in found["fills"]} <= {1, 2, 3}
    answer = call("fill", model, PATTERN, "--top=1", "--json")
    found = json.loads(answer.out.splitlines()[-1])
    assert [[set(word) for word in gap] for gap in found["gaps"]] == [[{"token", "prob"}]] * 2
    assert len(found["fills"]) == 5


def test_one_length(call, made):
    answer = call("fill", made.folder / "model", "the red * .", "--length=2", "-n", 4)
    assert all(re.fullmatch(r"\S+  the red \S+ \S+ \.", x) for x in answer.out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["the dog"], r"The pattern 'the dog' has no gap; write ? for one word or * for some"),
        (["* the *"], "The pattern '* the *' has 2 gaps of unknown length; use one *"),
        (["a *", "--length=5..2"], "'5..2' is not a range of whole numbers, smallest first"),
        (["a *", "--length=-1..2"], "'-1..2' is not a range of whole numbers"),
        (["a *", "--length=few"], "'few' is not a range of whole numbers"),
        (["a ?", "-n", 0], "'0' is not a whole number of at least 1"),
        (["a *", "--top", 3], "The pattern 'a *' has no ?, whose words could be told"),
        (["a ?", "--seed=-2"], "'-2' is not a whole number of at least 0"),
    ],
)
def test_what_cannot_be_filled(refused, arguments, message):
    assert message in refused("fill", "model", *arguments)
