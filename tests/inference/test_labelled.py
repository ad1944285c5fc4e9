"""Partly labelled tokens against the enumeration of all paths that the labels allow."""

import functools

import pytest
import torch
from torch import Tensor

from enumeration import enumerate_row, full_emissions
from hmmlm import inference
from hmmlm.errors import InputError
from hmmlm.inference.labelled import labelled
from models import SUPPORTS, TRANSITIONS, make_hmm

ROWS = [[0, 3, 2, 4], [2, 2, 0, 1], [4, 0, 0, 0]]
LENGTHS = [4, 4, 2]
RESTART = [[1, 0, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0]]
LABELS = {
    "none": [[-1] * 4] * 3,
    "some": [[0, -1, 1, -1], [-1, 1, 0, -1], [-1, 0, -1, -1]],
    "all": [[0, 1, 1, 0], [1, 0, 0, 1], [0, 1, -1, -1]],
}


def label_of_state(states: int) -> Tensor:
    return torch.arange(states) % 2


@functools.cache
def truth(support: str, transitions: str, given: str) -> tuple[list[float], list[Tensor]]:
    """Evidence of each row and summed counts, paths outside the labels struck out."""
    hmm = make_hmm(support, transitions)
    kinds, evidence = label_of_state(hmm.num_states), []
    sums = [torch.zeros_like(part) for part in enumerate_row(hmm, [0]).counts()]
    for row, length, restart, marks in zip(ROWS, LENGTHS, RESTART, LABELS[given], strict=True):
        found = enumerate_row(hmm, row[:length], restart=[bool(r) for r in restart[:length]])
        wanted = torch.tensor(marks[:length])
        fits = ((kinds[found.paths] == wanted) | (wanted < 0)).all(1)
        found.log_joint[~fits] = -torch.inf
        evidence.append(found.log_evidence)
        for total, part in zip(sums, found.counts(), strict=True):
            total += part
    return evidence, sums


@pytest.mark.parametrize("implementation", ["reference", "scaled"])
@pytest.mark.parametrize("given", LABELS)
@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("support", SUPPORTS)
def test_joint_evidence_and_counts(support, transitions, given, implementation):
    hmm, labels = make_hmm(support, transitions), torch.tensor(LABELS[given])
    evidence, (init, trans, emit) = truth(support, transitions, given)
    kinds = label_of_state(hmm.num_states)
    joint, tokens, fold = labelled(hmm, torch.tensor(ROWS), labels, kinds)
    how = {"lengths": torch.tensor(LENGTHS), "restart": torch.tensor(RESTART, dtype=torch.bool)}
    found = inference.counts(joint, tokens, implementation=implementation, **how)
    counts = fold(found)
    assert counts.log_evidence.tolist() == pytest.approx(evidence, abs=1e-10)
    near = {"rtol": 0, "atol": 1e-10}
    torch.testing.assert_close(counts.init, init, **near)
    cells = hmm.support.rows[hmm.support.row_of_word]
    picked = emit.gather(1, cells.clamp(min=0)).masked_fill(cells < 0, 0.0)
    torch.testing.assert_close(counts.emit, picked, **near)
    if transitions == "dense":
        torch.testing.assert_close(counts.trans, trans, **near)
    else:
        torch.testing.assert_close(counts.trans.log_norm, -trans.sum(1), **near)
    scored = inference.log_prob(joint, tokens, implementation=implementation, **how)
    assert scored.log_evidence.tolist() == pytest.approx(evidence, abs=1e-10)


def test_some_rows_are_possible_and_some_are_not():
    """Otherwise the oracle above would compare nothing."""
    for support, expected in (("blocks", [True, True, True]), ("one", [False, False, True])):
        evidence, _ = truth(support, "dense", "some")
        assert [value > -torch.inf for value in evidence] == expected


def test_labels_do_not_change_what_the_model_gives_to_words():
    hmm = make_hmm("dense")
    before = full_emissions(hmm)
    joint, _, _ = labelled(hmm, torch.tensor([[0, 3]]), torch.tensor([[1, -1]]), label_of_state(3))
    assert torch.equal(full_emissions(hmm), before)
    assert joint.support.is_dense and joint.vocab_size == 6


def test_what_is_refused():
    hmm, tokens = make_hmm("dense"), torch.tensor([[0, -1]])
    with pytest.raises(InputError, match="label_of_state is for 4 states but the HMM has 3"):
        labelled(hmm, tokens, torch.tensor([[0, -1]]), label_of_state(4))
    with pytest.raises(InputError, match="A missing token has a label"):
        labelled(hmm, tokens, torch.tensor([[0, 1]]), label_of_state(3))
