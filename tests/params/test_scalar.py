import math

import pytest
import torch

from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.params.scalar import Scalar
from hmmlm.support import Support

SUPPORTS = {
    "dense": lambda: Support.dense(7, 5),
    "blocks": lambda: Support.from_clusters([0, 1, 1, 0, 2, 2, 0], [2, 1, 2]),
    "uniform": lambda: Support.uniform(7, 5, 3, torch.Generator().manual_seed(0)),
    "ragged": lambda: Support.ragged([[0], [1, 2], [4, 3, 0], [2], [0, 1, 2, 3, 4], [3], [1]], 5),
}


def scalar(support: Support, seed: int = 0, **keywords) -> Scalar:
    generator = torch.Generator().manual_seed(seed)
    return Scalar(support, generator=generator, **{"dtype": torch.float64, **keywords})


def by_state(hmm: HMM) -> torch.Tensor:
    """p(word | state) as a plain table, (Z, V)."""
    table = torch.zeros(hmm.num_states, hmm.vocab_size, dtype=hmm.dtype)
    for word in range(hmm.vocab_size):
        for slot, state in enumerate(hmm.support.states_of(torch.tensor(word)).tolist()):
            if state >= 0:
                table[state, word] = hmm.log_emit[word, slot].exp()
    return table


def normalised_by_hand(model: Scalar, states: list[int], sources: list[int]) -> list[torch.Tensor]:
    """The three probability tables on some states, each row exponentiated and divided."""
    start = model.init_logits.detach()[states].exp()
    trans = model.trans_logits.detach()[sources][:, states].exp()
    emit = torch.zeros(len(states), model.support.vocab_size, dtype=start.dtype)
    for word in range(model.support.vocab_size):
        for slot, state in enumerate(model.support.states_of(torch.tensor(word)).tolist()):
            if state in states:
                emit[states.index(state), word] = model.emit_logits.detach()[word, slot].exp()
    return [start / start.sum(), trans / trans.sum(1, True), emit / emit.sum(1, True)]


@pytest.mark.parametrize("support", SUPPORTS.values(), ids=SUPPORTS.keys())
def test_tables_are_the_softmax_of_the_logits(support):
    model = scalar(support())
    hmm = model().validate()
    tables = hmm.log_init.exp(), hmm.transitions.rows(0, 5).exp(), by_state(hmm)
    expected = normalised_by_hand(model, list(range(5)), list(range(5)))
    for table, truth in zip(tables, expected, strict=True):
        assert torch.allclose(table, truth, atol=1e-14, rtol=0)
        assert torch.allclose(table.sum(-1), torch.ones((), dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("support", SUPPORTS.values(), ids=SUPPORTS.keys())
@pytest.mark.parametrize("carried", [None, [1, 3]])
def test_a_subset_is_the_softmax_over_the_subset(support, carried):
    model, states = scalar(support()), [4, 0, 3]
    hmm = model(torch.tensor(states), None if carried is None else torch.tensor(carried))
    sources = states + [z for z in carried or [] if z not in states]
    tables = hmm.log_init.exp(), hmm.transitions.rows(0, len(sources)).exp(), by_state(hmm)
    for table, truth in zip(tables, normalised_by_hand(model, states, sources), strict=True):
        assert torch.allclose(table, truth, atol=1e-14, rtol=0)
    assert hmm.state_ids is not None and hmm.state_ids.tolist() == states
    assert hmm.source_ids is not None and hmm.source_ids.tolist() == sources
    restricted = model().restrict(
        torch.tensor(states), None if carried is None else torch.tensor(carried)
    )
    for mine, theirs in zip(hmm.fields(), restricted.fields(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-14, rtol=0)


@pytest.mark.parametrize("support", SUPPORTS.values(), ids=SUPPORTS.keys())
@pytest.mark.parametrize("states", [None, [1, 4, 2]])
def test_gradients_equal_finite_differences(support, states):
    model = scalar(support())
    kept = None if states is None else torch.tensor(states)
    generator = torch.Generator().manual_seed(1)
    weights = [
        torch.randn(field.shape, generator=generator, dtype=torch.float64)
        for field in model(kept).fields()
    ]

    def loss() -> torch.Tensor:
        parts = zip(model(kept).fields(), weights, strict=True)
        return sum((torch.where(f.isfinite(), f, 0.0) * w).sum() for f, w in parts)

    loss().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        difference = torch.zeros_like(parameter)
        with torch.no_grad():
            for cell in range(parameter.numel()):
                flat, was = parameter.view(-1), float(parameter.view(-1)[cell])
                flat[cell] = was + 1e-5
                above = loss()
                flat[cell] = was - 1e-5
                difference.view(-1)[cell] = (above - loss()) / 2e-5
                flat[cell] = was
        assert torch.allclose(parameter.grad, difference, atol=1e-8, rtol=0), name


@pytest.mark.parametrize("states", [None, [1, 4, 2]])
def test_padding_has_zero_gradient_and_never_nan(states):
    support = SUPPORTS["ragged"]()
    model = scalar(support)
    hmm = model(None if states is None else torch.tensor(states))
    # A gradient that reaches the padding, as a careless loss would send it.
    torch.autograd.backward(hmm.fields(), [torch.ones_like(field) for field in hmm.fields()])
    padding = support.rows[support.row_of_word] < 0
    assert padding.any()
    grad = model.emit_logits.grad
    assert grad is not None and grad.isfinite().all() and (grad[padding] == 0).all()
    assert model.init_logits.grad is not None and model.init_logits.grad.isfinite().all()
    assert model.trans_logits.grad is not None and model.trans_logits.grad.isfinite().all()


def test_scale_and_seed():
    support = Support.dense(400, 50)
    one, two = scalar(support, scale=0.5), scalar(support, scale=0.5)
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(first, second)
    assert float(one.emit_logits.detach().std()) == pytest.approx(0.5, rel=0.05)
    assert not torch.equal(one.trans_logits, scalar(support, seed=1, scale=0.5).trans_logits)
    assert all(p.dtype == torch.float32 for p in scalar(support, dtype=torch.float32).parameters())


def test_word_probs_are_where_emissions_start():
    probs = torch.tensor([8.0, 4.0, 2.0, 1.0, 1.0])
    model = scalar(Support.dense(5, 3), scale=0.0, word_probs=probs)
    expected = (probs / 16).double().expand(3, 5)
    assert torch.allclose(by_state(model()), expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize("probs", [[0.5, 0.5], [0.5, 0.5, 0.0], [math.nan] * 3])
def test_bad_word_probs_are_refused(probs):
    with pytest.raises(InputError, match="word_probs must be 3 positive numbers, one per word"):
        scalar(Support.dense(3, 2), word_probs=torch.tensor(probs))
