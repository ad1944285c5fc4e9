"""Topics are learnt: the bound that is climbed, and what a text with topics gains."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from enumeration import enumerate_row
from hmmlm.data.token_array import TokenArray
from hmmlm.errors import InputError
from hmmlm.evaluate import HmmLM, evaluate
from hmmlm.inference import sample
from hmmlm.support import Support
from hmmlm.topics import LearntTopics, TopicHMM, TopicLM, TopicSettings, learn_topics
from models import SUPPORTS, TRANSITIONS, make_hmm
from topical import EOS, explicit_part

LINES = [[0, 2, 1], [1], [4, 3, 0, 1], [2, 0], [3, 1]]
STILL = 1e-12
"""A rate at which nothing is learnt, so that what was found is what it began with."""


def as_text(lines: list[list[int]]) -> TokenArray:
    return TokenArray.from_ids([token for line in lines for token in line], eos_id=EOS)


def learn(hmm, lines: list[list[int]], **settings) -> tuple[LearntTopics, list[float]]:
    heard: list[tuple[int, float]] = []
    how = TopicSettings(**{"topics": 3, "epochs": 1, **settings})
    learnt = learn_topics(hmm, as_text(lines), how, progress=lambda *told: heard.append(told))
    assert sum(tokens for tokens, _ in heard) == how.epochs * sum(map(len, lines))
    return learnt, [tokens * gain for tokens, gain in heard]


def bound_by_enumeration(topics: TopicHMM, lines: list[list[int]]) -> float:
    """log sum over the topics of all lines of p(topics) exp(E_q[what the topics make of them])."""
    parts = [explicit_part(topics, topic) for topic in range(topics.num_topics)]
    gains = []
    for line in lines:
        before = enumerate_row(topics.hmm, line).log_joint[:, -1]
        q = before.softmax(0)
        rows = [enumerate_row(part, line).log_joint[:, -1] for part in parts]
        gains.append([float((q * (row - before))[q > 0].sum()) for row in rows])
    start, moves = topics.log_start.exp(), topics.log_moves.exp()
    total = 0.0
    for way in itertools.product(range(len(parts)), repeat=len(lines)):
        prob = float(start[way[0]])
        for line, topic in enumerate(way):
            prob *= math.exp(gains[line][topic])
            if line:
                prob *= float(moves[way[line - 1], topic])
        total += prob
    return math.log(total)


@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("support", SUPPORTS)
def test_the_bound_is_that_of_all_paths_and_topics(support: str, transitions: str) -> None:
    hmm = make_hmm(support, transitions)
    lines = [*LINES[:3], [*LINES[3], 1], LINES[4]]
    learnt, (gain,) = learn(hmm, lines, learning_rate=STILL)
    wanted = bound_by_enumeration(learnt.topics, lines)
    assert gain == pytest.approx(wanted, abs=1e-6)
    text = as_text(lines)
    before = evaluate(HmmLM(hmm), text, mode="sentence", eos_id=EOS).nats
    after = evaluate(TopicLM(learnt.topics, EOS), text, mode="streaming", eos_id=EOS).nats
    assert gain <= before - after + 1e-6


def test_lines_in_several_runs_are_followed_in_each(monkeypatch) -> None:
    """A run begins where topics are not known; runs of one step may differ in size."""
    monkeypatch.setattr("hmmlm.topics.learning.LINES", 2)
    hmm = make_hmm("blocks", "factored")
    lines = [*LINES[:3], [*LINES[3], 1], LINES[4]]
    learnt, (gain,) = learn(hmm, lines, learning_rate=STILL)
    runs = [bound_by_enumeration(learnt.topics, lines[a : a + 2]) for a in (0, 2, 4)]
    assert gain == pytest.approx(sum(runs), abs=1e-6)


def test_words_are_counted_by_the_topics_of_their_lines() -> None:
    learnt, _ = learn(make_hmm("blocks", "factored"), LINES[:3], learning_rate=STILL, epochs=2)
    counts = learnt.word_counts
    often = torch.bincount(
        torch.cat([torch.tensor(line) for line in LINES[:3]]), minlength=5
    ).double()
    torch.testing.assert_close(counts.sum(0).double(), often)
    alone = learn(make_hmm("blocks", "factored"), LINES[:1], learning_rate=STILL)[0]
    parts = [
        bound_by_enumeration(_only(alone.topics, topic), LINES[:1])
        + float(alone.topics.log_start[topic])
        for topic in range(3)
    ]
    shares = torch.tensor(parts).softmax(0)
    torch.testing.assert_close(alone.word_counts.sum(1).double() / 3, shares.double())


def _only(topics: TopicHMM, topic: int) -> TopicHMM:
    """The same with a single topic."""
    one = torch.zeros(1, dtype=torch.float64)
    words, states = topics.word_tilts[topic][None], topics.state_tilts[topic][None]
    return TopicHMM.make(topics.hmm, words, states, one, one[None])


@pytest.fixture(scope="module")
def planted() -> tuple[TopicHMM, list[list[int]], list[list[int]]]:
    """Three topics of 24 words in 6 blocks, that rarely move; lines to learn from, and others."""
    generator = torch.Generator().manual_seed(0)
    clusters = [0, 1, *(2 + word % 4 for word in range(22))]
    hmm = make_hmm(Support.from_clusters(clusters, 2), "factored", scale=0.7)
    words, states = (
        1.5 * torch.randn(3, size, generator=generator, dtype=torch.float64)
        for size in (24, hmm.num_states)
    )
    moves = torch.full((3, 3), 0.05, dtype=torch.float64).fill_diagonal_(0.9).log()
    start = torch.full((3,), 1 / 3, dtype=torch.float64).log()
    topics, topic, lines = TopicHMM.make(hmm, words, states, start, moves), 0, []
    parts = list(topics.parts())
    for _ in range(1500):
        drawn = sample(parts[topic], length=12, stop_id=EOS, generator=generator)
        line = drawn.tokens[0, : int(drawn.lengths[0])].tolist()
        lines.append(line if line[-1] == EOS else [*line, EOS])
        topic = int(torch.multinomial(moves[topic].exp(), 1, generator=generator))
    return topics, lines[:1200], lines[1200:]


def test_planted_topics_are_found(planted) -> None:
    truth, lines, others = planted
    learnt, gains = learn(truth.hmm, lines, epochs=40, penalty=0.1)
    assert gains[-1] > gains[0]
    text = as_text(others)

    def nats(lm, mode: str) -> float:
        return evaluate(lm, text, mode=mode, eos_id=EOS).nats / len(text)

    best = nats(TopicLM(truth, EOS), "streaming")
    without = nats(HmmLM(truth.hmm), "sentence")
    found = TopicLM(learnt.topics, EOS)
    assert without - best > 0.1
    assert nats(found, "streaming") < best + 0.2 * (without - best)
    assert nats(found, "streaming") < nats(found, "sentence") < without
    stays = learnt.topics.log_moves.exp().diagonal()
    assert float(stays.mean()) > 0.75


def test_states_that_are_found_again_make_the_same_topics(planted, monkeypatch) -> None:
    """Those that are kept are rounded to float16."""
    truth, lines, _ = planted
    slowly = {"epochs": 3, "learning_rate": 0.02}
    kept, one = learn(truth.hmm, lines, **slowly)
    monkeypatch.setattr("hmmlm.topics.learning.SHARE", 0.0)
    again, two = learn(truth.hmm, lines, **slowly)
    assert one == pytest.approx(two, rel=1e-3, abs=0.5) and one != two
    torch.testing.assert_close(kept.topics.word_tilts, again.topics.word_tilts, rtol=0, atol=5e-3)


def test_lines_are_read_in_groups_as_together(planted, monkeypatch) -> None:
    truth, lines, _ = planted
    together, one = learn(truth.hmm, lines[:200], learning_rate=STILL)
    monkeypatch.setattr("hmmlm.topics.learning.CELLS", 100)
    apart, two = learn(truth.hmm, lines[:200], learning_rate=STILL)
    assert one == pytest.approx(two)
    torch.testing.assert_close(together.word_counts, apart.word_counts)


def test_a_seed_makes_topics_again() -> None:
    hmm = make_hmm("blocks", "factored", dtype=torch.float32)
    one, two, other = (learn(hmm, LINES, epochs=2, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(one.topics.word_tilts, two.topics.word_tilts)
    assert not torch.equal(one.topics.word_tilts, other.topics.word_tilts)
    assert one.topics.hmm.dtype == one.topics.word_tilts.dtype == torch.float32


def test_one_topic_is_a_correction_of_the_hmm() -> None:
    learnt, gains = learn(make_hmm("blocks", "factored"), LINES, topics=1, epochs=200)
    assert gains[-1] > max(0.0, gains[0])
    assert learnt.topics.log_moves.exp().tolist() == [[1.0]]


def test_what_cannot_be_learnt_is_refused(monkeypatch) -> None:
    hmm = make_hmm("blocks", "factored")
    with pytest.raises(InputError, match="no tokens to learn topics from"):
        learn_topics(hmm, as_text([]))
    for settings, said in (
        ({"topics": 0}, "topics"),
        ({"epochs": -1}, "epochs"),
        ({"penalty": 0.0}, "penalty is 0.0 but must be over 0"),
        ({"learning_rate": math.nan}, "learning_rate is nan but must be over 0"),
    ):
        with pytest.raises(InputError, match=said):
            TopicSettings(**settings)
    with pytest.raises(InputError, match="seed is -1 but must lie between 0"):
        TopicSettings(seed=-1)
    emit = hmm.log_emit.clone()
    emit[4] = -torch.inf
    never = replace(hmm, log_emit=emit)
    with pytest.raises(InputError, match=r"begins at token 4 of the text.* has probability zero"):
        learn_topics(never, as_text(LINES))
    half = hmm.to(dtype=torch.bfloat16)
    with pytest.raises(InputError, match="in bfloat16 but topics need float32 or float64"):
        learn_topics(half, as_text(LINES))
    monkeypatch.setattr("hmmlm.topics.learning.free_memory", lambda _: 100)
    with pytest.raises(InputError, match=r"64 topics of 4 states.*67 MB.*100 B are free"):
        learn_topics(hmm, as_text(LINES))
