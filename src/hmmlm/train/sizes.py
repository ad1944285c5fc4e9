"""States and blocks that a configuration leaves open: chosen for a text, or those of a model."""

import dataclasses
import math

import numpy as np
import torch
from jaxtyping import Int

from hmmlm.clusters.blocks import Blocks, states_of_blocks
from hmmlm.errors import InputError, counted
from hmmlm.hmm import HMM
from hmmlm.inference.dispatch import WIDEST
from hmmlm.params import pretrained
from hmmlm.support import Support
from hmmlm.train.config import Config

MANY_WORDS, BLOCK_STATES, FEWEST_BLOCKS = 200, 32, 4
"""Blocks that nobody asked for are for texts of more words, of so many states, and so many."""


def with_sizes(config: Config, tokens: int, vocab_size: int, tags: int = 0) -> tuple[Config, str]:
    """The configuration with states and blocks chosen where they were not given, and why.

    About one state for 25 tokens, a power of two from 64 to 4,096, of which a word of a text with
    many words has 32: the shape that did best on the demo's text. Where every word has all states
    they are 256 at most, for a step then takes time in their square. With `tags` it is a multiple
    of their number and every word has all states. More states than a pretrained model can read are
    refused.
    """
    config, reason = _chosen(config, tokens, vocab_size, tags)
    if isinstance(config.params, pretrained.Settings):
        assert config.model.states is not None
        config.params.check_states(config.model.states)
    return config, reason


def _chosen(config: Config, tokens: int, vocab_size: int, tags: int) -> tuple[Config, str]:
    model = config.model
    if (tags or model.states_per_word) and model.blocks is None and not model.clusters:
        model = dataclasses.replace(model, blocks=0)
        config = dataclasses.replace(config, model=model)
    if model.clusters and model.states is None:
        raise InputError("With a file of clusters, say how many states there are: --states.")
    if model.clusters or (model.states is not None and model.blocks is not None):
        return config, ""
    states = model.states
    if states is None:
        dense = vocab_size <= MANY_WORDS if model.blocks is None else model.blocks == 0
        states = 1 << min(8 if dense else 12, max(6, round(math.log2(max(1, tokens / 25)))))
        states = max(1, round(states / tags)) * tags if tags else states
    blocks = model.blocks
    if blocks is None:
        blocks = states // BLOCK_STATES if vocab_size > MANY_WORDS else 0
        divides = model.uneven or (blocks and states % blocks == 0)
        blocks = blocks if blocks >= FEWEST_BLOCKS and divides else 0
        if model.uneven and not blocks:
            raise InputError(
                f"uneven says how blocks share the states, but {counted(states, 'state')} for "
                f"{counted(vocab_size, 'word')} would have none; say how many: model.blocks."
            )
    elif blocks and not model.uneven:
        states = max(1, states // blocks) * blocks
    chosen = dataclasses.replace(model, states=states, blocks=blocks)
    reason = f" in {blocks:,} blocks" if blocks else ""
    reason += f" of {states // blocks:,}" if blocks and not model.uneven else ""
    if model.states is None:
        reason += f", chosen for {tokens:,} tokens"
    elif not blocks:
        reason += f", without blocks: {_why_no_blocks(states, vocab_size)}"
    return dataclasses.replace(config, model=chosen), reason


def _why_no_blocks(states: int, vocab_size: int) -> str:
    """Why every word has all of so many states, where nobody said how many blocks there are."""
    if vocab_size <= MANY_WORDS:
        return (
            f"the text has {counted(vocab_size, 'word')}, and blocks are for more than {MANY_WORDS}"
        )
    number = states // BLOCK_STATES
    if number < FEWEST_BLOCKS:
        return f"blocks are of {BLOCK_STATES} states, from {FEWEST_BLOCKS * BLOCK_STATES} states on"
    fits = states // number * number
    return f"{states:,} states are not {number:,} blocks of one size; {fits:,} are"


def plain_support(config: Config, vocab_size: int) -> Support | None:
    """Which states may emit which word: all, or some by chance; None where there are blocks."""
    model = config.model
    assert model.states is not None
    if model.states_per_word:
        drawn = torch.Generator().manual_seed(config.seed)
        return Support.uniform(vocab_size, model.states, model.states_per_word, drawn)
    if model.blocks or model.clusters:
        return None
    return Support.dense(vocab_size, model.states)


def support_of_blocks(
    made: Blocks, counts: Int[np.ndarray, " V"], states: int, uneven: float | None
) -> Support:
    """Blocks that share states equally, or as their tokens go (`clusters.states_of_blocks`).

    A block has no more states than kernels take, unless equal shares are more.
    """
    if not uneven:
        return Support.from_clusters(made.block_of_word.tolist(), states // made.num_blocks)
    tokens = np.zeros(made.num_blocks, np.int64)
    np.add.at(tokens, made.block_of_word, counts)
    shared = states_of_blocks(states, tokens, uneven, widest=WIDEST)
    return Support.from_clusters(made.block_of_word.tolist(), shared.tolist())


def with_start(config: Config, hmm: HMM) -> Config:
    """The configuration with the states and blocks of the model that training starts from."""
    rows, states = hmm.support.rows, hmm.num_states
    even = hmm.support.is_partition and len(rows) > 1 and bool((rows >= 0).all())
    blocks = len(rows) if even else 0
    given = config.model
    if given.states not in (None, states):
        raise InputError(
            f"states is {given.states:,} but {config.learner.start} has {states:,}; leave it out."
        )
    own = given.clusters or given.states_per_word or given.uneven
    if own or given.blocks not in (None, blocks):
        raise InputError(
            f"train.start is {config.learner.start}, which has its own emission blocks; leave out "
            f"blocks, clusters, uneven and states_per_word."
        )
    return dataclasses.replace(
        config, model=dataclasses.replace(given, states=states, blocks=blocks)
    )
