"""The forward recursion in all topics at once: they share every tile of transitions."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.products import full_products
from hmmlm.results import FoundBelief
from hmmlm.topics.value import LEAST, TopicHMM, emission_parts, sum_by_state

STEEP = 100.0
"""Nats of a tilt beyond which nothing is read here."""

CELLS = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Cells of the tiles and messages that are made at a time."""


class TopicBelief(NamedTuple):
    """p(state | text, topic) after what was read, for each topic; see `Belief`."""

    states: Int[Tensor, "B W"]
    log_probs: Float[Tensor, "B W G"]
    fresh: Bool[Tensor, " B"]

    def select(self, rows: Tensor) -> "TopicBelief":
        return TopicBelief(*(part[rows] for part in self))

    def of(self, topic: int) -> FoundBelief:
        """The belief of the HMM of one topic."""
        return FoundBelief(self.states, self.log_probs[:, :, topic], self.fresh)


class Weights(NamedTuple):
    """What makes the HMM of each topic of the one that they share, in float64.

    A step into state z is worth `into[z]` more in each topic, and `said[x]` with word x; a step out
    of z `out[z]`, and the first step of a sentence `begin`.
    """

    into: Float[Tensor, "Z G"]
    out: Float[Tensor, "Z G"]
    said: Float[Tensor, "V G"]
    begin: Float[Tensor, " G"]


class Read(NamedTuple):
    """log p of each token in each topic, given those before it; and where each row ends.

    `is_low` marks rows in which a possible state has fallen under `LEAST` in a topic, of which
    nothing holds: it may be the only one that explains what is still to come.
    """

    log_probs: Float[Tensor, "B T G"]
    belief: TopicBelief
    is_low: Bool[Tensor, " B"]


@torch.no_grad()
def weights(topics: TopicHMM) -> Weights:
    """O(G V K) time, and O(V Z) memory where words share only some of their states."""
    hmm, states, words = topics.hmm, topics.state_tilts.double().T, topics.word_tilts.double().T
    said = words.exp()
    norms = sum_by_state(list(emission_parts(hmm, torch.float64)), said, hmm.num_states)
    begin = torch.logsumexp(hmm.log_init.double()[:, None] + states, 0)
    out = -topics.log_norms.double().T
    return Weights(states.exp() / norms, out.exp(), said, (-begin).exp())


def is_steep(topics: TopicHMM) -> bool:
    """Whether tilts are too large for weights that are no logarithms."""
    return any(float(part.abs().max()) > STEEP for part in (topics.word_tilts, topics.state_tilts))


@torch.no_grad()
@full_products()
def forward(
    topics: TopicHMM,
    by: Weights,
    tokens: Int[Tensor, "B T"],
    lengths: Int[Tensor, " B"],
    eos_id: int,
    belief: TopicBelief | None = None,
) -> Read:
    """Rows from a cold start, or from a belief, in every topic; `eos_id` ends a sentence.

    O(B T K^2 (H + G)) time: a tile costs as much as the messages of all topics. Messages are
    probabilities in float64, made to sum to one at each step. Not for tilts that are steep.
    """
    hmm, matrix = topics.hmm, None
    is_dense, width = hmm.support.is_dense, hmm.support.width
    if is_dense and (tokens.shape[1] > 1 or belief is not None):
        matrix = hmm.transitions.rows(0, hmm.num_states).double().exp()
    cells = width * (topics.num_topics if is_dense else width)  # of a row
    parts = []
    for rows in torch.arange(len(tokens), device=tokens.device).split(
        max(1, CELLS[tokens.device.type] // cells)
    ):
        begin = None if belief is None else belief.select(rows)
        parts.append(_forward(topics, by, matrix, tokens[rows], lengths[rows], eos_id, begin))
    log_probs, beliefs, is_low = zip(*parts, strict=True)
    joined = TopicBelief(*(torch.cat(each) for each in zip(*beliefs, strict=True)))
    return Read(torch.cat(log_probs), joined, torch.cat(is_low))


def _forward(
    topics: TopicHMM,
    by: Weights,
    matrix: Float[Tensor, "Z Z"] | None,
    tokens: Int[Tensor, "B T"],
    lengths: Int[Tensor, " B"],
    eos_id: int,
    belief: TopicBelief | None,
) -> Read:
    hmm, table, (batch, steps) = topics.hmm, topics.hmm.transitions, tokens.shape
    found = by.begin.new_zeros(batch, steps, topics.num_topics)
    is_low = torch.zeros_like(lengths, dtype=torch.bool)
    width = hmm.support.width
    message = last = by.begin.new_zeros(batch, width, topics.num_topics)
    before = ends = tokens.new_zeros(batch, width)
    fresh = ~is_low
    for step in range(steps):
        word = tokens[:, step]
        ids = hmm.support.states_of(word)  # (B, K)
        states = ids.clamp(min=0)
        came = hmm.log_init[states].double().exp()[:, :, None] * by.begin  # (B, K, G)
        if step == 0 and belief is not None:
            came = _entered(topics, by, matrix, belief, states, came)
        elif step and matrix is not None:
            went = torch.einsum("zy,bzg->byg", matrix, message * by.out)
            came = torch.where(fresh[:, None, None], came, went)
        elif step:
            tile = table.tile(before, states).double().exp()  # (B, K, K)
            went = tile.transpose(1, 2) @ (message * by.out[before])
            came = torch.where(fresh[:, None, None], came, went)
        log_emits = hmm.log_emit[word].double()  # -inf in padding
        emits = log_emits.exp()
        now = came * by.into[states] * emits[:, :, None] * by.said[word][:, None]
        total = now.sum(1)  # (B, G)
        found[:, step] = total.log()
        message = now / total.clamp(min=LEAST)[:, None]
        # What cannot emit the word may be zero, nothing else; NaN is no number over LEAST.
        least = torch.minimum(came, message).masked_fill(log_emits.isneginf()[:, :, None], 1.0)
        is_fine = (least > LEAST).flatten(1).all(1) & (total > LEAST).all(1)
        is_low |= (step < lengths) & ~is_fine
        before, fresh = states, word == eos_id
        is_last = lengths == step + 1
        last = torch.where(is_last[:, None, None], message, last)
        ends = torch.where(is_last[:, None], ids, ends)
    final = tokens.gather(1, (lengths - 1)[:, None])[:, 0] == eos_id
    return Read(found, TopicBelief(ends, last.log(), final), is_low)


def _entered(
    topics: TopicHMM,
    by: Weights,
    matrix: Float[Tensor, "Z Z"] | None,
    belief: TopicBelief,
    states: Int[Tensor, "B K"],
    came: Float[Tensor, "B K G"],
) -> Float[Tensor, "B K G"]:
    """The first states of rows, a few of which go on from a belief."""
    rows = (~belief.fresh).nonzero()[:, 0]
    if not len(rows):
        return came
    sources, log_probs, _ = belief.select(rows)
    probs = log_probs.double().exp().masked_fill((sources < 0)[:, :, None], 0.0)
    leaving = probs * by.out[sources.clamp(min=0)]
    if matrix is None:
        tile = topics.hmm.transitions.tile(sources, states[rows]).double().exp()
        return came.index_copy(0, rows, tile.transpose(1, 2) @ leaving)
    places = sources.clamp(min=0)[:, :, None].expand_as(leaving)
    whole = leaving.new_zeros(len(rows), len(matrix), leaving.shape[2])
    whole.scatter_add_(1, places, leaving)
    return came.index_copy(0, rows, torch.einsum("zy,bzg->byg", matrix, whole))
