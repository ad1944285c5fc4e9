"""What must hold of any HMM, whatever its numbers."""

import itertools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmmlm import inference
from hmmlm.hmm import HMM
from hmmlm.transitions import Dense, Factored
from models import SUPPORTS, TRANSITIONS, make_hmm

KINDS = [(s, t) for s in SUPPORTS for t in TRANSITIONS]
BOTH = ("reference", "scaled")


@pytest.mark.parametrize(("support", "transitions"), KINDS)
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("reset_id", [None, 1])
def test_probabilities_of_all_strings_sum_to_one(
    support: str, transitions: str, length: int, reset_id: int | None
) -> None:
    hmm = make_hmm(support, transitions)
    strings = torch.tensor(list(itertools.product(range(5), repeat=length)))
    evidence = inference.log_prob(hmm, strings, reset_id=reset_id).log_evidence
    assert float(evidence.exp().sum()) == pytest.approx(1, abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    tokens=st.lists(st.integers(-1, 4), min_size=2, max_size=12),
    cut=st.integers(1, 11),
    reset=st.booleans(),
    implementation=st.sampled_from(BOTH),
)
def test_splitting_a_text_anywhere_changes_nothing(
    kind, tokens, cut, reset, implementation
) -> None:
    hmm = make_hmm(*kind)
    cut = min(cut, len(tokens) - 1)
    text = torch.tensor([tokens])
    how = {"reset_id": 1 if reset else None, "implementation": implementation}
    whole = inference.filter(hmm, text, **how)
    first = inference.filter(hmm, text[:, :cut], **how)
    second = inference.filter(hmm, text[:, cut:], belief=first.belief, **how)
    both = torch.cat([first.token_log_probs, second.token_log_probs], 1)
    torch.testing.assert_close(both, whole.token_log_probs, rtol=0, atol=1e-10)
    states = [part.dense(hmm.num_states).exp() for part in (first, second, whole)]
    torch.testing.assert_close(torch.cat(states[:2], 1), states[2], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("support", "transitions"), KINDS)
def test_gradient_of_evidence_is_the_expected_counts(support: str, transitions: str) -> None:
    """Autograd through plain log-space sums over the same tables, against `counts`."""
    hmm = make_hmm(support, transitions)
    tokens = torch.tensor([[0, 3, -1, 1, 2, 2], [4, 1, 1, 0, 0, 3]])
    lengths = torch.tensor([6, 4])
    fields = [field.clone().requires_grad_() for field in hmm.fields()]
    rebuilt = HMM(fields[0], type(hmm.transitions)(*fields[1:-1]), fields[-1], hmm.support)
    plain_evidence(rebuilt, tokens, lengths, 1).backward()
    expected = [torch.nan_to_num(field.grad) for field in fields]
    for name in BOTH:
        counts = inference.counts(hmm, tokens, lengths=lengths, reset_id=1, implementation=name)
        for count, gradient in zip(counts.fields(), expected, strict=True):
            torch.testing.assert_close(count, gradient, rtol=0, atol=1e-10)


def plain_evidence(hmm: HMM, tokens, lengths, reset_id: int):
    """log p of each row, summed: the forward recursion over all states, op by op."""
    table = hmm.transitions.rows(0, hmm.num_states)
    states = hmm.support.rows[hmm.support.row_of_word]
    emit = torch.full((hmm.vocab_size, hmm.num_states + 1), -torch.inf, dtype=torch.float64)
    emit = emit.scatter(1, states % (hmm.num_states + 1), hmm.log_emit)[:, :-1]
    # -inf in both operands of logsumexp gives NaN gradients, so zero is a very small number here.
    emit = emit.clamp(min=-600)
    total = torch.zeros((), dtype=torch.float64)
    for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True):
        message, before = None, None
        for token in row[:length]:
            if message is None:
                message = hmm.log_init
            elif before == reset_id:
                message = hmm.log_init + torch.logsumexp(message, 0)
            else:
                message = torch.logsumexp(message[:, None] + table, 0)
            message = message if token < 0 else message + emit[token]
            before = token
        total = total + torch.logsumexp(message, 0)
    return total


@pytest.mark.parametrize("weights", [[1.0, 1.0], [0.5, -2.0], [0.0, 1.0]])
def test_log_evidence_is_differentiable_row_by_row(weights: list[float]) -> None:
    hmm = make_hmm("blocks")
    fields = [field.clone().requires_grad_() for field in hmm.fields()]
    rebuilt = HMM(fields[0], Dense(fields[1]), fields[2], hmm.support)
    tokens = torch.tensor([[0, 3, 2], [4, 1, 1]])
    evidence = inference.log_prob(rebuilt, tokens).log_evidence
    (evidence * torch.tensor(weights)).sum().backward()
    for i, field in enumerate(fields):
        parts = [
            inference.counts(hmm, tokens[r : r + 1]).fields()[i] * w for r, w in enumerate(weights)
        ]
        torch.testing.assert_close(field.grad, sum(parts), rtol=0, atol=1e-12)


RESULTS = {
    "log_prob": ["token_log_probs", "belief.log_probs"],
    "filter": ["log_probs", "missing_log_probs", "token_log_probs", "log_evidence"],
    "smooth": ["log_probs", "missing_log_probs", "token_log_probs", "log_evidence"],
    "counts": ["log_evidence", "belief.log_probs"],
    "viterbi": ["log_prob"],
    "next_log_probs": [""],
}


@pytest.mark.parametrize(
    ("function", "name"), [(f, n) for f, names in RESULTS.items() for n in names]
)
def test_a_gradient_that_does_not_exist_raises(function: str, name: str) -> None:
    hmm = make_hmm("blocks")
    init = hmm.log_init.clone().requires_grad_()
    hmm = HMM(init, hmm.transitions, hmm.log_emit, hmm.support)
    result = getattr(inference, function)(hmm, torch.tensor([[0, -1, 1]]))
    for part in filter(None, name.split(".")):
        result = getattr(result, part)
    named = re.escape(f"{function}(...){'.' if name else ''}{name} has no gradient; differentiate")
    with pytest.raises(NotImplementedError, match=named):
        result.exp().sum().backward()


def test_expected_counts_are_constants() -> None:
    hmm = make_hmm("dense")
    init = hmm.log_init.clone().requires_grad_()
    counted = inference.counts(
        HMM(init, hmm.transitions, hmm.log_emit, hmm.support), torch.tensor([[0, 1]])
    )
    assert not any(field.requires_grad for field in counted.fields())
    (counted.init * init).sum().backward()
    torch.testing.assert_close(init.grad, counted.init)


@pytest.mark.parametrize(("support", "transitions"), KINDS)
def test_permuting_the_states_changes_nothing(support: str, transitions: str) -> None:
    hmm = make_hmm(support, transitions)
    order = torch.randperm(hmm.num_states, generator=torch.Generator().manual_seed(5))
    shuffled = hmm.restrict(order)  # all states, in another order
    tokens = torch.tensor([[0, 3, -1, 1], [2, 2, 4, 0]])
    plain, moved = inference.smooth(hmm, tokens), inference.smooth(shuffled, tokens)
    torch.testing.assert_close(moved.log_evidence, plain.log_evidence)
    torch.testing.assert_close(
        moved.dense(hmm.num_states).exp(),
        plain.dense(hmm.num_states).exp(),
    )
    assert torch.equal(
        inference.viterbi(shuffled, tokens).states, inference.viterbi(hmm, tokens).states
    )


@settings(deadline=None, max_examples=25)
@given(kind=st.sampled_from(SUPPORTS), seed=st.integers(0, 99), name=st.sampled_from(BOTH))
def test_em_never_lowers_the_evidence(kind: str, seed: int, name: str) -> None:
    hmm = make_hmm(kind, seed=seed)
    tokens = torch.randint(0, 5, (3, 8), generator=torch.Generator().manual_seed(seed))
    before = -torch.inf
    for _ in range(4):
        counts = inference.counts(hmm, tokens, implementation=name)
        after = float(counts.log_evidence.sum())
        assert after >= before - 1e-9
        before = after
        assert isinstance(counts.trans, torch.Tensor)
        init = (counts.init / counts.init.sum()).log()
        rows = counts.trans.sum(1, keepdim=True)
        trans = torch.where(rows > 0, counts.trans / rows, 1 / hmm.num_states).log()
        ids = hmm.support.rows[hmm.support.row_of_word]
        totals = torch.zeros(hmm.num_states, dtype=torch.float64)
        totals.index_add_(
            0, ids.clamp(min=0).flatten(), torch.where(ids >= 0, counts.emit, 0).flatten()
        )
        emit = (counts.emit / totals[ids.clamp(min=0)]).log()
        emit = torch.where((ids >= 0) & ~torch.isnan(emit), emit, hmm.log_emit)
        hmm = HMM(init, Dense(trans), emit, hmm.support)


def test_sampled_text_has_the_probabilities_of_the_model() -> None:
    for kind in ("dense", "ragged"):
        hmm = make_hmm(kind)
        drawn = inference.sample(
            hmm, length=2, num_samples=20000, generator=torch.Generator().manual_seed(1)
        )
        strings = torch.tensor(list(itertools.product(range(5), repeat=2)))
        probs = inference.log_prob(hmm, strings).log_evidence.exp()
        seen = (drawn.tokens[:, None] == strings[None]).all(2).double().mean(0)
        assert float((seen - probs).abs().max()) < 0.015


def test_sampling_goes_on_after_a_prompt_and_stops() -> None:
    hmm = make_hmm("blocks")
    prompt = torch.tensor([[0, 3], [2, 2]])
    drawn = inference.sample(
        hmm, prompt, length=1, num_samples=20000, generator=torch.Generator().manual_seed(1)
    )
    truth = inference.next_log_probs(hmm, prompt).exp()
    for row in range(2):
        words = drawn.tokens[row * 20000 : (row + 1) * 20000, 0]
        seen = torch.bincount(words, minlength=5) / 20000
        assert float((seen - truth[row]).abs().max()) < 0.015
    ended = inference.sample(hmm, length=30, num_samples=50, stop_id=1, reset_id=1)
    for row, length in zip(ended.tokens.tolist(), ended.lengths.tolist(), strict=True):
        assert 1 not in row[: length - 1] and set(row[length:]) <= {-1}
        assert length == 30 or row[length - 1] == 1


def test_state_forks_selects_saves_and_loads(tmp_path) -> None:
    hmm = make_hmm("ragged", "factored")
    state = inference.start(hmm, 2, reset_id=1)
    state = inference.advance(state, torch.tensor([0, 3]))
    fork = inference.advance(state, torch.tensor([2, 2]))
    other = inference.advance(state, torch.tensor([2, 2]))
    assert torch.equal(fork.belief.log_probs, other.belief.log_probs)
    swapped = inference.next_log_probs(fork.select([1, 0, 0]))
    torch.testing.assert_close(swapped, inference.next_log_probs(fork)[[1, 0, 0]])
    fork.save(tmp_path / "state.safetensors")
    loaded = inference.State.load(tmp_path / "state.safetensors", hmm)
    torch.testing.assert_close(inference.next_log_probs(loaded), inference.next_log_probs(fork))
    assert torch.equal(loaded.log_evidence, fork.log_evidence)
    later = [inference.advance(s, torch.tensor([[1, 2], [1, 2]])) for s in (loaded, fork)]
    assert torch.equal(later[0].log_evidence, later[1].log_evidence)
    segment = inference.advance(state, torch.tensor([[2, 1], [2, 0]]))
    single = inference.advance(fork, torch.tensor([1, 0]))
    torch.testing.assert_close(segment.log_evidence, single.log_evidence)
    (tmp_path / "broken").write_bytes(b"no state")
    with pytest.raises(ValueError, match="is not a saved state"):
        inference.State.load(tmp_path / "broken", hmm)


def test_factored_normaliser_sums_to_one() -> None:
    table = Factored.normalise(torch.randn(7, 3).double() * 3, torch.randn(9, 3).double() * 3)
    assert table.row_error(torch.arange(7)) < 1e-12


def test_ids_outside_the_vocabulary_are_refused_before_drawing() -> None:
    hmm = make_hmm("dense")
    for name in ("stop_id", "reset_id"):
        with pytest.raises(ValueError, match=f"{name} is 99 but this vocabulary has ids 0 to 4"):
            inference.sample(hmm, length=2, **{name: 99})
    with pytest.raises(ValueError, match="reset_id is 99 but this vocabulary"):
        inference.start(hmm, reset_id=99)


def test_nothing_is_drawn_after_what_is_impossible() -> None:
    hmm = make_hmm("dense")
    belief = inference.log_prob(hmm, torch.tensor([[0]])).belief
    nowhere = belief._replace(log_probs=torch.full_like(belief.log_probs, -torch.inf))
    with pytest.raises(ValueError, match="A row of the belief has probability zero everywhere"):
        inference.sample(hmm, length=2, belief=nowhere)
