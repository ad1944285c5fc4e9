"""Words in gaps, given the rest, against the enumeration of all texts that fill them."""

import functools
import inspect
import math
from collections import Counter

import pytest
import torch

from enumeration import enumerate_fills
from hmmlm import HMM, Support, inference
from hmmlm.errors import InputError
from hmmlm.inference.chain import Chain
from hmmlm.inference.gaps import readings
from hmmlm.ops.links import Tiles, Wide
from hmmlm.results import Belief
from models import TRANSITIONS, make_hmm

INF = torch.inf
RESET = 1
WEIGHTS = torch.tensor(
    [[0.0, -INF, -1.0, 0.7, -2.0], [-INF, -INF, 0.0, -INF, -0.5]], dtype=torch.float64
)
TEXTS = {
    "gaps": ([[0, -1, 2, -1], [2, 5, 0, 6], [-1, 3, 0, 0]], [4, 4, 2]),
    "one step": ([[-1], [5], [2]], [1, 1, 1]),
    "all missing": ([[-1, -1, -1]], [3]),
    "resets": ([[0, RESET, -1, 3], [5, -1, RESET, 2], [-1, RESET, 0, 0]], [4, 4, 2]),
    "belief": ([[-1, 3, 6], [2, -1, 0], [5, 0, 0]], [3, 3, 2]),
    "restarts": ([[0, -1, 2, -1], [2, 5, 0, 6], [-1, 3, 0, 0]], [4, 4, 2]),
}
RESTARTS = [[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0]]


def exact(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Case:
    """A model, a batch with gaps and, row by row, every text that fills them."""

    def __init__(self, support: str, transitions: str, text: str) -> None:
        self.hmm = make_hmm(support, transitions)
        rows, lengths = TEXTS[text]
        self.rows, self.lengths = rows, lengths
        self.how: dict = {"lengths": torch.tensor(lengths), "log_weights": WEIGHTS}
        reset = RESET if text == "resets" else None
        belief = some_belief(self.hmm, len(rows)) if text == "belief" else None
        restart = torch.tensor(RESTARTS, dtype=torch.bool) if text == "restarts" else None
        self.how |= {"reset_id": reset, "belief": belief, "restart": restart}
        self.tokens = torch.tensor(rows)
        self.fills = [
            enumerate_fills(
                self.hmm,
                row[:size],
                reset_id=reset,
                log_weights=WEIGHTS,
                belief=None if belief is None else belief.select(torch.tensor([i])),
                restart=None if restart is None else restart[i, :size].tolist(),
            )
            for i, (row, size) in enumerate(zip(rows, lengths, strict=True))
        ]
        self.evidence = [
            float(torch.logsumexp(exact([*fills.values()]), 0)) for fills in self.fills
        ]

    def gaps(self, i: int) -> list[int]:
        return [t for t in range(self.lengths[i]) if not 0 <= self.rows[i][t] < 5]


def some_belief(hmm: HMM, rows: int) -> Belief:
    states = torch.tensor([[0, hmm.num_states - 1, -1]]).repeat(rows, 1)
    log_probs = torch.tensor([[0.3, 0.7, 0.0]], dtype=torch.float64).log().repeat(rows, 1)
    return Belief(states, log_probs, torch.arange(rows) == 1)


cached = functools.cache(Case)


@pytest.fixture(params=[(s, t) for s in ("dense", "blocks", "ragged") for t in TRANSITIONS])
def model(request) -> tuple[str, str]:
    return request.param


@pytest.fixture(params=TEXTS)
def case(model, request) -> Case:
    return cached(*model, request.param)


def test_words_of_a_gap(case: Case):
    found = inference.word_log_probs(case.hmm, case.tokens, **case.how)
    assert found.log_evidence.tolist() == pytest.approx(case.evidence, abs=1e-10)
    truth = []
    for i, fills in enumerate(case.fills):
        for t in case.gaps(i):
            probs = torch.zeros(5).double()
            for text, log_prob in fills.items():
                probs[text[t]] += math.exp(log_prob - case.evidence[i])
            truth.append(probs)
    torch.testing.assert_close(found.log_probs.exp(), torch.stack(truth), rtol=0, atol=1e-10)
    ones = torch.ones(len(truth)).double()
    torch.testing.assert_close(found.log_probs.exp().sum(1), ones, rtol=0, atol=1e-10)
    assert found.gaps.nonzero().tolist() == [
        [i, t] for i in range(len(case.rows)) for t in case.gaps(i)
    ]
    best = found.top(2)
    torch.testing.assert_close(best.log_probs, found.log_probs.sort(1, descending=True)[0][:, :2])
    assert found.top(99).words.shape == (len(truth), 5)


@pytest.mark.parametrize("implementation", ["reference", "scaled"])
def test_every_fill_has_its_probability(case: Case, implementation):
    for i, fills in enumerate(case.fills):
        size = case.lengths[i]
        how = dict(case.how, lengths=None, implementation=implementation)
        texts = torch.tensor([*fills])
        rows = torch.full((len(texts),), i)
        if how["belief"] is not None:
            how["belief"] = how["belief"].select(rows)
        if how["restart"] is not None:
            how["restart"] = how["restart"][rows, :size]
        tokens = case.tokens[rows, :size]
        found = inference.fill_log_prob(case.hmm, tokens, texts, **how)
        truth = exact([*fills.values()]) - case.evidence[i]
        torch.testing.assert_close(found.exp(), truth.exp(), rtol=0, atol=1e-10)
        assert float(found.exp().sum()) == pytest.approx(1, abs=1e-10)


def test_a_gap_that_is_left_open_is_summed_over():
    case = cached("ragged", "dense", "gaps")
    filled = case.tokens.clone()
    filled[0, 1] = filled[1, 1] = 3
    found = inference.fill_log_prob(case.hmm, case.tokens, filled, **case.how)
    for i in (0, 1):
        part = [p for text, p in case.fills[i].items() if text[1] == 3]
        total = float(torch.logsumexp(exact(part), 0)) - case.evidence[i]
        assert float(found[i]) == pytest.approx(total, abs=1e-10)
    assert float(found[2]) == pytest.approx(0, abs=1e-10)


def test_a_gap_that_is_left_open_is_still_no_reset():
    hmm, text = make_hmm("blocks"), [0, -1, 2, -1]
    fills = enumerate_fills(hmm, text, reset_id=RESET)
    filled = torch.tensor([[0, -1, 2, 3]])
    found = inference.fill_log_prob(hmm, torch.tensor([text]), filled, reset_id=RESET)
    part = exact([p for words, p in fills.items() if words[3] == 3])
    truth = torch.logsumexp(part, 0) - torch.logsumexp(exact([*fills.values()]), 0)
    torch.testing.assert_close(found[0], truth, rtol=0, atol=1e-10)


def test_draws_of_all_gaps(case: Case):
    draws = 1000
    found = inference.sample_fills(
        case.hmm,
        case.tokens,
        num_samples=draws,
        generator=torch.Generator().manual_seed(4),
        **case.how,
    )
    for i, fills in enumerate(case.fills):
        size = case.lengths[i]
        assert (found.tokens[i, :, size:] == -1).all() and (found.states[i, :, size:] == -1).all()
        assert (found.lengths[i] == size).all()
        drawn = [tuple(row) for row in found.tokens[i, :, :size].tolist()]
        truth = exact([fills[text] for text in drawn]) - case.evidence[i]
        torch.testing.assert_close(found.log_probs[i], truth, rtol=0, atol=1e-10)
        seen = Counter(drawn)
        for text, log_prob in fills.items():
            p = math.exp(log_prob - case.evidence[i])
            error = math.sqrt(max(0, p * (1 - p)) / draws)
            assert abs(seen[text] / draws - p) <= 5 * error + 3 / draws
        emitting = case.hmm.support.slots_of(found.tokens[i, :, :size], found.states[i, :, :size])
        assert (emitting >= 0).all()  # every word came from a state that has it


def test_states_are_drawn_with_the_words():
    case = cached("blocks", "factored", "gaps")
    found = inference.sample_fills(case.hmm, case.tokens, num_samples=4000, **case.how)
    truth = inference.smooth(
        inference.soften(case.hmm, WEIGHTS), case.tokens, lengths=case.how["lengths"]
    ).dense(case.hmm.num_states)
    for t in range(4):
        seen = torch.bincount(found.states[0, :, t], minlength=4) / 4000
        p = truth[0, t].exp()
        assert ((seen - p).abs() <= 5 * (p * (1 - p) / 4000).clamp(min=0).sqrt() + 1e-12).all()


LENGTHS = {"end": 3, "middle": 1, "start": 0}


@pytest.mark.parametrize("where", LENGTHS)
@pytest.mark.parametrize("filler", [-1, 5])
def test_a_gap_of_unknown_length(model, where, filler):
    hmm, at = make_hmm(*model), LENGTHS[where]
    tokens, text = torch.tensor([[0, -1, 2]]), [0, -1, 2]
    how = {"length": (0, 2), "filler": filler, "log_weights": WEIGHTS, "reset_id": RESET}
    found = inference.gap_lengths(hmm, tokens, at, **how)
    fills = {}
    evidence = []
    for size in range(3):
        longer = [*text[:at], *[filler] * size, *text[at:]]
        some = enumerate_fills(hmm, longer, log_weights=WEIGHTS, reset_id=RESET)
        evidence.append(torch.logsumexp(exact([*some.values()]), 0))
        fills |= some
    total = torch.logsumexp(torch.stack(evidence), 0)
    assert float(found.log_evidence[0]) == pytest.approx(float(total), abs=1e-10)
    truth = (torch.stack(evidence) - total).exp()
    torch.testing.assert_close(found.log_probs[0].exp(), truth, rtol=0, atol=1e-10)
    assert found.sizes.tolist() == [0, 1, 2]
    draws = 1000
    generator = torch.Generator().manual_seed(1)
    drawn = inference.sample_gap(hmm, tokens, at, num_samples=draws, generator=generator, **how)
    rows = zip(drawn.tokens[0].tolist(), drawn.lengths[0].tolist(), strict=True)
    texts = [tuple(row[:size]) for row, size in rows]
    truths = exact([fills[text] for text in texts]) - total
    torch.testing.assert_close(drawn.log_probs[0], truths, rtol=0, atol=1e-10)
    sizes = torch.bincount(drawn.lengths[0] - 3, minlength=3) / draws
    error = (truth * (1 - truth) / draws).clamp(min=0).sqrt()
    assert ((sizes - truth).abs() <= 5 * error + 1e-12).all()
    assert sum(math.exp(p - float(total)) for p in fills.values()) == pytest.approx(1, abs=1e-9)


def test_gaps_of_unknown_length_in_rows_of_unequal_length():
    hmm = make_hmm("blocks")
    tokens, lengths = torch.tensor([[0, 3, 2], [2, 0, 0]]), torch.tensor([3, 1])
    belief = some_belief(hmm, 2)
    at = torch.tensor([1, 1])
    found = inference.gap_lengths(hmm, tokens, at, length=(1, 2), lengths=lengths, belief=belief)
    for i, text in enumerate(([0, 3, 2], [2])):
        for j, size in enumerate((1, 2)):
            longer = torch.tensor([[*text[:1], *[-1] * size, *text[1:]]])
            part = belief.select(torch.tensor([i]))
            alone = inference.log_prob(hmm, longer, belief=part).log_evidence
            joint = float(found.log_probs[i, j] + found.log_evidence[i])
            assert joint == pytest.approx(float(alone), abs=1e-10)
    drawn = inference.sample_gap(
        hmm, tokens, at, length=(1, 2), lengths=lengths, belief=belief, num_samples=20
    )
    assert drawn.tokens.shape == (2, 20, 5) and set(drawn.lengths[1].tolist()) <= {2, 3}


@pytest.mark.parametrize("support", ["dense", "blocks"])
def test_a_row_of_probability_zero(support):
    hmm = make_hmm(support)
    nothing = torch.full((1, 5), -INF).double()
    tokens = torch.tensor([[0, -1, 5], [0, -1, 3]])
    how = {"log_weights": nothing}
    words = inference.word_log_probs(hmm, tokens, **how)
    assert torch.isneginf(words.log_probs[:2]).all() and torch.isfinite(words.log_probs[2]).any()
    filled = torch.tensor([[0, 2, 5], [0, 2, 3]])
    found = inference.fill_log_prob(hmm, tokens, filled, **how)
    assert float(found[0]) == -INF and math.isfinite(float(found[1]))
    drawn = inference.sample_fills(hmm, tokens, num_samples=3, **how)
    assert drawn.tokens[0, 0].tolist() == [0, -1, -1] and torch.isneginf(drawn.log_probs[0]).all()
    assert (drawn.tokens[1] >= 0).all() and torch.isfinite(drawn.log_probs[1]).all()
    lengths = inference.gap_lengths(hmm, tokens, 1, length=(0, 1), **how)
    assert torch.isneginf(lengths.log_probs[0]).all() and float(lengths.log_evidence[0]) == -INF


def test_a_text_without_gaps():
    hmm = make_hmm("blocks")
    tokens = torch.tensor([[0, 3]])
    assert inference.word_log_probs(hmm, tokens).log_probs.shape == (0, 5)
    drawn = inference.sample_fills(hmm, tokens)
    assert drawn.tokens.tolist() == [[[0, 3]]] and float(drawn.log_probs) == 0


def test_on_a_subset_of_states():
    hmm = make_hmm("ragged").restrict(torch.tensor([3, 0, 2]))
    drawn = inference.sample_fills(hmm, torch.tensor([[0, -1, 2]]), num_samples=200)
    assert set(drawn.states.unique().tolist()) <= {0, 2, 3}
    words = inference.word_log_probs(hmm, torch.tensor([[0, -1, 2]])).log_probs[0].exp()
    seen = torch.bincount(drawn.tokens[0, :, 1], minlength=5) / 200
    assert ((seen - words).abs() <= 5 * (words * (1 - words) / 200).sqrt() + 1e-9).all()


@pytest.mark.parametrize("transitions", TRANSITIONS)
def test_tiles_from_few_states_to_all_say_what_the_whole_table_says(transitions, monkeypatch):
    support = Support.from_clusters([0, 1, 1, 2, 3, 3, 4], [2, 3, 3, 2, 4])
    hmm = make_hmm(support, transitions)
    tokens = torch.tensor([[0, -1, 2, 6, -1, -1, 3], [5, -1, 1, 0, 4, -1, 2]])

    def answers() -> list[torch.Tensor]:
        found = inference.counts(hmm, tokens)
        fields = [*found.fields(), found.log_evidence, inference.viterbi(hmm, tokens).log_prob]
        for name in ("reference", "scaled"):
            fields += inference.smooth(hmm, tokens, implementation=name)[2:3]
        return [*fields, inference.pseudo_log_prob(hmm, tokens).token_log_probs]

    kinds = {type(Chain(hmm, tokens).link(step)) for step in range(1, 7)}
    assert kinds == {Tiles, Wide}  # between two gaps the whole table is needed
    ours = answers()
    monkeypatch.setattr("hmmlm.inference.chain.FEW", 0)
    assert isinstance(Chain(hmm, tokens).link(1), Wide)
    for one, other in zip(ours, answers(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def wrong(function: str, *arguments, **settings):
    return getattr(inference, function)(make_hmm(), *arguments, **settings)


GAP = torch.tensor([[0, -1, 2]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: wrong("fill_log_prob", GAP, torch.tensor([[1, 1, 2]])),
            r"filled has 1 at \(0, 0\) where tokens has 0; fill gaps with words",
        ),
        (
            lambda: wrong("fill_log_prob", GAP, torch.tensor([[0, 9, 2]])),
            r"filled has 9 at \(0, 1\) where tokens has -1",
        ),
        (
            lambda: wrong("fill_log_prob", GAP, torch.tensor([[0, 1]])),
            r"filled is torch.int64 of shape \(1, 2\) but must be ids of shape \(1, 3\)",
        ),
        (lambda: wrong("sample_fills", GAP, num_samples=0), "num_samples is 0 but must be"),
        (
            lambda: wrong("sample_gap", GAP, 0, length=(0, 1), num_samples=0),
            "num_samples is 0 but must be",
        ),
        (lambda: wrong("gap_lengths", GAP, 0, length=(3, 2)), "length is 3 to 2 but must be a"),
        (lambda: wrong("gap_lengths", GAP, 0, length=(-1, 2)), "length is -1 to 2 but must be"),
        (
            lambda: wrong("gap_lengths", GAP, 4, length=(0, 2)),
            "at is 4 in row 0 but must lie between 0 and 3, the row's length",
        ),
        (
            lambda: wrong("word_log_probs", GAP, log_weights=torch.zeros(1, 5), reset_id=1),
            "Row 0 of log_weights allows word 1, which is reset_id",
        ),
        (lambda: wrong("word_log_probs", GAP).top(0), "k is 0 but must be at least 1"),
        (
            lambda: inference.word_log_probs(
                inference.soften(make_hmm("blocks"), WEIGHTS), torch.tensor([[0]])
            ),
            "This HMM has 2 pieces of soft evidence already",
        ),
    ],
)
def test_what_cannot_be_asked(call, message):
    with pytest.raises(InputError, match=message):
        call()


TWO = torch.tensor([[0, 1], [1, 2]])
SHAPES = [
    (1.5, {}, r"at is torch\.float32 of shape \(\) but must be whole numbers; give one number, or"),
    ([True, False], {}, r"at is torch\.bool of shape \(2,\) but must be whole numbers"),
    ([1], {}, r"at is torch\.int64 of shape \(1,\) but .* or one for each of the 2 rows of tokens"),
    ([1, 1, 1], {}, r"at is torch\.int64 of shape \(3,\) but"),
    ([[1, 1]], {}, r"at is torch\.int64 of shape \(1, 2\) but"),
    (
        1,
        {"lengths": 2},
        r"lengths is torch\.int64 of shape \(\) but .*; give one for each of the 2",
    ),
    (1, {"lengths": [2]}, r"lengths is torch\.int64 of shape \(1,\) but"),
    (1, {"lengths": [2.0, 1.5]}, r"lengths is torch\.float32 of shape \(2,\) but"),
    (1, {"lengths": [2, 3]}, "lengths has 3 in row 1 but must lie between 0 and 2, the number of"),
    (0, {"lengths": [-1, 2]}, "lengths has -1 in row 0 but must lie between 0 and 2"),
    (1, {"length": 3}, r"length is 3 but must be two whole numbers; give \(least, most\)"),
    (1, {"length": (1, 2, 3)}, r"length is \(1, 2, 3\) but must be two whole numbers"),
    (1, {"length": (1, 2.5)}, r"length is \(1, 2\.5\) but must be two whole numbers"),
    (0, {"tokens": TWO[:, :0]}, r"tokens must be ids of shape .*, not \(2, 0\); give at least one"),
]


@pytest.mark.parametrize(("at", "settings", "message"), SHAPES, ids=range(len(SHAPES)))
def test_places_and_lengths_of_a_gap_that_cannot_be(at, settings, message):
    how = {"tokens": TWO, "length": (0, 1), **settings}
    with pytest.raises(InputError, match=message):
        inspect.unwrap(readings)(how.pop("tokens"), at, **how)


def test_places_of_any_whole_type():
    plain = readings(TWO, 1, length=(0, 1), lengths=[2, 1])
    for kind in (torch.int32, torch.uint8):
        given = {"lengths": torch.tensor([2, 1], dtype=kind), "length": (0, 1)}
        other = readings(TWO, torch.tensor([1, 1], dtype=kind), **given)
        assert all(a.equal(b) for a, b in zip(plain, other, strict=True))
