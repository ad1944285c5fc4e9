"""Prompts for learning in context: examples of one concept, a last one without its end."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from hmmlm import inference
from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.inference.sampling import draw_words
from hmmlm.results import Belief
from hmmlm.worlds.recipes import DELIMITER
from hmmlm.worlds.world import World


class Prompt(NamedTuple):
    """Examples with delimiters between them, then an example without its last token.

    `label` is the most probable last token for who knows the concept and the property that all
    examples begin with, and reads the last example alone. `answer` is the best reader's: the most
    probable token given the whole prompt, as the beginning of a document. It is None where such a
    document has probability zero.
    """

    tokens: list[int]
    concept: int
    label: int
    answer: int | None
    answer_log_prob: float
    label_log_prob: float
    concept_log_probs: list[float]


def draw_prompts(
    world: World, count: int, *, examples: int, length: int, generator: torch.Generator
) -> list[Prompt]:
    """Prompts of `examples` whole examples of `length` tokens each, and one that lacks its last.

    As Xie et al. 2021 draw them: a concept for each prompt, and a property that all its examples
    begin with, not the delimiter's; an entity for each example, and from there the concept's
    transitions. No document ends within a prompt.
    """
    if world.settings.get("recipe") != "ginc":
        raise InputError(
            "Prompts need the entities and properties of a GINC world; make one with worlds.ginc."
        )
    for name, value, least in (
        ("count", count, 1),
        ("examples", examples, 0),
        ("length", length, 2),
    ):
        if value < least:
            raise InputError(f"{name} is {value:,} but must be at least {least}.")
    if world.settings["length"] < 2:
        raise InputError(
            "Prompts need documents that go on after a word, and those of this world have one; "
            "make it with a length of at least 2."
        )
    properties = world.settings["properties"]
    concepts = torch.randint(world.num_concepts, (count,), generator=generator)
    begin = torch.randint(1, properties, (count,), generator=generator)
    whole = _draw_examples(world, concepts, begin, examples + 1, length, generator)
    delimiter = torch.full((count, examples + 1, 1), world.tokenizer.id(DELIMITER))
    texts = torch.cat([whole, delimiter], 2).reshape(count, -1)[:, :-2]
    labels = _labels(world, concepts, begin, whole[:, -1, :-1])
    following = world.next_log_probs(texts)
    beliefs = world.concept_posterior(texts)[:, -1]
    best = following.max(1)
    found = []
    for row in range(count):
        known = bool(torch.isfinite(best.values[row]))
        found.append(
            Prompt(
                texts[row].tolist(),
                int(concepts[row]),
                int(labels[row]),
                int(best.indices[row]) if known else None,
                float(best.values[row]),
                float(following[row, labels[row]]),
                beliefs[row].tolist(),
            )
        )
    return found


def accuracy(prompts: Sequence[Prompt]) -> float:
    """The share of prompts to which the best reader answers with the label."""
    return sum(prompt.answer == prompt.label for prompt in prompts) / len(prompts)


def _draw_examples(
    world: World,
    concepts: Int[Tensor, " B"],
    begin: Int[Tensor, " B"],
    number: int,
    length: int,
    generator: torch.Generator,
) -> Int[Tensor, "B N T"]:
    """The tokens of each example, from a state with a random entity and the given property."""
    shape = (len(concepts), number)
    entity = torch.randint(world.settings["entities"], shape, generator=generator)
    first = _states(world, concepts, begin)[:, :1] + entity * world.settings["properties"]
    known = first.flatten()
    certain = torch.zeros(len(known), 1, dtype=world.hmm.dtype)
    belief = Belief(known[:, None], certain, torch.zeros_like(known, dtype=torch.bool))
    endless = _endless(world)
    rest = inference.sample(endless, length=length - 1, belief=belief, generator=generator)
    words = draw_words(world.hmm, known, generator)
    return torch.cat([words[:, None], rest.tokens], 1).reshape(*shape, length)


def _labels(
    world: World,
    concepts: Int[Tensor, " B"],
    begin: Int[Tensor, " B"],
    asked: Int[Tensor, "B T"],
) -> Int[Tensor, " B"]:
    """The most probable next token of each row, for who knows its concept and first property."""
    endless = _endless(world)
    names = endless.global_states(torch.arange(endless.num_states))
    labels = torch.empty_like(concepts)
    both = torch.stack([concepts, begin], 1)
    for pair in both.unique(dim=0):
        rows = (both == pair).all(1)
        here = torch.isin(names, _states(world, *pair.split(1)))
        start = torch.where(here, 0.0, -torch.inf).to(endless.dtype).log_softmax(0)
        knowing = replace(endless, log_init=start)
        labels[rows] = inference.next_log_probs(knowing, asked[rows]).argmax(1)
    return labels


def _states(
    world: World, concepts: Int[Tensor, " B"], begin: Int[Tensor, " B"]
) -> Int[Tensor, "B E"]:
    """The states of a concept with a property, one for each entity."""
    per_concept = world.hmm.num_states // world.num_concepts
    entity = torch.arange(world.settings["entities"])
    first = concepts * per_concept + begin
    return first[:, None] + entity * world.settings["properties"]


def _endless(world: World) -> HMM:
    """The world's HMM without `<eos>`."""
    everything = torch.arange(world.hmm.num_states)
    return world.hmm.restrict(everything[~torch.isin(everything, world.ends)])
