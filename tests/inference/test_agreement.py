"""Every implementation against the reference: sizes, types, underflow, and an outside library."""

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from enumeration import full_emissions
from hmmlm import inference
from hmmlm.hmm import HMM
from hmmlm.inference import chain as chain_module
from hmmlm.inference import recursion, smoothing
from hmmlm.inference.streaming import emission_probs, next_state_log_probs
from hmmlm.ops import links
from hmmlm.support import Support
from hmmlm.transitions import Dense
from models import make_hmm


def random_hmm(states: int, words: int, *, blocks: int = 1, seed: int = 0) -> HMM:
    clusters = torch.arange(words) % blocks
    support = Support.from_clusters(clusters, states // blocks)
    return make_hmm(support, "dense", seed=seed)


def random_tokens(words: int, *size: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, words, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("states", [1, 3, 17, 63, 257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("implementation", ["scaled", "scan"])
def test_dense_sizes(states: int, dtype: torch.dtype, implementation: str) -> None:
    truth_hmm = random_hmm(states, 23)
    hmm = truth_hmm.to(dtype=dtype)
    tokens, lengths = random_tokens(23, 5, 17), torch.tensor([17, 1, 9, 16, 3])
    tokens[0, 4] = tokens[3, 0] = -1
    compare(hmm, truth_hmm, tokens, lengths, implementation)


@pytest.mark.parametrize("blocks", [3, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_block_sizes(blocks: int, dtype: torch.dtype) -> None:
    truth_hmm = random_hmm(3 * blocks, 63, blocks=blocks)
    tokens, lengths = random_tokens(63, 4, 19), torch.tensor([19, 2, 11, 1])
    tokens[0, 4] = tokens[2, 0] = -1
    compare(truth_hmm.to(dtype=dtype), truth_hmm, tokens, lengths, "scaled")


def compare(hmm: HMM, truth_hmm: HMM, tokens, lengths, implementation: str) -> None:
    tolerance = 1e-9 if hmm.dtype == torch.float64 else 2e-4
    how = {"lengths": lengths, "reset_id": 2}
    for function in ("log_prob", "filter", "smooth"):
        run = getattr(inference, function)
        truth = run(truth_hmm, tokens, implementation="reference", **how)
        result = run(hmm, tokens, implementation=implementation, **how)
        close(result.token_log_probs, truth.token_log_probs, tolerance)
        close(result.log_evidence, truth.log_evidence, tolerance * 20)
        close(result.belief.log_probs.exp(), truth.belief.log_probs.exp(), tolerance)
        if function != "log_prob":
            probs = result.dense(hmm.num_states).exp()
            close(probs, truth.dense(hmm.num_states).exp(), tolerance)
    if implementation == "scan":
        return
    truth = inference.counts(truth_hmm, tokens, implementation="reference", **how)
    result = inference.counts(hmm, tokens, implementation=implementation, **how)
    for count, expected in zip(result.fields(), truth.fields(), strict=True):
        close(count, expected, tolerance * 10)
    close(result.belief.log_probs.exp(), truth.belief.log_probs.exp(), tolerance)


def close(value: torch.Tensor, truth: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(value.double(), truth.double(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", ["dense", "blocks"])
@pytest.mark.parametrize("steps", [1, 2, 7, 30])
def test_counts_are_the_same_from_checkpoints(kind: str, steps: int, monkeypatch) -> None:
    """With room for no more than sqrt(T) steps, forward messages are made twice."""
    hmm = make_hmm(kind)
    tokens = random_tokens(5, 3, steps)
    lengths = torch.tensor([steps, max(1, steps // 2), 1])
    whole = inference.counts(hmm, tokens, lengths=lengths, reset_id=1)
    monkeypatch.setattr(smoothing, "KEPT", 1)
    monkeypatch.setattr(recursion, "STRETCH", 1)
    pieces = inference.counts(hmm, tokens, lengths=lengths, reset_id=1)
    for one, other in zip(whole.fields(), pieces.fields(), strict=True):
        close(one, other, 1e-12)
    scores = inference.log_prob(hmm, tokens, lengths=lengths, reset_id=1)
    close(scores.log_evidence, whole.log_evidence, 1e-12)


@pytest.mark.parametrize("kind", ["dense", "ragged"])
def test_streamed_tables_equal_resident_ones(kind: str, monkeypatch) -> None:
    """Tables too large to keep are made a tile at a time."""
    for transitions in ("dense", "factored"):
        hmm = make_hmm(kind, transitions)
        tokens = torch.tensor([[0, -1, 2, 3, -1], [-1, 2, 2, 0, 1]])
        for name in ("reference", "scaled"):
            whole = inference.smooth(hmm, tokens, implementation=name).dense(hmm.num_states)
            counts = inference.counts(hmm, tokens, implementation=name).fields()
            path = inference.viterbi(hmm, tokens).states
            with monkeypatch.context() as patch:
                patch.setattr(links, "RESIDENT", 0)
                patch.setattr(links, "TILE", 2 * hmm.num_states)
                tiled = inference.smooth(hmm, tokens, implementation=name).dense(hmm.num_states)
                close(tiled.exp(), whole.exp(), 1e-12)
                for one, other in zip(
                    inference.counts(hmm, tokens, implementation=name).fields(), counts, strict=True
                ):
                    close(one, other, 1e-12)
                assert torch.equal(inference.viterbi(hmm, tokens).states, path)


def gap_hmm(gap: float, dtype: torch.dtype, blocks: bool) -> HMM:
    """Two chains that never meet. The first word speaks for chain 0, the second for chain 1:
    after the first, chain 1 is `gap` nats behind, out of reach of linear numbers."""
    log = torch.tensor
    small = -gap
    emit = log([[0.0, small, small], [small, 0.0, small], [small, small, 0.0]], dtype=torch.float64)
    emit = torch.log_softmax(emit, 0)  # (V, Z): columns are distributions
    trans = torch.full((3, 3), -torch.inf, dtype=torch.float64).fill_diagonal_(0.0)
    init = torch.full((3,), 1 / 3, dtype=torch.float64).log()
    support = Support.ragged([[0, 1, 2], [0, 1, 2], [1, 2, 0]], 3) if blocks else None
    return HMM.from_tables(init, trans, emit.T, support=support).to(dtype=dtype)


@pytest.mark.parametrize("gap", [60.0, 100.0, 200.0])
@pytest.mark.parametrize("blocks", [False, True])
def test_a_planted_gap_equals_the_reference(gap: float, blocks: bool) -> None:
    """In float32 a chain 100 nats behind is lost; its row is redone in log space."""
    tokens = torch.tensor([[0, 1, 1, 2], [0, 0, 0, 0], [1, 0, 2, 2]])
    truth_hmm, hmm = gap_hmm(gap, torch.float64, blocks), gap_hmm(gap, torch.float32, blocks)
    for function in ("log_prob", "filter", "smooth"):
        truth = getattr(inference, function)(truth_hmm, tokens, implementation="reference")
        for name in ("scaled", "scan"):
            result = getattr(inference, function)(hmm, tokens, implementation=name)
            torch.testing.assert_close(
                result.token_log_probs.double(), truth.token_log_probs, rtol=1e-5, atol=1e-4
            )
            if function != "log_prob":
                close(result.dense(3).exp(), truth.dense(3).exp(), 1e-4)
            close(result.belief.log_probs.exp(), truth.belief.log_probs.exp(), 1e-4)
    truth = inference.counts(truth_hmm, tokens, implementation="reference")
    result = inference.counts(hmm, tokens, implementation="scaled")
    for count, expected in zip(result.fields(), truth.fields(), strict=True):
        close(count, expected, 1e-4)
    torch.testing.assert_close(result.log_evidence, truth.log_evidence, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shared", [0, float("inf")])
@pytest.mark.parametrize("blocks", [False, True])
def test_next_words_far_below_the_smallest_float(blocks: bool, shared: float, monkeypatch) -> None:
    monkeypatch.setattr("hmmlm.inference.streaming.SHARED", shared)
    hmm = gap_hmm(200.0, torch.float32, blocks)
    tokens = torch.tensor([[0, 0], [1, 0]])
    truth = inference.next_log_probs(gap_hmm(200.0, torch.float64, blocks), tokens)
    state = inference.advance(inference.start(hmm, 2), tokens)
    kept = replace(state, table=replace(state.table, keep=True))
    for result in (inference.next_log_probs(one) for one in (state, kept)):
        torch.testing.assert_close(result.double(), truth, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("transitions", "scale"), [("dense", 60.0), ("factored", 12.0)])
def test_next_states_far_below_the_smallest_float_by_a_kept_table(transitions, scale) -> None:
    hmm = make_hmm("blocks", transitions, scale=scale, dtype=torch.float32)
    for tokens in (torch.tensor([0, 1]), torch.tensor([1])):  # all of the table, or some rows
        state = inference.advance(inference.start(hmm, len(tokens)), tokens)
        kept = replace(state, table=replace(state.table, keep=True))
        precise = inference.start(hmm.to(dtype=torch.float64), len(tokens))
        truth = next_state_log_probs(inference.advance(precise, tokens))
        assert truth.min() < -100
        torch.testing.assert_close(next_state_log_probs(kept).double(), truth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("sizes", "copied"), [([3] * 6, True), ([13, 1, 1, 1, 1, 1], False)])
def test_rows_of_uneven_blocks_are_not_copied(sizes, copied, monkeypatch) -> None:
    hmm = make_hmm(Support.from_clusters(torch.arange(30) % 6, sizes))
    probs = torch.rand(2, 18, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    truth = probs @ full_emissions(hmm).exp().T
    seen, vecdot = [], torch.linalg.vecdot
    monkeypatch.setattr(torch.linalg, "vecdot", lambda *two: seen.append(len(two)) or vecdot(*two))
    torch.testing.assert_close(emission_probs(hmm, probs), truth)
    assert bool(seen) == copied


@pytest.mark.parametrize("kept", [False, True])
def test_a_row_that_begins_anew_is_not_redone_in_log_space(kept: bool, monkeypatch) -> None:
    hmm = random_hmm(12, 9, blocks=3)
    tokens = random_tokens(9, 6, 4)
    tokens[2, -1] = 5
    state = inference.advance(inference.start(hmm, 6, reset_id=5), tokens)
    assert state.belief.fresh.any() and not state.belief.fresh.all()
    state = replace(state, table=replace(state.table, keep=kept))
    truth = inference.next_log_probs(state)
    monkeypatch.setattr("hmmlm.ops.messages.reference.push", None)
    torch.testing.assert_close(inference.next_log_probs(state), truth)


def test_backward_that_underflows_is_redone() -> None:
    """The end of the text makes the only state that explains its start nearly impossible."""
    hmm64, hmm32 = gap_hmm(60.0, torch.float64, False), gap_hmm(60.0, torch.float32, False)
    tokens = torch.tensor([[0, 0, 0, 1, 1, 1], [2, 1, 0, 0, 1, 2]])
    truth = inference.counts(hmm64, tokens, implementation="reference")
    result = inference.counts(hmm32, tokens)
    for count, expected in zip(result.fields(), truth.fields(), strict=True):
        close(count, expected, 1e-3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_agrees_with_hmmlearn(seed: int) -> None:
    """The same parameters in another library: scores and best paths to 1e-6."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from hmmlearn.hmm import CategoricalHMM
    hmm = random_hmm(7, 11, seed=seed)
    other = CategoricalHMM(n_components=7)
    other.startprob_ = hmm.log_init.exp().numpy()
    other.transmat_ = hmm.transitions.rows(0, 7).exp().numpy()
    other.emissionprob_ = hmm.log_emit.T.exp().numpy()
    other.n_features = 11
    tokens = random_tokens(11, 6, 40, seed=seed)
    evidence = inference.log_prob(hmm, tokens).log_evidence
    best = inference.viterbi(hmm, tokens)
    smooth = inference.smooth(hmm, tokens).log_probs.exp()
    log_trans = hmm.transitions.rows(0, 7)
    for row in range(6):
        column = tokens[row].numpy()[:, None]
        assert float(evidence[row]) == pytest.approx(other.score(column), abs=1e-6)
        np.testing.assert_allclose(smooth[row].numpy(), other.predict_proba(column), atol=1e-6)
        log_prob, path = other.decode(column)
        assert float(best.log_prob[row]) == pytest.approx(log_prob, abs=1e-6)
        ours = best.states[row]
        joint = hmm.log_init[ours[0]] + hmm.log_emit[tokens[row], ours].sum()
        joint += log_trans[ours[:-1], ours[1:]].sum()
        assert float(joint) == pytest.approx(log_prob, abs=1e-6)  # 2 5 2 2 and 2 2 5 2 can tie
        if not (differ := (ours != torch.from_numpy(path))).any():
            continue
        assert sorted(ours[differ].tolist()) == sorted(path[differ.numpy()].tolist())


BAD = [
    (torch.tensor([[0.5]]), {}, "tokens must be integer ids of shape"),
    (torch.tensor([0, 1]), {}, "tokens must be integer ids of shape"),
    (torch.zeros(0, 3, dtype=torch.long), {}, "tokens is empty"),
    (torch.zeros(1, 0, dtype=torch.long), {}, "tokens is empty"),
    (torch.tensor([[5]]), {}, "tokens has id 5 but this vocabulary ends at 4"),
    (torch.tensor([[-2]]), {}, "tokens has id -2 but this vocabulary ends at 4"),
    (
        torch.tensor([[0]]),
        {"lengths": torch.tensor([0])},
        "lengths has 0 but every length must lie",
    ),
    (
        torch.tensor([[0]]),
        {"lengths": torch.tensor([2])},
        "lengths has 2 but every length must lie",
    ),
    (torch.tensor([[0]]), {"lengths": torch.tensor([1, 1])}, "give one length per row"),
    (torch.tensor([[0]]), {"lengths": [1.7]}, "lengths must be whole numbers, not torch.float32"),
    (
        torch.tensor([[0]]),
        {"restart": torch.zeros(1, 2, dtype=torch.bool)},
        "restart is torch.bool of shape (1, 2) but must be torch.bool of shape (1, 1)",
    ),
    (torch.tensor([[0]]), {"restart": torch.zeros(1, 1)}, "restart is torch.float32"),
    (torch.tensor([[0]]), {"reset_id": 9}, "reset_id is 9 but this vocabulary"),
    (
        torch.tensor([[0]]),
        {"implementation": "magic"},
        "implementation is 'magic' but this function",
    ),
]


FUNCTIONS = ["log_prob", "filter", "smooth", "counts", "viterbi", "sample_paths", "next_log_probs"]
ASK = """
import json, sys
import torch
from hmmlm import inference
from models import make_hmm
from test_agreement import BAD, FUNCTIONS

for function in FUNCTIONS:
    for tokens, settings, _ in BAD:
        try:
            getattr(inference, function)(make_hmm("dense"), tokens, **settings)
        except ValueError as error:
            print(json.dumps(str(error)))
        else:
            print(json.dumps(""))
"""


def test_bad_input_is_refused_with_a_sentence() -> None:
    """In a process of its own: here the types that tests check would be refused first."""
    folder = Path(__file__).parent
    paths = [str(folder), str(folder.parent), *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr
    said = iter(json.loads(line) for line in done.stdout.splitlines())
    for function in FUNCTIONS:
        for tokens, settings, message in BAD:
            assert message in next(said), (function, tokens, settings)


def test_arrays_and_lists_are_tokens_too() -> None:
    for tokens in (np.array([[0, 1]], dtype=np.uint16), [[0, 1]]):
        checked, lengths = chain_module.check_tokens(5, tokens, None)
        assert checked.tolist() == [[0, 1]] and lengths.tolist() == [2]


def test_beliefs_of_another_shape_or_model_are_refused() -> None:
    hmm = make_hmm("dense")
    belief = inference.log_prob(hmm, torch.tensor([[0, 1], [1, 0]])).belief
    with pytest.raises(ValueError, match="The belief has 2 rows but tokens has 1"):
        inference.log_prob(hmm, torch.tensor([[0]]), belief=belief)
    alien = belief._replace(states=belief.states + 50)
    with pytest.raises(ValueError, match="The belief names state 52 but this HMM has 3"):
        inference.log_prob(hmm, torch.tensor([[0], [1]]), belief=alien)
    part = hmm.restrict(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="which is not among the 2 sources of this HMM"):
        inference.log_prob(part, torch.tensor([[0], [1]]), belief=belief)


def test_scan_refuses_what_does_not_fit(monkeypatch) -> None:
    from hmmlm.inference import scan

    monkeypatch.setattr(scan, "LIMIT", 10)
    with pytest.raises(ValueError, match=r"matrices of 3 x 3, .* and takes at most 10"):
        inference.log_prob(make_hmm("dense"), torch.tensor([[0, 1, 2, 3]]), implementation="scan")


def test_viterbi_keeps_its_digits_over_a_long_text() -> None:
    hmm = random_hmm(3, 5)
    tokens = random_tokens(5, 1, 2000)
    truth = inference.viterbi(hmm, tokens)
    result = inference.viterbi(hmm.to(dtype=torch.float32), tokens)
    # Summed up in float32 it would be 0.03 off.
    assert float(result.log_prob) == pytest.approx(float(truth.log_prob), abs=0.001)


def test_distributions_on_a_subset_are_named_globally() -> None:
    part = make_hmm("ragged").restrict(torch.tensor([3, 1, 2]))
    table = inference.smooth(part, torch.tensor([[0, -1, 4]])).dense(4)
    close(table.exp().sum(2), torch.ones(1, 3), 1e-12)
    assert torch.isneginf(table[:, :, 0]).all()
    with pytest.raises(ValueError, match="num_states is 3 but the result names state 3"):
        inference.smooth(part, torch.tensor([[0, -1, 4]])).dense(3)


def test_fresh_rows_of_a_belief_name_no_states() -> None:
    hmm = make_hmm("dense")
    belief = inference.log_prob(hmm, torch.tensor([[0, 1], [0, 2]]), reset_id=1).belief
    part = hmm.restrict(torch.tensor([0, 1]), carried=torch.tensor([2]))
    tokens = torch.tensor([[0, 1], [2, 2]])
    for name in ("log_prob", "counts", "smooth"):
        getattr(inference, name)(part, tokens, belief=belief)
    only_fresh = hmm.restrict(torch.tensor([0, 1]))
    inference.counts(only_fresh, tokens[:1], belief=belief.select(torch.tensor([0])))


def test_second_derivatives_raise() -> None:
    hmm = make_hmm("dense")
    logits = hmm.log_init.clone().requires_grad_()
    hmm = HMM(logits.log_softmax(0), hmm.transitions, hmm.log_emit, hmm.support)
    evidence = inference.log_prob(hmm, torch.tensor([[0, 1]])).log_evidence.sum()
    with pytest.raises(NotImplementedError, match="log_evidence has no second derivative"):
        torch.autograd.grad(evidence, logits, create_graph=True)


def test_posteriors_too_small_for_a_float_keep_their_logarithm() -> None:
    """Both messages fit a float32, their product does not."""
    log_trans = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64).log()
    low = 1e-25
    emit = torch.tensor([[1 - low, low], [low, 1 - low]], dtype=torch.float64).log()
    hmm = HMM.from_tables(torch.tensor([0.5, 0.5], dtype=torch.float64).log(), log_trans, emit)
    sticky = torch.tensor([[1 - low, low], [low, 1 - low]], dtype=torch.float64).log()
    hmm = HMM(hmm.log_init, Dense(sticky), hmm.log_emit, hmm.support)
    tokens = torch.tensor([[0, 0]])
    truth = inference.smooth(hmm, tokens, implementation="reference").log_probs
    assert truth.min() < -110
    for implementation in ("scaled", "scan"):
        result = inference.smooth(
            hmm.to(dtype=torch.float32), tokens, implementation=implementation
        )
        torch.testing.assert_close(result.log_probs.double(), truth, rtol=1e-5, atol=1e-4)
    blocks = Support.ragged([[0, 1], [0, 1], [2]], 3)
    wide = torch.full((3, 3), -torch.inf, dtype=torch.float64)
    wide[:2, :2], wide[2, 2] = sticky, 0.0
    log_emit = torch.cat([hmm.log_emit, torch.tensor([[0.0, -torch.inf]]).double()])
    init = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64).log()
    ragged = HMM(init, Dense(wide), log_emit, blocks).validate().to(dtype=torch.float32)
    result = inference.smooth(ragged, tokens)
    torch.testing.assert_close(result.log_probs.double(), truth, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("blocks", [1, 3])
def test_counts_of_many_tokens_in_float32(blocks: int) -> None:
    """Sums in float32 would lose a part in a thousand over a million tokens."""
    hmm = random_hmm(3, 6, blocks=blocks)
    steps = 1 << 15
    tokens = random_tokens(6, (1 << 20) // steps, steps)
    truth = inference.counts(hmm, tokens)
    result = inference.counts(hmm.to(dtype=torch.float32), tokens)
    for count, expected in zip(result.fields(), truth.fields(), strict=True):
        torch.testing.assert_close(count.double(), expected, rtol=2e-6, atol=1e-3)


def test_a_product_of_pieces_that_underflows_is_reported() -> None:
    """Every piece of a scan keeps its digits; a cell of a product of two is too small for any."""
    from hmmlm.inference.scan import _prefix_products

    piece = torch.tensor([[1.0, 1e-28], [1e-28, 1e-25]])
    pieces = torch.stack([piece, piece, torch.eye(2), torch.eye(2)])[None]
    fine, exists = torch.zeros(1, 4).bool(), torch.tensor([[True, True, False, False]])
    possible = torch.ones(1, 4, 2, 2).bool()
    _, lost = _prefix_products(pieces, fine, possible, exists)
    assert lost.tolist() == [[False, True, True, True]]
    _, lost = _prefix_products(
        pieces[:, [0, 2, 3]], fine[:, :3], possible[:, :3], exists[:, [0, 2, 3]]
    )
    assert not lost.any()


def test_advance_with_another_number_of_tokens() -> None:
    state = inference.start(make_hmm("dense"), 2)
    with pytest.raises(ValueError, match="advance was given 3 tokens but the state has 2 rows"):
        inference.advance(state, torch.tensor([0, 1, 2]))


def test_advance_packs_the_table_once() -> None:
    state = inference.start(make_hmm("dense"))
    state = inference.advance(state, 0)
    packed = state.table.packed.ahead
    assert inference.advance(state, 1).table.packed.ahead is packed


@pytest.mark.parametrize("kind", ["dense", "blocks"])
def test_tables_in_any_order_of_memory(kind: str) -> None:
    hmm, tokens = make_hmm(kind), torch.tensor([[0, 1, 2, 4]])
    turned = [field.T.contiguous().T if field.ndim == 2 else field for field in hmm.fields()]
    strided = HMM(turned[0], Dense(turned[1]), turned[2], hmm.support)
    for implementation in ("reference", "scaled"):
        truth = inference.counts(hmm, tokens, implementation=implementation)
        result = inference.counts(strided, tokens, implementation=implementation)
        for count, expected in zip(result.fields(), truth.fields(), strict=True):
            torch.testing.assert_close(count, expected)


def test_tables_that_change_before_the_gradient_is_asked_for() -> None:
    hmm = make_hmm("dense")
    init = hmm.log_init.clone().requires_grad_()
    changed = HMM(init, hmm.transitions, hmm.log_emit, hmm.support)
    evidence = inference.log_prob(changed, torch.tensor([[0, 1]])).log_evidence.sum()
    with torch.no_grad():
        init += 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        evidence.backward()


def test_a_gradient_of_a_carried_belief_raises() -> None:
    hmm = make_hmm("dense")
    init = hmm.log_init.clone().requires_grad_()
    hmm = HMM(init, hmm.transitions, hmm.log_emit, hmm.support)
    tokens = torch.tensor([[0, 1]])
    belief = inference.log_prob(hmm, tokens).belief
    inference.log_prob(hmm, tokens, belief=belief).log_evidence.sum().backward()  # a constant
    free = belief._replace(log_probs=belief.log_probs.detach().requires_grad_())
    with pytest.raises(NotImplementedError, match="A carried belief has no gradient; detach its"):
        inference.log_prob(hmm, tokens, belief=free).log_evidence.sum().backward()
