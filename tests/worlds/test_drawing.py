"""Documents come as often as the world says."""

from collections import Counter

import numpy as np
import torch

from enumeration import full_emissions
from hmmlm import worlds
from hmmlm.worlds.drawing import Dice

EOS = 1
TINY = {"concepts": 2, "entities": 2, "properties": 2, "words": 3, "length": 3, "smoothing": 0.2}


def test_dice_fall_as_often_as_they_should_and_never_on_zero() -> None:
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0], [0.1, 0.2, 0.3, 0.4, 0.0], [0, 0, 0, 0, 1.0]])
    rows = np.repeat(np.arange(3), 20_000)
    drawn = Dice(probs).throw(rows, torch.Generator().manual_seed(0))
    shares = np.bincount(rows * 5 + drawn, minlength=15).reshape(3, 5) / 20_000
    np.testing.assert_allclose(shares, probs.numpy(), atol=0.015)
    assert (shares[probs.numpy() == 0] == 0).all()


def test_the_least_and_the_largest_throw_stay_where_there_is_probability(monkeypatch) -> None:
    ones = torch.full((4,), 1 - 2**-53, dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *size, **how: ones)
    dice = Dice(torch.tensor([[0.0, 0.5, 0.5, 0.0]]).expand(5000, -1))
    rows = np.array([0, 1, 4000, 4999])
    assert dice.throw(rows, torch.Generator()).tolist() == [2, 2, 2, 2]
    monkeypatch.setattr(torch, "rand", lambda *size, **how: torch.zeros_like(ones))
    assert dice.throw(rows, torch.Generator()).tolist() == [1, 1, 1, 1]


def test_documents_are_drawn_as_often_as_they_are_probable() -> None:
    world = worlds.ginc(**TINY)
    documents = world.draw(20_000, generator=torch.Generator().manual_seed(2))
    assert all(doc.tokens[-1] == EOS and (doc.tokens[:-1] > EOS).all() for doc in documents)
    counts = Counter(tuple(doc.tokens.tolist()) for doc in documents)
    for tokens, count in counts.most_common(12):
        p = float(world.optimum(torch.tensor([tokens])).sum().exp())
        assert abs(count / 20_000 - p) < 5 * (p / 20_000) ** 0.5
    assert abs(np.mean([len(doc.tokens) for doc in documents]) - 4) < 0.1
    assert abs(np.mean([doc.concept for doc in documents]) - 0.5) < 0.02


def test_states_are_those_behind_the_tokens() -> None:
    world = worlds.ginc(**TINY)
    moves, emit = world.hmm.transitions.rows(0, 10), full_emissions(world.hmm)
    for doc in world.draw(200, generator=torch.Generator().manual_seed(2)):
        states = torch.from_numpy(doc.states)
        assert (world.concepts[states] == doc.concept).all() and states[-1] in world.ends
        assert torch.isfinite(emit[torch.from_numpy(doc.tokens), states]).all()
        assert torch.isfinite(world.hmm.log_init[states[0]])
        assert torch.isfinite(moves[states[:-1], states[1:]]).all()


def test_moves_of_hidden_states_come_as_often_as_they_should() -> None:
    world = worlds.random_hmm(states=3, words=4, length=20, concentration=1.0)
    seen = np.zeros((4, 4))
    for doc in world.draw(2000, generator=torch.Generator().manual_seed(7)):
        np.add.at(seen, (doc.states[:-1], doc.states[1:]), 1)
    shares = seen[:3] / seen[:3].sum(1, keepdims=True)
    np.testing.assert_allclose(shares, world.hmm.transitions.rows(0, 3).exp(), atol=0.02)


def test_a_seed_gives_the_same_documents_also_in_batches() -> None:
    world = worlds.ginc(**TINY)
    first, same, other = (
        world.draw(1500, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a.states, b.states) for a, b in zip(first, same, strict=True))
    assert any(not np.array_equal(a.states, b.states) for a, b in zip(first, other, strict=True))
    batches = list(world.draw_batches(1500, generator=torch.Generator().manual_seed(1)))
    assert [len(batch) for batch in batches] == [1024, 476]
    assert all(
        np.array_equal(a.tokens, b.tokens)
        for a, b in zip(first, [*batches[0], *batches[1]], strict=True)
    )
