"""Every way to ask a transition table gives the same cells."""

import pytest
import torch

from models import TRANSITIONS, make_hmm


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_rows_columns_and_stretches_are_those_of_the_table(kind):
    table = make_hmm("blocks", kind).transitions
    whole = table.rows(0, table.num_sources)
    assert whole.exp().sum(1) == pytest.approx(torch.ones(4), abs=1e-9)
    some = torch.tensor([2, 0, 2])
    torch.testing.assert_close(table.rows_of(some), whole[some])
    for state in range(table.num_states):
        torch.testing.assert_close(table.column(state), whole[:, state])
    sources = torch.tensor([[3, 1], [0, -1]])
    found = table.stretch(sources, 1, 3)
    torch.testing.assert_close(found[0], whole[[3, 1], 1:3])
    torch.testing.assert_close(found[1, 0], whole[0, 1:3])
