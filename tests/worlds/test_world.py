"""What the best reader says, against the enumeration of all concepts and all hidden paths."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from enumeration import Row, enumerate_row
from hmmlm import Model, inference, worlds
from hmmlm.data.shards import TokenArray
from hmmlm.errors import InputError
from hmmlm.worlds import World
from hmmlm.worlds.world import mean_nats

EOS = 1
TINY = {"concepts": 2, "entities": 2, "properties": 2, "words": 3, "length": 3}


def tiny(kind: str, seed: int = 0) -> World:
    if kind == "hmm":
        return worlds.random_hmm(states=2, words=3, length=3, concentration=0.7, seed=seed)
    smoothing = 0.0 if kind == "permutations" else 0.2
    world = worlds.ginc(**TINY, temperature=1.0, smoothing=smoothing, seed=seed)
    if kind == "uneven":  # concepts that are not equally probable
        share = torch.tensor([0.4, 1.6], dtype=torch.float64)[world.concepts]
        return replace(world, hmm=replace(world.hmm, log_init=world.hmm.log_init + share.log()))
    return world


def concept_posterior(world: World, row: Row) -> Tensor:
    """(T, C) log p(concept | x_1..t), by grouping paths; no path of two concepts has weight."""
    per_concept = world.hmm.num_states // world.num_concepts
    found = torch.full((row.steps, world.num_concepts), -torch.inf, dtype=torch.float64)
    for step in range(row.steps):
        weights = row.log_joint[:, step + 1]
        concept = row.paths[:, step] // per_concept
        for number in range(world.num_concepts):
            found[step, number] = torch.logsumexp(weights[concept == number], 0)
    return found.log_softmax(1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["ginc", "permutations", "uneven", "hmm"])
def test_every_answer_is_that_of_all_concepts_and_paths(kind, seed) -> None:
    world = tiny(kind, seed)
    (first, *_) = world.draw(1, generator=torch.Generator().manual_seed(seed))
    documents = world.draw(40, generator=torch.Generator().manual_seed(seed))
    short = [d.tokens.tolist() for d in [first, *documents] if len(d.tokens) <= 5][:6]
    lengths = torch.tensor([len(ids) for ids in short])
    tokens = torch.zeros(len(short), int(lengths.max()), dtype=torch.long)
    for place, ids in enumerate(short):
        tokens[place, : len(ids)] = torch.tensor(ids)
    scored = world.optimum(tokens, lengths=lengths)
    following = world.next_log_probs(tokens, lengths=lengths - 1)
    beliefs = world.concept_posterior(tokens, lengths=lengths)
    for place, ids in enumerate(short):
        row = enumerate_row(world.hmm, ids)
        torch.testing.assert_close(scored[place, : len(ids)], row.token_log_probs)
        assert float(scored[place].sum()) == pytest.approx(row.log_evidence, abs=1e-10)
        wanted = concept_posterior(world, row)
        torch.testing.assert_close(beliefs[place, : len(ids)].exp(), wanted.exp())
        before = enumerate_row(world.hmm, ids[:-1])
        probs = before.next_states(None) @ before.log_emit.T.exp()
        torch.testing.assert_close(following[place].exp(), probs)


def test_what_cannot_be_has_no_probability() -> None:
    world = tiny("permutations")
    tokens = torch.tensor([[EOS, 2], [0, 2], [2, 2]])  # nothing is empty, <unk> is never drawn
    with pytest.raises(InputError, match="Row 0 of tokens goes on after its <eos>, but each row"):
        world.optimum(tokens)
    lost = world.optimum(tokens[1:2])
    assert torch.isneginf(lost).all()
    assert torch.isneginf(world.concept_posterior(tokens[1:2])).all()
    assert torch.isneginf(world.next_log_probs(tokens[1:2])).all()
    ended, two = torch.tensor([[2, EOS, 2]]), torch.tensor([2])  # the third is not read
    assert torch.isfinite(world.optimum(ended, lengths=two)).all()
    first = inference.next_log_probs(inference.start(world.hmm))
    assert torch.equal(world.next_log_probs(ended, lengths=two), first)


def test_long_documents_keep_their_digits() -> None:
    """One recursion over all concepts, in log space, says the same of a thousand tokens."""
    world = worlds.ginc(concepts=3, entities=3, properties=4, words=8, length=1000)
    documents = world.draw(5, generator=torch.Generator().manual_seed(1))
    ids = max((document.tokens for document in documents), key=len)
    tokens = torch.from_numpy(ids)[None]
    whole = inference.log_prob(world.hmm, tokens, implementation="reference")
    torch.testing.assert_close(world.optimum(tokens), whole.token_log_probs, rtol=0, atol=1e-9)
    found = inference.filter(world.hmm, tokens, implementation="reference").dense(39)
    alone = torch.logsumexp(found.view(1, -1, 3, 13), 3)
    torch.testing.assert_close(world.concept_posterior(tokens), alone, rtol=1e-9, atol=1e-9)
    for read in (tokens, tokens[:, :-1]):  # what follows a document is another one
        wanted = inference.next_log_probs(world.hmm, read, implementation="reference")
        torch.testing.assert_close(world.next_log_probs(read), wanted)
    assert len(ids) > 500 and ids[-1] == EOS


@pytest.mark.parametrize("kind", ["ginc", "hmm"])
def test_all_documents_together_are_certain(kind) -> None:
    world = tiny(kind)
    total = 0.0
    for size in range(1, 6):
        texts = torch.tensor(list(itertools.product(range(2, 5), repeat=size)))
        ended = torch.cat([texts, torch.full((len(texts), 1), EOS)], 1)
        total += float(world.optimum(ended).sum(1).exp().sum())
    assert total == pytest.approx(1 - (2 / 3) ** 5, abs=1e-12)


def test_documents_one_by_one_or_in_one_go() -> None:
    world = tiny("ginc")
    documents = world.draw(30, generator=torch.Generator().manual_seed(3))
    ids = np.concatenate([document.tokens for document in documents])
    text = TokenArray.from_ids(ids, eos_id=EOS)
    alone, together = (world.model.evaluate(text, mode=mode) for mode in ("sentence", "streaming"))
    scored = sum(float(log_probs.sum()) for _, log_probs in world.score(documents))
    assert alone.nats == pytest.approx(-scored, abs=1e-9)
    assert together.nats == pytest.approx(-scored, abs=1e-9)


def test_scores_come_in_the_order_of_documents() -> None:
    world = tiny("ginc")
    documents = world.draw(50, generator=torch.Generator().manual_seed(5))
    for (document, log_probs), given in zip(world.score(documents), documents, strict=True):
        assert document is given
        wanted = world.optimum(torch.from_numpy(given.tokens)[None])[0]
        np.testing.assert_allclose(log_probs, wanted, atol=1e-12)


def entropy_of_beginnings(world: World, depth: int) -> list[float]:
    """H(x_t | x_<t) times p(there is such a token), for each of the first tokens, by paths."""
    words, found = range(2, world.hmm.vocab_size), []
    for size in range(depth):
        total = 0.0
        for ids in itertools.product(words, repeat=size):
            probs = world.hmm.log_init.exp()
            weight = 1.0
            if ids:
                row = enumerate_row(world.hmm, list(ids))
                weight = math.exp(row.log_evidence)
                probs = row.next_states(None)
            table = torch.zeros(world.hmm.vocab_size, dtype=torch.float64)
            table += enumerate_row(world.hmm, [2]).log_emit.exp() @ probs
            if weight > 0:
                total -= weight * float(torch.special.xlogy(table, table).sum())
        found.append(total)
    return found


@pytest.mark.parametrize("kind", ["ginc", "hmm"])
def test_the_entropy_rate_lies_between_its_bounds(kind) -> None:
    world = tiny(kind)
    bounds = [world.entropy_bounds(depth) for depth in range(1, 7)]
    for loose, tight in itertools.pairwise(bounds):
        assert loose.lower <= tight.lower + 1e-12 and tight.upper <= loose.upper + 1e-12
    assert bounds[-1].upper - bounds[-1].lower < 0.4 * (bounds[0].upper - bounds[0].lower)
    drawn = world.entropy_rate(4000, generator=torch.Generator().manual_seed(0))
    assert drawn.samples == 4000 and 0 < drawn.standard_error < 0.02
    assert drawn.value > bounds[-1].lower - 4 * drawn.standard_error
    assert drawn.value < bounds[-1].upper + 4 * drawn.standard_error
    # Deeper by one: what was bounded between the two became exact, and nothing else changed.
    exact = entropy_of_beginnings(world, 4)
    alive = [1.0, 1.0, 2 / 3, 4 / 9]
    states = [world.hmm.log_init.exp()]
    for _ in range(3):
        after = states[-1] @ world.hmm.transitions.rows(0, world.hmm.num_states).exp()
        states.append(after.index_fill(0, world.ends, 0.0))
    moves = world.hmm.transitions.rows(0, world.hmm.num_states).exp()
    emit = enumerate_row(world.hmm, [2]).log_emit.exp()
    for depth in range(1, 4):
        given = moves @ emit.T
        lowest = float(states[depth - 1] @ -torch.special.xlogy(given, given).sum(1))
        moved = bounds[depth].lower - bounds[depth - 1].lower
        assert moved * 4 == pytest.approx(exact[depth] - lowest, abs=1e-10)  # 3 words and <eos>
        assert float(states[depth - 1].sum()) == pytest.approx(alive[depth])


def test_the_entropy_of_independent_words_is_known() -> None:
    world = worlds.random_hmm(states=1, words=4, length=5, concentration=1.0)
    probs = world.hmm.log_emit[2:, 0].exp()
    words = -float(torch.special.xlogy(probs, probs).sum())
    ends = -(0.2 * math.log(0.2) + 0.8 * math.log(0.8)) * 5
    rate = (5 * words + ends) / 6
    bounds = world.entropy_bounds()
    assert bounds.lower == pytest.approx(rate, abs=1e-9)
    assert bounds.upper == pytest.approx(rate, abs=1e-9)


def test_the_standard_error_is_that_of_repeated_draws() -> None:
    world = tiny("ginc")
    found = [
        world.entropy_rate(60, generator=torch.Generator().manual_seed(seed)) for seed in range(80)
    ]
    spread = float(np.std([estimate.value for estimate in found]))
    said = float(np.mean([estimate.standard_error for estimate in found]))
    assert 0.75 < said / spread < 1.33
    assert mean_nats([2.0, 4.0], [1, 2]).value == pytest.approx(2.0)
    assert mean_nats([2.0, 4.0], [1, 2]).standard_error == pytest.approx(0.0)


def test_a_world_is_kept_as_a_model(tmp_path) -> None:
    world = tiny("ginc", seed=4)
    world.model.save(tmp_path / "kept")
    again = World.load(tmp_path / "kept")
    assert again.settings == world.settings and again.num_concepts == 2
    assert torch.equal(again.hmm.log_init, world.hmm.log_init)
    assert torch.equal(again.concepts, world.concepts)
    assert Model.load(tmp_path / "kept").next("/") == world.model.next("/")
    Model(world.hmm, world.tokenizer).save(tmp_path / "other")
    with pytest.raises(InputError, match=r"is a model but not a world: its config.json has no con"):
        World.load(tmp_path / "other")
    Model(world.hmm, world.tokenizer, {"world": {"concepts": 3}}).save(tmp_path / "uneven")
    with pytest.raises(InputError, match="has 3 concepts, which cannot share 10 states equally"):
        World.load(tmp_path / "uneven")


def test_numbers_that_cannot_be() -> None:
    world, generator = tiny("ginc"), torch.Generator()
    with pytest.raises(InputError, match=r"count is 0 but must be at least 1."):
        world.draw(0, generator=generator)
    with pytest.raises(InputError, match=r"num_documents is 1 but must be at least 2."):
        world.entropy_rate(1, generator=generator)
    with pytest.raises(InputError, match=r"depth is 0 but must be at least 1."):
        world.entropy_bounds(0)
    with pytest.raises(InputError, match=r"depth is 40 but \d words have .* smaller depth."):
        world.entropy_bounds(40)
