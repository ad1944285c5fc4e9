"""Tokens given all others, information between positions and between models, by enumeration."""

import itertools
import math

import pytest
import torch

from enumeration import enumerate_row, full_emissions
from hmmlm import HMM, inference
from hmmlm.errors import InputError
from hmmlm.results import Belief
from models import SUPPORTS, TRANSITIONS, make_hmm, with_holes

INF = torch.inf
WEIGHTS = torch.tensor([[0.0, -INF, -1.0, 0.7, -2.0]], dtype=torch.float64)
TEXTS = {
    "plain": ([[0, 3, 2, 4], [2, 2, 0, 1], [4, 0, 0, 0]], [4, 3, 1]),
    "gaps": ([[0, -1, 5, 1], [2, 5, 0, -1], [-1, 3, 0, 0]], [4, 4, 2]),
    "one step": ([[0], [-1], [3]], [1, 1, 1]),
    "all missing": ([[-1, -1]], [2]),
    "resets": ([[0, 1, 2, 1], [1, 3, 5, 1], [2, 1, 0, 0]], [4, 4, 2]),
    "belief": ([[0, 3, 2], [2, -1, 1], [4, 0, 0]], [3, 3, 1]),
}


def model(support: str, transitions: str) -> HMM:
    if transitions == "holes":
        return with_holes(make_hmm(support))
    return make_hmm(support, transitions)


def carried(hmm: HMM) -> Belief:
    """Of three rows, the second of which begins afresh."""
    states = torch.tensor([[0, hmm.num_states - 1, -1]]).repeat(3, 1)
    log_probs = torch.tensor([[0.3, 0.7, 0.0]], dtype=torch.float64).log().repeat(3, 1)
    return Belief(states, log_probs, torch.arange(3) == 1)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("transitions", [*TRANSITIONS, "holes"])
@pytest.mark.parametrize("support", ["dense", "blocks", "ragged"])
def test_a_token_given_all_others(support, transitions, text):
    hmm = model(support, transitions)
    tokens, lengths = TEXTS[text]
    reset = 1 if text == "resets" else None
    belief = carried(hmm) if text == "belief" else None
    found = inference.pseudo_log_prob(
        hmm,
        torch.tensor(tokens),
        log_weights=WEIGHTS,
        lengths=torch.tensor(lengths),
        belief=belief,
        reset_id=reset,
    )
    for i, (row, size) in enumerate(zip(tokens, lengths, strict=True)):
        how = {"reset_id": reset, "log_weights": WEIGHTS}
        how["belief"] = None if belief is None else belief.select(torch.tensor([i]))
        gaps = [not 0 <= token < 5 for token in row[:size]]
        total = 0.0
        for t in range(size):
            truth = 0.0
            if not gaps[t]:
                texts = [[*row[:t], word, *row[t + 1 : size]] for word in range(5)]
                each = [enumerate_row(hmm, text, **how).log_evidence for text in texts]
                every = float(torch.logsumexp(torch.tensor(each, dtype=torch.float64), 0))
                truth = -INF if each[row[t]] == -INF else each[row[t]] - every
            total += truth
            assert float(found.token_log_probs[i, t]) == pytest.approx(truth, abs=1e-9)
        assert (found.token_log_probs[i, size:] == 0).all()
        assert float(found.log_prob[i]) == pytest.approx(total, abs=1e-9)
        assert int(found.num_tokens[i]) == size - sum(gaps)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("transitions", [*TRANSITIONS, "holes"])
@pytest.mark.parametrize("support", SUPPORTS)
def test_states_of_a_token_given_all_others(support, transitions, text):
    """Against all paths of the text with the token missing; a reset has no say in what follows."""
    hmm = model(support, transitions)
    tokens, lengths = TEXTS[text]
    tokens = [[min(token, 4) for token in row] for row in tokens]  # without soft evidence
    reset = 1 if text == "resets" else None
    belief = carried(hmm) if text == "belief" else None
    how = {"lengths": torch.tensor(lengths), "belief": belief, "reset_id": reset}
    found = inference.context_log_probs(hmm, torch.tensor(tokens), **how)
    for i, (row, size) in enumerate(zip(tokens, lengths, strict=True)):
        begun = None if belief is None else belief.select(torch.tensor([i]))
        for t in range(size):
            rest, fresh = row[t + 1 : size], []
            if row[t] == reset:
                rest, fresh = [], rest
            one = enumerate_row(hmm, [*row[:t], -1, *rest], belief=begun, reset_id=reset)
            joint = torch.zeros(hmm.num_states, dtype=torch.float64)
            joint.index_add_(0, one.paths[:, t], one.log_joint[:, -1].exp())
            if fresh:
                joint *= math.exp(enumerate_row(hmm, fresh, reset_id=reset).log_evidence)
            truth = joint / joint.sum() if float(joint.sum()) > 0 else joint
            torch.testing.assert_close(found[i, t].exp(), truth, rtol=1e-9, atol=1e-12)
        assert (found[i, size:] == -INF).all()


@pytest.mark.parametrize("support", ["dense", "blocks"])
def test_a_belief_may_be_of_another_type_than_the_tables(support):
    """As in scoring: it is read in the type of the tables."""
    hmm = make_hmm(support)
    how = {"belief": carried(hmm)}
    tokens = torch.tensor(TEXTS["belief"][0])
    for function, at in ((inference.context_log_probs, None), (inference.pseudo_log_prob, 0)):
        small, large = (
            function(model, tokens, **how) for model in (hmm.to(dtype=torch.float32), hmm)
        )
        small, large = (found if at is None else found[at] for found in (small, large))
        torch.testing.assert_close(small, large.float(), rtol=1e-4, atol=1e-5)


def test_pseudo_perplexity_is_that_of_all_rows():
    found = inference.pseudo_log_prob(make_hmm(), torch.tensor([[0, 3, -1], [2, 1, 4]]))
    logs = found.token_log_probs[[0, 0, 1, 1, 1], [0, 1, 0, 1, 2]]
    assert found.perplexity == pytest.approx(math.exp(-float(logs.mean())))


@pytest.mark.parametrize("support", ["dense", "blocks", "ragged"])
def test_pseudo_log_probs_are_exact_where_probabilities_do_not_fit_a_number(support, monkeypatch):
    """Transitions 200 nats apart, in float32, against float64; a place at a time."""
    hmm = make_hmm(support, scale=60.0)
    monkeypatch.setattr("hmmlm.inference.contexts.CELLS", 1)
    tokens = torch.tensor([[0, 3, 2, 4, 1, 1, 0, 2]])
    small = inference.pseudo_log_prob(hmm.to(dtype=torch.float32), tokens).token_log_probs
    large = inference.pseudo_log_prob(hmm, tokens).token_log_probs
    torch.testing.assert_close(small.double(), large, rtol=1e-4, atol=1e-3)


def joint_words(hmm: HMM, s: int, t: int) -> torch.Tensor:
    """(V, V) p(x_s, x_t), from all state paths."""
    hmm = hmm.to(dtype=torch.float64)
    emit = full_emissions(hmm).exp()  # (V, Z)
    row = enumerate_row(hmm, [-1] * (t + 1))
    states = torch.zeros(hmm.num_states, hmm.num_states, dtype=torch.float64)
    pairs = row.paths[:, s] * hmm.num_states + row.paths[:, t]
    states.view(-1).index_add_(0, pairs, row.log_joint[:, -1].exp())
    return emit @ states @ emit.T


def information(joint: torch.Tensor) -> float:
    outer = joint.sum(1, keepdim=True) * joint.sum(0)
    return float(torch.where(joint > 0, joint * (joint / outer).log(), 0.0).sum())


@pytest.mark.parametrize(("s", "t"), [(0, 1), (0, 3), (1, 2), (2, 3)])
@pytest.mark.parametrize("transitions", [*TRANSITIONS, "holes"])
@pytest.mark.parametrize("support", SUPPORTS)
def test_information_between_two_positions(support, transitions, s, t):
    hmm = model(support, transitions)
    truth = information(joint_words(hmm, s, t))
    assert inference.word_information(hmm, s, t) == pytest.approx(truth, abs=1e-10)
    assert inference.word_information(hmm, t, s) == pytest.approx(truth, abs=1e-10)
    row = enumerate_row(hmm, [-1] * (t + 1))
    states = torch.zeros(hmm.num_states, hmm.num_states, dtype=torch.float64)
    pairs = row.paths[:, s] * hmm.num_states + row.paths[:, t]
    states.view(-1).index_add_(0, pairs, row.log_joint[:, -1].exp())
    between = information(states)
    assert inference.state_information(hmm, s, t) == pytest.approx(between, abs=1e-10)
    assert truth <= between + 1e-10  # words know no more of each other than their states do


def test_information_in_parts_is_the_same(monkeypatch):
    hmm = make_hmm("ragged")
    whole = inference.word_information(hmm, 0, 2), inference.state_information(hmm, 0, 2)
    monkeypatch.setattr("hmmlm.inference.information.TILE", 8)
    parts = inference.word_information(hmm, 0, 2), inference.state_information(hmm, 0, 2)
    assert whole == pytest.approx(parts, abs=1e-12)


def exact_divergence(p: HMM, q: HMM, length: int, reset: int | None) -> tuple[float, float]:
    """(cross-entropy, KL) by enumeration of all texts."""
    cross = divergence = 0.0
    for text in itertools.product(range(5), repeat=length):
        one = enumerate_row(p, list(text), reset_id=reset).log_evidence
        other = enumerate_row(q, list(text), reset_id=reset).log_evidence
        cross -= math.exp(one) * other
        divergence += math.exp(one) * (one - other)
    return cross, divergence


@pytest.mark.parametrize("reset", [None, 1])
@pytest.mark.parametrize(("one", "other"), [("dense", "blocks"), ("ragged", "uniform")])
def test_cross_entropy_and_divergence_are_estimated_without_bias(one, other, reset):
    p, q = make_hmm(one), make_hmm(other, "factored", seed=4)
    cross, divergence = exact_divergence(p, q, 3, reset)
    how = {"length": 3, "num_samples": 3000, "reset_id": reset}
    for function, truth in (("cross_entropy", cross), ("kl_divergence", divergence)):
        generator = torch.Generator().manual_seed(1)
        found = getattr(inference, function)(p, q, generator=generator, **how)
        assert found.samples == 3000 and 0 < found.standard_error < 0.2
        assert abs(found.value - truth) <= 5 * found.standard_error


def test_a_model_is_no_distance_from_itself():
    found = inference.kl_divergence(make_hmm(), make_hmm(), length=5, num_samples=20)
    assert found.value == pytest.approx(0, abs=1e-9) and found.standard_error < 1e-9


def test_draws_in_groups_are_all_counted(monkeypatch):
    monkeypatch.setattr("hmmlm.inference.information.DRAWN", 30)
    found = inference.cross_entropy(make_hmm(), make_hmm(seed=1), length=2, num_samples=25)
    assert found.samples == 25


def test_what_the_other_model_cannot_say_is_infinitely_far():
    emit = torch.tensor([[0.5, 0.5, 0, 0, 0]] * 3).double().log()
    flat = torch.full((3, 3), 1 / 3).double().log()
    narrow = HMM.from_tables(flat[0], flat, emit)
    found = inference.cross_entropy(make_hmm(), narrow, length=3, num_samples=50)
    assert found.value == INF and found.standard_error == INF


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: inference.word_information(make_hmm(), 1, 1),
            "The positions are 1 and 1 but must be two different ones",
        ),
        (
            lambda: inference.state_information(make_hmm(), -1, 1),
            "The positions are -1 and 1 but must be two different ones of at least 0",
        ),
        (
            lambda: inference.kl_divergence(make_hmm(), two_words(), length=2),
            "The HMMs have 5 and 2 words; compare models of the same vocabulary",
        ),
        (
            lambda: inference.kl_divergence(make_hmm(), make_hmm(), length=2, num_samples=1),
            "num_samples is 1 but an error needs at least 2",
        ),
    ],
)
def test_what_cannot_be_compared(call, message):
    with pytest.raises(InputError, match=message):
        call()


def two_words() -> HMM:
    half = torch.full((2, 2), 0.5).double().log()
    return HMM.from_tables(half[0], half, half)


@pytest.mark.parametrize(("dtype", "small"), [(torch.float32, 20.0), (torch.float64, 40.0)])
def test_words_beside_an_end_that_is_all_but_certain(dtype, small) -> None:
    """p(any other word) is a sum: 1 - p(end) would be zero."""
    impossible = -torch.inf
    emit = torch.tensor([[0.0, -small, -small - 5], [impossible, impossible, 0.0]], dtype=dtype)
    hmm = HMM.from_tables(
        torch.tensor([0.0, impossible], dtype=dtype),
        torch.tensor([[impossible, 0.0], [0.0, impossible]], dtype=dtype),
        emit.log_softmax(1),
    )
    found = inference.pseudo_log_prob(hmm, torch.tensor([[0, 2]]), reset_id=0)
    # <eos> and afresh, then word 2; or another word, then state 1, which has word 2 alone.
    ends, others = -small - 5, math.log(math.exp(-small) + math.exp(-small - 5))
    truth = ends - math.log(math.exp(ends) + math.exp(others))
    assert float(found.token_log_probs[0, 0]) == pytest.approx(truth, abs=1e-4)
