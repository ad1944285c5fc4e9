import errno
import gc
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import tree
from hmmlm.data.shards import Corpus, ShardWriter, TokenArray, check_vocabulary, write_corpus
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError

TRAIN = ["a b c", "", "c c dog", "b <unk> a a"]
VALID = ["c a"]
TOKENIZER = Tokenizer.words(["a a b b c c"])


def write(folder, **options):
    return write_corpus(folder, TOKENIZER, {"train": TRAIN, "valid": VALID}, **options)


def edit_index(folder, change):
    path = folder / "corpus.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def plain_ids(lines):
    return [i for line in lines for i in [*TOKENIZER.encode(line), TOKENIZER.eos_id]]


def test_corpus_comes_back_as_written(tmp_path):
    summary = write(tmp_path / "c")
    counts = {
        "train": {"tokens": 14, "sentences": 4, "unknown": 2},
        "valid": {"tokens": 3, "sentences": 1, "unknown": 0},
    }
    assert summary == {"splits": counts, "vocab": 5}
    corpus = Corpus.open(tmp_path / "c")
    assert corpus.splits == counts
    assert corpus.tokenizer.hash == TOKENIZER.hash
    assert corpus.split("train")[:].tolist() == plain_ids(TRAIN)
    assert corpus.split("valid")[:].tolist() == plain_ids(VALID)
    assert corpus.split("train").sentence_offsets().tolist() == [0, 4, 5, 9]
    write(tmp_path / "same")
    write_corpus(tmp_path / "other", TOKENIZER, {"train": TRAIN, "valid": ["c b"]})
    assert Corpus.open(tmp_path / "same").identity() == corpus.identity()
    assert Corpus.open(tmp_path / "other").identity() != corpus.identity()
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert names == {"tokenizer.json", "corpus.json", "train-00000.bin", "valid-00000.bin"}


@pytest.mark.parametrize("shard_tokens", [1, 3, 7, 13, 14, 15])
def test_several_shards_are_the_same_text_as_one(shard_tokens, tmp_path, monkeypatch):
    for module in ("shards", "token_array"):
        monkeypatch.setattr(f"hmmlm.data.{module}._CHUNK", 4)
    write(tmp_path / "c", shard_tokens=shard_tokens)
    tokens = Corpus.open(tmp_path / "c").split("train")
    assert len(list((tmp_path / "c").glob("train-*.bin"))) == -(-14 // shard_tokens)
    plain = plain_ids(TRAIN)
    assert len(tokens) == 14
    for a in range(-1, 15):
        for b in range(a, 16):
            assert tokens[a:b].tolist() == plain[a:b]
    assert [tokens[i] for i in range(-14, 14)] == plain + plain
    assert tokens.sentence_offsets().tolist() == [0, 4, 5, 9]
    for length in (1, 2, 5, 14):
        starts = np.arange(15 - length)[::-1]
        assert tokens.rows(starts, length).tolist() == [plain[a : a + length] for a in starts]
        held = TokenArray.from_ids(plain, eos_id=tokens.eos_id).rows(starts, length)
        assert held.dtype == np.int64 and held.tolist() == tokens.rows(starts, length).tolist()
    for number in range(1, 15):
        head = tokens.head(number)
        assert len(head) == number and head[:].tolist() == plain[:number]
        assert head[-1] == plain[number - 1] and len(tokens[:]) == 14


def test_long_text_is_written_in_stretches(tmp_path):
    lines = ["a b c"] * 100_000
    write_corpus(tmp_path / "c", TOKENIZER, {"train": lines}, shard_tokens=150_000)
    tokens = Corpus.open(tmp_path / "c").split("train")
    assert len(tokens) == 400_000
    assert (tokens[:].reshape(-1, 4) == plain_ids(["a b c"])).all()


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_ids_take_two_bytes_as_long_as_they_fit(vocab_size, dtype, tmp_path):
    tokenizer = Tokenizer.words([" ".join(f"w{i:05d}" for i in range(vocab_size - 2))])
    last = tokenizer.token(vocab_size - 1)
    write_corpus(tmp_path / "c", tokenizer, {"train": [last]})
    assert json.loads((tmp_path / "c" / "corpus.json").read_text())["dtype"] == dtype
    assert (tmp_path / "c" / "train-00000.bin").stat().st_size == 2 * np.dtype(dtype).itemsize
    assert Corpus.open(tmp_path / "c").split("train")[:].tolist() == [vocab_size - 1, 1]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux' /proc")
def test_reading_a_whole_text_does_not_leave_it_in_memory(tmp_path):
    write_corpus(tmp_path / "c", TOKENIZER, {"train": ["a b c"] * 5_000})
    tokens = Corpus.open(tmp_path / "c").split("train")
    assert tokens[:].tolist() == plain_ids(["a b c"] * 5_000)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs a list of open files")
def test_files_are_closed_with_their_corpus(tmp_path):
    write(tmp_path / "c")
    gc.collect()
    before = set(os.listdir("/dev/fd"))
    corpus = Corpus.open(tmp_path / "c")
    assert len(os.listdir("/dev/fd")) > len(before)
    del corpus
    gc.collect()
    assert set(os.listdir("/dev/fd")) == before


def test_a_shard_that_is_cut_short_while_it_is_open(tmp_path):
    write_corpus(tmp_path / "c", TOKENIZER, {"train": ["a b c"] * 5_000})
    path = tmp_path / "c/train-00000.bin"
    tokens = Corpus.open(tmp_path / "c").split("train")
    os.truncate(path, 8_191)
    assert len(tokens[:4_095]) == 4_095
    wanted = r"bin has become shorter since it was opened: it ends at byte 8,191, not 40,000; copy"
    with pytest.raises(InputError, match=wanted):
        tokens[4_000:4_100]


def test_a_disk_that_fails_is_a_sentence(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    write(tmp_path / "c")
    tokens = Corpus.open(tmp_path / "c").split("train")
    monkeypatch.setattr("hmmlm.data.token_array.os.pread", fail)
    with pytest.raises(InputError, match=r"train-00000\.bin cannot be read: Input/output error\."):
        tokens[:1]


@pytest.mark.parametrize("shard_tokens", [4, 5, 100])
def test_a_writer_goes_on_where_another_stopped(tmp_path, shard_tokens):
    ids = np.array(plain_ids(TRAIN))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with ShardWriter(tmp_path / "one", "train", TOKENIZER, shard_tokens=shard_tokens) as whole:
        whole.add(ids)
    for stop in range(len(ids)):
        with ShardWriter(tmp_path / "two", "train", TOKENIZER, shard_tokens=shard_tokens) as first:
            first.add(ids[:stop])
            known = json.loads(json.dumps(first.written))
            first.add(ids[stop:][::-1])  # written, but nobody was told
        options = {"written": known, "shard_tokens": shard_tokens}
        with ShardWriter(tmp_path / "two", "train", TOKENIZER, **options) as second:
            second.add(ids[stop:])
        assert second.written == whole.written
        assert tree(tmp_path / "two") == tree(tmp_path / "one")


@given(st.lists(st.integers(0, 3)), st.integers(0, 9), st.integers(0, 9))
def test_ids_in_memory_slice_like_a_list(ids, a, b):
    tokens = TokenArray.from_ids(np.array(ids, dtype=np.int64), eos_id=1)
    assert len(tokens) == len(ids)
    assert tokens[a:b].tolist() == ids[a:b]
    assert tokens[a:b].dtype == np.int64
    starts = [i for i in range(len(ids)) if i == 0 or ids[i - 1] == 1]
    assert tokens.sentence_offsets().tolist() == starts


def test_wrong_uses_of_a_token_array_are_refused():
    tokens = TokenArray.from_ids([0, 1, 2], eos_id=1)
    with pytest.raises(InputError, match=r"^A slice of tokens has step 1, not 2\.$"):
        tokens[::2]
    with pytest.raises(IndexError, match=r"^index 3 is outside 3 tokens$"):
        tokens[3]
    with pytest.raises(
        InputError, match=r"^ids must be one row of whole numbers, not shape \(1, 2"
    ):
        TokenArray.from_ids(np.zeros((1, 2), dtype=int), eos_id=0)
    with pytest.raises(InputError, match=r"not shape \(1,\) of float64"):
        TokenArray.from_ids(np.array([0.5]), eos_id=0)
    with pytest.raises(InputError, match=r"^ids has -2 but every token id is 0 or more\.$"):
        TokenArray.from_ids([1, -2], eos_id=0)


def test_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "c").mkdir()
    with pytest.raises(InputError, match="already exists"):
        write(tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, "x"),
            r"^The disk is full while writing .*c \(x\), and nothing of it was kept; free some",
        ),
        (OSError(errno.EDQUOT, "x"), r"^The disk is full while writing "),
        (OSError(errno.EROFS, "Read-only file system"), r"c cannot be written: Read-only file sys"),
        (InputError("bad line"), "bad line"),
    ],
)
def test_failed_write_leaves_nothing(error, message, tmp_path):
    def lines():
        yield "a b"
        raise error

    with pytest.raises(InputError, match=message):
        write_corpus(tmp_path / "c", TOKENIZER, {"valid": VALID, "train": lines()})
    assert list(tmp_path.iterdir()) == []


def test_other_system_errors_pass_through(tmp_path):
    def lines():
        yield "a"
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        write_corpus(tmp_path / "c", TOKENIZER, {"train": lines()})
    assert list(tmp_path.iterdir()) == []


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"^The split 'valid' has no text; give it at least one l"):
        write_corpus(tmp_path / "c", TOKENIZER, {"train": TRAIN, "valid": []})
    with pytest.raises(InputError, match=r"^shard_tokens is 0 but must be at least 1\.$"):
        write(tmp_path / "c", shard_tokens=0)
    assert list(tmp_path.iterdir()) == []


def test_the_head_of_a_corpus(tmp_path):
    write(tmp_path / "c")
    corpus = Corpus.open(tmp_path / "c")
    head = corpus.head(5)
    assert head.split("train")[:].tolist() == plain_ids(TRAIN)[:5]
    assert head.split("valid")[:].tolist() == plain_ids(VALID)
    assert head.splits == {**corpus.splits, "train": {"tokens": 5}}
    assert head.identity() == corpus.identity() and len(corpus.split("train")) == 14
    for number in (0, 15):
        with pytest.raises(InputError, match=f"first {number} tokens were asked for .* are 14"):
            corpus.head(number)


def test_missing_split_names_those_there_are(tmp_path):
    write(tmp_path / "c")
    with pytest.raises(InputError, match=r"c has no split 'test', only train, valid; prepare it"):
        Corpus.open(tmp_path / "c").split("test")


def test_truncated_shard_is_refused(tmp_path):
    write(tmp_path / "c")
    path = tmp_path / "c" / "train-00000.bin"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(
        InputError, match=r"train-00000.bin has 25 bytes but corpus.json says 28; copy it again or"
    ):
        Corpus.open(tmp_path / "c", verify=False)
    path.unlink()
    with pytest.raises(InputError, match=r"train-00000.bin cannot be read: No such file or direc"):
        Corpus.open(tmp_path / "c", verify=False)


def test_changed_bytes_are_refused(tmp_path):
    write(tmp_path / "c", shard_tokens=4)
    path = tmp_path / "c" / "train-00002.bin"
    data = bytearray(path.read_bytes())
    data[2] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        InputError,
        match=r"train-00002.bin has changed since it was written \(sha256 \w{12}, not \w{12}\); ",
    ):
        Corpus.open(tmp_path / "c")
    Corpus.open(tmp_path / "c", verify=False)


def test_id_outside_the_vocabulary_is_refused(tmp_path):
    write(tmp_path / "c")
    data = np.array([2, 10_003, 1], dtype="<u2").tobytes()
    (tmp_path / "c" / "valid-00000.bin").write_bytes(data)

    def change(index):
        index["splits"]["valid"]["shards"][0]["sha256"] = hashlib.sha256(data).hexdigest()

    edit_index(tmp_path / "c", change)
    with pytest.raises(
        InputError,
        match=r"valid-00000.bin has id 10,003 but this vocabulary ends at 4; re-encode the corpus ",
    ):
        Corpus.open(tmp_path / "c")


def test_other_vocabulary_in_the_folder_is_refused(tmp_path):
    write(tmp_path / "c")
    Tokenizer.words(["a b d"]).save(tmp_path / "c" / "tokenizer.json")
    with pytest.raises(
        InputError,
        match=r"tokenizer.json is not the vocabulary .* \(hash \w{12}, not \w{12}\); prepare the t",
    ):
        Corpus.open(tmp_path / "c")


def test_foreign_or_missing_index_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"c does not exist; give a corpus folder, made by"):
        Corpus.open(tmp_path / "c")
    with pytest.raises(InputError, match=r"is not a prepared corpus: it has no corpus.json; make"):
        Corpus.open(tmp_path)
    write(tmp_path / "c")
    path = tmp_path / "c" / "corpus.json"
    whole = path.read_text()
    path.write_text(whole[:50])
    with pytest.raises(InputError, match=r"corpus.json is not json, or only part of a file; prep"):
        Corpus.open(tmp_path / "c")
    for foreign, found in (("[1]", "None"), ('{"format": "x-9"}', "'x-9'")):
        path.write_text(foreign)
        with pytest.raises(
            InputError, match=rf"has the format {found} but this version reads 'hmmlm-corpus-1'; p"
        ):
            Corpus.open(tmp_path / "c")
    path.write_text(whole)
    edit_index(tmp_path / "c", lambda index: index.pop("dtype"))
    with pytest.raises(InputError, match=r"corpus.json lacks what this version needs \('dtype'\);"):
        Corpus.open(tmp_path / "c")
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match=r"corpus.json cannot be read: Is a directory\.$"):
        Corpus.open(tmp_path / "c")


def test_vocabulary_of_corpus_and_model_must_match(tmp_path):
    write(tmp_path / "c")
    corpus = Corpus.open(tmp_path / "c")
    check_vocabulary(corpus, TOKENIZER)
    check_vocabulary(TOKENIZER.hash, TOKENIZER)
    other = Tokenizer.words(["x y"])
    with pytest.raises(
        InputError,
        match=r"^the corpus .*c has another vocabulary \(5 tokens, hash \w{12}\) than the model "
        r"\(4 tokens, hash \w{12}\); prepare the text again with the model's tokenizer.json\.$",
    ):
        check_vocabulary(corpus, other)
    with pytest.raises(
        InputError, match=r"^the corpus has another vocabulary \(hash \w{12}\) than"
    ):
        check_vocabulary(TOKENIZER.hash, other)


def test_sentences_in_another_order_are_a_text_like_any_other():
    text = TokenArray.from_ids([1, 0, 2, 3, 0, 4], eos_id=0)
    other = text.reordered(text.sentence_offsets(), np.array([2, 0, 1]))
    assert other[:].tolist() == [4, 1, 0, 2, 3, 0] and [other[0], other[-2]] == [4, 3]
    assert other[1:5].tolist() == [1, 0, 2, 3] and other[5:2].tolist() == []
    assert other.head(3)[:].tolist() == [4, 1, 0] and len(other) == 6
    with pytest.raises(InputError, match="A slice of tokens has step 1, not 2"):
        other[::2]
