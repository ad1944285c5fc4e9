"""The tables of worlds."""

import pytest
import torch

from enumeration import full_emissions
from hmmlm import worlds
from hmmlm.errors import InputError
from hmmlm.evaluate import HmmLM

SMALL = {"concepts": 3, "entities": 4, "properties": 5, "words": 12, "length": 7}


def test_rows_sum_to_one() -> None:
    for world in (worlds.ginc(**SMALL), worlds.random_hmm(states=7, words=9, length=4)):
        assert HmmLM(world.hmm).row_error(1000, 0) < 1e-12
        assert world.hmm.validate() is world.hmm


def test_a_concept_is_left_only_after_eos() -> None:
    world = worlds.ginc(**SMALL)
    assert world.hmm.num_states == 3 * (4 * 5 + 1)
    table = world.hmm.transitions.rows(0, 63).exp()
    is_end = torch.isin(torch.arange(63), world.ends)
    across = world.concepts[:, None] != world.concepts
    assert (table[~is_end][across[~is_end]] == 0).all()
    assert torch.equal(table[is_end], world.hmm.log_init.exp().expand(3, -1))
    torch.testing.assert_close(
        table[~is_end][:, is_end].sum(1), torch.full((60,), 1 / 7, dtype=torch.float64)
    )
    assert (world.hmm.log_init[is_end] == -torch.inf).all()
    torch.testing.assert_close(world.log_prior.exp(), torch.full((3,), 1 / 3).double())
    emit = full_emissions(world.hmm).exp()
    assert (emit[world.tokenizer.eos_id] == is_end).all() and emit[
        world.tokenizer.unk_id
    ].sum() == 0


def test_states_are_entities_and_properties() -> None:
    world = worlds.ginc(**SMALL, persistence=0.8, smoothing=0.1)
    moves = world.hmm.transitions.rows(0, 63).exp().view(3, 21, 3, 21) / (1 - 1 / 7)
    entity_moves = []
    for concept in range(3):
        table = moves[concept, :20, concept, :20].reshape(4, 5, 4, 5)
        torch.testing.assert_close(table.sum((0, 1)), torch.ones(4, 5).double())  # doubly so
        entities, properties = table.sum(3)[:, 0], table.sum(2)[0]
        torch.testing.assert_close(torch.kron(entities, properties), table.reshape(20, 20))
        assert (entities.diagonal() >= 0.8).all() and (properties >= 0.1 / 5 - 1e-12).all()
        entity_moves.append(entities)
    torch.testing.assert_close(entity_moves[0], entity_moves[1])  # all concepts share them
    assert not torch.allclose(moves[0, :20, 0, :20], moves[1, :20, 1, :20])
    emit = full_emissions(world.hmm).exp().T.view(3, 21, 14)
    assert torch.equal(emit[0], emit[1]) and (emit.max(2).values == 1).all()
    delimiter = emit[0, :20].argmax(1).view(4, 5) == world.tokenizer.id("/")
    assert delimiter[:, 0].all() and not delimiter[:, 1:].any()


def test_without_smoothing_there_are_as_many_moves_as_permutations() -> None:
    world = worlds.ginc(concepts=1, entities=1, properties=6, words=9, smoothing=0, persistence=0)
    table = world.hmm.transitions.rows(0, 6).exp()[:, :6]
    assert (table == 0).any()
    few = worlds.ginc(concepts=1, entities=1, properties=6, words=9, smoothing=0, temperature=1e-4)
    peaked = few.hmm.transitions.rows(0, 6).exp()[:, :6].max(1).values
    torch.testing.assert_close(peaked, torch.full((6,), 1 - 1 / 512).double())  # one permutation


def test_words_are_named_and_numbered_in_order() -> None:
    world = worlds.ginc(concepts=1, entities=2, properties=2, words=60)
    names = [world.tokenizer.token(id) for id in range(62)]
    assert names[:5] == ["<unk>", "<eos>", "/", "a", "b"] and names[27:31] == ["y", "z", "aa", "ab"]


def test_a_seed_gives_the_same_world_and_another_one_another() -> None:
    for make in (lambda seed: worlds.ginc(**SMALL, seed=seed), lambda s: worlds.random_hmm(seed=s)):
        first, same, other = make(3), make(3), make(4)
        pairs = zip(first.hmm.fields(), same.hmm.fields(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
        assert not torch.equal(first.hmm.log_init, other.hmm.log_init)


def test_concentration_says_how_peaked_rows_are() -> None:
    for concentration, low, high in ((1e-4, 0.99, 1.0), (1e4, 0.05, 0.06)):
        world = worlds.random_hmm(states=20, words=20, concentration=concentration, length=10**6)
        most = world.hmm.transitions.rows(0, 20).exp().max(1).values.median()
        assert low <= float(most) <= high
    mixed = worlds.random_hmm(states=20, words=20, concentration=1e4, emission_concentration=1e-4)
    assert float(mixed.hmm.log_emit[:, :20].exp().max(0).values.median()) > 0.99


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"concepts": 0}, "concepts is 0 but must be at least 1."),
        ({"properties": 1}, "properties is 1 but must be at least 2."),
        ({"words": 1}, "words is 1 but must be at least 2."),
        ({"length": 0}, "length is 0 but must be at least 1."),
        ({"length": 1 << 21}, "length is 2,097,152 but documents have at most 1,048,576 tokens"),
        ({"words": 1 << 21}, "would have 2,097,152 words but one of 505 states has at most 531,"),
        ({"seed": -1}, "seed is -1 but must be at least 0."),
        ({"persistence": 1.5}, "persistence is 1.5 but must lie between 0 and 1."),
        ({"smoothing": -0.1}, "smoothing is -0.1 but must lie between 0 and 1."),
        ({"temperature": 0.0}, "temperature is 0 but must be above 0."),
        ({"concepts": 200}, "would have 20,200 states but a world has at most 16,384, whose tr"),
    ],
)
def test_what_no_ginc_world_can_be(given, message) -> None:
    with pytest.raises(InputError, match=message):
        worlds.ginc(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"states": 0}, "states is 0 but must be at least 1."),
        ({"concentration": 0.0}, "concentration is 0 but must be above 0."),
        ({"emission_concentration": -1.0}, "emission_concentration is -1 but must be above 0."),
        ({"length": 1 << 21}, "length is 2,097,152 but documents have at most 1,048,576 tokens"),
        ({"words": 1 << 21}, "would have 2,097,152 words but one of 11 states has at most 1,048"),
        ({"states": 20_000}, "would have 20,001 states but .* use fewer states."),
    ],
)
def test_what_no_random_hmm_can_be(given, message) -> None:
    with pytest.raises(InputError, match=message):
        worlds.random_hmm(**given)
