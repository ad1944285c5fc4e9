"""log p(words, states) against the enumeration of all paths."""

import pytest
import torch

from enumeration import enumerate_row
from hmmlm.inference.joint import joint_log_prob
from models import SUPPORTS, TRANSITIONS, make_hmm

ROWS = [[0, 3, 2, 4], [2, 2, 0, 1], [4, 0, 1, 1]]
LENGTHS = [4, 4, 2]
RESTART = [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("support", SUPPORTS)
def test_every_path_has_the_probability_that_enumeration_gives_it(support, transitions):
    hmm = make_hmm(support, transitions)
    for row, length, restart in zip(ROWS, LENGTHS, RESTART, strict=True):
        found = enumerate_row(hmm, row[:length], restart=[bool(r) for r in restart[:length]])
        number = len(found.paths)
        states = torch.full((number, 4), -5)  # past the end stands what is no state
        states[:, :length] = found.paths
        tokens = torch.tensor([row]).repeat(number, 1)
        tokens[:, length:] = 99
        ours = joint_log_prob(
            hmm,
            tokens,
            states,
            lengths=torch.full((number,), length),
            restart=torch.tensor([restart], dtype=torch.bool).repeat(number, 1),
        )
        torch.testing.assert_close(ours, found.log_joint[:, -1], rtol=0, atol=1e-10)


def test_the_chain_starts_afresh_after_a_word():
    hmm, tokens = make_hmm(), torch.tensor([[0, 3, 2, 3]])
    states = torch.tensor([[1, 0, 2, 1]])
    restart = torch.tensor([[False, False, True, False]])
    ours = joint_log_prob(hmm, tokens, states, reset_id=3)
    torch.testing.assert_close(ours, joint_log_prob(hmm, tokens, states, restart=restart))
    assert ours != joint_log_prob(hmm, tokens, states)


@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("support", ["dense", "ragged"])
def test_its_gradient_counts_cells(support, transitions):
    hmm = make_hmm(support, transitions)
    fields = [field.requires_grad_() for field in hmm.fields()]
    tokens = torch.tensor([[0, 0, 0]])
    states = hmm.support.states_of(tokens)[:, :, 1]  # the same state three times
    joint_log_prob(hmm, tokens, states).sum().backward()
    state = int(states[0, 0])
    init, *trans, emit = (field.grad for field in fields)
    assert init.nonzero().tolist() == [[state]] and init[state] == 1
    assert emit.nonzero().tolist() == [[0, 1]] and emit[0, 1] == 3
    if transitions == "dense":
        assert trans[0].nonzero().tolist() == [[state, state]] and trans[0][state, state] == 2
    else:
        left, right, norm = trans
        torch.testing.assert_close(left[state], 2 * fields[2].detach()[state])
        torch.testing.assert_close(right[state], 2 * fields[1].detach()[state])
        assert norm.nonzero().tolist() == [[state]] and norm[state] == -2


def test_a_state_that_may_not_emit_its_word_is_impossible():
    hmm = make_hmm("blocks")
    tokens = torch.tensor([[0, 3], [0, 0]])
    states = torch.tensor([[0, 2], [0, 1]])  # the second block's state for a word of the first
    assert joint_log_prob(hmm, tokens, states).isneginf().tolist() == [True, False]
