"""Random HMMs with topics, and what texts are worth by the definition: all topics of all lines."""

import itertools

import torch
from torch import Tensor

from enumeration import enumerate_row, full_emissions
from hmmlm.hmm import HMM
from hmmlm.support import Support
from hmmlm.topics import TopicHMM
from models import make_hmm

EOS = 1
GENERATOR_SEED = 5


def make_topics(
    support: str | Support = "blocks",
    transitions: str = "factored",
    *,
    number: int = 3,
    base: HMM | None = None,
) -> TopicHMM:
    hmm = make_hmm(support, transitions) if base is None else base
    generator = torch.Generator().manual_seed(GENERATOR_SEED)

    def noise(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    return TopicHMM.make(
        hmm,
        noise(number, hmm.vocab_size),
        noise(number, hmm.num_states),
        noise(number).log_softmax(0),
        noise(number, number).log_softmax(1),
    )


def explicit_part(topics: TopicHMM, topic: int) -> HMM:
    """The HMM of a topic from whole tables of probabilities, tilted and divided by their sums."""
    hmm = topics.hmm
    states, words = topics.state_tilts[topic].exp(), topics.word_tilts[topic].exp()
    init = hmm.log_init.exp() * states
    trans = hmm.transitions.rows(0, hmm.num_states).exp() * states
    emit = full_emissions(hmm).T.exp() * words  # (Z, V)
    tables = (init / init.sum(), trans / trans.sum(1, keepdim=True), emit / emit.sum(1)[:, None])
    return HMM.from_tables(*(table.log() for table in tables))


def text_prob(topics: TopicHMM, text: list[int], *, moves: Tensor) -> float:
    """p(text): the sum over the topics of its lines, the last of which may not be over."""
    lines: list[list[int]] = [[]]
    for token in text:
        lines[-1].append(token)
        if token == EOS:
            lines.append([])
    lines = [line for line in lines if line]
    parts = [explicit_part(topics, topic) for topic in range(topics.num_topics)]
    each = [[enumerate_row(part, line).log_evidence for part in parts] for line in lines]
    probs, start = (
        torch.tensor(each, dtype=torch.float64).exp().tolist(),
        topics.log_start.exp().tolist(),
    )
    total = 0.0
    for way in itertools.product(range(len(parts)), repeat=len(lines)):
        prob = start[way[0]] if way else 1.0
        for line, topic in enumerate(way):
            prob *= probs[line][topic]
            if line:
                prob *= float(moves[way[line - 1], topic])
        total += prob
    return total


def token_log_probs(topics: TopicHMM, text: list[int], *, cold: bool) -> Tensor:
    """log p of every token given those before it; `cold` where a line forgets those before it."""
    moves = topics.log_moves.exp()
    if cold:
        moves = topics.log_start.exp().expand_as(moves)
    whole = [text_prob(topics, text[:end], moves=moves) for end in range(len(text) + 1)]
    return torch.tensor(whole, dtype=torch.float64).log().diff()
