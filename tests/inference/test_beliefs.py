"""Beliefs that somebody gives: what is no distribution is refused, and what was found is not
looked at again.
"""

import math

import pytest
import torch

from hmmlm import inference, results
from hmmlm.errors import InputError
from hmmlm.results import Belief
from models import make_hmm

HALF = math.log(0.5)
FORM = r"needs states \(B, W\) of integers, log_probs \(B, W\) of floats and fresh \(B,\) of bool"
BAD = {
    "nan": ([[0, 1]], [[HALF, math.nan]], [False], "belief sum to nan in row 0 but must sum to 1"),
    "inf": ([[0, 1]], [[HALF, math.inf]], [False], "belief sum to inf in row 0 but must sum to 1"),
    "mass": ([[0, 1]], [[0.0, 0.0]], [False], r"sum to 2 in row 0 .*; normalise log_probs, as log"),
    "little": ([[0, 1]], [[-2000.0, -2000.0]], [False], "sum to 0 in row 0 but must sum to 1"),
    "twice": ([[1, 1]], [[HALF, HALF]], [False], "names state 1 twice in row 0; name it once, wi"),
    "negative": ([[0, -2]], [[HALF, HALF]], [False], "names state -2 in row 0, with the log-p"),
    "padding": ([[0, -1]], [[HALF, HALF]], [False], r"state -1 in row 0, .* -0\.693147, but"),
    "range": ([[0, 99]], [[HALF, HALF]], [False], "names state 99 but this HMM has"),
    "width": ([[0, 1]], [[0.0]], [False], FORM),
    "rows": ([[0, 1]], [[HALF, HALF]] * 2, [False], FORM),
    "fresh": ([[0, 1]], [[HALF, HALF]], [[False]], FORM),
    "flat": ([0, 1], [HALF, HALF], [False], FORM),
    "numbers": ([[0, 1]], [[0, 0]], [False], FORM),
    "float states": ([[0.0, 1.0]], [[HALF, HALF]], [False], FORM),
    "flags": ([[0, 1]], [[HALF, HALF]], [0], FORM),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_belief_is_refused(name: str) -> None:
    *parts, words = BAD[name]
    hmm, text = make_hmm("blocks"), torch.tensor([[0, 1]])
    belief = Belief(*map(torch.tensor, parts))
    with pytest.raises(InputError, match=words):
        inference.log_prob(hmm, text, belief=belief)
    with pytest.raises(InputError, match=words):
        inference.sample(hmm, length=2, belief=belief)


def test_what_fresh_rows_and_impossible_ones_say_is_no_mistake() -> None:
    hmm, text = make_hmm("blocks"), torch.tensor([[0, 1]] * 3)
    states = torch.tensor([[7, 7], [0, 1], [1, -1]])
    logs = torch.tensor([[math.nan, 3.0], [-math.inf] * 2, [0.003, -math.inf]]).double()
    found = inference.log_prob(hmm, text, belief=Belief(states, logs, torch.arange(3) < 1))
    cold = inference.log_prob(hmm, text[:1]).log_evidence
    torch.testing.assert_close(found.log_evidence[:1], cold)
    assert found.log_evidence.isneginf().tolist() == [False, True, False]


def test_what_was_found_is_not_looked_at_again(monkeypatch) -> None:
    looked = []
    monkeypatch.setattr(results, "_check_values", lambda *given: looked.append(given))
    hmm, text = make_hmm("blocks"), torch.tensor([[0, 1], [1, 0]])
    for how in ("reference", "scaled", "scan"):
        belief = inference.log_prob(hmm, text, implementation=how).belief
        inference.smooth(hmm, text[1:], belief=belief.select(torch.tensor([1])))
        inference.sample(hmm, length=2, belief=belief)
    state = inference.advance(inference.start(hmm, 2, reset_id=1), text)
    inference.next_log_probs(inference.advance(state, text))
    assert not looked
    inference.log_prob(hmm, text, belief=Belief(*belief))
    assert len(looked) == 1
