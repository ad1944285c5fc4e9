"""Counts of words and pairs, and the mutual information of clusters."""

import tracemalloc
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from clusters.texts import as_dict, bigrams_of, information, lines_of_classes, toy
from hmmlm.clusters import counts
from hmmlm.clusters.counts import count_bigrams, mutual_information, read_words
from hmmlm.data.shards import Corpus as OpenCorpus
from hmmlm.data.shards import TokenArray, write_corpus
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError


def pairs_in(table) -> Counter:
    found = Counter()
    for word in range(len(table.offsets) - 1):
        span = slice(table.offsets[word], table.offsets[word + 1])
        others = table.words[span].tolist()
        assert others == sorted(set(others))
        found |= {(word, o): n for o, n in zip(others, table.counts[span].tolist(), strict=True)}
    return found


@pytest.mark.parametrize("pairs", ["lines", "stream"])
@pytest.mark.parametrize("chunk", [1, 2, 7, 1 << 22])
def test_counts_are_those_of_a_loop(pairs, chunk, monkeypatch):
    monkeypatch.setattr(counts, "_CHUNK", chunk)
    text = [[3], [1, 2], [], [0, 0, 1], [], [2, 0, 0, 0], [1]]
    rows = text if pairs == "lines" else [[word for line in text for word in line]]
    expected = Counter((a, b) for row in rows for a, b in pairwise(row))
    found = bigrams_of(text, 6, pairs)
    assert found.words.tolist() == [5, 3, 2, 1, 0, 0]
    assert pairs_in(found.ahead) == expected
    assert pairs_in(found.back) == Counter({(b, a): n for (a, b), n in expected.items()})
    assert found.total == sum(expected.values())
    assert found.firsts.sum() == found.seconds.sum() == found.total
    assert found.num_types == 4 and found.by_count().tolist() == [0, 1, 2, 3]


def test_many_chunks_are_merged(monkeypatch):
    text = lines_of_classes(300, seed=1)
    whole = bigrams_of(text, 31)
    monkeypatch.setattr(counts, "_CHUNK", 50)
    heard = []
    ids = [word for line in text for word in [*line, 30]]
    tokens = TokenArray.from_ids(ids, eos_id=30)
    found = count_bigrams(tokens, 31, progress=heard.append)
    for table, other in ((whole.ahead, found.ahead), (whole.back, found.back)):
        for one, another in zip(table, other, strict=True):
            np.testing.assert_array_equal(one, another)
    assert sum(heard) == len(ids) and len(heard) == -(-len(ids) // 50)


def test_text_and_shards_count_the_same(tmp_path):
    lines = ["the cat saw the dog", "a dog ran", "the dog saw a <unk>", "the end <eos> a new one"]
    read = read_words(lines)
    assert read.words[-1] == "<eos>" and read.words[:3] == ["the", "a", "dog"]
    tokenizer = Tokenizer.words(lines)
    write_corpus(tmp_path / "corpus", tokenizer, {"train": lines}, shard_tokens=5)
    tokens = OpenCorpus.open(tmp_path / "corpus").split("train")
    for pairs in ("lines", "stream"):
        text = count_bigrams(read.tokens, len(read.words), pairs=pairs)
        shards = count_bigrams(tokens, tokenizer.vocab_size, pairs=pairs)
        by_word = {(read.words[a], read.words[b]): n for (a, b), n in pairs_in(text.ahead).items()}
        by_token = {
            (tokenizer.token(a), tokenizer.token(b)): n
            for (a, b), n in pairs_in(shards.ahead).items()
        }
        assert by_word == by_token
        assert ("end", "a") in by_word if pairs == "stream" else ("end", "a") not in by_word


def test_memory_is_that_of_the_pairs():
    """A quarter of a million types: a matrix of them would be 500 gigabytes."""
    ids = np.random.default_rng(0).integers(250_000, size=100_000)
    tokens = TokenArray.from_ids(ids, eos_id=250_000)
    count_bigrams(TokenArray.from_ids([0, 1], eos_id=2), 3)  # compile first
    tracemalloc.start()
    found = count_bigrams(tokens, 250_001)
    mutual_information(found, np.where(found.words > 0, np.arange(250_001) % 128, -1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.total == 99_999 and peak < 60e6


@pytest.mark.parametrize("clusters", [1, 2, 5, 30])
@pytest.mark.parametrize("seed", [0, 1])
def test_mutual_information_is_the_direct_sum(clusters, seed):
    bigrams, pairs = toy(seed)
    drawn = np.random.default_rng(seed).integers(clusters, size=31)
    drawn[30] = -1  # <eos>
    expected = information(pairs, as_dict(drawn))
    assert mutual_information(bigrams, drawn) == pytest.approx(expected, abs=1e-12)
    assert expected == 0 if clusters == 1 else expected > 0


def test_words_without_a_cluster_are_left_out():
    bigrams, pairs = toy()
    drawn = np.arange(31) % 4
    drawn[[3, 8, 30]] = -1
    kept = Counter({(a, b): n for (a, b), n in pairs.items() if not {a, b} & {3, 8}})
    expected = information(kept, as_dict(drawn))
    assert mutual_information(bigrams, drawn) == pytest.approx(expected, abs=1e-12)
    assert mutual_information(bigrams, np.full(31, -1)) == 0


def test_bad_input():
    tokens = TokenArray.from_ids([0, 1, 5], eos_id=2)
    with pytest.raises(InputError, match="pairs is 'words' but must be lines or stream"):
        count_bigrams(tokens, 6, pairs="words")
    with pytest.raises(InputError, match="the text has id 5 but this vocabulary ends at 4"):
        count_bigrams(tokens, 5)
    for ids in ([], [2, 2]):
        with pytest.raises(InputError, match="no words to cluster"):
            count_bigrams(TokenArray.from_ids(ids, eos_id=2), 3)
    bigrams, _ = toy()
    for wrong in (np.zeros(30, int), np.zeros(31)):
        with pytest.raises(InputError, match="must be 31 whole numbers, one for each word"):
            mutual_information(bigrams, wrong)
