"""Exchange clustering: it only ever gains, and stops where no word would gain by moving."""

import numpy as np
import pytest

from clusters.texts import as_dict, bigrams_of, information, lines_of_classes, partition, toy
from hmmlm.clusters.brown import brown
from hmmlm.clusters.counts import mutual_information
from hmmlm.clusters.exchange import WIDE_START, _State, compiled, exchange
from hmmlm.errors import InputError


def random_start(bigrams, clusters: int, seed: int) -> np.ndarray:
    start = np.full(bigrams.vocab_size, -1)
    order = np.random.default_rng(seed).permutation(np.flatnonzero(bigrams.words))
    start[order] = np.arange(len(order)) % clusters
    return start


@pytest.mark.parametrize("seed", range(5))
def test_it_never_lowers_the_information(seed):
    bigrams, _ = toy(seed, lines=60)
    start = random_start(bigrams, 6, seed)
    before = mutual_information(bigrams, start)
    for passes in range(1, 8):
        found = exchange(bigrams, 6, start=start, passes=passes, tolerance=0)
        after = mutual_information(bigrams, found.cluster_of_word)
        assert after >= before - 1e-12
        assert passes > 1 or after > before
        before = after


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lines", [20, 200, 3000])
def test_no_word_would_gain_by_moving(seed, lines):
    """Brute force over every word and class. Pairs of a word with itself are among the text."""
    bigrams, pairs = toy(seed, lines=lines)
    assert any(a == b for a, b in pairs) or lines == 20
    start = random_start(bigrams, 5, seed)
    found = exchange(bigrams, 5, start=start, passes=1000, tolerance=0)
    cluster_of = as_dict(found.cluster_of_word)
    best = information(pairs, cluster_of)
    sizes = np.bincount(list(cluster_of.values()))
    for word, here in cluster_of.items():
        for c in range(5):
            if sizes[here] > 1:
                assert information(pairs, {**cluster_of, word: c}) <= best + 1e-8


@pytest.mark.parametrize("seed", range(3))
def test_a_word_goes_to_the_best_class(seed):
    """Of any clustering, for each word on its own, by brute force."""
    bigrams, pairs = toy(seed, lines=300)
    start = random_start(bigrams, 6, seed)
    cluster_of = as_dict(start)
    state = _State(bigrams, start, 6, [], 1)
    scratch = tuple(part[0] for part in state.scratch)
    fixed = (state.texts, state.classes, state.tables, state.is_open, state.table, scratch)
    for word in cluster_of:
        found = [information(pairs, {**cluster_of, word: c}) for c in range(6)]
        assert found[compiled._best(word, *fixed)] == pytest.approx(max(found), abs=1e-12)


def test_it_beats_brown():
    bigrams = bigrams_of(lines_of_classes(2000, seed=1, words=300, classes=17), 301)
    for clusters in (5, 10, 40):
        merged = mutual_information(bigrams, brown(bigrams, clusters).cluster_of_word)
        moved = mutual_information(bigrams, exchange(bigrams, clusters).cluster_of_word)
        assert moved > merged


def test_planted_classes_are_found():
    bigrams = bigrams_of(lines_of_classes(3000, seed=3), 31)
    planted = {frozenset(range(c, 30, 5)) for c in range(5)}
    start = random_start(bigrams, 5, seed=0)
    assert partition(exchange(bigrams, 5, start=start).cluster_of_word) == planted


def test_the_start_of_many_classes(monkeypatch):
    monkeypatch.setattr("hmmlm.clusters.exchange.WIDE_START", 3)
    assert WIDE_START == 1024
    bigrams = bigrams_of(lines_of_classes(2000, seed=1, words=300, classes=17), 301)
    start = np.full(301, -1)
    start[bigrams.by_count()] = np.minimum(np.arange(bigrams.num_types), 39)
    found = exchange(bigrams, 40)
    assert found.num_clusters == 40
    same = exchange(bigrams, 40, start=start)
    np.testing.assert_array_equal(found.cluster_of_word, same.cluster_of_word)
    found = exchange(bigrams, 40, alone=[7, 250])
    assert (found.cluster_of_word == found.cluster_of_word[7]).sum() == 1
    assert (found.cluster_of_word == found.cluster_of_word[250]).sum() == 1


@pytest.mark.parametrize("alone", [[0], [29, 3]])
def test_words_that_stay_alone(alone):
    bigrams, _ = toy(seed=2)
    found = exchange(bigrams, 6, alone=alone)
    for word in alone:
        assert (found.cluster_of_word == found.cluster_of_word[word]).sum() == 1
    assert found.num_clusters == 6


def test_no_class_is_emptied():
    bigrams, _ = toy(lines=8)
    for clusters in range(1, bigrams.num_types + 1):
        start = random_start(bigrams, clusters, seed=clusters)
        assert exchange(bigrams, clusters, start=start).num_clusters == clusters


def test_any_number_of_threads_gives_the_same():
    bigrams = bigrams_of(lines_of_classes(400, seed=4, words=200, classes=11), 201)
    heard = []
    first = exchange(bigrams, 20, threads=1, progress=heard.append)
    assert sum(heard) % bigrams.num_types == 0 and sum(heard) > 2 * bigrams.num_types
    for threads in (1, 2, 3):
        again = exchange(bigrams, 20, threads=threads)
        np.testing.assert_array_equal(again.cluster_of_word, first.cluster_of_word)
        assert again.paths == first.paths


def test_bad_input():
    bigrams, _ = toy()
    with pytest.raises(
        InputError, match="31 clusters were asked for but the text has only 30 different words"
    ):
        exchange(bigrams, 31)
    with pytest.raises(InputError, match="2 clusters are too few for 2 words with one of their"):
        exchange(bigrams, 2, alone=[1, 2])
    with pytest.raises(InputError, match="start must give every word that occurs, and no other"):
        exchange(bigrams, 5, start=np.zeros(31, int))
    with pytest.raises(InputError, match="start must give every word that occurs, and no other"):
        exchange(bigrams, 5, start=random_start(bigrams, 4, 0))
    with pytest.raises(InputError, match="word 2 is to be alone but shares its class"):
        exchange(bigrams, 5, start=random_start(bigrams, 5, 0), alone=[2])
    with pytest.raises(InputError, match="these are the clusters of another vocabulary"):
        exchange(bigrams, 5, start=np.zeros(7, int))
