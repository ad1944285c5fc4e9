"""Brown clustering against brute force."""

from itertools import combinations

import numpy as np
import pytest

from clusters.texts import as_dict, bigrams_of, information, lines_of_classes, partition, toy
from hmmlm.clusters.brown import brown, merge_down, merge_tree, merge_words
from hmmlm.clusters.clustering import from_tree
from hmmlm.clusters.counts import mutual_information
from hmmlm.errors import InputError


def joined(cluster_of: dict[int, int], a: int, b: int) -> dict[int, int]:
    return {word: a if c == b else c for word, c in cluster_of.items()}


def assert_each_merge_is_best(bigrams, pairs, merges, clusters: int, alone=()) -> None:
    """Replays the merges; each loses no more than any other pair of clusters would."""
    order = [*alone, *(w for w in bigrams.by_count().tolist() if w not in alone)]
    cluster_of = {word: word for word in order[:clusters]}
    waiting = order[clusters:]
    for one, other in merges.tolist():
        if waiting:
            word = waiting.pop(0)
            cluster_of[word] = word
        a, b = cluster_of[one], cluster_of[other]
        assert a != b
        names = set(cluster_of.values())
        free = [c for c in names if c not in alone]
        names = free if len(free) > 1 else names
        best = max(information(pairs, joined(cluster_of, c, d)) for c, d in combinations(names, 2))
        cluster_of = joined(cluster_of, a, b)
        if len(free) > 1:
            assert {a, b} <= set(free)
            assert information(pairs, cluster_of) == pytest.approx(best, abs=1e-12)
    assert len(set(cluster_of.values())) == 1 and not waiting


@pytest.mark.parametrize("clusters", [1, 2, 7, 15, 29, 30])
@pytest.mark.parametrize("threads", [1, 2])
def test_each_merge_is_the_best(clusters, threads):
    bigrams, pairs = toy(seed=clusters)
    found, merges = merge_words(bigrams, clusters, threads=threads)
    assert merges.shape == (29, 2)
    assert_each_merge_is_best(bigrams, pairs, merges, clusters)
    assert len(partition(found)) == clusters and found[30] == -1


@pytest.mark.parametrize("lines", [6, 40, 3000])
def test_each_merge_is_the_best_with_few_and_many_pairs(lines):
    bigrams, pairs = toy(seed=5, lines=lines)
    clusters = min(8, bigrams.num_types)
    _, merges = merge_words(bigrams, clusters)
    assert_each_merge_is_best(bigrams, pairs, merges, clusters)


@pytest.mark.parametrize("alone", [[0], [29, 3]])
def test_words_that_stay_alone(alone):
    bigrams, pairs = toy(seed=2)
    found, merges = merge_words(bigrams, 6, alone=alone)
    assert_each_merge_is_best(bigrams, pairs, merges, 6, sorted(alone))
    for word in alone:
        assert (found == found[word]).sum() == 1
    assert len(partition(found)) == 6


def test_words_of_one_word_lines():
    """They have no neighbours, and a cluster all the same."""
    bigrams = bigrams_of([[0, 1, 0, 2], [3], [4], [4]], 6)
    found = brown(bigrams, 3)
    assert partition(found.cluster_of_word) and (found.cluster_of_word[:5] >= 0).all()


def test_planted_classes_are_found():
    bigrams = bigrams_of(lines_of_classes(3000, seed=3), 31)
    planted = {frozenset(range(c, 30, 5)) for c in range(5)}
    found = brown(bigrams, 5)
    assert partition(found.cluster_of_word) == planted


def test_paths_are_a_binary_tree():
    bigrams, _ = toy()
    found = brown(bigrams, 9)
    assert found.num_clusters == 9 and list(found.paths) == sorted(set(found.paths))
    for one, other in combinations(found.paths, 2):
        assert not one.startswith(other) and not other.startswith(one)
    assert sum(2.0 ** -len(path) for path in found.paths) == 1  # no branch has one child
    assert sorted(set(found.cluster_of_word.tolist())) == [-1, *range(9)]


def test_the_more_frequent_side_is_left():
    bigrams, _ = toy()
    found = brown(bigrams, 9)
    for depth in range(max(map(len, found.paths))):
        for prefix in {path[:depth] for path in found.paths if len(path) > depth}:
            sides = [
                sum(
                    int(bigrams.words[w])
                    for w, c in as_dict(found.cluster_of_word).items()
                    if found.paths[c].startswith(prefix + bit)
                )
                for bit in "01"
            ]
            assert sides[0] >= sides[1] > 0


def test_any_word_stands_for_its_tree():
    merges = np.array([[0, 1], [2, 1]])  # 1 is with 0 by then
    found = from_tree(np.arange(3, dtype=np.int32), np.array([5, 4, 1]), merges)
    assert found.paths == ("00", "01", "1") and found.cluster_of_word.tolist() == [0, 1, 2]


def test_paths_follow_the_merges():
    """The last merge is the first bit: its two sides differ there and agree on nothing else."""
    bigrams, pairs = toy()
    found = brown(bigrams, 4)
    tree = merge_tree(bigrams, found.cluster_of_word)
    assert tree.paths == found.paths
    np.testing.assert_array_equal(tree.cluster_of_word, found.cluster_of_word)
    for depth in range(1, max(map(len, found.paths))):
        cut = {path: path[:depth] for path in found.paths}
        names = sorted(set(cut.values()))
        coarse = [names.index(cut[path]) for path in found.paths]
        cluster_of = {w: coarse[c] for w, c in as_dict(found.cluster_of_word).items()}
        assert information(pairs, cluster_of) <= information(pairs, as_dict(found.cluster_of_word))
    _, merges = merge_words(bigrams, 4)
    one, other = found.cluster_of_word[merges[-1]]
    assert {found.paths[one][0], found.paths[other][0]} == {"0", "1"}
    one, other = found.cluster_of_word[merges[-3]]  # the first pair of the four
    assert found.paths[one][:-1] == found.paths[other][:-1]


def test_the_tree_of_other_clusters():
    bigrams, _ = toy()
    drawn = np.arange(31) % 6
    drawn[30] = -1
    found = merge_tree(bigrams, drawn)
    assert partition(found.cluster_of_word) == partition(drawn)
    assert mutual_information(bigrams, found.cluster_of_word) == pytest.approx(
        mutual_information(bigrams, drawn), abs=1e-12
    )


@pytest.mark.parametrize("alone", [[], [4, 9]])
def test_merging_down_is_best_too(alone):
    bigrams, pairs = toy(seed=7)
    many = brown(bigrams, 12, alone=alone).cluster_of_word
    for number in range(11, 3, -1):
        cluster_of = as_dict(many)
        names = set(cluster_of.values()) - {cluster_of[word] for word in alone}
        best = max(information(pairs, joined(cluster_of, c, d)) for c, d in combinations(names, 2))
        many = merge_down(bigrams, many, number, alone=alone)
        found = as_dict(many)
        assert information(pairs, found) == pytest.approx(best, abs=1e-12)
        assert len(set(found.values())) == number
        assert all(list(found.values()).count(found[word]) == 1 for word in alone)


def test_any_number_of_threads_gives_the_same():
    bigrams = bigrams_of(lines_of_classes(400, seed=4, words=200, classes=11), 201)
    heard = []
    first = brown(bigrams, 20, threads=1, progress=heard.append)
    assert sum(heard) == bigrams.num_types - 20
    for threads in (1, 2, 3):
        again = brown(bigrams, 20, threads=threads)
        np.testing.assert_array_equal(again.cluster_of_word, first.cluster_of_word)
        assert again.paths == first.paths


def test_bad_input():
    bigrams, _ = toy()
    with pytest.raises(
        InputError, match="31 clusters were asked for but the text has only 30 different words"
    ):
        brown(bigrams, 31)
    with pytest.raises(InputError, match="clusters is 0 but must be at least 1"):
        brown(bigrams, 0)
    with pytest.raises(InputError, match="word 30 cannot have a cluster of its own"):
        brown(bigrams, 5, alone=[30])
    with pytest.raises(InputError, match="2 clusters are too few for 2 words with one of their"):
        brown(bigrams, 2, alone=[1, 2])
    with pytest.raises(InputError, match="threads is 0 but must be at least 1"):
        brown(bigrams, 5, threads=0)
    with pytest.raises(InputError, match="these are the clusters of another vocabulary"):
        merge_tree(bigrams, np.zeros(7, int))
