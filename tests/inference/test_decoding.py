"""Several paths, the one with most states right, and path entropy, against all paths."""

import functools
import math

import pytest
import torch

from enumeration import Row, enumerate_row
from hmmlm import HMM, inference
from hmmlm.errors import InputError
from hmmlm.results import Belief
from models import TRANSITIONS, make_hmm, with_holes

INF = torch.inf
WEIGHTS = torch.tensor([[0.0, -1.0, -INF, 0.7, -2.0]], dtype=torch.float64)
TEXTS = {
    "plain": ([[0, 3, 2, 4], [2, 2, 0, 1], [4, 0, 0, 0]], [4, 3, 1]),
    "gaps": ([[0, -1, 5, 1], [2, 5, 0, -1], [-1, 3, 0, 0]], [4, 4, 2]),
    "one step": ([[0], [-1], [5]], [1, 1, 1]),
    "all missing": ([[-1, -1, -1]], [3]),
    "resets": ([[0, 1, 2, 1], [1, -1, 3, 1], [2, 1, 0, 0]], [4, 4, 2]),
    "restarts": ([[0, 3, 2, 4], [2, -1, 0, 1], [4, 1, 0, 0]], [4, 4, 2]),
    "belief": ([[0, 3, 2], [2, -1, 1], [4, 0, 0]], [3, 3, 1]),
}
RESTARTS = [[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0]]
MODELS = [(s, t) for s in ("dense", "blocks", "ragged") for t in (*TRANSITIONS, "holes")]


@functools.cache
def case(support: str, transitions: str, text: str) -> tuple[HMM, dict, list[Row]]:
    if transitions == "holes":
        hmm = with_holes(make_hmm(support))
    else:
        hmm = make_hmm(support, transitions)
    tokens, lengths = TEXTS[text]
    reset = 1 if text == "resets" else None
    restart = torch.tensor(RESTARTS, dtype=torch.bool) if text == "restarts" else None
    belief = None
    if text == "belief":
        states = torch.tensor([[0, hmm.num_states - 1, -1]]).repeat(3, 1)
        log_probs = torch.tensor([[0.3, 0.7, 0.0]], dtype=torch.float64).log().repeat(3, 1)
        belief = Belief(states, log_probs, torch.arange(3) == 1)
    rows = [
        enumerate_row(
            hmm,
            row[:size],
            reset_id=reset,
            log_weights=WEIGHTS,
            belief=None if belief is None else belief.select(torch.tensor([i])),
            restart=None if restart is None else restart[i, :size].tolist(),
        )
        for i, (row, size) in enumerate(zip(tokens, lengths, strict=True))
    ]
    how = {"lengths": torch.tensor(lengths), "log_weights": WEIGHTS, "belief": belief}
    how |= {"reset_id": reset, "restart": restart}
    return hmm, {"tokens": torch.tensor(tokens), **how}, rows


@pytest.fixture(params=[(*m, t) for m in MODELS for t in TEXTS], ids=lambda p: "-".join(p))
def given(request) -> tuple[HMM, dict, list[Row]]:
    return case(*request.param)


def test_best_paths(given):
    hmm, how, rows = given
    for k in (1, 3):
        found = inference.best_paths(hmm, k=k, **how)
        for i, row in enumerate(rows):
            check_paths(found.states[i], found.log_probs[i], row, k)


def check_paths(states, log_probs, row: Row, k: int) -> None:
    truth = row.log_joint[:, -1].sort(descending=True).values[:k]
    truth = torch.cat([truth, torch.full((k - len(truth),), -INF, dtype=torch.float64)])
    torch.testing.assert_close(log_probs, truth, rtol=0, atol=1e-10)
    joint = {
        tuple(p): float(v) for p, v in zip(row.paths.tolist(), row.log_joint[:, -1], strict=True)
    }
    seen = [tuple(path) for path in states[:, : row.steps].tolist()]
    assert (states[:, row.steps :] == -1).all()
    real = [path for path in seen if path != (-1,) * row.steps]
    assert len(real) == int(torch.isfinite(truth).sum()) == len(set(real))
    for path, log_prob in zip(real, log_probs.tolist(), strict=False):
        assert joint[path] == pytest.approx(log_prob, abs=1e-10)


@pytest.mark.parametrize(("support", "transitions"), [("dense", "dense"), ("ragged", "holes")])
@pytest.mark.parametrize("text", ["plain", "gaps", "resets"])
def test_all_paths_together_are_the_evidence(support, transitions, text):
    hmm, how, rows = case(support, transitions, text)
    k = hmm.num_states**4 + 7
    found = inference.best_paths(hmm, k=k, **how)
    for i, row in enumerate(rows):
        total = float(torch.logsumexp(found.log_probs[i], 0))
        assert total == pytest.approx(row.log_evidence, abs=1e-9)
        check_paths(found.states[i], found.log_probs[i], row, k)


def test_scores_keep_their_digits_in_long_texts():
    hmm = make_hmm("blocks")
    tokens = torch.arange(1000)[None] % 5
    small = inference.best_paths(hmm.to(dtype=torch.float32), tokens, k=2)
    large = inference.best_paths(hmm, tokens, k=2)
    assert small.log_probs[0].tolist() == pytest.approx(large.log_probs[0].tolist(), abs=0.02)
    gap = small.log_probs[0, 0] - small.log_probs[0, 1]
    assert float(gap) == pytest.approx(
        float(large.log_probs[0, 0] - large.log_probs[0, 1]), abs=1e-3
    )


def test_path_entropy(given):
    hmm, how, rows = given
    found = inference.path_entropy(hmm, **how)
    for i, row in enumerate(rows):
        if row.log_evidence == -INF:
            assert float(found[i]) == -INF
            continue
        probs = (row.log_joint[:, -1] - row.log_evidence).exp()
        truth = -float(torch.where(probs > 0, probs * probs.log(), 0.0).sum())
        assert float(found[i]) == pytest.approx(truth, abs=1e-9)


def test_the_path_with_most_states_right(given):
    hmm, how, rows = given
    found = inference.min_risk_path(hmm, **how)
    for i, row in enumerate(rows):
        possible = torch.isfinite(row.log_joint[:, -1])
        if not possible.any():
            assert float(found.expected[i]) == -INF and (found.states[i] == -1).all()
            continue
        smoothed = row.smoothed().exp()
        value = smoothed[torch.arange(row.steps), row.paths].sum(1)
        value = torch.where(possible, value, -INF)
        assert float(found.expected[i]) == pytest.approx(float(value.max()), abs=1e-9)
        best = row.paths[value >= value.max() - 1e-9].tolist()
        assert found.states[i, : row.steps].tolist() in best
        assert (found.states[i, row.steps :] == -1).all()


def test_the_best_states_one_by_one_may_not_be_a_path():
    """Where the posterior's favourites cannot follow each other, min_risk_path still is a path."""
    init = torch.tensor([0.4, 0.3, 0.3]).double().log()
    trans = torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]).double().log()
    emit = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]).double().log()
    hmm = HMM.from_tables(init, trans, emit)
    tokens = torch.tensor([[0, 1]])
    alone = inference.smooth(hmm, tokens).log_probs[0].argmax(1).tolist()
    assert alone == [0, 0]
    found = inference.min_risk_path(hmm, tokens)
    assert found.states[0].tolist() in ([1, 0], [2, 0])
    assert float(found.expected[0]) == pytest.approx(0.3 + 0.6)


def test_one_path_has_no_entropy_and_equal_ones_the_most():
    hmm = make_hmm("one")
    assert float(inference.path_entropy(hmm, torch.tensor([[0, 1, 2]]))) == pytest.approx(0)
    flat = torch.full((4, 4), 0.25).double().log()
    emit = torch.full((4, 2), 0.5).double().log()
    hmm = HMM.from_tables(flat[0], flat, emit)
    found = inference.path_entropy(hmm, torch.tensor([[0, 1, 1]]))
    assert float(found) == pytest.approx(3 * math.log(4))


def test_a_row_of_probability_zero_leaves_its_neighbour_alone():
    hmm = make_hmm("blocks")
    how = {"log_weights": torch.full((1, 5), -INF).double()}
    tokens = torch.tensor([[0, 5, 2], [0, 3, 2]])
    best = inference.best_paths(hmm, tokens, k=2, **how)
    assert torch.isneginf(best.log_probs[0]).all() and (best.states[0] == -1).all()
    assert torch.isfinite(best.log_probs[1]).all()
    assert inference.path_entropy(hmm, tokens, **how)[0] == -INF
    risk = inference.min_risk_path(hmm, tokens, **how)
    assert (risk.states[0] == -1).all() and (risk.states[1] >= 0).all()


def test_k_of_none():
    with pytest.raises(InputError, match="k is 0 but must be at least 1"):
        inference.best_paths(make_hmm(), torch.tensor([[0]]), k=0)


def test_on_a_subset_states_have_their_global_ids():
    hmm = make_hmm("ragged").restrict(torch.tensor([3, 0, 2]))
    tokens = torch.tensor([[0, -1, 2]])
    named = set(inference.best_paths(hmm, tokens, k=4).states.unique().tolist())
    assert named <= {0, 2, 3}
    assert set(inference.min_risk_path(hmm, tokens).states.unique().tolist()) <= {0, 2, 3}
