"""A mixture of HMMs: its probabilities are the weighted sums of its parts', in every question."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from enumeration import enumerate_row, full_emissions
from hmmlm import inference
from hmmlm.errors import InputError
from hmmlm.hmm import HMM, emission_table
from hmmlm.hmm_file import read_hmm, write_hmm
from hmmlm.inference.joint import joint_log_prob
from hmmlm.inference.labelled import labelled
from hmmlm.mixture import LEAST, learn_weights, mixture
from hmmlm.results import Counts, FactoredCounts
from hmmlm.support import Support
from hmmlm.tempering import tempered
from hmmlm.transitions import Dense, Factored
from models import SUPPORTS, TRANSITIONS, make_hmm

TOKENS = torch.tensor([[0, 1, 2, 4], [3, 3, 0, 1], [4, 2, 2, 0]])
LENGTHS = torch.tensor([4, 3, 1])
WEIGHTS = torch.tensor([0.2, 0.8], dtype=torch.float64).log()


def assert_same_counts(made: HMM, ours: Counts, whole: HMM, theirs: Counts) -> None:
    """All tables; of factors, what the counts of the whole table make of them."""
    torch.testing.assert_close(ours.init, theirs.init)
    words = made.support.rows[made.support.row_of_word]  # (V, K)
    emit = theirs.emit.gather(1, words.clamp(min=0)).masked_fill(words < 0, 0.0)
    torch.testing.assert_close(ours.emit, emit)
    table, trans = made.transitions, theirs.trans
    assert isinstance(trans, torch.Tensor)
    if isinstance(table, Dense):
        torch.testing.assert_close(ours.trans, trans)
    else:
        wanted = FactoredCounts(trans @ table.right, trans.T @ table.left, -trans.sum(1))
        torch.testing.assert_close(ours.trans, wanted)


def explicit(parts: list[HMM], log_weights: torch.Tensor) -> HMM:
    """The same by hand: every table whole, nothing but -inf between the parts."""
    init = torch.cat([p.log_init + w for p, w in zip(parts, log_weights, strict=True)])
    trans = torch.full((len(init), len(init)), -torch.inf, dtype=torch.float64)
    first = 0
    for part in parts:
        states = part.num_states
        span = slice(first, first + states)
        trans[span, span] = part.transitions.rows(0, states)
        first += states
    return HMM.from_tables(init, trans, torch.cat([full_emissions(p).T for p in parts]))


PAIRS = [
    *((support, support, kind, kind) for support in SUPPORTS for kind in TRANSITIONS),
    ("blocks", "uneven", "factored", "factored"),
    ("uneven", "ragged", "factored", "factored"),
    ("dense", "blocks", "factored", "dense"),
]


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_everything_is_that_of_the_hmm_with_whole_tables(pair: tuple[str, ...]) -> None:
    parts = [make_hmm(pair[0], pair[2], seed=1), make_hmm(pair[1], pair[3], seed=2)]
    made, whole = mixture(parts, WEIGHTS).validate(), explicit(parts, WEIGHTS)
    torch.testing.assert_close(full_emissions(made), full_emissions(whole))
    rows = made.transitions.rows(0, made.num_states).exp()
    torch.testing.assert_close(rows, whole.transitions.rows(0, whole.num_states).exp())
    for row, length in zip(TOKENS.tolist(), LENGTHS.tolist(), strict=True):
        tokens = row[:length]
        each = torch.tensor([enumerate_row(part, tokens).log_evidence for part in parts])
        found = inference.log_prob(made, torch.tensor([tokens])).log_evidence
        torch.testing.assert_close(found, torch.logsumexp(each + WEIGHTS, 0)[None])
        for t, belief in enumerate(enumerate_row(whole, tokens).smoothed()):
            smoothed = inference.smooth(made, torch.tensor([tokens])).dense(made.num_states)
            torch.testing.assert_close(smoothed[0, t].exp(), belief.exp())
    for reset in (None, 2):
        options = {"lengths": LENGTHS, "reset_id": reset}
        ours, theirs = (inference.log_prob(hmm, TOKENS, **options) for hmm in (made, whole))
        torch.testing.assert_close(ours.token_log_probs, theirs.token_log_probs)
        ours, theirs = (inference.viterbi(hmm, TOKENS, **options) for hmm in (made, whole))
        assert ours.states.equal(theirs.states)
        ours, theirs = (inference.counts(hmm, TOKENS, **options) for hmm in (made, whole))
        assert_same_counts(made, ours, whole, theirs)
    ours, theirs = (inference.start(hmm, batch=3) for hmm in (made, whole))
    for t in range(4):  # a stream: the weights become what the parts are worth so far
        found, wanted = inference.next_log_probs(ours), inference.next_log_probs(theirs)
        torch.testing.assert_close(found, wanted)
        ours, theirs = (inference.advance(state, TOKENS[:, t]) for state in (ours, theirs))


def test_factors_and_blocks_stay() -> None:
    parts = [make_hmm("blocks", "factored", seed=seed) for seed in (1, 2, 3)]
    made = mixture(parts)
    assert isinstance(made.transitions, Factored) and made.transitions.left.shape[1] == 2 + 3
    assert made.support.is_partition and made.support.width == 6 and len(made.support.rows) == 2
    assert mixture(parts[:1]).support.rows.equal(parts[0].support.rows)
    uneven = mixture([make_hmm("uneven", "factored"), make_hmm("uneven", "factored", seed=1)])
    assert uneven.support.is_partition
    assert uneven.support.rows.tolist() == [[0, 4, -1, -1, -1, -1], [1, 2, 3, 5, 6, 7]]
    assert isinstance(mixture([make_hmm("dense", "factored")] * 2).transitions, Dense)


APART = Support.from_clusters([0, 0, 1, 1], 2)
ACROSS = torch.tensor([[0, 2, 3], [2, 3, 0], [1, 3, 1], [0, -1, 2], [0, -1, -1]])
"""The first two, and the fourth, are of words that no part has both of."""


def parts_apart(transitions: str) -> list[HMM]:
    """Two HMMs, of which the first never says word 0, and the second never word 2."""
    made = []
    for seed, never in ((1, 0), (2, 2)):
        hmm = make_hmm(APART, transitions, seed=seed)
        emit = torch.zeros(4, 2, dtype=torch.float64)
        emit[never] = -torch.inf
        made.append(replace(hmm, log_emit=emission_table(emit, APART)).validate())
    return made


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("implementation", ["auto", "reference", "scaled"])
def test_no_text_goes_from_part_to_part(
    dtype: torch.dtype, implementation: str, tmp_path: Path
) -> None:
    """Factored or not: -inf, no counts, no path; also of what was kept as a file."""
    parts = parts_apart("factored")
    made, whole = mixture(parts).to(dtype=dtype), explicit(parts, WEIGHTS * 0 - 0.693147181)
    assert isinstance(made.transitions, Factored)
    write_hmm(tmp_path / "hmm", made)
    wanted = inference.log_prob(whole, ACROSS).token_log_probs
    how = {"implementation": implementation}
    for hmm in (made, read_hmm(tmp_path / "hmm")):
        found = inference.log_prob(hmm, ACROSS, **how)
        assert torch.isneginf(found.log_evidence).tolist() == [True, True, False, True, False]
        torch.testing.assert_close(found.token_log_probs.double(), wanted, atol=1e-5, rtol=1e-5)
        counts = inference.counts(hmm, ACROSS[:2], **how)
        assert not any(bool(table.any()) for table in counts.fields())
        paths = inference.viterbi(hmm, ACROSS)
        assert paths.states[[0, 1, 3]].unique().tolist() == [-1] and (paths.states[2] >= 0).all()
        state = inference.advance(inference.start(hmm), 0)
        never = torch.isneginf(inference.next_log_probs(state)).tolist()
        assert never == [[False, False, True, False]]
        two = inference.next_log_probs(hmm, torch.tensor([[0], [2]]))
        assert torch.isneginf(two).sum(1).tolist() == [1, 1]
        joint = joint_log_prob(hmm, torch.tensor([[0, 2], [1, 1]]), torch.tensor([[0, 6], [4, 5]]))
        assert torch.isneginf(joint).tolist() == [True, False]
        tokens, known = torch.tensor([[1, 1, 3]]), torch.tensor([[0, -1, 1]])
        tagged, words, _ = labelled(hmm, tokens, known, torch.tensor([0] * 4 + [1] * 4))
        assert torch.isneginf(inference.log_prob(tagged, words, **how).log_evidence).all()
        assert not inference.counts(tagged, words, **how).init.any()


def test_all_counts_of_parts_that_share_few_words() -> None:
    parts = parts_apart("factored")
    made, whole = mixture(parts, WEIGHTS), explicit(parts, WEIGHTS)
    for tokens in (ACROSS, ACROSS.clamp(min=0)):
        ours, theirs = inference.counts(made, tokens), inference.counts(whole, tokens)
        assert_same_counts(made, ours, whole, theirs)


@pytest.mark.parametrize("transitions", TRANSITIONS)
def test_on_some_of_the_states_of_one_part(transitions: str) -> None:
    """States of the other part that carry belief in lead nowhere."""
    parts = [make_hmm("blocks", transitions, seed=seed) for seed in (1, 2)]
    made, whole = mixture(parts), explicit(parts, WEIGHTS * 0 - 0.693147181)
    states, carried = torch.tensor([0, 2, 3]), torch.tensor([1, 4, 5])
    ours, theirs = (hmm.restrict(states, carried).transitions for hmm in (made, whole))
    torch.testing.assert_close(ours.rows(0, 6), theirs.rows(0, 6))
    assert torch.isneginf(ours.rows(4, 6)).all()
    flat = tempered(made.restrict(states, carried), trans=0.5).transitions
    torch.testing.assert_close(flat.rows(0, 3).exp().sum(1), torch.ones(3, dtype=torch.float64))
    assert torch.isneginf(flat.rows(4, 6)).all()
    belief = inference.log_prob(made, torch.tensor([[0, 1]])).belief
    small = made.restrict(torch.arange(4), carried=belief.states[0])
    large = whole.restrict(torch.arange(4), carried=belief.states[0])
    text = torch.tensor([[0, 1, 2]])
    found, wanted = (inference.log_prob(hmm, text, belief=belief) for hmm in (small, large))
    torch.testing.assert_close(found.token_log_probs, wanted.token_log_probs)


@pytest.mark.parametrize("trans", [0.2, 0.5, 3.0])
def test_parts_stay_apart_when_they_are_made_flatter(trans: float) -> None:
    parts = parts_apart("factored")
    made = tempered(mixture(parts), trans=trans).validate()
    found = inference.log_prob(made, ACROSS).log_evidence
    wanted = inference.log_prob(mixture([tempered(p, trans=trans) for p in parts]), ACROSS)
    torch.testing.assert_close(found, wanted.log_evidence)


def test_a_mixture_may_be_a_part() -> None:
    """Of factors that are narrower than those of the others."""
    parts = [make_hmm("blocks", "factored", seed=seed) for seed in (1, 2, 3)]
    states, generator = parts[2].num_states, torch.Generator().manual_seed(1)
    left, right = 3 * torch.randn(2, states, 7, generator=generator, dtype=torch.float64)
    parts[2] = replace(parts[2], transitions=Factored.normalise(left, right))
    inner = mixture(parts[:2], WEIGHTS)
    made = mixture([inner, parts[2]], WEIGHTS).validate()
    whole = explicit([explicit(parts[:2], WEIGHTS), parts[2]], WEIGHTS)
    assert isinstance(made.transitions, Factored)
    torch.testing.assert_close(made.transitions.rows(0, 12), whole.transitions.rows(0, 12))


@pytest.mark.parametrize("transitions", TRANSITIONS)
def test_a_long_stream_in_float32_forgets_no_part(transitions: str) -> None:
    """One part falls hundreds of nats behind, then the other does: both are known to the end."""
    support = Support.from_clusters([0, 0, 1, 1], 2)
    parts = []
    for seed, likes in ((1, 0), (2, 1)):
        hmm = make_hmm(support, transitions, seed=seed, scale=0.3)
        emit = torch.full((4, 2), 0.01, dtype=torch.float64)
        emit[likes], emit[2 + likes] = 0.99, 0.99
        parts.append(HMM(hmm.log_init, hmm.transitions, emit.log(), support).validate())
    made, whole = mixture(parts).to(dtype=torch.float32), explicit(parts, WEIGHTS * 0 - 0.693147181)
    text = torch.tensor([[0, 2] * 50 + [1, 3] * 51])
    found = inference.log_prob(made, text)
    wanted = inference.log_prob(whole, text, implementation="reference")
    torch.testing.assert_close(found.token_log_probs.double(), wanted.token_log_probs, atol=1e-4,
                               rtol=1e-4)  # fmt: skip
    halves = inference.log_prob(made, text[:, :101])
    rest = inference.log_prob(made, text[:, 101:], belief=halves.belief)
    total = halves.log_evidence + rest.log_evidence
    torch.testing.assert_close(total, found.log_evidence, atol=1e-3, rtol=1e-6)


def test_weights_that_make_texts_most_probable() -> None:
    evidence = torch.tensor([[-3.0, -5.0, -4.0], [-4.0, -3.0, -6.0]])
    log_weights, total = learn_weights(evidence)
    grid = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    pairs = torch.stack([grid, 1 - grid]).log()  # (2, 999)
    totals = torch.logsumexp(evidence.double()[:, :, None] + pairs[:, None], 0).sum(0)
    best = int(totals.argmax())
    assert abs(float(log_weights[0].exp()) - float(grid[best])) < 2e-3
    assert total == pytest.approx(float(totals[best]), abs=1e-5)
    impossible = torch.tensor([[-1.0, -torch.inf, -2.0], [-1.0, -torch.inf, torch.nan]])
    said = "2 of 3 texts have probability zero under all parts, or no number, the first is 1, cou"
    with pytest.raises(InputError, match=said):
        learn_weights(impossible)
    with pytest.raises(InputError, match="no texts to find the weights on"):
        learn_weights(torch.zeros(2, 0))


def test_a_part_that_is_a_little_worse_everywhere_weighs_nothing() -> None:
    evidence = torch.zeros(3, 3000)
    evidence[1] -= 0.01
    evidence[2] -= 30.0
    log_weights, total = learn_weights(evidence)
    assert float(log_weights[0].exp()) == pytest.approx(1.0, abs=1e-5)
    assert total == pytest.approx(0.0, abs=1e-3)
    assert float(log_weights[2].exp()) == pytest.approx(LEAST, rel=1e-3)


def test_what_is_refused(monkeypatch) -> None:
    hmm = make_hmm("blocks", "factored")
    with pytest.raises(InputError, match="at least one HMM"):
        mixture([])
    with pytest.raises(InputError, match="have 5, 2 words but must have the same"):
        mixture([hmm, make_hmm(Support.dense(2, 3))])
    with pytest.raises(InputError, match="some states of a larger HMM"):
        mixture([hmm, hmm.restrict(torch.tensor([0, 2]))])
    with pytest.raises(InputError, match="log_weights must be 2 finite numbers"):
        mixture([hmm, hmm], torch.tensor([0.0, -torch.inf]))
    soft = replace(hmm, log_soft=torch.zeros(1, hmm.num_states, dtype=hmm.dtype))
    with pytest.raises(InputError, match="has soft evidence"):
        mixture([soft])
    monkeypatch.setattr("hmmlm.mixture.LARGEST", 63)
    with pytest.raises(InputError, match="8 states and a transition table of 64 cells, but 63 is"):
        mixture([hmm, make_hmm("blocks", "dense")])
