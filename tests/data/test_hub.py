"""Datasets of Hugging Face's as text: folders of them, for nothing outside can be reached here."""

import json
from itertools import count, islice

import pytest

from commands import tree
from hmmlm.data import preparation
from hmmlm.data.corpus import TextSplits
from hmmlm.data.hub import HubText, find_rows
from hmmlm.data.preparation import prepare_corpus
from hmmlm.data.shards import write_corpus
from hmmlm.data.tokenizer import Tokenizer

datasets = pytest.importorskip("datasets")

ROWS = {
    "train": [f"the {number % 7}\n\n dog {number}" for number in range(60)],
    "validation": ["the dog\n", "a cat\r\n"],
    "test": ["the 3", "", "dog"],
}


def write_jsonl(path, rows) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Three splits of which a block is some rows; not in anybody's cache."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(preparation, "_BLOCK", 150)
    for split, texts in ROWS.items():
        rows = [{"text": text, "label": number} for number, text in enumerate(texts)]
        write_jsonl(tmp_path / f"data/{split}.jsonl", rows)
    return tmp_path / "data"


def find(folder, **options) -> TextSplits:
    files, empty_lines = find_rows(str(folder), **options)
    return TextSplits({**files}, empty_lines)


def plainly(out):
    """The corpus of the rows, as it is without a dataset."""
    splits = {"train": ROWS["train"], "valid": ["the dog", "a cat"], "test": ["the 3", "dog"]}
    write_corpus(out, Tokenizer.words(splits["train"]), splits)
    return tree(out)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_row_is_a_line_whatever_it_has_within(folder, tmp_path, workers):
    text = find(folder)
    assert text.empty_lines == "skip" and list(text.files) == ["train", "valid", "test"]
    assert list(text.read("valid")) == ["the dog", "a cat"]
    result = prepare_corpus(tmp_path / "c", text, workers=workers)
    assert tree(tmp_path / "c") == plainly(tmp_path / "plain")
    assert result["splits"]["train"]["sentences"] == 60


@pytest.mark.parametrize("stop", [2, 9, 14])
def test_stopped_it_goes_on_from_the_row(folder, tmp_path, stop):
    seen, news = [], []

    def progress(work, read, total):
        seen.append(read)
        assert read <= total
        if len(seen) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(tmp_path / "c", find(folder), workers=1, progress=progress)
    prepare_corpus(tmp_path / "c", find(folder), workers=1, notice=news.append)
    assert tree(tmp_path / "c") == plainly(tmp_path / "plain")
    assert news == [f"Going on with the unfinished {tmp_path / 'c'}."] or stop == 2


def test_a_dataset_that_has_changed_starts_afresh(folder, tmp_path):
    def stop(work, read, total):
        if work == "Encoding":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(tmp_path / "c", find(folder), workers=1, progress=stop)
    write_jsonl(folder / "test.jsonl", [{"text": "another"}])
    news = []
    prepare_corpus(tmp_path / "c", find(folder), workers=1, notice=news.append)
    assert len(news) == 1 and "but the text has changed; starting afresh" in news[0]


def test_rows_of_another_column_configuration_or_time_are_others(folder, tmp_path):
    write_jsonl(tmp_path / "two/train.jsonl", [{"text": "a b", "said": "a b"}])
    card = "---\nconfigs:\n- config_name: one\n  data_files: train.jsonl\n"
    card += "- config_name: two\n  data_files: train.jsonl\n---\n"
    (tmp_path / "two/README.md").write_text(card)

    def signature(**options):
        return find(tmp_path / "two", **options).files["train"][0].signature

    whole = signature(config="one")
    assert whole == signature(config="one") != signature(config="one", column="said")
    assert whole != signature(config="two")
    write_jsonl(tmp_path / "two/train.jsonl", [{"text": "a c", "said": "a b"}])
    assert whole != signature(config="one")


class Broken:
    """Rows that end in an error, as those of a line that broke do."""

    def __init__(self, rows, fails_at, error=None):
        self.rows, self.fails_at = rows, fails_at
        self.error = error or OSError("the peer has gone")

    def skip(self, number):
        for place, row in islice(enumerate(self.rows), number, None):
            if place == self.fails_at:
                raise self.error
            yield row


def test_a_line_that_broke_keeps_what_was_done(folder, tmp_path):
    text, rows = find(folder), [{"text": text} for text in ROWS["train"]]
    whole = text.files["train"][0]
    text.files["train"] = (HubText(whole.path, "text", 0, whole.signature, Broken(rows, 50)),)
    said = r"split train cannot be read from row 51 on \(the peer has gone\); what was done is kept"
    words = Tokenizer.words(ROWS["train"])
    with pytest.raises(ConnectionError, match=said):
        prepare_corpus(tmp_path / "c", text, tokenizer=words, workers=1)
    news = []
    prepare_corpus(tmp_path / "c", find(folder), tokenizer=words, workers=1, notice=news.append)
    assert news == [f"Going on with the unfinished {tmp_path / 'c'}."]
    assert tree(tmp_path / "c") == plainly(tmp_path / "plain")


def test_rows_are_read_no_further_than_they_are_asked_for():
    endless = Broken(({"text": f"row {number}"} for number in count()), -1)
    blocks = HubText("hf:x", "text", 0, [], endless).blocks(1000)
    first = next(blocks)
    assert first.number == 1 and first.stop == sum(len(text) + 1 for text in first.texts) < 1010
    assert next(blocks).number == first.next_number == len(first.texts) + 1


def test_sizes_are_bytes_and_never_more_than_there_are():
    rows = Broken([{"text": "Größe"}, {"text": "a"}], -1)
    assert [block.stop for block in HubText("hf:x", "text", 0, [], rows).blocks(1)] == [8, 10]
    blocks = list(HubText("hf:x", "text", 9, [], rows).blocks(1))
    assert [(block.stop, block.read) for block in blocks] == [(8, 8), (10, 9)]


def test_the_size_is_that_of_the_card_or_of_the_files(folder):
    assert find(folder).files["test"][0].size == (folder / "test.jsonl").stat().st_size
    card = "dataset_info:\n  splits:\n  - name: train\n    num_bytes: 777\n    num_examples: 60\n"
    (folder / "README.md").write_text(f"---\n{card}---\n")
    assert find(folder).files["train"][0].size == 777


def test_other_columns_are_not_read(tmp_path, monkeypatch):
    """A picture would want libraries of its own, and one that is broken cannot be read."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "x").mkdir()
    features = datasets.Features({"text": datasets.Value("string"), "seen": datasets.Image()})
    broken = {"text": ["a b"], "seen": [{"bytes": b"no picture", "path": None}]}
    table = datasets.Dataset.from_dict(broken, features=features)
    table.to_parquet(tmp_path / "x/train.parquet")
    assert list(find(tmp_path / "x").read("train")) == ["a b"]
