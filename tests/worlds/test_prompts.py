"""Prompts for learning in context, and what the best reader answers."""

import itertools
import math

import pytest
import torch

from enumeration import enumerate_row
from hmmlm import worlds
from hmmlm.errors import InputError
from hmmlm.worlds.prompts import accuracy, draw_prompts

TINY = {"concepts": 2, "entities": 2, "properties": 3, "words": 5, "length": 4, "smoothing": 0.2}
DELIMITER, EOS = 2, 1


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_prompt_has_examples_between_delimiters() -> None:
    world = worlds.ginc(concepts=2, entities=3, properties=4, words=9, smoothing=0.1)
    for prompt in draw_prompts(world, 20, examples=3, length=4, generator=seeded()):
        assert len(prompt.tokens) == 3 * 5 + 3 and EOS not in prompt.tokens
        assert [prompt.tokens[place] for place in (4, 9, 14)] == [DELIMITER] * 3
        assert all(prompt.tokens[place] != DELIMITER for place in (0, 5, 10, 15))
        assert 0 <= prompt.concept < 2 and prompt.label != EOS


def test_answers_are_those_of_all_concepts_and_paths() -> None:
    world = worlds.ginc(**TINY)  # 14 states
    for prompt in draw_prompts(world, 8, examples=1, length=2, generator=seeded(1)):
        row = enumerate_row(world.hmm, prompt.tokens)
        probs = row.next_states(None) @ row.log_emit.T.exp()
        assert prompt.answer == int(probs.argmax())
        assert prompt.answer_log_prob == pytest.approx(float(probs.max().log()), abs=1e-10)
        assert prompt.label_log_prob == pytest.approx(float(probs[prompt.label].log()), abs=1e-10)
        last = row.filtered()[-1].exp().view(2, 7).sum(1)
        torch.testing.assert_close(torch.tensor(prompt.concept_log_probs).exp(), last.float())


def test_labels_are_those_of_who_knows_where_an_example_begins() -> None:
    world = worlds.ginc(**TINY)
    moves = world.hmm.transitions.rows(0, 14).exp().view(2, 7, 2, 7)
    emit = enumerate_row(world.hmm, [2]).log_emit.exp()[:, :7]  # the same in both concepts
    for prompt in draw_prompts(world, 30, examples=0, length=3, generator=seeded(2)):
        table = moves[prompt.concept, :6, prompt.concept, :6] / 0.75
        possible = []
        for begin in (1, 2):  # the property; which one it was the prompt does not say
            probs = torch.zeros(world.hmm.vocab_size).double()
            for path in itertools.product(range(6), repeat=3):
                if path[0] % 3 == begin:
                    weight = emit[prompt.tokens[0], path[0]] * emit[prompt.tokens[1], path[1]]
                    weight *= table[path[0], path[1]] * table[path[1], path[2]]
                    probs += weight * emit[:, path[2]]
            if probs.sum() > 0:
                possible.append(int(probs.argmax()))
        assert prompt.label in possible


def test_more_examples_say_more_of_the_concept() -> None:
    world = worlds.ginc(length=100)
    found = []
    for examples in (0, 2, 8):
        prompts = draw_prompts(world, 200, examples=examples, length=8, generator=seeded())
        right = [math.exp(prompt.concept_log_probs[prompt.concept]) for prompt in prompts]
        found.append((sum(right) / 200, accuracy(prompts)))
    assert found[0][0] < found[1][0] < found[2][0] and found[0][1] < found[2][1]


def test_without_smoothing_a_prompt_may_be_impossible() -> None:
    world = worlds.ginc(smoothing=0.0, length=100)
    prompts = draw_prompts(world, 50, examples=8, length=4, generator=seeded())
    lost = [prompt for prompt in prompts if prompt.answer is None]
    assert len(lost) > 25 and all(p.answer_log_prob == -torch.inf for p in lost)
    assert accuracy(lost) == 0


def test_a_seed_gives_the_same_prompts() -> None:
    world = worlds.ginc(**TINY)
    drawn = [draw_prompts(world, 5, examples=2, length=3, generator=seeded(s)) for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 0}, "count is 0 but must be at least 1."),
        ({"examples": -1}, "examples is -1 but must be at least 0."),
        ({"length": 1}, "length is 1 but must be at least 2."),
    ],
)
def test_numbers_that_cannot_be(given, message) -> None:
    how = {"count": 1, "examples": 1, "length": 3, **given}
    count = how.pop("count")
    with pytest.raises(InputError, match=message):
        draw_prompts(worlds.ginc(**TINY), count, **how, generator=seeded())


def test_worlds_without_prompts() -> None:
    with pytest.raises(InputError, match="Prompts need the entities and properties of a GINC wor"):
        draw_prompts(worlds.random_hmm(), 1, examples=1, length=3, generator=seeded())
    with pytest.raises(InputError, match="Prompts need documents that go on after a word"):
        short = worlds.ginc(**{**TINY, "length": 1})
        draw_prompts(short, 1, examples=1, length=3, generator=seeded())
