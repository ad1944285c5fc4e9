"""A thousand random constraints: every text that is drawn or guided meets its own."""

from generate.test_guide import check_guided
from generate.test_lookahead import check_random_constraints


def test_a_thousand_constraints_of_an_hmm():
    check_random_constraints(range(1000, 2000))


def test_a_thousand_constraints_of_a_guided_language_model():
    check_guided(range(1000, 2000))
