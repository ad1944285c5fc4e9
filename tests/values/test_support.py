"""Supports: who may emit what, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmmlm.support import Support


def test_dense_has_one_row() -> None:
    support = Support.dense(4, 3)
    assert support.is_dense and support.is_partition
    assert support.states_of(torch.tensor([[3]])).tolist() == [[[0, 1, 2]]]


def test_clusters_are_ranges_of_their_own() -> None:
    support = Support.from_clusters([1, 0, 1], [2, 1])
    assert support.rows.tolist() == [[0, 1], [2, -1]]
    assert support.states_of(torch.tensor([0, 1])).tolist() == [[2, -1], [0, 1]]
    assert support.is_partition and not support.is_dense and support.num_states == 3


@settings(deadline=None, max_examples=50)
@given(
    words=st.integers(1, 20), states=st.integers(1, 25), k=st.integers(1, 6), seed=st.integers(0, 9)
)
def test_uniform_names_every_state(words: int, states: int, k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    if k > states or words * k < states:
        with pytest.raises(ValueError, match=r"must lie between|can name at most"):
            Support.uniform(words, states, k, generator)
        return
    support = Support.uniform(words, states, k, generator)
    assert support.rows.shape == (words, k)
    assert support.rows.unique().tolist() == list(range(states))
    assert all(len(set(row)) == k for row in support.rows.tolist())


def test_inverse_map_lists_every_cell_once() -> None:
    support = Support.ragged([[0, 1, 2], [2], [3, 0], [2], [1, 3]], 4)
    cells = support.state_words
    pairs = {(int(z), int(w)) for z, w in zip(cells.states, cells.words, strict=True)}
    assert pairs == {(0, 0), (1, 0), (2, 0), (2, 1), (3, 2), (0, 2), (2, 3), (1, 4), (3, 4)}
    assert cells.offsets.tolist() == [0, 2, 4, 7, 9]
    for z, w, k in zip(cells.states, cells.words, cells.slots, strict=True):
        assert support.states_of(w)[k] == z
    assert support.rows.shape[0] == 4  # words 1 and 3 share a row


def test_restrict_renumbers_and_closes_gaps() -> None:
    support = Support.ragged([[0, 1, 2], [2], [3, 0]], 4).restrict(torch.tensor([3, 1]))
    assert support.states_of(torch.arange(3)).tolist() == [[1], [-1], [0]]
    assert support.num_states == 2


BAD = [
    (lambda: Support.ragged([[0], [2]], 3), "State 1 is named by no word"),
    (lambda: Support.ragged([[0], []], 1), "Word 1 has no state that may emit it"),
    (lambda: Support.ragged([[0, 5]], 3), "names state 5 but there are 3 states"),
    (lambda: Support.ragged([[0, -2]], 1), "names state -2 but there are 1 states"),
    (lambda: Support.ragged([[0, 0]], 1), "names the same state twice"),
    (lambda: Support.ragged([], 1), "at least one word and one state"),
    (lambda: Support.dense(0, 3), "at least one word and one state"),
    (lambda: Support.from_clusters([], 2), "must give every word a cluster id"),
    (lambda: Support.from_clusters([0, 2], 2), "State 2 is named by no word"),
    (lambda: Support.from_clusters([0, 1], [2]), "one for each of the 2 clusters"),
    (lambda: Support.from_clusters([0, 1], [2, 0]), "one for each of the 2 clusters"),
    (lambda: Support(torch.tensor([0]), torch.tensor([0]), 1), "needs rows (R, K)"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=range(len(BAD)))
def test_what_is_refused(make, message: str) -> None:
    from jaxtyping import TypeCheckError

    with pytest.raises((ValueError, TypeCheckError)) as caught:
        make()
    assert isinstance(caught.value, TypeCheckError) or message in str(caught.value)


def test_slots_of_a_dense_support_are_its_states() -> None:
    dense = Support.dense(3, 4)
    states = torch.tensor([-1, 0, 3, 4])
    assert dense.slots_of(torch.zeros(4, dtype=torch.long), states).tolist() == [-1, 0, 3, -1]


def test_the_number_of_blocks() -> None:
    assert Support.from_clusters([0, 1, 1], [1, 5]).num_blocks == 2
    assert Support.dense(3, 4).num_blocks == 1
    assert Support.ragged([[0, 1], [1, 2], [3, 0]], 4).num_blocks == 2
