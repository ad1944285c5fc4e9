"""Files of labels beside the lines of a text."""

from pathlib import Path

import numpy as np
import pytest

from hmmlm.data.batches import Packed, Windows
from hmmlm.data.corpus import read_lines
from hmmlm.data.labels import labelled_words, read_labels
from hmmlm.data.shards import TokenArray
from hmmlm.data.streams import Streams
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError

LINES = ["a b c", "c", "b b a a"]
WORDS = Tokenizer.words(LINES)


def tokens_of(lines: list[str]) -> TokenArray:
    ids = np.concatenate(list(WORDS.encode_lines(lines)))
    return TokenArray.from_ids(ids, eos_id=WORDS.eos_id)


def read(tmp_path: Path, text: str, lines: list[str] = LINES, **settings):
    path = tmp_path / "labels.txt"
    path.write_text(text)
    return read_labels(path, tokens_of(lines), WORDS, **settings)


def test_labels_lie_beside_the_tokens(tmp_path):
    found = read(tmp_path, "Y _ X\n_\nZ Y _ _\n")
    assert found.tags == ("X", "Y", "Z")  # sorted, whichever came first
    assert found.ids[:].tolist() == [2, 0, 1, 0, 0, 0, 3, 2, 0, 0, 0]
    assert labelled_words(tokens_of(LINES), found.ids).tolist() == sorted(
        [WORDS.id(word), tag] for word, tag in (("a", 1), ("c", 0), ("b", 2), ("b", 1))
    )


def test_empty_lines_are_skipped_where_the_text_skipped_them(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a b c\n\nc\n  \nb b a a\n\n")
    labels = "Y _ X\n\n_\n\nZ Y _ _\n\n"
    plain = read(tmp_path, "Y _ X\n_\nZ Y _ _\n").ids[:].tolist()
    skipped = list(read_lines(text, empty_lines="skip"))
    assert read(tmp_path, labels, skipped).ids[:].tolist() == plain
    kept = list(read_lines(text, empty_lines="keep"))
    assert read(tmp_path, labels, kept).ids[:].tolist() == [
        *plain[:4], 0, *plain[4:6], 0, *plain[6:], 0,
    ]  # fmt: skip


def test_lines_that_are_held_out_have_no_tokens(tmp_path):
    found = read(tmp_path, "Y _ X\n\n_\nQ Q\nZ Y _ _\n", left_out=3)
    assert found.tags == ("X", "Y", "Z")


def test_more_tags_than_a_byte_holds(tmp_path):
    lines = [" ".join("abc"[i % 3] for i in range(100))] * 4
    tags = [[f"t{100 * row + i:03d}" for i in range(100)] for row in range(4)]
    found = read(tmp_path, "".join(" ".join(row) + "\n" for row in tags), lines)
    assert len(found.tags) == 400
    assert found.ids[101:104].tolist() == [101, 102, 103]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Y _ X\n_\nZ Y _ _\nX\n", r"line 4 comes after the last of the text's 3 sentences"),
        ("Y _ X\n_\n", r"ends after 2 lines but the text has more: sentence 3 has no labels"),
        ("Y _ X\n_ X\nZ Y _ _\n", r"line 2 has 2 labels but its sentence has 1 word;"),
        ("Y _\n_\nZ Y _ _\n", r"line 1 has 2 labels but its sentence has 3 words"),
        ("_ _ _\n_\n_ _ _ _\n", r"has no label, only gaps"),
    ],
)
def test_files_that_do_not_fit_the_text(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)


def test_pieces_of_words_have_no_labels(tmp_path):
    spec = WORDS._spec["model"]
    pieces = {"type": "BPE", "vocab": spec["vocab"], "merges": [], "unk_token": "<unk>"}
    pieces = Tokenizer._from_spec({**WORDS._spec, "model": pieces}, "pieces", eos="<eos>")
    with pytest.raises(InputError, match=r"split into pieces of words; prepare it without --tok"):
        read_labels(tmp_path / "labels.txt", tokens_of(LINES), pieces)


@pytest.mark.parametrize("kind", [Streams, Windows, Packed])
def test_batches_carry_labels(kind):
    ids = np.arange(23) + 10
    ids[6::7] = 1
    tokens = TokenArray.from_ids(ids, eos_id=1)
    labels = TokenArray.from_ids(np.where(ids % 3 == 0, 0, ids), eos_id=1)
    seen = 0
    for batch in kind(tokens, 2, 5, labels=labels):
        for row, marks, size in zip(
            batch.tokens.tolist(), batch.labels.tolist(), batch.lengths.tolist(), strict=True
        ):
            assert marks[size:] == [-1] * (len(marks) - size)
            for token, mark in zip(row[:size], marks, strict=False):
                assert mark == (-1 if token % 3 == 0 else token - 1)
                seen += 1
    assert seen == 23
    assert next(iter(kind(tokens, 2, 5))).labels is None
    with pytest.raises(InputError, match="There are 3 labels for 23 tokens; give one for each"):
        kind(tokens, 2, 5, labels=TokenArray.from_ids([0, 1, 0], eos_id=1))
