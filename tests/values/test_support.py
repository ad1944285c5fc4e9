"""Supports: who may emit what, and what is refused."""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmmlm.errors import InputError
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


UNTYPED = [
    (
        "from_clusters",
        ([0.0, 1.9], 1),
        r"clusters are torch\.float32 but must be whole numbers; gi",
    ),
    ("from_clusters", ([False, True], 1), r"clusters are torch\.bool but must be whole numbers"),
    ("from_clusters", ([0, 1], 1.5), r"states_per_block is 1\.5 but must be a whole number from 1"),
    ("from_clusters", ([0, 1], [1, 1.5]), r"states_per_block is \[1, 1\.5\] but .* the 2 clusters"),
    ("from_clusters", ([0, 1], np.array([2])), r"is array\(\[2\]\) but .* each of the 2 clusters"),
    ("from_clusters", ([0, 1], None), "states_per_block is None but must be a whole number from 1"),
    (
        "ragged",
        ([[0], [0.5]], 1),
        r"Word 1 has \[0\.5\] but must have a list of states; give whole",
    ),
    ("ragged", ([0], 1), "Word 0 has 0 but must have a list of states"),
    ("dense", (-1, 2), "one word and one state, not vocab_size -1 and num_states 2; give whole nu"),
    ("dense", (2, 0), "one word and one state, not vocab_size 2 and num_states 0"),
    ("dense", (2, 1.5), r"one word and one state, not vocab_size 2 and num_states 1\.5"),
]


@pytest.mark.parametrize(("name", "given", "message"), UNTYPED, ids=range(len(UNTYPED)))
def test_numbers_that_are_not_whole_are_not_cut(name: str, given, message: str) -> None:
    make = inspect.unwrap(getattr(Support, name))  # without the types, which would be told first
    with pytest.raises(InputError, match=message):
        make(*given)


def test_whole_numbers_of_any_type() -> None:
    plain = Support.from_clusters([0, 1], 2)
    make = inspect.unwrap(Support.from_clusters)
    for size in (np.int64(2), torch.tensor(2), np.array([2, 2]), torch.tensor([2, 2]), (2, 2)):
        made = make(np.array([0, 1], np.uint16), size)
        assert made.rows.equal(plain.rows) and made.row_of_word.equal(plain.row_of_word)
    shared = inspect.unwrap(Support.ragged)(torch.tensor([[0, 1], [0, 1]]), 2)
    assert shared.rows.tolist() == [[0, 1]] and shared.row_of_word.tolist() == [0, 0]


def test_rows_that_are_wider_than_there_are_states() -> None:
    wide = Support(torch.tensor([[0, 1, -1]]), torch.tensor([0]), 2)
    with pytest.raises(
        InputError, match=r"have 3 slots but there are 2 states, .*; leave out padd"
    ):
        wide.validate()


def test_slots_of_a_dense_support_are_its_states() -> None:
    dense = Support.dense(3, 4)
    states = torch.tensor([-1, 0, 3, 4])
    assert dense.slots_of(torch.zeros(4, dtype=torch.long), states).tolist() == [-1, 0, 3, -1]


def test_the_number_of_blocks() -> None:
    assert Support.from_clusters([0, 1, 1], [1, 5]).num_blocks == 2
    assert Support.dense(3, 4).num_blocks == 1
    assert Support.ragged([[0, 1], [1, 2], [3, 0]], 4).num_blocks == 2
