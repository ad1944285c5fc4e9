"""Tables from words and states: no others make them more probable."""

import numpy as np
import pytest
import torch

from hmmlm.data.shards import TokenArray
from hmmlm.distill import tables
from hmmlm.distill.tables import count_tables
from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.inference.joint import joint_log_prob
from hmmlm.support import Support
from hmmlm.transitions import Dense

DENSE, BLOCKS = Support.dense(5, 3), Support.from_clusters([0, 1, 1, 0, 1], [2, 3])
EOS = 1


def draw(support: Support, number: int = 120) -> tuple[np.ndarray, TokenArray]:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(5, (number,), generator=generator)
    rows = support.states_of(words)
    slots = (torch.rand(number, generator=generator) * (rows >= 0).sum(1)).long()
    states = rows.gather(1, slots[:, None])[:, 0].numpy().astype(np.uint16)
    return states, TokenArray.from_ids(words.tolist(), eos_id=EOS)


def score(hmm: HMM, states: np.ndarray, tokens: TokenArray, length: int, reset: bool) -> float:
    rows = [part for part in (tokens[0 : len(states)], states.astype(np.int64))]
    words, marks = (torch.from_numpy(np.asarray(part)).view(-1, length) for part in rows)
    how = {"reset_id": EOS} if reset else {}
    return float(joint_log_prob(hmm, words, marks, **how).sum())


@pytest.mark.parametrize("support", [DENSE, BLOCKS], ids=["dense", "blocks"])
@pytest.mark.parametrize("length", [8, 120])
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("cells", [1 << 24, 21])
def test_no_other_tables_make_them_more_probable(support, length, reset, cells, monkeypatch):
    monkeypatch.setattr(tables, "CELLS", cells)
    states, tokens = draw(support)
    best = count_tables(states, tokens, support, length=length, reset=reset, pseudocount=1e-9)
    best = best.to(dtype=torch.float64).validate()
    highest = score(best, states, tokens, length, reset)
    # The gradient of the logits of every distribution is zero there.
    fields = [field.clone().requires_grad_() for field in best.fields()]
    init, trans = torch.log_softmax(fields[0], 0), torch.log_softmax(fields[1], 1)
    free = HMM(init, Dense(trans), tables.emission_table(fields[2], support), support)
    words, marks = (
        torch.from_numpy(np.asarray(part).astype(np.int64)).view(-1, length)
        for part in (tokens[0:120], states)
    )
    value = joint_log_prob(free, words, marks, reset_id=EOS if reset else None).sum()
    assert float(value.detach()) == pytest.approx(highest, abs=1e-4)
    for grad in torch.autograd.grad(value, fields):
        torch.testing.assert_close(grad, torch.zeros_like(grad), rtol=0, atol=2e-4)


def test_what_nobody_saw_is_possible():
    states, tokens = draw(DENSE)
    made = count_tables(states[:1], tokens, DENSE, pseudocount=0.5)
    assert all(torch.isfinite(field).all() for field in made.fields())
    first = int(states[0])
    assert float(made.log_init[first].exp()) == pytest.approx(1.5 / 2.5)
    other = (first + 1) % 3
    assert made.log_emit[:, other].exp().tolist() == pytest.approx([0.2] * 5)
    assert made.transitions.rows(0, 3).exp().flatten().tolist() == pytest.approx([1 / 3] * 9)


def test_what_is_refused():
    states, tokens = draw(BLOCKS)
    with pytest.raises(InputError, match=r"pseudocount is 0\.0 but must be more than 0"):
        count_tables(states, tokens, BLOCKS, pseudocount=0.0)
    with pytest.raises(InputError, match="A token has a state that may not emit it"):
        count_tables((states + 1) % 5, tokens, BLOCKS)
