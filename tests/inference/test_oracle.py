"""Every inference function, in every mode it offers, against the enumeration of all paths."""

import functools
import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from enumeration import Row, enumerate_row, full_emissions
from hmmlm import inference
from hmmlm.hmm import HMM
from hmmlm.results import Belief, Counts, FactoredCounts
from hmmlm.transitions import Factored
from models import SUPPORTS, TRANSITIONS, make_hmm

TOLERANCE = {"rtol": 0, "atol": 1e-10}
EOS = 1

TEXTS: dict[str, tuple[list[list[int]], list[int]]] = {
    "plain": ([[0, 3, 2, 4, 1], [2, 2, 0, 1, 3]], [5, 5]),
    "lengths": ([[0, 3, 2, 4, 1], [2, 2, 0, 1, 3], [4, 0, 0, 0, 0]], [5, 3, 1]),
    "one step": ([[0], [3]], [1, 1]),
    "missing": ([[0, -1, 2, -1, 1], [2, 2, 0, 1, -1], [-1, -1, 3, 0, 0]], [5, 5, 3]),
    "all missing": ([[-1, -1, -1]], [3]),
    "resets": ([[0, EOS, 2, EOS, EOS], [EOS, 2, 3, 1, 4], [2, 3, EOS, 0, 0]], [5, 5, 3]),
    "restarts": ([[0, 3, 2, 4, 1], [2, 2, 0, 1, 3], [4, 1, 2, 0, 0]], [5, 5, 3]),
}
RESTARTS = [[0, 1, 0, 0, 1], [0, 0, 1, 1, 0], [1, 0, 0, 0, 1]]
IMPLEMENTATIONS = ("reference", "scaled", "scan")


class Case:
    """A model, a batch and, row by row, the truth."""

    def __init__(self, support: str, transitions: str, text: str, carried: bool) -> None:
        self.hmm = make_hmm(support, transitions)
        rows, lengths = TEXTS[text]
        self.tokens, self.lengths = torch.tensor(rows), torch.tensor(lengths)
        self.reset_id = EOS if text == "resets" else None
        self.restart = torch.tensor(RESTARTS, dtype=torch.bool) if text == "restarts" else None
        self.belief = make_belief(self.hmm, len(rows)) if carried else None
        self.rows: list[Row] = []
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            belief = None if self.belief is None else self.belief.select(torch.tensor([i]))
            restart = None if self.restart is None else self.restart[i, :length].tolist()
            self.rows.append(
                enumerate_row(
                    self.hmm,
                    row[:length],
                    belief=belief,
                    reset_id=self.reset_id,
                    restart=restart,
                )
            )

    def call(self, function: str, implementation: str, **settings):
        """The library's answer; skips where scan says that it does not take the case."""
        wide = not self.hmm.support.is_dense and bool((self.tokens < 0).any())
        if implementation == "scan" and wide:
            with pytest.raises(ValueError, match="scan takes missing tokens only where"):
                self._call(function, implementation, settings)
            pytest.skip("refused, as documented")
        return self._call(function, implementation, settings)

    def _call(self, function: str, implementation: str, settings: dict):
        return getattr(inference, function)(
            self.hmm,
            self.tokens,
            lengths=self.lengths,
            belief=self.belief,
            reset_id=self.reset_id,
            restart=self.restart,
            implementation=implementation,
            **settings,
        )


def make_belief(hmm: HMM, rows: int) -> Belief:
    """A belief on two states per row; the second row has not read anything yet."""
    states = torch.tensor([[0, hmm.num_states - 1, -1]]).repeat(rows, 1)
    log_probs = torch.tensor([[0.3, 0.7, 0.0]], dtype=torch.float64).log().repeat(rows, 1)
    return Belief(states, log_probs, torch.arange(rows) == 1)


CASES = list(itertools.product(SUPPORTS, TRANSITIONS, TEXTS, (False, True)))
cached_case = functools.cache(Case)


@pytest.fixture(params=CASES, ids=lambda p: "-".join(map(str, p)).replace(" ", "_"))
def case(request) -> Case:
    return cached_case(*request.param)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_log_prob(case: Case, implementation: str) -> None:
    result = case.call("log_prob", implementation)
    for i, row in enumerate(case.rows):
        length = row.steps
        torch.testing.assert_close(
            result.token_log_probs[i, :length], row.token_log_probs, **TOLERANCE
        )
        assert (result.token_log_probs[i, length:] == 0).all()
        assert float(result.log_evidence[i]) == pytest.approx(row.log_evidence, abs=1e-10)
        check_belief(result.belief, i, row, case)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("function", ["filter", "smooth"])
def test_state_distributions(case: Case, function: str, implementation: str) -> None:
    result = case.call(function, implementation)
    table = result.dense(case.hmm.num_states)
    for i, row in enumerate(case.rows):
        truth = row.filtered() if function == "filter" else row.smoothed()
        assert_probs_close(table[i, : row.steps], truth)
        assert torch.isneginf(table[i, row.steps :]).all()
        assert float(result.log_evidence[i]) == pytest.approx(row.log_evidence, abs=1e-10)
        torch.testing.assert_close(
            result.token_log_probs[i, : row.steps], row.token_log_probs, **TOLERANCE
        )
        check_belief(result.belief, i, row, case)


@pytest.mark.parametrize("implementation", ["reference", "scaled"])
def test_counts(case: Case, implementation: str) -> None:
    result = case.call("counts", implementation)
    check_counts(
        case.hmm,
        result,
        *(sum(part) for part in zip(*(r.counts() for r in case.rows), strict=True)),
    )
    for i, row in enumerate(case.rows):
        assert float(result.log_evidence[i]) == pytest.approx(row.log_evidence, abs=1e-10)
        check_belief(result.belief, i, row, case)


def check_counts(hmm: HMM, result: Counts, init: Tensor, trans: Tensor, emit: Tensor) -> None:
    torch.testing.assert_close(result.init, init, **TOLERANCE)
    states = hmm.support.rows[hmm.support.row_of_word]
    for word, row in enumerate(states.tolist()):
        for slot, state in enumerate(row):
            truth = emit[word, state] if state >= 0 else torch.zeros(()).double()
            torch.testing.assert_close(result.emit[word, slot], truth, **TOLERANCE)
    if isinstance(hmm.transitions, Factored):
        assert isinstance(result.trans, FactoredCounts)
        left, right = hmm.transitions.left, hmm.transitions.right
        torch.testing.assert_close(result.trans.left, trans @ right, **TOLERANCE)
        torch.testing.assert_close(result.trans.right, trans.T @ left, **TOLERANCE)
        torch.testing.assert_close(result.trans.log_norm, -trans.sum(1), **TOLERANCE)
    else:
        torch.testing.assert_close(result.trans, trans, **TOLERANCE)


def test_viterbi(case: Case) -> None:
    result = case.call("viterbi", "reference")
    for i, row in enumerate(case.rows):
        most, paths = row.best()
        assert float(result.log_prob[i]) == pytest.approx(most, abs=1e-10)
        assert result.states[i, : row.steps].tolist() in paths.tolist()
        assert (result.states[i, row.steps :] == -1).all()


@pytest.mark.parametrize("implementation", ["reference", "scaled"])
def test_sample_paths(case: Case, implementation: str) -> None:
    """Frequencies of whole paths among 4,000 draws, by a chi-squared bound."""
    draws = 4000
    generator = torch.Generator().manual_seed(11)
    result = case.call("sample_paths", implementation, num_samples=draws, generator=generator)
    for i, row in enumerate(case.rows):
        code = (row.paths * (10 ** torch.arange(row.steps))).sum(1)
        drawn = (result.states[i, :, : row.steps] * (10 ** torch.arange(row.steps))).sum(1)
        probs = (row.log_joint[:, -1] - row.log_evidence).exp()
        observed = (drawn[:, None] == code[None]).sum(0)
        assert int(observed.sum()) == draws
        assert not observed[probs == 0].any()
        often = probs * draws >= 5
        rest = 1 - probs[often].sum()
        expected = torch.cat([probs[often], rest[None]]) * draws
        seen = torch.cat([observed[often], observed[~often].sum()[None]]).double()
        keep = expected > 1e-6
        statistic = ((seen - expected)[keep] ** 2 / expected[keep]).sum()
        freedom = int(keep.sum()) - 1
        assert statistic < freedom + 6 * (2 * freedom + 8) ** 0.5
        assert (result.states[i, :, row.steps :] == -1).all()


@pytest.mark.parametrize("implementation", ["reference", "scaled"])
def test_next_log_probs(case: Case, implementation: str, monkeypatch) -> None:
    emit = full_emissions(case.hmm).exp()
    for shared in (0, float("inf")):  # a product for each row of the support, or for each word
        monkeypatch.setattr("hmmlm.inference.streaming.SHARED", shared)
        result = case.call("next_log_probs", implementation)
        for i, row in enumerate(case.rows):
            truth = row.next_states(case.reset_id) @ emit.T
            assert_probs_close(result[i], truth.log())


@pytest.mark.parametrize("implementation", ["reference", "scaled"])
def test_streaming_equals_enumeration(case: Case, implementation: str) -> None:
    if case.belief is not None or case.restart is not None:
        pytest.skip("a state starts from nothing, and anew after reset_id only")
    for i, row in enumerate(case.rows):
        state = inference.start(case.hmm, reset_id=case.reset_id)
        for token in row.tokens:
            state = inference.advance(state, token, implementation=implementation)
        assert float(state.log_evidence[0]) == pytest.approx(row.log_evidence, abs=1e-10)
        truth = row.next_states(case.reset_id) @ full_emissions(case.hmm).exp().T
        kept = replace(state, table=replace(state.table, keep=True))
        for one in (state, kept):
            assert_probs_close(inference.next_log_probs(one)[0], truth.log())
        check_belief(state.belief, 0, case.rows[i], case)


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_belief_carried_across_two_subsets(support: str, implementation: str) -> None:
    """The kept states change between segments, so belief comes in from states that were dropped."""
    hmm = make_hmm(support, "factored")
    half = hmm.num_states - 1
    first = hmm.restrict(torch.arange(half))
    second = hmm.restrict(torch.arange(1, hmm.num_states), carried=torch.arange(half))
    words = [
        w
        for w in range(5)
        if all((h.support.states_of(torch.tensor(w)) >= 0).any() for h in (first, second))
    ]
    if not words:
        words = [0]
    before = torch.tensor([[words[0], words[-1], words[0]]])
    after = torch.tensor([[words[-1], words[0]]])
    read = inference.log_prob(first, before, implementation=implementation)
    truth_before = enumerate_row(first, before[0].tolist())
    assert float(read.log_evidence) == pytest.approx(truth_before.log_evidence, abs=1e-10)
    truth = enumerate_row(second, after[0].tolist(), belief=read.belief)
    settings = {"belief": read.belief, "implementation": implementation}
    scores = inference.log_prob(second, after, **settings).token_log_probs[0]
    torch.testing.assert_close(scores, truth.token_log_probs, **TOLERANCE)
    for function in ("smooth", "filter"):
        result = getattr(inference, function)(second, after, **settings)
        assert float(result.log_evidence) == pytest.approx(truth.log_evidence, abs=1e-10)
        wanted = torch.full((2, hmm.num_states), -torch.inf, dtype=torch.float64)
        wanted[:, 1:] = truth.smoothed() if function == "smooth" else truth.filtered()
        assert_probs_close(result.dense(hmm.num_states)[0], wanted)
    if implementation != "scan":
        counts = inference.counts(second, after, **settings)
        check_counts(second, counts, *truth.counts())
        best, paths = truth.best()
        found = inference.viterbi(second, after, belief=read.belief)
        assert float(found.log_prob) == pytest.approx(best, abs=1e-10)
        assert any(torch.equal(found.states[0] - 1, path) for path in paths)
    assert set(read.belief.states.flatten().tolist()) <= {-1, *range(half)}
    local = (second.source_ids == 0).nonzero()
    assert local.numel() == 1 and int(local) >= second.num_states


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("support", ["dense", "ragged"])
def test_impossible_words_leave_their_neighbours_alone(support: str, implementation: str) -> None:
    hmm = make_hmm(support)
    emit = hmm.log_emit.clone()
    emit[3] = -torch.inf  # word 3 can no longer be emitted
    hmm = HMM(hmm.log_init, hmm.transitions, emit, hmm.support)
    tokens = torch.tensor([[0, 1, 2], [0, 3, 2], [3, 0, 0]])
    alone = inference.log_prob(hmm, tokens[:1], implementation=implementation)
    result = inference.log_prob(hmm, tokens, implementation=implementation)
    torch.testing.assert_close(result.token_log_probs[0], alone.token_log_probs[0])
    assert torch.isneginf(result.log_evidence[1:]).all()
    assert torch.isneginf(result.token_log_probs[1, 1:]).all()
    smoothed = inference.smooth(hmm, tokens, implementation=implementation)
    assert torch.isneginf(smoothed.dense(hmm.num_states)[1:]).all()
    assert_probs_close(smoothed.dense(hmm.num_states)[0], enumerate_row(hmm, [0, 1, 2]).smoothed())
    if implementation != "scan":
        counts = inference.counts(hmm, tokens, implementation=implementation)
        single = inference.counts(hmm, tokens[:1], implementation=implementation)
        for mixed, pure in zip(counts.fields(), single.fields(), strict=True):
            torch.testing.assert_close(mixed, pure)
    assert (inference.viterbi(hmm, tokens).states[1:] == -1).all()
    paths = inference.sample_paths(hmm, tokens, num_samples=3).states
    assert (paths[1:] == -1).all() and (paths[0] >= 0).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_fresh_start_after_an_impossible_word_has_its_own_probabilities(
    implementation: str,
) -> None:
    """The text stays impossible; what follows the reset is scored as if it stood alone."""
    hmm = make_hmm("dense")
    emit = hmm.log_emit.clone()
    emit[3] = -torch.inf
    hmm = HMM(hmm.log_init, hmm.transitions, emit, hmm.support)
    tokens = torch.tensor([[0, 3, 2, EOS, 2, 0]])
    result = inference.log_prob(hmm, tokens, reset_id=EOS, implementation=implementation)
    assert torch.isneginf(result.token_log_probs[0, 1:4]).all()
    alone = enumerate_row(hmm, [2, 0]).token_log_probs
    torch.testing.assert_close(result.token_log_probs[0, 4:], alone, **TOLERANCE)
    assert torch.isneginf(result.log_evidence).all()


def check_belief(belief: Belief, i: int, row: Row, case: Case) -> None:
    """The belief that is handed on is the filtered distribution at the row's last step."""
    fresh = case.reset_id is not None and row.tokens[-1] == case.reset_id
    assert bool(belief.fresh[i]) == fresh
    table = torch.zeros(case.hmm.num_states, dtype=torch.float64)
    for state, value in zip(belief.states[i].tolist(), belief.log_probs[i], strict=True):
        if state >= 0:
            table[state] += value.double().exp()
    torch.testing.assert_close(table, row.filtered()[-1].exp(), **TOLERANCE)


def assert_probs_close(log_probs: Tensor, truth: Tensor) -> None:
    assert not torch.isnan(log_probs).any()
    torch.testing.assert_close(log_probs.exp(), truth.exp(), **TOLERANCE)
    assert torch.equal(torch.isneginf(log_probs), torch.isneginf(truth))
