"""Soft evidence against the enumeration of all paths, in every function that takes tokens."""

import functools
import gc
import weakref

import pytest
import torch

from enumeration import Row, enumerate_row
from hmmlm import HMM, inference
from hmmlm.errors import InputError
from hmmlm.tempering import tempered
from models import SUPPORTS, TRANSITIONS, make_hmm

TOLERANCE = {"rtol": 0, "atol": 1e-10}
INF = torch.inf
WEIGHTS = torch.tensor(
    [[0.0, -1.0, -INF, 0.7, -2.0], [-INF, 0.0, 0.0, -INF, -0.5]], dtype=torch.float64
)
TEXTS = {
    "soft": ([[0, 5, 2, 6], [6, 6, -1, 1], [5, 3, 0, 0]], [4, 4, 2]),
    "one step": ([[5], [6], [2]], [1, 1, 1]),
    "all soft": ([[5, 6, 5]], [3]),
    "resets": ([[0, 1, 5, 3], [6, 1, 1, -1], [5, 1, 0, 0]], [4, 4, 2]),
}


@functools.cache
def case(support: str, transitions: str, text: str) -> tuple[HMM, dict, list[Row]]:
    hmm = make_hmm(support, transitions)
    tokens, lengths = TEXTS[text]
    how = {"lengths": torch.tensor(lengths), "reset_id": 1 if text == "resets" else None}
    rows = [
        enumerate_row(hmm, row[:size], reset_id=how["reset_id"], log_weights=WEIGHTS)
        for row, size in zip(tokens, lengths, strict=True)
    ]
    return inference.soften(hmm, WEIGHTS), {"tokens": torch.tensor(tokens), **how}, rows


each = pytest.mark.parametrize("text", TEXTS)
over_models = [
    pytest.mark.parametrize("transitions", TRANSITIONS),
    pytest.mark.parametrize("support", SUPPORTS),
]


def every_model(test):
    for mark in [each, *over_models]:
        test = mark(test)
    return test


@every_model
@pytest.mark.parametrize("implementation", ["reference", "scaled"])
def test_evidence_and_states(support, transitions, text, implementation):
    hmm, how, rows = case(support, transitions, text)
    found = inference.smooth(hmm, **how, implementation=implementation)
    filtered = inference.filter(hmm, **how, implementation=implementation)
    table, before = found.dense(hmm.num_states), filtered.dense(hmm.num_states)
    for i, row in enumerate(rows):
        assert float(found.log_evidence[i]) == pytest.approx(row.log_evidence, abs=1e-10)
        near = {"rtol": 0, "atol": 1e-10}
        torch.testing.assert_close(table[i, : row.steps].exp(), row.smoothed().exp(), **near)
        torch.testing.assert_close(before[i, : row.steps].exp(), row.filtered().exp(), **near)
        scores = found.token_log_probs[i, : row.steps]
        torch.testing.assert_close(scores, row.token_log_probs, **near)


@every_model
def test_best_path_and_draws(support, transitions, text):
    hmm, how, rows = case(support, transitions, text)
    best = inference.viterbi(hmm, **how)
    draws = 2000
    generator = torch.Generator().manual_seed(2)
    drawn = inference.sample_paths(hmm, **how, num_samples=draws, generator=generator).states
    for i, row in enumerate(rows):
        most, paths = row.best()
        assert float(best.log_prob[i]) == pytest.approx(most, abs=1e-10)
        assert best.states[i, : row.steps].tolist() in paths.tolist()
        marginal = row.smoothed().exp()
        for t in range(row.steps):
            seen = torch.bincount(drawn[i, :, t], minlength=hmm.num_states) / draws
            error = (marginal[t] * (1 - marginal[t]) / draws).clamp(min=0).sqrt()
            assert ((seen - marginal[t]).abs() <= 5 * error + 3 / draws).all()


@pytest.mark.parametrize("support", SUPPORTS)
def test_counts_of_words_leave_soft_evidence_out(support):
    hmm, how, rows = case(support, "dense", "soft")
    found = inference.counts(hmm, **how)
    truth = [sum(part) for part in zip(*(row.counts() for row in rows), strict=True)]
    torch.testing.assert_close(found.init, truth[0], **TOLERANCE)
    torch.testing.assert_close(found.trans, truth[1], **TOLERANCE)
    words = make_hmm(support, "dense").vocab_size
    for word in range(words):
        for slot, state in enumerate(hmm.support.states_of(torch.tensor(word)).tolist()):
            if state >= 0:
                seen = float(found.emit[word, slot])
                assert seen == pytest.approx(float(truth[2][word, state]), abs=1e-10)


@pytest.mark.parametrize("support", SUPPORTS)
def test_certain_evidence_is_a_token_and_no_evidence_a_missing_one(support):
    hmm = make_hmm(support)
    certain = torch.full((5, 5), -INF).double().fill_diagonal_(0.0)
    soft = inference.soften(hmm, torch.cat([certain, torch.zeros(1, 5).double()]))
    tokens = torch.tensor([[0, 3, -1, 4], [2, -1, -1, 1]])
    as_soft = torch.where(tokens < 0, 10, tokens + 5)
    one, other = inference.log_prob(hmm, tokens), inference.log_prob(soft, as_soft)
    torch.testing.assert_close(one.log_evidence, other.log_evidence, **TOLERANCE)
    torch.testing.assert_close(one.token_log_probs, other.token_log_probs, **TOLERANCE)


@pytest.mark.parametrize("support", ["dense", "blocks"])
def test_in_float32_what_loses_digits_is_redone(support):
    """Weights 400 nats apart, of which the small one is what explains the rest."""
    hmm = make_hmm(support)
    weights = torch.tensor([[0.0, -400.0, -400.0, 0.0, -400.0]], dtype=torch.float64)
    tokens = [0, 5, 2, 3]
    truth = enumerate_row(hmm, tokens, log_weights=weights)
    small = inference.soften(hmm.to(dtype=torch.float32), weights)
    found = inference.smooth(small, torch.tensor([tokens]))
    assert float(found.log_evidence[0]) == pytest.approx(truth.log_evidence, abs=1e-3)
    table = found.dense(hmm.num_states)[0].double()
    torch.testing.assert_close(table.exp(), truth.smoothed().exp(), rtol=0, atol=1e-5)


def test_blocks_have_no_table_of_all_words_by_all_states():
    hmm = make_hmm("blocks")
    soft = inference.soften(hmm, WEIGHTS)
    assert soft.log_emit.shape == hmm.log_emit.shape and soft.support is hmm.support
    assert soft.log_soft is not None and soft.log_soft.shape == (2, hmm.num_states)
    again = inference.soften(soft, WEIGHTS)
    assert again.num_soft == 4


@pytest.mark.parametrize("support", ["dense", "blocks"])
def test_no_gradient_goes_through_and_none_is_promised(support):
    hmm = make_hmm(support)
    hmm.log_emit.requires_grad_()
    found = inference.log_prob(inference.soften(hmm, WEIGHTS), torch.tensor([[0, 5]]))
    with pytest.raises(RuntimeError, match="does not require grad"):
        found.log_evidence.sum().backward()


def test_evidence_goes_with_the_states_that_are_kept():
    hmm = inference.soften(make_hmm("blocks"), WEIGHTS)
    part = hmm.restrict(torch.tensor([0, 1, 3]))
    assert part.log_soft is not None and part.log_soft.shape == (2, 3)
    assert torch.isfinite(inference.log_prob(part, torch.tensor([[0, 5, 2]])).log_evidence).all()


def test_evidence_that_no_state_explains_has_probability_zero():
    nothing = torch.full((1, 5), -INF).double()
    for support in ("dense", "blocks"):
        soft = inference.soften(make_hmm(support), nothing)
        found = inference.smooth(soft, torch.tensor([[0, 5, 2], [0, 3, 2]]))
        assert torch.isneginf(found.log_evidence).tolist() == [True, False]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.zeros(2, 4), r"log_weights has shape \(2, 4\) but must be \(N, 5\)"),
        (torch.zeros(5), r"log_weights has shape \(5,\) but must be \(N, 5\)"),
        (torch.zeros(2, 5).long(), "log_weights is torch.int64 but must be floating point"),
        (torch.tensor([[0.0, 0, INF, 0, 0]]), r"log_weights has inf at \(0, 2\); it must be a"),
        (torch.tensor([[0.0, torch.nan, 0, 0, 0]]), r"log_weights has nan at \(0, 1\)"),
    ],
)
def test_weights_that_are_none(weights, message):
    with pytest.raises(InputError, match=message):
        inference.soften(make_hmm(), weights)


def test_a_token_past_the_evidence():
    for support in ("dense", "blocks"):
        soft = inference.soften(make_hmm(support), WEIGHTS)
        with pytest.raises(InputError, match="tokens has id 7 but this vocabulary ends at 6"):
            inference.log_prob(soft, torch.tensor([[0, 7]]))


@pytest.mark.parametrize("support", ["dense", "blocks"])
def test_evidence_is_no_word(support) -> None:
    """What comes next, what is drawn and what is left of an HMM are as without it."""
    hmm = make_hmm(support)
    soft = inference.soften(hmm, WEIGHTS)
    assert (soft.vocab_size, soft.num_soft) == (hmm.vocab_size, len(WEIGHTS))
    tokens = torch.tensor([[0, 1]])
    following = inference.next_log_probs(hmm, tokens)
    torch.testing.assert_close(inference.next_log_probs(soft, tokens), following)
    assert inference.word_information(soft, 0, 2) == inference.word_information(hmm, 0, 2)
    generator = torch.Generator().manual_seed(0)
    drawn = inference.sample(soft, length=20, num_samples=20, generator=generator)
    assert int(drawn.tokens.max()) < hmm.vocab_size
    every = torch.arange(hmm.num_states)
    some = torch.tensor([[0, hmm.vocab_size, 1]])
    left = inference.log_prob(soft.restrict(every), some).log_evidence
    torch.testing.assert_close(left, inference.log_prob(soft, some).log_evidence)
    assert inference.counts(soft, some).emit.shape == hmm.log_emit.shape
    with pytest.raises(InputError, match=r"reset_id is .* but this vocabulary has ids 0 to"):
        inference.log_prob(soft, tokens, reset_id=hmm.vocab_size)
    with pytest.raises(InputError, match="soft evidence already; give the one without them"):
        inference.word_log_probs(soft, torch.tensor([[0, -1]]))
    with pytest.raises(InputError, match="temper first, then soften"):
        tempered(soft, emit=0.5)


def test_an_hmm_is_freed_as_soon_as_nobody_has_it() -> None:
    """Not when garbage is collected: a training step makes one of many bytes."""
    hmm = make_hmm("dense")
    inference.log_prob(hmm, torch.tensor([[0, 1]]))
    gone = weakref.ref(hmm)
    gc.disable()
    try:
        del hmm
        assert gone() is None
    finally:
        gc.enable()
