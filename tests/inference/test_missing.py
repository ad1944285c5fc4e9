"""Missing tokens where words have few states, against the enumeration of all paths."""

import functools

import pytest
import torch

from enumeration import Row, enumerate_row
from hmmlm import HMM, inference
from hmmlm.inference.blocks import BlockScaled
from hmmlm.inference.chain import Chain
from hmmlm.inference.dispatch import recursion
from hmmlm.results import Belief, FactoredCounts
from hmmlm.support import Support
from hmmlm.transitions import Factored
from models import TRANSITIONS, make_hmm, with_holes

EOS, NEVER, SOFT = 1, 4, 5
# At the start, at the end, twice in a row, alone, beside a reset, before and after a row's end.
TOKENS = torch.tensor(
    [
        [-1, 0, -1, -1, 3],
        [0, -1, EOS, -1, 2],
        [-1, -1, -1, -1, -1],
        [2, EOS, -1, EOS, -1],
        [3, 2, -1, -1, 0],
        [-1, 2, 0, 0, -1],
        [2, -1, NEVER, -1, 0],
        [0, SOFT, -1, SOFT, SOFT],
    ]
)
LENGTHS = torch.tensor([5, 5, 5, 5, 3, 1, 5, 5])
RESTART = torch.zeros(8, 5, dtype=torch.bool)
RESTART[0, 2] = RESTART[2, 3] = RESTART[4, 2] = RESTART[3, 3] = RESTART[7, 3] = True
WEIGHTS = torch.tensor([[0.0, -1.0, -torch.inf, 0.7, -2.0]], dtype=torch.float64)
MODES = {
    "plain": {},
    "resets": {"reset_id": EOS},
    "restarts": {"restart": RESTART, "reset_id": EOS},
    "carried": {"belief": True},
    "carried and resets": {"belief": True, "restart": RESTART, "reset_id": EOS},
}
SUPPORTS = ("blocks", "uneven", "ragged")
ROOM = {"whole": (1 << 23, 1 << 24), "two steps": (None, 1), "one step": (1, 1)}


@functools.cache
def case(support: str, transitions: str, mode: str) -> tuple[HMM, dict, list[Row]]:
    """A model in which no state emits one of the words, a batch, and the truth of each row."""
    hmm = make_hmm(support, "dense" if transitions == "holes" else transitions)
    hmm = with_holes(hmm) if transitions == "holes" else hmm
    emit = hmm.log_emit.clone()
    emit[NEVER] = -torch.inf
    hmm = HMM(hmm.log_init, hmm.transitions, emit, hmm.support)
    how, belief = dict(MODES[mode]), None
    if how.pop("belief", False):
        states = torch.tensor([[0, hmm.num_states - 1, -1]]).repeat(8, 1)
        log_probs = torch.tensor([[0.3, 0.7, 0.0]]).double().log().repeat(8, 1)
        belief = Belief(states, log_probs, torch.arange(8) == 1)
    rows = []
    for i, size in enumerate(LENGTHS.tolist()):
        rows.append(
            enumerate_row(
                hmm,
                TOKENS[i, :size].tolist(),
                belief=None if belief is None else belief.select(torch.tensor([i])),
                reset_id=how.get("reset_id"),
                restart=RESTART[i, :size].tolist() if "restart" in how else None,
                log_weights=WEIGHTS,
            )
        )
    return hmm, {"lengths": LENGTHS, "belief": belief, **how}, rows


@pytest.fixture(params=ROOM)
def room(request, monkeypatch) -> None:
    """How much is made at a time: of tiles, and of messages between checkpoints."""
    tiled, kept = ROOM[request.param]
    if tiled is None:
        monkeypatch.setattr(BlockScaled, "stretch", 2)
    else:
        monkeypatch.setattr("hmmlm.inference.blocks.TILED", tiled)
    monkeypatch.setattr("hmmlm.inference.smoothing.KEPT", kept)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transitions", [*TRANSITIONS, "holes"])
@pytest.mark.parametrize("support", SUPPORTS)
def test_every_function(support, transitions, mode, dtype, room):
    exact, how, rows = case(support, transitions, mode)
    hmm = inference.soften(exact.to(dtype=dtype), WEIGHTS)
    assert isinstance(recursion(Chain(hmm, TOKENS, **how), "scaled"), BlockScaled)
    near = {"rtol": 0, "atol": 1e-10 if dtype == torch.float64 else 2e-5}

    def close(value, truth) -> None:
        torch.testing.assert_close(value.double(), truth, **near)

    scored = inference.log_prob(hmm, TOKENS, **how)
    filtered, smoothed = inference.filter(hmm, TOKENS, **how), inference.smooth(hmm, TOKENS, **how)
    for found in (scored, filtered, smoothed):
        for i, row in enumerate(rows):
            # After what cannot be, a fresh start is scored for itself.
            until = int((row.token_log_probs > -torch.inf).cumprod(0).sum()) + 1
            close(found.token_log_probs[i, : row.steps][:until], row.token_log_probs[:until])
            assert (found.token_log_probs[i, row.steps :] == 0).all()
            close(found.log_evidence[i], torch.tensor(row.log_evidence, dtype=torch.float64))
            if row.log_evidence > -torch.inf:
                held = found.belief.states[i] >= 0
                table = torch.zeros(hmm.num_states).double()
                values = found.belief.log_probs[i][held].double().exp()
                table.index_add_(0, found.belief.states[i][held], values)
                close(table, row.filtered()[-1].exp())
    for i, row in enumerate(rows):
        table = smoothed.dense(hmm.num_states)[i].exp()
        if row.log_evidence == -torch.inf:
            assert (table == 0).all()
            continue
        close(table[: row.steps], row.smoothed().exp())
        close(filtered.dense(hmm.num_states)[i, : row.steps].exp(), row.filtered().exp())
        assert (table[row.steps :] == 0).all()
    check_counts(hmm, inference.counts(hmm, TOKENS, **how), rows, close)


def check_counts(hmm: HMM, found, rows: list[Row], close) -> None:
    init, trans, emit = (
        torch.stack(part).sum(0) for part in zip(*(r.counts() for r in rows), strict=True)
    )
    close(found.init, init)
    words = torch.arange(hmm.vocab_size)
    states = hmm.support.states_of(words)
    wanted = emit[: hmm.vocab_size].gather(1, states.clamp(min=0)).masked_fill(states < 0, 0.0)
    close(found.emit, wanted)
    if isinstance(hmm.transitions, Factored):
        assert isinstance(found.trans, FactoredCounts)
        close(found.trans.left, trans @ hmm.transitions.right.double())
        close(found.trans.right, trans.T @ hmm.transitions.left.double())
        close(found.trans.log_norm, -trans.sum(1))
    else:
        close(found.trans, trans)


@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("support", SUPPORTS)
def test_gradients_with_weights_are_counts_of_each_row(support, transitions):
    hmm = make_hmm(support, transitions)
    fields = [field.clone().requires_grad_() for field in hmm.fields()]
    init, *trans, emit = fields
    free = HMM(init, hmm.transitions.with_fields(*trans), emit, hmm.support)
    found = inference.log_prob(free, TOKENS[:5], lengths=LENGTHS[:5])
    weights = torch.tensor([1.0, 0.0, -2.0, 0.5, 3.0]).double()
    (found.log_evidence * weights).sum().backward()
    wanted = [torch.zeros_like(field) for field in fields]
    for i, weight in enumerate(weights.tolist()):
        row = TOKENS[i : i + 1, : int(LENGTHS[i])]
        counts = inference.counts(hmm, row, implementation="reference").fields()
        for total, more in zip(wanted, counts, strict=True):
            total += weight * more
    for field, truth in zip(fields, wanted, strict=True):
        assert field.grad is not None
        torch.testing.assert_close(field.grad, truth, rtol=0, atol=1e-10)


@pytest.mark.parametrize("transitions", TRANSITIONS)
def test_on_a_subset_of_states_with_sources_of_its_own(transitions):
    hmm = make_hmm("ragged", transitions)
    part = hmm.restrict(torch.tensor([0, 1, 2]), carried=torch.tensor([3]))
    belief = Belief(
        torch.tensor([[3, 0]]), torch.tensor([[0.6, 0.4]]).double().log(), torch.zeros(1).bool()
    )
    for row in ([-1, 0, -1, 1], [0, -1, -1, 4]):
        truth = enumerate_row(part, row, belief=belief)
        tokens = torch.tensor([row])
        found = inference.smooth(part, tokens, belief=belief)
        assert float(found.log_evidence) == pytest.approx(truth.log_evidence, abs=1e-10)
        table = found.dense(hmm.num_states)[0, :, :3].exp()
        torch.testing.assert_close(table, truth.smoothed().exp(), rtol=0, atol=1e-10)
        counts = inference.counts(part, tokens, belief=belief)
        _, trans, _ = truth.counts()
        if isinstance(counts.trans, FactoredCounts):
            _, right, _ = part.transitions.fields()
            torch.testing.assert_close(counts.trans.left, trans @ right)
        else:
            torch.testing.assert_close(counts.trans, trans)


@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("row", [[0, -1], [-1, 0], [-1, 0, -1, 2]])
def test_a_word_without_states_beside_a_gap_is_impossible(transitions, row):
    """On a subset of the states the first block has none left."""
    part = make_hmm("uneven", transitions).restrict(torch.tensor([1, 2, 3]))
    tokens = torch.tensor([row])
    for implementation in ("auto", "reference"):
        how = {"implementation": implementation}
        for function in (inference.log_prob, inference.filter, inference.smooth):
            assert float(function(part, tokens, **how).log_evidence) == -torch.inf
        counts = inference.counts(part, tokens, **how)
        assert all(bool((field == 0).all()) for field in counts.fields()[:-1])
    assert bool((inference.sample_paths(part, tokens).states == -1).all())


def test_what_loses_digits_beside_a_gap_is_redone():
    """A state that is 200 nats behind at a missing token is the only one that explains the end."""
    support = Support.ragged([[0, 1], [0, 2], [1, 2]], 3)
    small = torch.tensor([[0.0, -200.0, -300.0], [-100.0, 0.0, -100.0], [-90.0, -95.0, 0.0]])
    trans = torch.log_softmax(small.double(), -1)
    emit = torch.tensor([[0.0, -80.0, -9.0], [-70.0, -9.0, 0.0], [-9.0, 0.0, -60.0]]).double()
    for word, states in enumerate(support.rows[support.row_of_word].tolist()):
        emit[word, [z for z in range(3) if z not in states]] = -torch.inf
    init = torch.tensor([0.5, 0.25, 0.25]).double().log()
    hmm = HMM.from_tables(init, trans, torch.log_softmax(emit, 0).T, support=support)
    for row in ([0, -1, 2], [0, -1, -1, 1], [-1, 1, -1]):
        truth = enumerate_row(hmm, row)
        narrow = hmm.to(dtype=torch.float32)
        found = inference.smooth(narrow, torch.tensor([row]))
        for one in (found, inference.log_prob(narrow, torch.tensor([row]))):
            assert float(one.log_evidence) == pytest.approx(truth.log_evidence, rel=1e-6)
        table = found.dense(3)[0].double().exp()
        torch.testing.assert_close(table, truth.smoothed().exp(), rtol=0, atol=1e-5)
        (counts,) = inference.counts(narrow, torch.tensor([row])).fields()[1:-1]
        torch.testing.assert_close(counts.double(), truth.counts()[1], rtol=0, atol=1e-5)


def test_digits_that_are_lost_at_a_gap_alone_are_redone():
    """Evidence that is as sure of one state as the transition is of the other: both end small.

    What is left is made one again, so that no later step sees that it had few digits.
    """
    trans = torch.tensor([[0.0, -100.0], [-0.7, -0.7]]).double()
    support = Support.from_clusters([0, 1], 1)
    hmm = HMM.from_tables(
        torch.tensor([0.5, 0.5]).double().log(),
        torch.log_softmax(trans, -1),
        torch.eye(2).double().log(),
        support=support,
    )
    soft = inference.soften(hmm, torch.tensor([[-100.0, 0.0]]).double())
    tokens = torch.tensor([[0, 2, 1]])
    truth = inference.log_prob(soft, tokens, implementation="reference").log_evidence
    found = inference.log_prob(soft.to(dtype=torch.float32), tokens).log_evidence
    torch.testing.assert_close(found, truth, rtol=1e-6, atol=0)


@pytest.mark.parametrize("transitions", TRANSITIONS)
def test_nothing_is_redone_where_no_digits_are_lost(transitions, room, monkeypatch):
    def refuse(*given):
        raise AssertionError("a row is redone in a wider arithmetic")

    for place in ("smoothing", "evidence"):
        monkeypatch.setattr(f"hmmlm.inference.{place}.widened", refuse)
    hmm = make_hmm("uneven", transitions, dtype=torch.float32)
    tokens, lengths = TOKENS[:6], LENGTHS[:6]
    inference.counts(hmm, tokens, lengths=lengths)
    inference.smooth(hmm, tokens, lengths=lengths)


@pytest.mark.parametrize("function", ["log_prob", "smooth", "counts"])
def test_only_what_stands_beside_a_gap_is_made_of_the_table(function, monkeypatch):
    """K rows of the table into a missing token and K columns out of it, of the row that has it."""
    support = Support.from_clusters(list(range(8)), [4] * 8)
    hmm = make_hmm(support, "factored", dtype=torch.float32)
    tokens = torch.randint(8, (6, 9), generator=torch.Generator().manual_seed(0))
    tokens[2, 4] = -1
    made = []
    rows = Factored.rows

    def counted(self, start: int, stop: int):
        table = rows(self, start, stop)
        made.append(table.numel())
        return table

    monkeypatch.setattr(Factored, "rows", counted)
    getattr(inference, function)(hmm, tokens)
    times = {"log_prob": 1, "smooth": 2, "counts": 3}[function]  # to count, it is made again
    assert sum(made) == times * 2 * 4 * 32
