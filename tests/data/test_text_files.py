import gzip
import lzma
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmmlm.data.corpus import find_splits, read_lines
from hmmlm.errors import InputError


def write(path, data):
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        ("a b\nc\n", ["a b", "c"]),
        ("a\nb", ["a", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        (" a \n", [" a "]),
        ("\ufeffa\n", ["a"]),
        ("a\u2028b\x0bc\x85d\re\n", ["a\u2028b\x0bc\x85d\re"]),
    ],
)
def test_lines_end_at_newlines_only(data, lines, tmp_path):
    assert list(read_lines(write(tmp_path / "t.txt", data))) == lines


@given(st.lists(st.text(st.characters(exclude_characters="\r\n\ufeff", codec="utf-8")), min_size=1))
def test_kept_lines_are_the_lines_written(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("lines") / "t.txt"
    write(path, "".join(line + "\n" for line in lines))
    kept = [line if line.strip() else "" for line in lines]
    assert list(read_lines(path, empty_lines="keep")) == kept


def test_compressed_files_are_read(tmp_path):
    write(tmp_path / "t.txt.xz", lzma.compress(b"a\nb\n"))
    write(tmp_path / "t.txt.gz", gzip.compress(b"a\nb\n"))
    assert list(read_lines(tmp_path / "t.txt.xz")) == ["a", "b"]
    assert list(read_lines(tmp_path / "t.txt.gz")) == ["a", "b"]


@pytest.mark.parametrize("name", ["t.txt.xz", "t.txt.gz"])
def test_broken_compressed_files_are_refused(name, tmp_path):
    compress = lzma.compress if name.endswith("xz") else gzip.compress
    whole = compress(os.urandom(1000).hex().encode())
    for data in (whole[:-20], b"plain text\n"):
        path = write(tmp_path / name, data)
        with pytest.raises(
            InputError, match=rf"{name} is not a whole \.[xg]z file \(.*[^.]\); cop"
        ):
            list(read_lines(path))


def test_file_is_streamed(tmp_path):
    path = write(tmp_path / "t.txt", b"first\n" + b"\xff\n")
    lines = read_lines(path)
    assert next(lines) == "first"


def test_empty_lines_are_refused_kept_or_skipped(tmp_path):
    path = write(tmp_path / "t.txt", "a\n \t\n\nb\n")
    with pytest.raises(
        InputError,
        match=r"t.txt, line 2 is empty; --empty-lines keep makes it a sentence of only <eos>, "
        r"--empty-lines skip drops it\.$",
    ):
        list(read_lines(path))
    assert list(read_lines(path, empty_lines="keep")) == ["a", "", "", "b"]
    assert list(read_lines(path, empty_lines="skip")) == ["a", "b"]
    with pytest.raises(InputError, match=r"^empty_lines is 'drop' but must be refuse, keep or ski"):
        read_lines(path, empty_lines="drop")


def test_bytes_that_are_not_utf8_are_refused(tmp_path):
    path = write(tmp_path / "t.txt", b"ok\ncaf\xe9 x\n")
    with pytest.raises(
        InputError,
        match=r"t.txt, line 2: byte 0xe9 is not UTF-8; convert .*: iconv -f LATIN1 -t UTF-8 .*t",
    ):
        list(read_lines(path))


@pytest.mark.parametrize("rule", ["refuse", "keep", "skip"])
def test_empty_file_is_refused(rule, tmp_path):
    path = write(tmp_path / "t.txt", "")
    with pytest.raises(InputError, match=r"t.txt is empty; give at least one line"):
        list(read_lines(path, empty_lines=rule))


def test_file_of_only_skipped_lines_is_refused(tmp_path):
    path = write(tmp_path / "t.txt", "\n\n")
    with pytest.raises(InputError, match=r"t.txt is empty"):
        list(read_lines(path, empty_lines="skip"))


def test_missing_files_and_folders_are_refused_at_once(tmp_path):
    with pytest.raises(InputError, match=r"no.txt cannot be read: No such file or directory\.$"):
        read_lines(tmp_path / "no.txt")
    with pytest.raises(InputError, match=r" is a folder but must be a text file\.$"):
        read_lines(tmp_path)
    with pytest.raises(InputError, match=r"no does not exist; give a text file or a folder of th"):
        find_splits(tmp_path / "no")


def test_one_file_is_the_training_text(tmp_path):
    path = write(tmp_path / "anything", "a\n")
    found = find_splits(path)
    assert found.files == {"train": (path,)}
    assert found.empty_lines == "refuse"
    assert list(found.read("train")) == ["a"]


@pytest.mark.parametrize(
    ("pattern", "rule"),
    [("ptb.{}.txt", "refuse"), ("wiki.{}.tokens", "keep"), ("{}.txt", "refuse")],
)
def test_folders_are_known_by_their_names(pattern, rule, tmp_path):
    for split in ("train", "valid", "test"):
        write(tmp_path / pattern.format(split), f"{split}\n")
    write(tmp_path / "README.txt", "x\n")
    found = find_splits(tmp_path)
    assert {s: list(found.read(s)) for s in found.files} == {s: [s] for s in found.files}
    assert list(found.files) == ["train", "valid", "test"]
    assert found.empty_lines == rule


def test_wikitext_is_known_by_its_first_lines(tmp_path):
    text = " \n = Valkyria Chronicles = \n \n Some <unk> text . \n"
    for split in ("train", "valid", "test"):
        write(tmp_path / f"{split}.txt", text)
    found = find_splits(tmp_path)
    assert found.empty_lines == "keep"
    assert list(found.read("test")) == ["", " = Valkyria Chronicles = ", "", " Some <unk> text . "]
    assert len(list(found.read("test", empty_lines="skip"))) == 2


def test_folder_without_some_splits_has_the_others(tmp_path):
    write(tmp_path / "train.txt.gz", gzip.compress(b"a\n"))
    write(tmp_path / "test.txt", "b\n")
    assert list(find_splits(tmp_path).files) == ["train", "test"]


def test_numbered_files_are_one_split_in_the_order_of_their_numbers(tmp_path):
    for number in (0, 2, 10):
        write(tmp_path / f"train-{number}.txt.xz", lzma.compress(f"{number}\n".encode()))
    assert list(find_splits(tmp_path).read("train")) == ["0", "2", "10"]


@pytest.mark.parametrize("other", ["train.txt.gz", "train-00.txt"])
def test_two_kinds_of_training_text_are_refused(other, tmp_path):
    write(tmp_path / "train.txt", "a\n")
    write(tmp_path / other, "a\n")
    with pytest.raises(
        InputError, match=r"has both train\S+ and train\S+, so which to read is not"
    ):
        find_splits(tmp_path)


def test_folder_without_training_text_says_what_was_looked_for(tmp_path):
    write(tmp_path / "valid.txt", "a\n")
    with pytest.raises(
        InputError,
        match=r"has no training text; looked for ptb.train.txt, wiki.train.tokens, train.txt, "
        r"train.txt.xz, train.txt.gz and the same numbered, as in train-00.txt\.$",
    ):
        find_splits(tmp_path)
