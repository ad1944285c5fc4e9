"""Words that are read as <unk> are told, in a line on stderr, wherever a text is given."""

import json

import pytest

from hmmlm.data.tokenizer import Tokenizer

TOLD = "hmmlm: 2 of 4 words are not in the vocabulary and are read as <unk>: The, zebra "
TOLD += "(the model's words are in lower case)\n"
TEXT = "The red zebra <unk>"


@pytest.mark.parametrize(
    "command",
    [
        ["next", "model", TEXT],
        ["sample", "model", f"--prompt={TEXT}"],
        ["sample", "model", f"--prompt={TEXT}", "--words=2"],
        ["fill", "model", "The ? red * zebra <unk>"],
        ["score", "model", "new.txt"],
        ["score", "model", "new.txt", "--json"],
        ["tag", "model", "new.txt"],
        ["evaluate", "model", "new.txt"],
    ],
)
def test_unknown_words_are_told(place, call, command):
    (place / "new.txt").write_text(TEXT + "\n")
    answer = call(*command)
    assert answer.status == 0 and answer.err.endswith(TOLD), answer
    assert len(answer.err.splitlines()) == (2 if "--words=2" in command else 1)


def test_words_that_are_known_are_not_told(place, call):
    assert call("next", "model", "the red <unk>").err == ""
    assert call("next", "model").err == ""
    assert call("fill", "model", r"the ? * dog").err == ""
    assert call("score", "model", "text.txt").err == ""


def test_one_word(place, call):
    said = "hmmlm: 1 of 1 word is not in the vocabulary and is read as <unk>: zebra\n"
    assert call("next", "model", "zebra").err == said


def test_of_many_words_there_is_a_share_and_some_names(place, call):
    lines = ["the red dog sees a cat .\n"] * 100 + ["a1 a2 a3 a2 a4 a5 a6 a7\n"]
    (place / "new.txt").write_text("".join(lines))
    said = "hmmlm: 8 of 708 words (1.1%) are not in the vocabulary and are read as <unk>: "
    assert call("score", "model", "new.txt").err == said + "a1, a2, a3, a4, a5, ...\n"


def test_a_vocabulary_with_capitals(place, call):
    (place / "new.txt").write_text("the dog and Paris\n" * 50)
    assert call("prepare", "new.txt", "--out=new").status == 0
    options = ["--states=2", "--blocks=0", "--epochs=1", "--out=small"]
    assert call("train", "new", *options).status == 0
    said = call("next", "small", "The zebra").err
    assert said.endswith("are read as <unk>: The, zebra (it knows the)\n")


def test_pieces_of_words_and_their_unknown_ones():
    vocab = [["<unk>", 0.0], ["</s>", 0.0], ["▁a", -1.0], ["b", -2.0], ["▁", -3.0]]
    spec = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True,
        },
        "decoder": {
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True,
        },
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": False},
    }  # fmt: skip
    made = Tokenizer.from_json(json.dumps(spec), source="here", eos="</s>")
    assert made.unknown("ab a") == []
    assert made.unknown("ab xb") == ["x"]


def test_the_same_in_lower_case_is_asked_for(refused):
    said = "The tokens of this vocabulary cannot write a text that meets "
    for option, shown in (
        ("--must-contain=Dog", "contains('Dog')"),
        ("--starts-with=The red", "starts_with('The red')"),
        ("--ends-with=Cat .", "ends_with('Cat .')"),
    ):
        phrase = option.partition("=")[2].lower()
        asked = f"{said}{shown}; did you mean {phrase}?"
        assert refused("sample", "model", option) == asked
    assert "did you mean" not in refused("sample", "model", "--must-contain=Zebra")
