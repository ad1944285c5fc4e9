"""Constructors of constraints against Python's own string methods, on letters and on tokens."""

import re
from itertools import product

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from hmmlm import HMM, Model
from hmmlm.data.spelling import Spelling
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.generate.constraints import (
    Constraint,
    anything,
    contains,
    contains_any,
    ends_with,
    regex,
    sentences,
    starts_with,
    tokens,
    words,
)

TEXTS = ["".join(s) for size in range(6) for s in product("ab .'!", repeat=size)]


def has(pattern: str):
    return lambda text: re.search(rf"(?<![\w']){pattern}(?![\w'])", text) is not None


def spans(text: str, pattern: str) -> int:
    return len(re.findall(pattern, text))


CASES = {
    "word": (contains("ab"), has("ab")),
    "part": (contains("ab", whole=False), lambda text: "ab" in text),
    "overlapping itself": (contains("aba", whole=False), lambda text: "aba" in text),
    "stop": (contains("a."), lambda text: re.search(r"(?<![\w'])a\.", text) is not None),
    "phrase": (contains("a b"), has("a b")),
    "case": (contains("AB", ignore_case=True), has("ab")),
    "all": (contains("ab", "b"), lambda text: has("ab")(text) and has("b")(text)),
    "any": (contains_any("ab", "ba"), has("(ab|ba)")),
    "none": (~contains("a"), lambda text: not has("a")(text)),
    "start": (starts_with("ab"), lambda text: text.startswith("ab")),
    "end": (ends_with("aba"), lambda text: text.endswith("aba")),
    "words": (words(1, 2), lambda text: 1 <= len(text.split()) <= 2),
    "some words": (words(2), lambda text: len(text.split()) >= 2),
    "no words": (words(0, 0), lambda text: not text.split()),
    "sentences": (sentences(1, 1), lambda text: spans(text, r"[.!][.!']*(?=\s|$)") == 1),
    "two": (sentences(2), lambda text: spans(text, r"[.!][.!']*(?=\s|$)") >= 2),
    "anything": (anything(), lambda text: True),
    "nothing": (~anything(), lambda text: False),
    "both": (starts_with("a") & words(2), lambda text: text[:1] == "a" and len(text.split()) > 1),
    "either": (starts_with("a") | ends_with("!"), lambda text: text[:1] == "a" or text[-1:] == "!"),
    "then": (
        contains("a").then(ends_with("b!")),
        lambda text: any(
            has("a")(text[:cut]) and text[cut:].endswith("b!") for cut in range(len(text) + 1)
        ),
    ),
}
PATTERNS = [
    "(ab|b.)*a?", "[^a]{2,3}", r"a\.", "^a+$", "", r"\w+ \w+", "a{0,2}!", r"[ab]\s*'", r"\!\ a?",
    "a{,2}", "a+?b*?", r"(?:a|b)+", r"[]a-]*", r"[^]b]+", r"[a^]+", r"[a[]*", r"[-a]+", r"[\.\!]+",
    r"\x61\u0062?", r"[\u0061-b]+", r"[\w.-]+", r"a|", r"\S\s\S", r"[^\s]+", r"\Aa|b\Z", "(^a|b$)",
    "(a*)*b", "(a|b|)*", "((ab?){1,2}!?){0,2}", "[^!]", "(?P<n>a)b", r"[^\W\d]+ ?",
]  # fmt: skip
for pattern in PATTERNS:
    CASES[f"regex {pattern}"] = (
        regex(pattern),
        lambda text, pattern=pattern: re.fullmatch(pattern, text) is not None,
    )


@pytest.mark.parametrize("name", CASES)
def test_against_strings(name):
    constraint, truth = CASES[name]
    assert [constraint.accepts(text) for text in TEXTS] == [truth(text) for text in TEXTS]


LETTERS = [
    "a",
    "é",
    "ß",
    "\u0416",
    "\u4e2d",
    "\x80",
    "\u2019",
    "\u20ac",
    "\U0001f600",
    "\U0010ffff",
]


@pytest.mark.parametrize(
    "pattern",
    ["[^a]", "[a-\u00ff]+", "[\u0416-\u4e2d]{2}", ".?.", r"\W\D", r"[^\s\u2019]+", "é|\u20ac.*"],
)
def test_regexes_of_all_characters(pattern):
    made = regex(pattern)
    for text in ("".join(some) for size in range(4) for some in product(LETTERS, repeat=size)):
        assert made.accepts(text) == bool(re.fullmatch(pattern, text, re.ASCII)), text


def test_counts_of_hundreds_are_no_matter():
    made = regex("([a-z]+ ){1,300}")
    assert made.accepts("ab " * 300)
    assert not made.accepts("ab " * 301)
    assert not regex(".{1,200}").accepts("é" * 201)


def words_tokenizer() -> Tokenizer:
    return Tokenizer.words(["ab a b ba . ' ! ab. 'a"])


def byte_level() -> Tokenizer:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<|endoftext|>", "<|other|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["ab aba ba b. a! 'ab' naïve ab. ab ab", "b a b ab!"] * 3, trainer)
    return Tokenizer.from_json(backend.to_str(), source="a tokenizer", eos="<|endoftext|>")


def metaspace() -> Tokenizer:
    vocab = [
        "<unk>",
        "<s>",
        "</s>",
        "<0x61>",
        "\u2581",
        "\u2581a",
        "\u2581ab",
        "a",
        "b",
        ".",
        "'",
        "!",
        "ab",
    ]
    spec = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "vocab": {name: place for place, name in enumerate(vocab)},
            "merges": [],
            "unk_token": "<unk>",
            "byte_fallback": True,
        },
    }
    import json

    return Tokenizer.from_json(json.dumps(spec), source="a tokenizer", eos="</s>")


TOKENIZERS = {"words": words_tokenizer, "bytes": byte_level, "metaspace": metaspace}


def some_strings(tokenizer: Tokenizer, spelling: Spelling) -> list[list[int]]:
    """Token strings, of tokens that write letters of TEXTS."""
    known = [id for id, text in enumerate(spelling.tokens) if text and set(text) <= set(b"ab .'!")][
        :9
    ]
    return [list(string) for size in range(4) for string in product(known, repeat=size)]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_what_tokens_write_is_what_they_decode_to(kind):
    tokenizer = TOKENIZERS[kind]()
    spelling = Spelling.of(tokenizer)
    assert spelling.tokens[tokenizer.eos_id] is None
    for ids in some_strings(tokenizer, spelling):
        told = spelling.text(ids).decode()
        assert told == tokenizer.decode(ids).removeprefix("" if kind == "metaspace" else " ")


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", CASES)
def test_on_tokens(kind, name):
    """Whatever tokens a text is written with; tokens that write nothing have no place in it."""
    tokenizer = TOKENIZERS[kind]()
    spelling = Spelling.of(tokenizer)
    constraint, truth = CASES[name]
    try:
        compiled = constraint.compile(spelling)
    except InputError:  # it has none
        compiled = ~anything().read(spelling)
    assert compiled.num_letters == tokenizer.vocab_size
    for ids in some_strings(tokenizer, spelling):
        assert compiled.accepts(ids) == truth(spelling.text(ids).decode())
        assert not compiled.accepts([*ids, tokenizer.eos_id])


def test_signs_that_are_not_of_ascii_end_a_word():
    rain = contains("rain")
    signs = "\u20ac\U0001f600\u201c\u2014\uff08\uff09\u00a0\u00ab\u00bb\u3001\u3002\uff01\uff1a"
    for sign in signs:
        assert rain.accepts(f"{sign}rain") and rain.accepts(f"a rain{sign}it"), ascii(sign)
        assert not rain.accepts(f"{sign}train") and not rain.accepts(f"rain{sign}"[:4] + "s")
    for letter in "\u00e9\u65e5\u0431\u05d0":
        assert not rain.accepts(f"{letter}rain") and not rain.accepts(f"rain{letter}"), ascii(
            letter
        )
        assert rain.accepts(f"{letter} rain {letter}")
    cafe = contains("caf\u00e9")
    assert cafe.accepts("le caf\u00e9.") and cafe.accepts("\u201ccaf\u00e9\u201d")
    assert not cafe.accepts("caf\u00e9s") and not cafe.accepts("un-dcaf\u00e9")
    assert contains("\u65e5").accepts("\u201c\u65e5\u201d") and not contains("\u00e9").accepts(
        "n\u00e9"
    )


def test_characters_of_several_bytes():
    for pattern in ("é+.x", "[^é]{2}", "[à-ý日]?", "[\u0800-\U0010ffff]"):
        made = regex(pattern)
        for text in ("é日x", "éx", "ééax", "e日x", "é🙂x", "ab", "éé", "日", "à", "ÿ", "", "🙂"):
            assert made.accepts(text) == (re.fullmatch(pattern, text) is not None), (pattern, text)
    spelling = Spelling.of(byte_level())
    halves = [id for id, text in enumerate(spelling.tokens) if text in (b"\xc3", b"\xa9")]
    compiled = regex("é").compile(spelling)
    assert sum(compiled.accepts(pair) for pair in product(halves, repeat=2)) == 1
    assert not any(compiled.accepts([half]) for half in halves)


def test_a_leaf_is_read_once_for_each_vocabulary():
    spelling, other = (Spelling((b" rain", b" t", b"rain", b" Rain")) for _ in range(2))
    once = contains("rain").read(spelling)
    assert contains("rain").read(spelling) is once
    assert contains("rain").read(other) is not once
    kinds = [{}, {"whole": False}, {"ignore_case": True}]
    made = [contains("rain", **how).read(spelling) for how in kinds]
    told = [[one.accepts(text) for text in ([0], [1, 2], [3])] for one in made]
    assert told == [[True, False, False], [True, True, False], [True, False, True]]


@pytest.mark.parametrize("tokens", [(b"ab", None, b"", b"abc", b"b", b" a"), (None, b"")])
def test_the_tree_of_what_tokens_write(tokens):
    spelling = Spelling(tokens)
    ends, levels = spelling.prefixes
    above, nodes = [b""], []
    for parents, spelt in levels:
        above = [above[one] + bytes([byte]) for one, byte in zip(parents, spelt, strict=True)]
        nodes += above
    assert len(set(nodes)) == len(nodes)
    assert [nodes[end] for end in ends] == [tokens[id] for id in spelling.rows[0]]


def test_numbers_of_tokens_count_tokens():
    spelling = Spelling.of(byte_level())
    compiled = (tokens(2, 3) & contains("a", whole=False)).compile(spelling)
    a, b = spelling.tokens.index(b"a"), spelling.tokens.index(b"b")
    assert compiled.accepts([a, b]) and compiled.accepts([a, a, a])
    assert (
        not compiled.accepts([a]) and not compiled.accepts([b, b]) and not compiled.accepts([a] * 4)
    )
    parts = tokens(1, 1).then(starts_with("b")).compile(spelling)
    assert parts.accepts([a, b]) and parts.accepts([b, b, a]) and not parts.accepts([b, a])
    with pytest.raises(InputError, match=r"tokens\(2\.\.3\) counts tokens"):
        tokens(2, 3).accepts("ab")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            contains("zebra"),
            r"of this vocabulary cannot write a text that meets contains\('zebra'\)",
        ),
        (words(2) & contains("zebra"), r"cannot write a text that meets contains\('zebra'\)"),
        (contains("ab") & ~contains("ab"), r"No text meets both contains\('ab'\) and ~contains"),
        (starts_with("a") & regex("b.*"), r"No text meets both starts_with\('a'\) and regex"),
        (~anything() | ~anything(), r"No text meets ~anything\(\), however long"),
        (tokens(2) & tokens(0, 1), r"No text meets both tokens\(2\.\.\) and tokens\(0\.\.1\)"),
    ],
)
def test_what_no_text_is(made, message):
    with pytest.raises(InputError, match=message):
        made.compile(Spelling.of(words_tokenizer()))
    assert (~contains("zebra")).compile(Spelling.of(words_tokenizer())).accepts([])


def test_names():
    made: Constraint = ~contains("a", ignore_case=True) & (words(2) | regex("b*")).then(
        tokens(1, 2)
    )
    assert str(made) == (
        "(~contains('a', ignore_case=True) & (words(2..) | regex('b*')).then(tokens(1..2)))"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: contains(), "no phrase to look for"),
        (lambda: contains(""), "is empty; give at least one letter"),
        (lambda: starts_with("\ud800"), "cannot be written in UTF-8"),
        (lambda: words(3, 2), r"words is 3\.\.2 but must be from 0"),
        (lambda: tokens(-1), r"tokens is -1\.\. but must be from 0"),
        (lambda: regex("a(b").letters, r"'a\(b' is wrong at 1: missing \), unterminated"),
        (lambda: regex("a**").letters, "is wrong at 2: multiple repeat"),
        (lambda: regex("(?=a)b").letters, r"has \(\?=\.\.\.\), which looks around"),
        (lambda: regex(r"(a)\1").letters, r"refers back"),
        (lambda: regex("a^b").letters, r"has \^, which looks around"),
        (lambda: regex("a++").letters, r"has .* \+\+, .* which .* holds on to what it took"),
        (lambda: regex(r"\ba").letters, r"has \\b, which looks around"),
        (lambda: regex("(^a)+").letters, r"has \^, which looks around"),
        (lambda: regex("(?i)a").letters, "has flags; write out"),
        (lambda: regex("(?i:a)b").letters, "has flags; write out"),
        (lambda: regex("(a{999}){999}").letters, "is too large: over 65,536 places"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()


NO_CONSTRAINT = (
    r"'b' is a str but must be a constraint; make one, such as hmmlm\.generate\.contains\('b'\)"
)


@pytest.mark.parametrize("join", [Constraint.__and__, Constraint.__or__, Constraint.then])
def test_a_text_is_no_constraint(join):
    with pytest.raises(InputError, match=NO_CONSTRAINT):
        join(contains("a"), "b")
    with pytest.raises(InputError, match=r"7 is a int but .* hmmlm\.generate\.contains\('rain'\)"):
        join(contains("a"), 7)


def test_a_model_needs_a_constraint():
    tokenizer = words_tokenizer()
    size = tokenizer.vocab_size
    tables = [torch.zeros(shape).log_softmax(-1) for shape in ((1,), (1, 1), (1, size))]
    model = Model(HMM.from_tables(*tables), tokenizer)
    with pytest.raises(InputError, match=NO_CONSTRAINT):
        model.probability("b")
    with pytest.raises(InputError, match=NO_CONSTRAINT):
        model.sample(constraint="b")


def test_sets_of_places_may_be_too_many(monkeypatch):
    monkeypatch.setattr("hmmlm.generate.regexes.WORK", 1 << 16)
    assert regex("(a|b)*a(a|b){3}").letters is not None
    with pytest.raises(InputError, match="or too many sets of them; ask for fewer repetitions"):
        _ = regex("(a|b)*a(a|b){20}").letters


def test_a_tokenizer_of_which_nobody_knows_what_it_writes():
    backend = Backend(models.BPE({"a": 0, "<eos>": 1}, []))
    backend.decoder = decoders.CTC()
    tokenizer = Tokenizer.from_json(backend.to_str(), source="a tokenizer")
    with pytest.raises(InputError, match=r"decoder \(CTC\) is not one whose tokens are known"):
        Spelling.of(tokenizer)
