"""Preparing a corpus in blocks, in several processes, with stops: always the same bytes."""

import gzip
import json
import lzma
import os
import random
import shutil
import sys
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import pytest

from commands import tree
from hmmlm.data import preparation
from hmmlm.data.corpus import Block, TextSplits, find_splits, read_blocks
from hmmlm.data.preparation import prepare_corpus
from hmmlm.data.processes import Processes
from hmmlm.data.shards import Corpus, write_corpus
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.storage import work_folder

LOWER = {
    "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "<eos>": 1, "w1": 2}, "unk_token": "<unk>"}
}


def made_up_text(count, seed):
    draw = random.Random(seed)
    text = ""
    for _ in range(count):
        words = [f"w{int(draw.paretovariate(0.6)) % 300}é" for _ in range(draw.randrange(12))]
        text += draw.choice([" ", "\t", "\u2003"]).join(words) + draw.choice(["\n", "\r\n"])
    return text


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A folder of text in several files, two of them compressed; a block is some lines of it."""
    monkeypatch.setattr(preparation, "_BLOCK", 700)
    monkeypatch.setattr(preparation, "_RUN_BLOCKS", 3)
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(2):
        data = "\ufeff" * (1 - number) + made_up_text(150, number)
        (folder / f"train-{number}.txt").write_bytes(data.encode())
    (folder / "valid.txt.xz").write_bytes(lzma.compress(made_up_text(60, 2).encode()))
    (folder / "test.txt.gz").write_bytes(gzip.compress(made_up_text(60, 3).encode()))
    return find_splits(folder)._replace(empty_lines="keep")


def plainly(folder, text, **options):
    """The same corpus by `write_corpus`, line by line."""
    tokenizer = options.pop("tokenizer", None)
    if tokenizer is None:
        tokenizer = Tokenizer.words(text.read("train"), **options)
    write_corpus(folder, tokenizer, {split: text.read(split) for split in text.files})
    return tree(folder)


def stop_after(number):
    """A progress that stops the work after so many blocks, and lists those it saw."""
    seen = []

    def progress(work, read, total):
        seen.append((work, read, total))
        if len(seen) == number:
            raise KeyboardInterrupt

    return progress, seen


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_corpus_is_the_same_however_many_processes(text, tmp_path, workers):
    result = prepare_corpus(tmp_path / "c", text, workers=workers)
    assert tree(tmp_path / "c") == plainly(tmp_path / "plain", text)
    splits = json.loads((tmp_path / "c/corpus.json").read_text())["splits"]
    assert list(result["splits"]) == list(splits) == ["train", "valid", "test"]
    assert result["splits"]["train"]["sentences"] == 300
    assert result["vocab"] == Tokenizer.load(tmp_path / "c/tokenizer.json").vocab_size
    assert {path.name for path in tmp_path.iterdir()} == {"text", "c", "plain"}


@pytest.mark.parametrize(
    "options", [{"max_size": 7}, {"min_count": 3}, {"min_count": 2, "max_size": 50}]
)
def test_a_vocabulary_of_many_runs_is_that_of_the_whole_text(text, tmp_path, monkeypatch, options):
    monkeypatch.setattr(preparation, "_RUN_WORDS", 20)
    prepare_corpus(tmp_path / "c", text, workers=1, **options)
    assert tree(tmp_path / "c") == plainly(tmp_path / "plain", text, **options)


@pytest.mark.parametrize("workers", [1, 2])
def test_any_tokenizer_is_taken(text, tmp_path, workers):
    spec = {**LOWER, "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}}
    (tmp_path / "t.json").write_text(json.dumps(spec))
    tokenizer = Tokenizer.load(tmp_path / "t.json")
    prepare_corpus(tmp_path / "c", text, tokenizer=tokenizer, workers=workers)
    assert tree(tmp_path / "c") == plainly(tmp_path / "plain", text, tokenizer=tokenizer)


@pytest.mark.parametrize("workers", [1, 2])
def test_after_a_stop_it_goes_on(text, tmp_path, workers):
    progress, whole = stop_after(-1)
    prepare_corpus(tmp_path / "c", text, workers=1, progress=progress)
    expected = tree(tmp_path / "c")
    for number in range(1, len(whole), 1 if workers == 1 else 9):
        out, news = tmp_path / f"c{number}", []
        progress, first = stop_after(number)
        with pytest.raises(KeyboardInterrupt):
            prepare_corpus(out, text, workers=workers, progress=progress, notice=news.append)
        assert not out.exists() and first == whole[:number] and news == []
        progress, second = stop_after(-1)
        prepare_corpus(out, text, workers=workers, progress=progress, notice=news.append)
        assert tree(out) == expected
        counting = sum(work == "Counting words" for work, _, _ in whole)
        kept = number if number > counting else number // 3 * 3
        assert second == whole[kept:]
        assert news == ([f"Going on with the unfinished {out}."] if kept else [])
        assert not (tmp_path / f".c{number}.unfinished").exists()


def test_many_stops_in_a_row(text, tmp_path):
    stops = 0
    while not (tmp_path / "c").exists():
        progress, _ = stop_after(4)  # more than a run of counts
        try:
            prepare_corpus(tmp_path / "c", text, workers=1, progress=progress)
        except KeyboardInterrupt:
            stops += 1
    assert stops >= 10
    assert tree(tmp_path / "c") == plainly(tmp_path / "plain", text)


def begin(out, text, *, blocks=25, **options):
    """Stops in the middle of encoding."""
    progress, seen = stop_after(blocks)
    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(out, text, workers=1, progress=progress, **options)
    assert seen[-1][0] == "Encoding"
    return out.parent / f".{out.name}.unfinished"


def add_a_line(text, work):
    with text.files["train"][1].open("a") as file:
        file.write("one more\n")


def touch(text, work):
    os.utime(text.files["train"][0], ns=(1, 1))


def damage_state(text, work):
    (work / "state.json").write_text("{")


def damage_more_of_the_state(text, work):
    (work / "state.json").write_text("{}")


def damage_a_run(text, work):
    path = work / "run-1"
    path.write_text(path.read_text().replace("1", "2"))


def lose_a_run(text, work):
    (work / "run-0").unlink()


def damage_a_shard(text, work):
    path = work / "corpus/train-00000.bin"
    path.write_bytes(b"\0\0" + path.read_bytes()[2:])


def cut_a_shard(text, work):
    os.truncate(work / "corpus/train-00000.bin", 100)


def damage_the_vocabulary(text, work):
    (work / "corpus/tokenizer.json").write_text("{")


def change_the_vocabulary(text, work):
    Tokenizer.words(["a b"]).save(work / "corpus/tokenizer.json")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (add_a_line, "the text has changed"),
        (touch, "the text has changed"),
        (damage_state, "its files are damaged"),
        (damage_more_of_the_state, "its files are damaged"),
        (damage_a_run, "its files are damaged"),
        (lose_a_run, "its files are damaged"),
        (damage_a_shard, "its files are damaged"),
        (cut_a_shard, "its files are damaged"),
        (damage_the_vocabulary, "its files are damaged"),
        (change_the_vocabulary, "its files are damaged"),
    ],
)
def test_what_has_changed_starts_afresh(text, tmp_path, change, reason):
    change(text, begin(tmp_path / "c", text))
    news = []
    progress, seen = stop_after(-1)
    prepare_corpus(tmp_path / "c", text, workers=1, progress=progress, notice=news.append)
    assert news == [f"There is an unfinished {tmp_path / 'c'}, but {reason}; starting afresh."]
    assert seen[0][:2] == ("Counting words", seen[0][1]) and seen[0][1] < 1000
    assert tree(tmp_path / "c") == plainly(tmp_path / "plain", text)


@pytest.mark.parametrize("options", [{"min_count": 2}, {"max_size": 9}, {"empty_lines": "skip"}])
def test_other_options_start_afresh(text, tmp_path, options):
    begin(tmp_path / "c", text)
    news = []
    other = text._replace(empty_lines=options.pop("empty_lines", "keep"))
    prepare_corpus(tmp_path / "c", other, workers=1, notice=news.append, **options)
    assert news == [
        f"There is an unfinished {tmp_path / 'c'}, but the options are others; starting afresh."
    ]
    assert tree(tmp_path / "c") == plainly(tmp_path / "plain", other, **options)


def test_another_tokenizer_starts_afresh(text, tmp_path):
    begin(tmp_path / "c", text)
    news = []
    tokenizer = Tokenizer.words(["a b"])
    prepare_corpus(tmp_path / "c", text, tokenizer=tokenizer, workers=1, notice=news.append)
    assert "the options are others" in news[0]
    assert tree(tmp_path / "c") == plainly(tmp_path / "plain", text, tokenizer=tokenizer)


def test_another_version_starts_afresh(text, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "__version__", "0.0.1")
        begin(tmp_path / "c", text)
    news = []
    prepare_corpus(tmp_path / "c", text, workers=1, notice=news.append)
    assert news == [
        f"There is an unfinished {tmp_path / 'c'}, but another version began it; starting afresh."
    ]


def test_two_at_once_are_refused(text, tmp_path):
    work = begin(tmp_path / "c", text)
    before = tree(work)
    with (
        work_folder(tmp_path / "c"),
        pytest.raises(
            InputError,
            match=r"c is being made by another process; wait for that one or choose another n",
        ),
    ):
        try:
            prepare_corpus(tmp_path / "c", text)
        finally:
            assert tree(work) == before


def test_one_that_ended_meanwhile_is_not_taken_for_unfinished(tmp_path, monkeypatch):
    # Between opening the lock and locking it, whoever had it ends and removes it.
    flock = __import__("fcntl").flock

    def late(file, how):
        shutil.rmtree(tmp_path / ".c.unfinished")
        return flock(file, how)

    monkeypatch.setattr("fcntl.flock", late)
    with (
        pytest.raises(InputError, match="is being made by another process"),
        work_folder(tmp_path / "c"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


BAD = {
    "line": ("a b\n" * 500 + "\n" + "c\n" * 500, r"t.txt, line 501 is empty; --empty-lines keep"),
    "byte": (b"a b\n" * 500 + b"\xe9\n" + b"c\n" * 500, r"t.txt, line 501: byte 0xe9 is not UTF-8"),
    "two": ("a b\n" * 500 + "\n" + "c\n" * 500 + "\n", r"t.txt, line 501 is empty"),
    "nothing": ("", r"t.txt is empty; give at least one line of text\.$"),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("data", "said"), BAD.values(), ids=BAD)
def test_bad_text_is_said_with_its_line_and_leaves_nothing(text, tmp_path, workers, data, said):
    path = tmp_path / "t.txt"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    splits = TextSplits({"train": text.files["train"], "test": (path,)}, "refuse")
    splits.files["train"][0].write_text("a b\n")
    splits.files["train"][1].write_text("a b\n")
    with pytest.raises(InputError, match=said):
        prepare_corpus(tmp_path / "x/c", splits, workers=workers)
    assert {path.name for path in tmp_path.iterdir()} == {"text", "t.txt"}


def test_a_file_of_skipped_lines_is_empty(text, tmp_path):
    path = text.files["train"][1]
    path.write_text("\n \n")
    with pytest.raises(InputError, match=r"train-1.txt is empty; give at least one line of text"):
        prepare_corpus(tmp_path / "c", text._replace(empty_lines="skip"), workers=1)


def test_progress_goes_up_to_all_bytes(text, tmp_path):
    progress, seen = stop_after(-1)
    prepare_corpus(tmp_path / "c", text, workers=1, progress=progress)
    sizes = {path: path.stat().st_size for paths in text.files.values() for path in paths}
    for work, total in (
        ("Counting words", sum(sizes[path] for path in text.files["train"])),
        ("Encoding", sum(sizes.values())),
    ):
        read = [read for name, read, _ in seen if name == work]
        assert read == sorted(read) and read[-1] == total
        assert {end for name, _, end in seen if name == work} == {total}


def test_standard_input_is_another_text_every_time(text, tmp_path, monkeypatch):
    text.files["valid"] = (Path("-"),)
    (tmp_path / "in.txt").write_text("w1 w2\nw3\n")
    news = []
    for stop in (25, -1):
        with (tmp_path / "in.txt").open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            progress, _ = stop_after(stop)
            with nullcontext() if stop < 0 else pytest.raises(KeyboardInterrupt):
                prepare_corpus(
                    tmp_path / "c", text, workers=1, progress=progress, notice=news.append
                )
    assert len(news) == 1 and "the text has changed" in news[0]
    assert Corpus.open(tmp_path / "c").splits["valid"]["tokens"] == 5


def test_a_small_text_stays_in_one_process(text, tmp_path, monkeypatch):
    numbers = []

    class Seen(Processes):
        def __init__(self, number):
            numbers.append(number)
            super().__init__(1)

    monkeypatch.setattr(preparation, "Processes", Seen)
    monkeypatch.setattr(preparation, "num_processors", lambda: 5)
    prepare_corpus(tmp_path / "small", text)
    monkeypatch.setattr(preparation, "_SMALL", 10_000)
    prepare_corpus(tmp_path / "large", text)
    prepare_corpus(tmp_path / "asked", text, workers=3)
    assert numbers == [1, 5, 3]


def die(block):
    os.kill(os.getpid(), 9)


def test_a_process_that_is_killed_is_a_sentence(text):
    blocks = read_blocks(text.files["train"][0], 700)
    with (
        pytest.raises(
            ChildProcessError,
            match=r"^A process that shared the work was killed, perhaps for want of memory; run "
            r"the same command again to go on, with fewer --workers$",
        ),
        Processes(2) as processes,
    ):
        list(processes.map(die, blocks))


def test_no_processes_are_too_few():
    with pytest.raises(InputError, match=r"^workers is 0 but must be at least 1\.$"):
        Processes(0)


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_blocks_are_whole_lines_from_any_of_them_on(tmp_path, size):
    path = tmp_path / "t.txt"
    path.write_bytes(b"one\r\n\ntwo three\nfour")
    blocks = list(read_blocks(path, size))
    assert b"".join(block.data for block in blocks) == path.read_bytes()
    assert all(block.data.endswith(b"\n") for block in blocks[:-1])
    assert [block.number for block in blocks[1:]] == [block.next_number for block in blocks[:-1]]
    lines = [line for block in blocks for line in block.lines("keep")]
    assert lines == ["one", "", "two three", "four"]
    for last, block in pairwise(blocks):
        assert next(read_blocks(path, size, start=last.stop, number=block.number)) == block


def test_only_the_first_line_loses_a_byte_order_mark(tmp_path):
    mark = "\ufeff".encode()
    block = Block(tmp_path, 1, mark + b"a\n" + mark + b"b\n", 0, 0)
    assert block.lines("refuse") == ["a", "\ufeffb"]
    assert block._replace(number=2).lines("refuse") == ["\ufeffa", "\ufeffb"]
