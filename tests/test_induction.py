"""States against tags: values by hand, scikit-learn's and scipy's, laws, and merging."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from sklearn import metrics

from hmmlm.errors import InputError
from hmmlm.induction import agreement, count_together, match, merge_states

LABELS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=40)


def both(labels: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    states, tags = np.array(labels).T
    return states, tags


def test_by_hand() -> None:
    """Eight tokens: state 0 has tag 0 three times and 1 once, states 1 and 2 have tag 1."""
    counts = np.array([[3, 1], [0, 2], [0, 2]])
    found = agreement(counts)
    assert found.tokens == 8 and found.many_to_one == 7 / 8
    assert found.one_to_one == 5 / 8  # state 0 is tag 0, state 1 is tag 1, state 2 is wrong
    log = np.log
    of_tag = 0.5 * -(0.75 * log(0.75) + 0.25 * log(0.25))
    of_state = 5 / 8 * -(0.2 * log(0.2) + 0.8 * log(0.4))
    tags = -(3 / 8 * log(3 / 8) + 5 / 8 * log(5 / 8))
    states = -(0.5 * log(0.5) + 0.5 * log(0.25))
    assert found.homogeneity == pytest.approx(1 - of_tag / tags, abs=1e-12)
    assert found.completeness == pytest.approx(1 - of_state / states, abs=1e-12)
    h, c = found.homogeneity, found.completeness
    assert found.v_measure == pytest.approx(2 / (1 / h + 1 / c), abs=1e-12)
    assert found.variation_of_information == pytest.approx(of_tag + of_state, abs=1e-12)


def test_one_to_one_is_not_greedy() -> None:
    """The largest cell first would leave 10 + 0; the best pairs have 9 + 9."""
    found = match(np.array([[10, 9], [9, 0]]))
    assert [part.tolist() for part in found] == [[0, 1], [1, 0], [9, 9]]


@given(LABELS)
def test_as_scikit_learn_has_it(labels) -> None:
    states, tags = both(labels)
    found = agreement(count_together(states, tags))
    wanted = metrics.homogeneity_completeness_v_measure(tags, states)
    assert found[3:6] == pytest.approx(wanted, abs=1e-9)
    shared = metrics.mutual_info_score(tags, states)
    entropies = metrics.mutual_info_score(tags, tags), metrics.mutual_info_score(states, states)
    assert found.variation_of_information == pytest.approx(sum(entropies) - 2 * shared, abs=1e-9)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (5, 5), (17, 63), (63, 17), (90, 90)])
@pytest.mark.parametrize("largest", [2, 1000])
def test_matching_as_scipy_has_it(shape: tuple[int, int], largest: int) -> None:
    draw = np.random.default_rng(shape[0])
    for _ in range(5):
        counts = draw.integers(0, largest, shape)
        counts[0, 0] += 1
        found = match(counts)
        best = counts[linear_sum_assignment(counts, maximize=True)].sum()
        assert found.counts.sum() == best and (found.counts > 0).all()
        assert (counts[found.rows, found.columns] == found.counts).all()
        assert len(set(found.columns.tolist())) == len(found.columns)
        assert (np.diff(found.rows) > 0).all()


def test_matching_by_trying_all() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        counts = draw.integers(0, 9, (4, 5)) + np.eye(4, 5, dtype=int)
        ways = itertools.permutations(range(5), 4)
        best = max(sum(counts[row, column] for row, column in enumerate(way)) for way in ways)
        assert match(counts).counts.sum() == best == match(counts.T).counts.sum()


@given(LABELS, st.permutations(range(7)), st.permutations(range(5)))
def test_names_do_not_matter(labels, states_as, tags_as) -> None:
    states, tags = both(labels)
    found = agreement(count_together(states, tags))
    again = agreement(count_together(np.array(states_as)[states], np.array(tags_as)[tags]))
    assert again == pytest.approx(found, abs=1e-12)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.permutations(range(7)))
def test_the_same_labels_agree(tags, renamed) -> None:
    found = agreement(count_together(np.array(renamed)[tags], np.array(tags)))
    assert found == (len(tags), 1.0, 1.0, 1.0, 1.0, 1.0, 0.0)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(0, 2)), min_size=1))
def test_finer_states_lower_no_many_to_one_and_no_homogeneity(labels) -> None:
    states, tags, parts = np.array(labels).T
    coarse = agreement(count_together(states, tags))
    fine = agreement(count_together(states * 3 + parts, tags))
    assert fine.many_to_one >= coarse.many_to_one
    assert fine.homogeneity >= coarse.homogeneity - 1e-12
    assert coarse.one_to_one <= coarse.many_to_one


@given(LABELS)
def test_information_is_a_distance(labels) -> None:
    states, tags = both(labels)
    one, other = (agreement(count_together(*pair)) for pair in ((states, tags), (tags, states)))
    name = "variation_of_information"
    assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-12)
    assert one.one_to_one == other.one_to_one
    assert one.homogeneity == pytest.approx(other.completeness, abs=1e-12)


def test_one_state_for_all() -> None:
    found = agreement(np.array([[6, 2]]))
    assert (found.many_to_one, found.one_to_one) == (0.75, 0.75)
    assert (found.homogeneity, found.completeness, found.v_measure) == (0.0, 1.0, 0.0)


def test_states_that_neighbour_alike_are_merged() -> None:
    """Three kinds of words in a fixed order, each split into four states by chance."""
    draw = np.random.default_rng(0)
    kinds = [np.array([0, 1, 2, 1, 0, 2][: draw.integers(2, 7)]) for _ in range(2000)]
    names = draw.permutation(40)[:12]
    lines = [names[kind * 4 + draw.integers(0, 4, len(kind))] for kind in kinds]
    groups = merge_states(lines, 3)
    found = agreement(count_together(groups[np.concatenate(lines)], np.concatenate(kinds)))
    assert found.one_to_one == found.v_measure == 1.0
    assert set(np.flatnonzero(groups >= 0).tolist()) == set(names.tolist())
    sizes = np.bincount(groups[np.concatenate(lines)])
    assert len(sizes) == 3 and (np.diff(sizes) <= 0).all()


def test_as_many_groups_as_states_are_the_states() -> None:
    lines = [np.array([5, 2, 2]), np.array([2, 7])]
    groups = merge_states(lines, 3)
    assert groups[2] == 0 and sorted(groups[[2, 5, 7]].tolist()) == [0, 1, 2]
    assert groups[[0, 1, 3, 4, 6]].tolist() == [-1] * 5
    assert set(merge_states(lines, 1)[[2, 5, 7]].tolist()) == {0}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: count_together(np.arange(3), np.arange(2)), "There are 3 states but 2 tags; "),
        (lambda: count_together(np.arange(0), np.arange(0)), "There is no token to compare"),
        (lambda: count_together(np.array([-1]), np.array([0])), "A state or a tag is under 0"),
        (lambda: agreement(np.zeros((2, 2), int)), "counts has no token"),
        (lambda: match(np.array([[1, -1]])), "counts has a number under 0"),
        (lambda: merge_states([np.array([1, 4])], 3), "There are 2 states on the lines but 3 "),
        (lambda: merge_states([np.array([1, 4])], 0), "number is 0 but must be at least 1"),
    ],
)
def test_what_is_refused(make, said: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value).startswith(said)
