"""An HMM with topics as a value, and as the one HMM that it is."""

import itertools
from dataclasses import replace

import pytest
import torch

from enumeration import full_emissions
from hmmlm import inference
from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.inference import soften
from hmmlm.mixture import mixture
from hmmlm.products import BF16, FLOAT32
from hmmlm.support import Support
from hmmlm.topics import TopicHMM
from hmmlm.transitions import Dense, Factored
from models import SUPPORTS, TRANSITIONS, make_hmm
from topical import EOS, explicit_part, make_topics, token_log_probs

ALONE = Support.from_clusters([0, 1, 2, 0, 2], 2)
"""Blocks in which `EOS` has states of its own."""


@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("support", SUPPORTS)
def test_a_topic_tilts_every_table(support: str, transitions: str) -> None:
    topics = make_topics(support, transitions)
    states = topics.hmm.num_states
    for topic, part in enumerate(topics.parts()):
        wanted = explicit_part(topics, topic)
        part.validate()
        torch.testing.assert_close(part.log_init, wanted.log_init)
        rows = wanted.transitions.rows(0, states)
        torch.testing.assert_close(part.transitions.rows(0, states), rows)
        torch.testing.assert_close(full_emissions(part), full_emissions(wanted))


def test_a_topic_is_exact_whatever_factors_were_rounded_to() -> None:
    hmm = make_hmm("blocks", "factored")
    rounded = replace(hmm, transitions=replace(hmm.transitions, operand=BF16))
    assert make_topics(base=rounded).part(0).transitions.operand == FLOAT32


@pytest.mark.parametrize("transitions", TRANSITIONS)
def test_a_tilt_of_thousands_of_nats_loses_no_digits(transitions: str) -> None:
    """A row's normaliser, where the states that it reaches are not the tilted one."""
    hmm = make_hmm("dense", transitions, scale=20.0)
    zeros = torch.zeros(2, hmm.vocab_size, dtype=torch.float64)
    tilts = torch.zeros(2, hmm.num_states, dtype=torch.float64)
    tilts[0, 0], tilts[1, 1] = 735.0, -3000.0
    table = hmm.transitions.rows(0, hmm.num_states).clone()
    table[1:, 0] -= 1600.0  # all but out of reach
    base = replace(hmm, transitions=Dense(table.log_softmax(1)))
    start = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    made = TopicHMM.make(base, zeros, tilts, start, start.expand(2, 2))
    rows = base.transitions.rows(0, hmm.num_states)
    wanted = torch.logsumexp(rows + tilts[:, None], 2)
    torch.testing.assert_close(made.log_norms, wanted)


def test_nothing_of_a_gradient_is_kept() -> None:
    hmm = make_hmm("blocks", "factored")
    left, right, norm = hmm.transitions.fields()
    made = make_topics(
        base=replace(hmm, transitions=Factored(left.clone().requires_grad_(), right, norm))
    )
    assert not any(part.requires_grad for part in made.topics())


def test_without_tilts_a_topic_is_the_hmm() -> None:
    hmm = make_hmm("blocks", "factored")
    zeros = [torch.zeros(2, size, dtype=torch.float64) for size in (5, hmm.num_states)]
    start = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    made = TopicHMM.make(hmm, *zeros, start, start.expand(2, 2))
    tokens = torch.tensor([[0, 2, 4, 1]])
    found = inference.log_prob(made.part(1), tokens).token_log_probs
    torch.testing.assert_close(found, inference.log_prob(hmm, tokens).token_log_probs)


def test_parts_of_a_mixture_can_have_topics() -> None:
    """Marks of factors stay the last columns."""
    parts = [make_hmm("blocks", "factored", seed=seed) for seed in (1, 2)]
    topics = make_topics(base=mixture(parts))
    for topic in range(topics.num_topics):
        rows = topics.part(topic).validate().transitions.rows(0, 8)
        torch.testing.assert_close(rows, explicit_part(topics, topic).transitions.rows(0, 8))
        table, base = topics.part(topic).transitions, topics.hmm.transitions
        assert isinstance(table, Factored) and isinstance(base, Factored)
        assert (table.marks, table.width) == (base.marks, base.width + 1)
        assert torch.equal(table.left[:, -base.marks :], base.left[:, -base.marks :])


@pytest.mark.parametrize("transitions", TRANSITIONS)
def test_joined_it_is_one_hmm_that_reads_a_text_without_a_reset(transitions: str) -> None:
    topics = make_topics(ALONE, transitions)
    whole = topics.joined(EOS).validate()
    assert whole.num_states == topics.num_topics * topics.hmm.num_states
    for text in ([0, 2, 1, 4, 1, 1, 3, 0], [1], [3]):
        found = inference.log_prob(whole, torch.tensor([text])).token_log_probs[0]
        torch.testing.assert_close(found, token_log_probs(topics, text, cold=False))
    every = torch.tensor(list(itertools.product(range(5), repeat=4)))
    total = inference.log_prob(whole, every).log_evidence.exp().sum()
    torch.testing.assert_close(total, torch.ones_like(total))


def test_joined_factors_leave_no_way_between_topics() -> None:
    topics = make_topics(ALONE)
    whole, states = topics.joined(EOS), topics.hmm.num_states
    rows = whole.transitions.rows(0, whole.num_states).exp()
    ends = set(topics.hmm.support.states_of(torch.tensor(EOS)).tolist())
    for state, row in enumerate(rows):
        topic, own = divmod(state, states)
        if own in ends:
            begins = [part.log_init.exp() for part in topics.parts()]
            moves = topics.log_moves[topic].exp()
            wanted = torch.cat([p * b for p, b in zip(moves, begins, strict=True)])
        else:
            wanted = torch.zeros_like(row)
            inside = topics.part(topic).transitions.rows(own, own + 1)[0].exp()
            wanted[topic * states : (topic + 1) * states] = inside
        torch.testing.assert_close(row, wanted)


def test_what_cannot_be_joined_is_refused(monkeypatch) -> None:
    with pytest.raises(InputError, match=r"emit other words too.*with --blocks"):
        make_topics("blocks").joined(EOS)
    monkeypatch.setattr("hmmlm.topics.value.LARGEST", 100)
    with pytest.raises(InputError, match="3 topics of 6 states make a table of 324 cells"):
        make_topics(ALONE, "dense").joined(EOS)


def _edited(**parts: torch.Tensor) -> TopicHMM:
    return replace(make_topics(), **parts)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"word_tilts": torch.zeros(3, 4)}, r"does not fit an HMM of 4 states and 5 words"),
        ({"state_tilts": torch.zeros(2, 4)}, r"needs \(3, 5\), \(3, 4\)"),
        ({"log_norms": torch.full((3, 4), torch.nan)}, "NaN or infinite"),
        ({"log_start": torch.zeros(3)}, "log_start of the topics is not normalised"),
        ({"log_moves": torch.zeros(3, 3)}, "log_moves of the topics is not normalised"),
    ],
)
def test_tables_that_do_not_fit_are_refused(parts: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        _edited(**parts).validate()


def test_what_has_no_topics_is_refused() -> None:
    hmm = make_hmm("blocks", "factored")
    soft = soften(hmm, torch.zeros(1, 5, dtype=torch.float64))
    some: HMM = hmm.restrict(torch.tensor([0, 2]))
    for base, said in ((soft, "soft evidence"), (some, "some states of a larger one")):
        with pytest.raises(InputError, match=said):
            make_topics(base=base)
    with pytest.raises(InputError, match="no topic 3; this model has 0 to 2"):
        make_topics().part(3)
