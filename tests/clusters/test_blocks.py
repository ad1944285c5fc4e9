"""Every token of a vocabulary gets a block, by rule."""

import numpy as np
import pytest

from commands import made_up_lines
from hmmlm.clusters import blocks as module
from hmmlm.clusters.blocks import assign_blocks, corpus_blocks, states_of_blocks
from hmmlm.clusters.clustering import balance
from hmmlm.clusters.kept import kept_clusters
from hmmlm.data.shards import Corpus, write_corpus
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError

UNK, EOS = 0, 1


def test_specials_have_a_block_each():
    clusters = np.array([1, -1, 0, 0, 1, 2, 2], np.int32)
    counts = np.array([5, 9, 1, 1, 1, 1, 1])
    made = assign_blocks(clusters, counts, eos_id=EOS, unk_id=UNK)
    assert made.block_of_word.tolist() == [4, 3, 0, 0, 1, 2, 2] and made.num_blocks == 5
    assert made.rules == ("<eos> has block 3 to itself", "<unk> has block 4 to itself")


def test_a_special_that_is_alone_keeps_its_cluster():
    clusters = np.array([2, -1, 0, 1], np.int32)
    made = assign_blocks(clusters, np.ones(4, int), eos_id=EOS, unk_id=UNK)
    assert made.block_of_word.tolist() == [2, 3, 0, 1] and made.num_blocks == 4
    assert made.rules == ("<eos> has block 3 to itself", "<unk> has block 2 to itself")


def test_tokens_that_never_occur_join_the_largest_block():
    clusters = np.array([-1, -1, 0, 1, 1, -1, -1], np.int32)
    counts = np.array([0, 9, 5, 1, 1, 0, 0])
    made = assign_blocks(clusters, counts, eos_id=EOS, unk_id=UNK)
    assert made.block_of_word.tolist() == [1, 2, 0, 1, 1, 1, 1]
    assert made.rules == (
        "<eos> has block 2 to itself",
        "3 tokens that never occur are in block 1, the one with the most words",
    )
    assert assign_blocks(clusters, counts, eos_id=EOS, unk_id=None).num_blocks == 3


def test_like_hmm_lm():
    clusters = np.array([1, -1, 0, 1, 2, -1], np.int32)
    counts = np.array([5, 9, 1, 1, 1, 0])
    made = assign_blocks(clusters, counts, eos_id=EOS, unk_id=UNK, like_hmm_lm=True)
    assert made.block_of_word.tolist() == [1, 2, 0, 1, 2, 2] and made.num_blocks == 3
    assert made.rules == (
        "2 tokens without a cluster, <eos> among them, are in the last cluster, 2, as in hmm-lm",
    )


def test_a_word_of_the_text_without_a_cluster_is_refused():
    clusters = np.array([0, -1, 0, -1], np.int32)
    with pytest.raises(InputError, match="1 token of the training text has no cluster, the fir"):
        assign_blocks(clusters, np.ones(4, int), eos_id=EOS, unk_id=UNK)
    with pytest.raises(InputError, match="there are no clusters"):
        assign_blocks(np.full(4, -1, np.int32), np.ones(4, int), eos_id=EOS, unk_id=UNK)


def test_balance():
    found = balance(np.array([0, 0, 0, 1, -1, 2, 2]), np.array([1, 1, 1, 5, 9, 1, 1]))
    assert found == (3, 1, 2.0, 3, pytest.approx(1.5), pytest.approx(0.5))
    assert balance(np.array([0, 1])).largest_share is None


@pytest.fixture
def corpus(tmp_path) -> Corpus:
    lines = [*made_up_lines(100, seed=1), "a <unk> sees the <unk> ."]
    tokenizer = Tokenizer.words([*lines, "never never seen"])
    write_corpus(tmp_path / "corpus", tokenizer, {"train": lines})
    return Corpus.open(tmp_path / "corpus")


@pytest.mark.parametrize("method", ["brown", "exchange"])
def test_the_number_of_blocks_counts_the_specials(corpus, method):
    made, cached = corpus_blocks(corpus, 7, method=method)
    assert not cached and made.num_blocks == 7
    assert sorted(set(made.block_of_word.tolist())) == list(range(7))
    for special in (corpus.tokenizer.eos_id, corpus.tokenizer.unk_id):
        assert (made.block_of_word == made.block_of_word[special]).sum() == 1
    assert "2 tokens that never occur" in made.rules[-1]


def test_like_hmm_lm_has_as_many_clusters_as_blocks(corpus):
    made, _ = corpus_blocks(corpus, 7, like_hmm_lm=True)
    assert made.num_blocks == 7 and made.block_of_word[corpus.tokenizer.eos_id] == 6
    assert "as in hmm-lm" in made.rules[0]


def test_clusters_are_kept(corpus, monkeypatch):
    first, _ = corpus_blocks(corpus, 7)
    assert kept_clusters(corpus.folder) == ["exchange-lines-6-unk-alone"]
    with monkeypatch.context() as patch:
        patch.setattr(module, "count_bigrams", None)  # what it would need to make them
        again, cached = corpus_blocks(Corpus.open(corpus.folder), 7)
    assert cached and again.rules == first.rules
    np.testing.assert_array_equal(again.block_of_word, first.block_of_word)
    for other in ({"blocks": 6}, {"method": "brown"}, {"pairs": "stream"}, {"like_hmm_lm": True}):
        assert not corpus_blocks(corpus, **{"blocks": 7, **other})[1]
    assert len(kept_clusters(corpus.folder)) == 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: None,
        lambda found: found[:-1],
        lambda found: found.astype(np.int64),
        lambda found: np.where(found == 3, 2, found).astype(np.int32),
        lambda found: np.where(found < 0, 0, found).astype(np.int32),
        lambda found: np.where(found == 5, 7, found).astype(np.int32),
    ],
    ids=["half", "short", "type", "gap", "unseen", "beyond"],
)
def test_kept_clusters_that_do_not_fit_are_made_again(corpus, damage):
    first, _ = corpus_blocks(corpus, 7)
    (path,) = corpus.folder.glob("clusters-*.npy")
    whole = path.read_bytes()
    found = damage(np.load(path))
    if found is None:
        path.write_bytes(whole[:-9])
    else:
        np.save(path, found)
    again, cached = corpus_blocks(corpus, 7)
    assert not cached and path.read_bytes() == whole
    np.testing.assert_array_equal(again.block_of_word, first.block_of_word)


def test_a_folder_that_cannot_be_written(corpus, monkeypatch):
    def refuse(path):
        raise InputError("no")

    monkeypatch.setattr("hmmlm.clusters.kept.new_file", refuse)
    made, cached = corpus_blocks(corpus, 7)
    assert made.num_blocks == 7 and not cached and not kept_clusters(corpus.folder)


@pytest.mark.parametrize(
    ("blocks", "like", "message"),
    [
        (2, False, "2 blocks were asked for but with 12 different words in the training text "),
        (14, False, "there can be 3 to 13"),
        (13, True, "there can be 1 to 12"),
    ],
)
def test_too_few_or_too_many_blocks(corpus, blocks, like, message):
    with pytest.raises(InputError, match=message):
        corpus_blocks(corpus, blocks, like_hmm_lm=like)
    assert not kept_clusters(corpus.folder)


def test_as_many_blocks_as_there_can_be(corpus):
    made, _ = corpus_blocks(corpus, 13)
    assert np.bincount(made.block_of_word).tolist().count(1) == 12
    with pytest.raises(InputError, match="method is 'kmeans' but must be brown or exchange"):
        corpus_blocks(corpus, 7, method="kmeans")


@pytest.mark.parametrize("uneven", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("states", [7, 40, 999, 4096])
def test_every_state_has_a_block_and_frequent_blocks_have_more(uneven, states):
    tokens = np.array([9000, 1, 40, 300, 0, 1200, 55])
    found = states_of_blocks(states, tokens, uneven)
    assert found.sum() == states and found.min() >= 1 and found.max() <= 2 * states / 7 + 1
    order = tokens.argsort()
    assert (np.diff(found[order]) >= -1).all()  # but for what rounding leaves
    if uneven == 0:
        assert found.max() - found.min() <= 1
    elif states > 40:
        assert found[0] > 1.5 * found[4]


def test_states_go_with_tokens_to_a_power():
    assert states_of_blocks(130, np.array([100, 900, 2500]), 0.5).tolist() == [15, 43, 72]
    assert states_of_blocks(100, np.array([10, 20, 30, 40]), 1.0).tolist() == [10, 20, 30, 40]
    # Not more than twice the average; what that leaves is shared by the others.
    assert states_of_blocks(60, np.array([1, 1, 1000, 1, 1, 1]), 1.0).tolist() == [
        8,
        8,
        20,
        8,
        8,
        8,
    ]
    # Nor than what is asked for, unless all alike have more.
    tokens = np.array([1, 1, 1000, 1, 1, 1])
    assert states_of_blocks(60, tokens, 1.0, widest=15).tolist() == [9, 9, 15, 9, 9, 9]
    assert states_of_blocks(62, tokens, 1.0, widest=5).tolist() == [11, 10, 11, 10, 10, 10]
    assert states_of_blocks(3, np.array([5, 50, 500]), 1.0).tolist() == [1, 1, 1]
    with pytest.raises(InputError, match="2 states are fewer than 3 blocks, each of which needs"):
        states_of_blocks(2, np.array([5, 50, 500]), 1.0)
