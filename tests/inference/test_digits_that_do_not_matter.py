"""Scores where a state falls further behind than float64 can say, against log space."""

import pytest
import torch
from torch import Tensor

from hmmlm import inference
from hmmlm.hmm import HMM
from hmmlm.inference import evidence
from hmmlm.ops.messages import reference
from hmmlm.results import Belief
from hmmlm.support import Support
from hmmlm.transitions import Dense, Factored


def two_states(apart: float, kind: str = "dense", behind: float = -800.0) -> HMM:
    """Of words 1 and 2 each state has one of its own, and the other far behind.

    In nats: float64 ends at -745, and a message keeps its digits above -668.
    """
    logits = torch.tensor([[0.0, apart], [apart, 0.0]]).double()
    table = Dense(logits.log_softmax(1))
    if kind == "factored":
        table = Factored.normalise(logits, torch.eye(2).double())
    emit = torch.tensor([[0.0, 0.0], [-1.0, behind], [behind, -1.0]]).double()
    emit[0] = torch.log1p(-emit[1:].exp().sum(0))
    start = torch.tensor([0.5, 0.5]).double().log()
    return HMM(start, table, emit, Support.dense(3, 2))


TEXTS = {
    "never back": ([0, 1, 0, 1, 0], -800.0, False),
    "back at once": ([0, 1, 2, 2, 0], -800.0, True),
    "back at the end": ([1, 1, 0, 0, 2], -800.0, True),
    "back for a while": ([1, 2, 1, 1, 1], -800.0, True),
    "one of two ways": ([1, 1, 2, 2, 0], -700.0, True),
}
"""With how far a state falls behind, and whether a token depends on it."""


@pytest.fixture
def asked_in_logs(monkeypatch) -> list[int]:
    """How many rows were taken in log space, one number for each step."""
    found, plain = [], reference.absorb

    def absorb(prediction: Tensor, emission: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found.append(len(prediction))
        return plain(prediction, emission)

    monkeypatch.setattr(reference, "absorb", absorb)
    return found


@pytest.mark.parametrize("kind", ["dense", "factored"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", TEXTS)
def test_log_space_only_where_a_token_depends_on_it(
    name: str, dtype: torch.dtype, kind: str, asked_in_logs: list[int]
) -> None:
    text, behind, depends = TEXTS[name]
    hmm = two_states(-900.0, kind, behind)
    tokens = torch.tensor([text, [0] * len(text)])
    truth = inference.log_prob(hmm, tokens, implementation="reference").token_log_probs
    asked_in_logs.clear()
    found = inference.token_log_probs(hmm.to(dtype=dtype), tokens)
    torch.testing.assert_close(found.double(), truth, rtol=1e-6, atol=1e-6)
    assert asked_in_logs == ([1] * len(text) if depends else [])
    asked_in_logs.clear()
    inference.log_prob(hmm.to(dtype=dtype), tokens)
    assert asked_in_logs  # whose belief has the state that fell behind


def test_a_text_in_pieces() -> None:
    """The belief that comes in may be as far apart."""
    hmm, tokens = two_states(-900.0), torch.tensor([[0, 1, 0, 2, 2]])
    truth = inference.log_prob(hmm, tokens, implementation="reference").token_log_probs
    belief: Belief = inference.log_prob(hmm, tokens[:, :3]).belief
    found = inference.token_log_probs(hmm, tokens[:, 3:], belief=belief)
    torch.testing.assert_close(found, truth[:, 3:])


def test_words_that_cannot_be(asked_in_logs: list[int]) -> None:
    """An impossible word is so whatever was lost."""
    hmm = two_states(-900.0)
    emit = hmm.log_emit.clone()
    emit[2] = -torch.inf
    emit[0] = torch.log1p(-emit[1].exp())
    hmm = HMM(hmm.log_init, hmm.transitions, emit, hmm.support)
    found = inference.token_log_probs(hmm, torch.tensor([[1, 0, 2, 0]]))
    assert found[0, :2].isfinite().all() and found[0, 2] == -torch.inf


def test_tables_that_cannot_be_lifted() -> None:
    """Where words have few states, rows that lost digits are taken in log space as ever."""
    hmm = two_states(-900.0)
    blocks = HMM(
        hmm.log_init, hmm.transitions, hmm.log_emit[:, :1] * 0.0, Support.ragged([[0], [0], [1]], 2)
    )
    assert evidence.Chain(blocks, torch.tensor([[0, 2]])).lifted() is None
    tokens = torch.tensor([[0, 1, 2, 2, 0]])
    truth = inference.log_prob(blocks, tokens, implementation="reference").token_log_probs
    torch.testing.assert_close(inference.token_log_probs(blocks, tokens), truth)


def test_it_has_no_gradient() -> None:
    hmm = two_states(-1.0)
    hmm.log_emit.requires_grad_()
    found = inference.token_log_probs(hmm, torch.tensor([[0, 1]]))
    with pytest.raises(RuntimeError, match=r"token_log_probs\(\.\.\.\)"):
        found.sum().backward()
