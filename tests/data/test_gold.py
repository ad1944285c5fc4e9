"""Files of tagged words: what is read, and what is said of a wrong one."""

import lzma
import re

import pytest

from hmmlm.data.gold import read_gold
from hmmlm.errors import InputError

GOLD = "the\tDET\tDT\ndog\tNOUN\tNN\n\n\nI\tPRON\tPRP\r\n \t \nsee\tVERB\tVBP\n"


def test_sentences_and_columns(tmp_path) -> None:
    (tmp_path / "gold.tsv").write_bytes(GOLD.encode())
    found = read_gold(tmp_path / "gold.tsv")
    assert [one.words for one in found] == [["the", "dog"], ["I"], ["see"]]
    assert [one.tags for one in found] == [["DET", "NOUN"], ["PRON"], ["VERB"]]
    assert [one.number for one in found] == [1, 5, 7]
    (tmp_path / "gold.tsv.xz").write_bytes(lzma.compress(GOLD.encode()))
    third = read_gold(tmp_path / "gold.tsv.xz", column=3)
    assert [one.tags for one in third] == [["DT", "NN"], ["PRP"], ["VBP"]]


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("", 2, "gold is empty; give at least one line of text."),
        ("\n\n", 2, "gold has only blank lines; give a word, a tab and a tag on each."),
        (
            "a\tX\tY\nb\tX\n",
            2,
            "gold, line 2 has 2 columns but those before it have 3; give every token as many, "
            "separated by tabs.",
        ),
        ("# id\na\tX\n", 2, "gold, line 1 has no tab, but must have .*; of CoNLL-U keep .*"),
        (
            "\na\tX\n",
            3,
            "gold, line 2 has 2 columns but the tags are to be in column 3; choose --column 2 to "
            "2.",
        ),
        ("a\tX\n\nNew York\tX\n", 2, "gold, line 3 has 'New York' for a word, but .*no space; .*"),
        ("a\tX\n\tX\n", 2, "gold, line 2 has '' for a word, but a word is not empty .*"),
        ("a\tX\nb\t\n", 2, "gold, line 2 has no tag in column 2; give every word one."),
        ("a\tX\n", 1, "column is 1 but tags begin at 2; the words are in 1."),
    ],
)
def test_what_is_refused(tmp_path, monkeypatch, text: str, column: int, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gold").write_text(text)
    with pytest.raises(InputError) as error:
        read_gold("gold", column=column)
    assert re.fullmatch(said, str(error.value))
