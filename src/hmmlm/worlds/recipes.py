"""How worlds are made: mixtures of HMMs as in GINC, and random HMMs of any size."""

import itertools
import math
import string
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.support import Support
from hmmlm.worlds.world import World

DELIMITER = "/"
"""The word between the examples of a GINC prompt: what its first property is for every entity."""

MOST_STATES = 1 << 14
"""The transitions of a world are a table, which has the square of this many cells."""

MOST_WORDS, MOST_LENGTH = 1 << 20, 1 << 20
"""A world's words are listed, and a document is drawn token by token and read as a whole."""


def ginc(
    *,
    concepts: int = 5,
    entities: int = 10,
    properties: int = 10,
    words: int = 50,
    length: int = 512,
    persistence: float = 0.9,
    temperature: float = 0.1,
    start_temperature: float = 10.0,
    smoothing: float = 0.01,
    seed: int = 0,
) -> World:
    """A mixture of HMMs like those of GINC (Xie et al. 2021, appendix F).

    A state is an entity and a property, and emits the word that a random table has for them; the
    first property is the delimiter's. Properties move by a matrix of the concept's own. Entities
    stay with probability `persistence` and otherwise move by a matrix that all concepts share.
    Both are convex combinations of random permutations, as many as they have rows, weighted by
    softmax(u / temperature), u uniform. `smoothing` is the weight in each of the mean of all
    cyclic shifts: with 0, as in the paper's code, most prompts have probability zero. A document
    begins in a state that softmax(u / start_temperature) draws. It has `length` tokens in the
    mean before its `<eos>`, which follows any of them with probability 1 / length.
    """
    _check_least(concepts=(concepts, 1), entities=(entities, 1), properties=(properties, 2))
    _check_least(words=(words, 2), length=(length, 1), seed=(seed, 0))
    _check_length(length)
    _check_share(persistence=persistence, smoothing=smoothing)
    _check_positive(temperature=temperature, start_temperature=start_temperature)
    per_concept = entities * properties
    _check_states(concepts * (per_concept + 1), "concepts, entities or properties")
    _check_words(words, concepts * (per_concept + 1))
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randint(1, words, (entities, properties), generator=generator)
    memory[:, 0] = 0
    mixed = _permutations(entities, temperature, smoothing, generator)
    stay = torch.eye(entities, dtype=torch.float64)
    entity_moves = persistence * stay + (1 - persistence) * mixed
    starts, moves = [], []
    for _ in range(concepts):
        chance = torch.rand(per_concept, generator=generator, dtype=torch.float64)
        starts.append(torch.softmax(chance / start_temperature, 0))
        property_moves = _permutations(properties, temperature, smoothing, generator)
        moves.append(torch.kron(entity_moves, property_moves))
    tokenizer = _vocabulary([DELIMITER, *itertools.islice(_names(), words - 1)])
    first = tokenizer.id(DELIMITER)
    emit = torch.zeros(per_concept, tokenizer.vocab_size, dtype=torch.float64)
    emit.scatter_(1, (memory + first).reshape(-1, 1), 1.0)
    hmm = _join(torch.stack(starts), torch.stack(moves), emit, length, tokenizer.eos_id, True)
    settings = {
        "recipe": "ginc",
        "entities": entities,
        "properties": properties,
        "words": words,
        "length": length,
        "persistence": persistence,
        "temperature": temperature,
        "start_temperature": start_temperature,
        "smoothing": smoothing,
        "seed": seed,
    }
    return World(hmm, tokenizer, concepts, settings)


def random_hmm(
    *,
    states: int = 10,
    words: int = 50,
    length: int = 100,
    concentration: float = 0.1,
    emission_concentration: float | None = None,
    seed: int = 0,
) -> World:
    """One HMM with rows drawn from Dirichlet distributions; the smaller, the more peaked.

    `concentration` is that of p(z1) and the transitions, and of the emissions unless they have
    their own. After each token `<eos>` follows with probability 1 / length, from a state of its
    own that is not counted in `states`.
    """
    _check_least(states=(states, 1), words=(words, 1), length=(length, 1), seed=(seed, 0))
    _check_length(length)
    emitting = concentration if emission_concentration is None else emission_concentration
    _check_positive(concentration=concentration, emission_concentration=emitting)
    _check_states(states + 1, "states")
    _check_words(words, states + 1)
    chance = np.random.default_rng(seed)
    start = _dirichlet(1, states, concentration, chance)
    moves = _dirichlet(states, states, concentration, chance)
    tokenizer = _vocabulary(list(itertools.islice(_names(), words)))
    emit = torch.zeros(states, tokenizer.vocab_size, dtype=torch.float64)
    emit[:, tokenizer.vocab_size - words :] = _dirichlet(states, words, emitting, chance)
    hmm = _join(start, moves[None], emit, length, tokenizer.eos_id, False)
    settings = {
        "recipe": "hmm",
        "states": states,
        "words": words,
        "length": length,
        "concentration": concentration,
        "emission_concentration": emitting,
        "seed": seed,
    }
    return World(hmm, tokenizer, 1, settings)


def _join(
    starts: Float[Tensor, "C S"],
    moves: Float[Tensor, "C S S"],
    emit: Float[Tensor, "S V"],
    length: int,
    eos_id: int,
    restricted: bool,
) -> HMM:
    """One HMM of several with the same emissions, equally probable, each with an end of its own.

    `restricted` gives each word only the states that emit it.
    """
    concepts, states = starts.shape
    whole = states + 1
    init = torch.zeros(concepts, whole, dtype=torch.float64)
    init[:, :states] = starts / starts.sum(1, keepdim=True) / concepts
    trans = torch.zeros(concepts, whole, concepts, whole, dtype=torch.float64)
    for concept in range(concepts):
        rows = moves[concept] / moves[concept].sum(1, keepdim=True)
        trans[concept, :states, concept, :states] = rows * (1 - 1 / length)
        trans[concept, :states, concept, states] = 1 / length
        trans[concept, states] = init  # what follows a document is the next one
    last = torch.zeros(1, emit.shape[1], dtype=torch.float64)
    last[0, eos_id] = 1.0
    table = torch.cat([emit / emit.sum(1, keepdim=True), last]).repeat(concepts, 1)  # (Z, V)
    size = concepts * whole
    return HMM.from_tables(
        init.reshape(size).log(),
        trans.reshape(size, size).log(),
        table.log(),
        support=_emitters(table, eos_id) if restricted else None,
    )


def _emitters(table: Float[Tensor, "Z V"], eos_id: int) -> Support:
    """The states that emit each word; words that none emits stand with `<eos>`, at zero."""
    rows: list[Sequence[int]] = []
    for word in range(table.shape[1]):
        named = table[:, word].nonzero().flatten().tolist()
        rows.append(named or table[:, eos_id].nonzero().flatten().tolist())
    return Support.ragged(rows, table.shape[0])


def _permutations(
    size: int, temperature: float, smoothing: float, generator: torch.Generator
) -> Float[Tensor, "N N"]:
    """A convex combination of random permutation matrices, and the mean of all cyclic shifts."""
    chance = torch.rand(size, generator=generator, dtype=torch.float64)
    weights = torch.softmax(chance / temperature, 0)
    table = torch.zeros(size, size, dtype=torch.float64)
    rows = torch.arange(size)
    for weight in weights:
        table[rows, torch.randperm(size, generator=generator)] += weight
    return (1 - smoothing) * table + smoothing / size


def _dirichlet(
    rows: int, columns: int, concentration: float, chance: np.random.Generator
) -> Float[Tensor, "N M"]:
    """Rows from a symmetric Dirichlet; in log space, where small ones would all be zero."""
    larger = np.log(chance.standard_gamma(concentration + 1, (rows, columns)))
    power = np.log1p(-chance.random((rows, columns))) / concentration
    return torch.softmax(torch.from_numpy(larger + power), 1)


def _vocabulary(words: list[str]) -> Tokenizer:
    """These words in this order, after `<unk>`, which no world emits, and `<eos>`."""
    return Tokenizer.words({word: len(words) - place for place, word in enumerate(words)})


def _names() -> Iterator[str]:
    """a to z, aa to zz, and so on."""
    for size in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=size):
            yield "".join(letters)


def _check_least(**given: tuple[int, int]) -> None:
    for name, (value, least) in given.items():
        if value < least:
            raise InputError(f"{name} is {value:,} but must be at least {least}.")


def _check_share(**given: float) -> None:
    for name, value in given.items():
        if not 0 <= value <= 1:
            raise InputError(f"{name} is {value:g} but must lie between 0 and 1.")


def _check_positive(**given: float) -> None:
    for name, value in given.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} is {value:g} but must be above 0.")


def _check_states(states: int, which: str) -> None:
    if states > MOST_STATES:
        raise InputError(
            f"The world would have {states:,} states but a world has at most {MOST_STATES:,}, "
            f"whose transitions fill {MOST_STATES**2 * 8:,} bytes; use fewer {which}."
        )


def _check_words(words: int, states: int) -> None:
    most = min(MOST_WORDS, MOST_STATES**2 // states)
    if words > most:
        raise InputError(
            f"The world would have {words:,} words but one of {states:,} states has at most "
            f"{most:,}; use fewer words or states."
        )


def _check_length(length: int) -> None:
    if length > MOST_LENGTH:
        raise InputError(
            f"length is {length:,} but documents have at most {MOST_LENGTH:,} tokens in the mean; "
            f"draw more of them that are shorter."
        )
