"""The cases of the benchmark of clustering, and its refusal to measure what is wrong."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks/ is no part of the wheel

from benchmarks.clusters import CASES, Case, is_right, zipf_text  # noqa: E402

from hmmlm.clusters.clustering import Clustering  # noqa: E402
from hmmlm.clusters.counts import count_bigrams  # noqa: E402


def test_the_cases_are_both_methods_at_three_sizes() -> None:
    cases = [Case.parse(name) for name in CASES]
    assert {(case.method, case.words) for case in cases} == {
        (method, words) for method in ("brown", "exchange") for words in (10_000, 33_000, 250_000)
    }
    with pytest.raises(SystemExit, match="No such case: brown-10"):
        Case.parse("brown-10")


def test_wrong_clusters_get_no_number() -> None:
    bigrams = count_bigrams(zipf_text(200, 5000), 201)
    occurs = bigrams.words > 0
    drawn = np.random.default_rng(1).integers(10, size=201).astype(np.int32)
    random = Clustering(np.where(occurs, drawn, -1).astype(np.int32), tuple("x" * 10))
    assert is_right(bigrams, random, "brown", 11) == "not 11 clusters"
    one = Clustering(np.where(occurs, 0, -1).astype(np.int32), ("",))
    assert is_right(bigrams, one, "brown", 1) == "no better than the same sizes at random"


def test_zipf_text_has_classes() -> None:
    tokens = zipf_text(1000, 20_000)
    counts = np.bincount(tokens[:], minlength=1001)
    assert counts[1000] == 1000 and counts[:50].sum() > 5 * counts[500:550].sum() > 0
