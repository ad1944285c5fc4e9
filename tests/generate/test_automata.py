"""The algebra of automata, against all strings up to a length."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmmlm.errors import InputError
from hmmlm.generate import automata
from hmmlm.generate.automata import NEVER, Automaton, from_steps

LETTERS = 3
STRINGS = [string for size in range(6) for string in product(range(LETTERS), repeat=size)]


def draw(seed: int) -> Automaton:
    random = np.random.default_rng(seed)
    states = random.integers(1, 6)
    used, column = np.unique(random.integers(0, LETTERS, LETTERS), return_inverse=True)
    table = random.integers(0, states, (states, len(used)))
    return Automaton(column, table, random.random(states) < 0.4)


def language(automaton: Automaton) -> list[bool]:
    return [automaton.accepts(string) for string in STRINGS]


seeds = st.integers(0, 10_000)


@given(seeds, seeds)
def test_operators_against_all_strings(one, other):
    a, b = draw(one), draw(other)
    left, right = language(a), language(b)
    assert language(a.reduced()) == left
    assert language(a & b) == [x and y for x, y in zip(left, right, strict=True)]
    assert language(a | b) == [x or y for x, y in zip(left, right, strict=True)]
    assert language(~a) == [not x for x in left]
    assert language(a.then(b)) == [
        any(a.accepts(s[:cut]) and b.accepts(s[cut:]) for cut in range(len(s) + 1)) for s in STRINGS
    ]


@given(seeds, seeds)
def test_one_language_has_one_table(one, other):
    a, b = draw(one), draw(other)
    left, right = a & b, (~(~b | ~a)).reduced()
    for ours, theirs in zip(
        (left.column, left.next, left.accepting),
        (right.column, right.next, right.accepting),
        strict=True,
    ):
        assert np.array_equal(ours, theirs)


@given(seeds)
def test_a_reduced_automaton_is_the_smallest(seed):
    """Its states are told apart by some string: so many are needed (Myhill and Nerode)."""
    a = draw(seed).reduced()
    rows = {tuple(a.accepting[a.run(s, state)] for s in STRINGS) for state in range(a.num_states)}
    assert len(rows) == a.num_states
    columns = {tuple(a.next[:, column]) for column in range(a.num_columns)}
    assert len(columns) == a.num_columns == len(set(a.column.tolist()))


@given(seeds)
def test_the_way_to_the_end(seed):
    a = draw(seed)
    for state in range(a.num_states):
        sizes = [len(s) for s in STRINGS if a.accepting[a.run(s, state)]]
        assert a.distance[state] == (min(sizes) if sizes else NEVER)
    assert a.is_empty == (not any(language(a)))


def test_automata_of_other_letters_and_of_too_many_states(monkeypatch):
    other = Automaton(np.zeros(4, int), np.zeros((1, 1), int), np.array([True]))
    with pytest.raises(InputError, match="reads 3 letters and the other 4; compile both"):
        draw(0) & other
    monkeypatch.setattr(automata, "MOST", 20)
    with pytest.raises(InputError, match=r"more than 10 states of 2 kinds .* limit of 20 cells"):
        from_steps(2, 0, lambda state, letter: state + 1, lambda state: True)


def test_numbers_that_occur(monkeypatch):
    codes = np.random.default_rng(0).integers(0, 50, 30)
    truth = np.unique(codes, return_inverse=True)
    for most in (50, 49):
        monkeypatch.setattr(automata, "MOST", most)
        for one, other in zip(automata.distinct(codes, 50), truth, strict=True):
            assert (one == other).all()
