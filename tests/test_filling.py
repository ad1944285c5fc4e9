"""Lines with gaps: what a model puts there, against the enumeration of all lines."""

import itertools
import json
import math
from collections import Counter

import pytest
import torch

from enumeration import enumerate_row
from hmmlm import HMM, Model, filling, inference
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from models import make_hmm

WORDS = ["<unk>", "<eos>", "a", "b", "c"]
EOS = 1
KINDS = [("dense", "dense"), ("blocks", "factored"), ("ragged", "dense")]
PATTERNS = ["a ? b", "? ?", "* c", "a * ?", "? a *", "*", "a <eos> ? b", "unheard ?"]


def make_model(support: str = "dense", transitions: str = "dense") -> Model:
    tokenizer = Tokenizer.words({"a": 3, "b": 2, "c": 1})
    assert [tokenizer.token(i) for i in range(5)] == WORDS
    return Model(make_hmm(support, transitions), tokenizer)


def all_lines(model: Model, pattern: str, length: tuple[int, int]) -> dict[tuple, float]:
    """p(line) for the words of every way to fill the gaps, by their size and in order."""
    found = {}
    words = [word for word in range(5) if word != EOS]
    marks = pattern.split()
    sizes = range(length[0], length[1] + 1) if "*" in marks else [0]
    for size in sizes:
        parts: list[list[int]] = []
        for mark in marks:
            if mark in "?*":
                parts.append([-1] * (1 if mark == "?" else size))
            else:
                parts.append([WORDS.index(mark) if mark in WORDS else 0])
        ids = [id for part in parts for id in part] + [EOS]
        gaps = [t for t, id in enumerate(ids) if id < 0]
        for chosen in itertools.product(words, repeat=len(gaps)):
            for t, word in zip(gaps, chosen, strict=True):
                ids[t] = word
            prob = math.exp(enumerate_row(model.hmm, ids, reset_id=EOS).log_evidence)
            found[tuple(WORDS[word] for word in chosen)] = prob
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", KINDS)
def test_fills_and_their_probabilities(kind, pattern):
    model = make_model(*kind)
    truth = all_lines(model, pattern, (0, 2))
    total = sum(truth.values())
    draws = 400
    found = model.fill(pattern, draws, length=(0, 2), seed=3)
    assert len(found) == draws
    seen = Counter(tuple(line.words) for line in found)
    for line in found:
        assert line.prob == pytest.approx(truth[tuple(line.words)] / total, abs=1e-10)
    for words, prob in truth.items():
        p = prob / total
        assert abs(seen[words] / draws - p) <= 5 * math.sqrt(p * (1 - p) / draws) + 3 / draws
    words = "".join(f"{word} " for word in found[0].words)
    assert model.span(pattern, words, length=(0, 2)) == pytest.approx(found[0].prob, abs=1e-10)
    if len(truth) <= 21:  # each takes its time
        every = sum(model.span(pattern, list(words), length=(0, 2)) for words in truth)
        assert every == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if "?" in p])
@pytest.mark.parametrize("kind", KINDS)
def test_words_of_gaps(kind, pattern):
    model = make_model(*kind)
    truth = all_lines(model, pattern, (0, 2))
    total = sum(truth.values())
    found = model.gap_words(pattern, 9, length=(0, 2))
    marks = [mark for mark in pattern.split() if mark in "?*"]
    singles = [i for i, mark in enumerate(marks) if mark == "?"]
    assert len(found) == len(singles)
    for i, gap in zip(singles, found, strict=True):
        probs = dict.fromkeys(WORDS, 0.0)
        for words, prob in truth.items():
            moved = len(words) - len(marks) if "*" in marks[:i] else 0
            probs[words[i + moved]] += prob / total
        assert dict(gap) == pytest.approx(probs, abs=1e-10)
        assert [prob for _, prob in gap] == sorted((prob for _, prob in gap), reverse=True)
    assert [len(gap) for gap in model.gap_words(pattern, 2)] == [2] * len(singles)


def test_the_text_of_a_fill():
    model = make_model()
    line = model.fill("a ? b *", 1, length=(1, 1), seed=1)[0]
    assert line.text == f"a {line.words[0]} b {line.words[1]}"
    assert model.fill("a ? b", 3, seed=1) == model.fill("a ? b", 3, seed=1)
    texts = {line.text for line in model.fill("? ? ?", 50, seed=0)}
    assert len(texts) > 10 and all("<eos>" not in text and "\n" not in text for text in texts)


def test_marks_after_a_backslash_or_inside_a_word_are_words():
    tokenizer = Tokenizer.words({"?": 3, "*": 2, "what?": 1, "\\?": 1})
    small = make_hmm("dense")
    table = torch.log_softmax(torch.randn(3, tokenizer.vocab_size).double(), -1)
    model = Model(HMM.from_tables(small.log_init, small.transitions, table), tokenizer)
    pattern = r"\? ? \* what? \\?"
    line = model.fill(pattern, 1, seed=0)[0]
    assert line.text == rf"? {line.words[0]} * what? \?"
    before, *after = (tokenizer.id(word) for word in ("?", "*", "what?", "\\?"))
    probs = [
        math.exp(enumerate_row(model.hmm, [before, word, *after, EOS], reset_id=EOS).log_evidence)
        for word in range(tokenizer.vocab_size)
    ]
    probs[EOS] = 0.0
    truth = probs[tokenizer.id("*")] / sum(probs)
    assert model.span(pattern, "*") == pytest.approx(truth, abs=1e-10)


def test_a_gap_is_never_the_end():
    assert make_model("blocks").span("a ?", "<eos>") == 0


def test_a_piece_of_a_word_is_one_token():
    """A tokenizer of characters: each ? is one of them."""
    model = characters()
    line = model.fill("ab ? ?", 1, seed=0)[0]
    assert len(line.words) == 2 and line.text == "ab" + "".join(line.words)


def test_pieces_of_a_line_are_those_of_the_whole_line():
    """Of a tokenizer that puts a space in front of every text, and of one that has none."""
    names = ["<eos>", "\u2581", "a", "b", "\u2581a", "\u2581b"]
    spec = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        "pre_tokenizer": None,
        "decoder": {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        "model": {
            "type": "BPE",
            "vocab": {name: id for id, name in enumerate(names)},
            "merges": ["\u2581 a", "\u2581 b"],
        },
    }
    for normalizers in (2, 1):
        spec["normalizer"]["normalizers"] = spec["normalizer"]["normalizers"][-normalizers:]
        tokenizer = Tokenizer.from_json(json.dumps(spec), source="pieces", eos="<eos>")
        whole = tokenizer.encode("a b a")
        line = filling.read_pattern(tokenizer, "a ? a", (0, 5))
        gapped = [-1 if place == 1 else id for place, id in enumerate(whole)]
        assert line.ids[0, : len(whole)].tolist() == gapped


def characters() -> Model:
    letters = {letter: i for i, letter in enumerate(["<eos>", "a", "b", "c", "d"])}
    spec = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Strip", "strip_left": True, "strip_right": True},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "."},
            "behavior": "Isolated",
            "invert": False,
        },
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": letters, "unk_token": "<unk>"},
    }
    tokenizer = Tokenizer.from_json(json.dumps(spec), source="letters", eos="<eos>")
    return Model(make_hmm("blocks"), tokenizer)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.fill("a b"), r"The pattern 'a b' has no gap; write \? for one word"),
        (lambda m: m.fill(r"a \?"), "has no gap"),
        (lambda m: m.gap_words("a b"), "has no gap"),
        (lambda m: m.fill("* a *"), r"has 2 gaps of unknown length; use one \*"),
        (lambda m: m.fill("a *", length=(3, 2)), "length is 3 to 2 but must be a range"),
        (lambda m: m.fill("a *", length=(-1, 2)), "length is -1 to 2 but must be a range"),
        (lambda m: m.fill("a ?", 0), "n is 0 but must be at least 1"),
        (lambda m: m.fill("a ?", seed=-1), "seed is -1 but must lie between 0"),
        (lambda m: m.fill("a \ud800 ?"), "which UTF-8 cannot write"),
        (lambda m: m.gap_words("a ?", 0), "k is 0 but must be at least 1"),
        (lambda m: m.gap_words("a *"), r"The pattern 'a \*' has no \?, whose words could be told"),
        (
            lambda m: m.span("a ? ?", "b"),
            r"has gaps for 2 words but 1 was given; give one for each \?",
        ),
        (
            lambda m: m.span("a ? *", "b b b b", length=(1, 2)),
            "has gaps for 2 to 3 words but 4 were given",
        ),
    ],
)
def test_what_cannot_be_filled(call, message):
    with pytest.raises(InputError, match=message):
        call(make_model())


def test_a_line_of_probability_zero():
    model = make_model("blocks")
    model.hmm.log_emit[2] = -torch.inf  # nothing says "a" any more
    for call in (model.fill, model.gap_words, lambda pattern: model.span(pattern, "b")):
        with pytest.raises(InputError, match="The pattern 'a \\?' has probability zero under this"):
            call("a ?")


def test_a_word_that_no_token_stands_for():
    with pytest.raises(InputError, match="The tokenizer cannot encode this text"):
        characters().fill("x ?")


def test_a_model_with_evidence_is_not_saved(tmp_path):
    model = make_model("blocks")
    soft = inference.soften(model.hmm, torch.zeros(2, 5))
    with pytest.raises(InputError, match="This HMM has 2 pieces of soft evidence and cannot be"):
        Model(soft, model.tokenizer).save(tmp_path / "m")
