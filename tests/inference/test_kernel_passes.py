"""Inference by kernels, against the reference: in Triton's interpreter, or on a GPU."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hmmlm import inference
from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.inference import block_kernels, dense_kernels, dispatch
from hmmlm.inference.chain import Chain
from hmmlm.inference.kernels import count
from hmmlm.mixture import mixture
from hmmlm.results import Belief, Counts, StateProbs
from hmmlm.support import Support
from hmmlm.transitions import Dense, Factored
from models import TRANSITIONS, make_hmm

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCKS = Support.from_clusters([0, 1, 2, 1, 0, 2, 1], [3, 17, 5])
LENGTHS = torch.tensor([9, 1, 6])


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(7, (3, 9), generator=torch.Generator().manual_seed(seed))


def close(ours: Tensor, truth: Tensor, within: float = 2e-4) -> None:
    torch.testing.assert_close(ours.cpu().double(), truth.double(), rtol=0, atol=within)


OVERLAPPING = Support.ragged(
    [[0, 3, 4], [2], list(range(18)), [19, 5, 1, 7], [3, 4], list(range(18)), [8, 18, 0]], 20
)
"""Two words share all of their states, others some or none."""

SUPPORTS = {
    "blocks": BLOCKS,
    "overlapping": OVERLAPPING,
    "one tile": Support.dense(7, 19),
    "dense": Support.dense(7, 19),
}
STRETCHES = [
    (shape, *how)
    for shape in ("blocks", "one tile", "dense")
    for how in (
        (100, False, "dense"),
        (100, False, "factored"),
        (4, True, "factored"),
        (1, False, "dense"),
    )
]
STRETCHES += [("overlapping", 4, False, "dense"), ("overlapping", 4, True, "factored")]
"""Shapes, with steps of a stretch, whether belief was carried, and transitions."""

WITHOUT_GAPS = ("blocks", "overlapping")
"""Shapes whose kernels know no missing token."""


def how_made(shape: str, stretch: int, monkeypatch) -> Support:
    """The support of a shape, with stretches of so many steps and the kernels that it is about."""
    support = SUPPORTS[shape]
    blocks, width = support.rows.shape
    if (blocks * width) ** 2 > 1 and stretch < 9:
        monkeypatch.setattr(block_kernels, "TILED", min(stretch * 3 * width**2, width**2 * 8))
        monkeypatch.setattr(block_kernels, "KEPT", stretch * 3 * width)
        monkeypatch.setattr(dense_kernels, "KEPT", stretch * 3 * width)
    for name in ("KEPT", "KEPT_ON_GPU"):
        monkeypatch.setattr(f"hmmlm.inference.smoothing.{name}", 5 * 3 * 17)
    if shape == "dense":
        monkeypatch.setattr(dispatch, "ONE_TILE", 0)
    return support


def carried_belief(hmm: HMM) -> tuple[Belief, Belief]:
    """A belief in the middle of a text, for the reference and where the kernels are."""
    belief = inference.log_prob(hmm, tokens(1), lengths=LENGTHS, reset_id=4).belief
    belief = belief._replace(fresh=torch.tensor([False, True, False]))
    return belief, Belief(*(part.to(DEVICE) for part in belief))


@pytest.mark.parametrize(("shape", "stretch", "carried", "transitions"), STRETCHES)
def test_every_function(
    shape: str, stretch: int, carried: bool, transitions: str, monkeypatch
) -> None:
    """In one stretch and in many, from p(z1) and from a belief that was carried."""
    hmm = make_hmm(how_made(shape, stretch, monkeypatch), transitions, scale=0.7)
    ask_everything(hmm, torch.float32, carried, missing=shape not in WITHOUT_GAPS)


@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("shape", ["blocks", "overlapping", "one tile"])
def test_tables_in_float64(shape: str, transitions: str, monkeypatch) -> None:
    """Whose answers have all of their digits."""
    hmm = make_hmm(how_made(shape, 4, monkeypatch), transitions, scale=0.7)
    ask_everything(
        hmm, torch.float64, carried=True, missing=shape not in WITHOUT_GAPS, within=1e-10
    )


def ask_everything(
    hmm: HMM, dtype: torch.dtype, carried: bool, missing: bool, within: float = 2e-4
) -> None:
    """What kernels say, of tables of a type, is what the reference says."""
    there = hmm.to(DEVICE, dtype)
    belief, theirs = carried_belief(hmm) if carried else (None, None)
    how = {"lengths": LENGTHS, "reset_id": 4}
    text = tokens()
    if missing:
        text[0, 3] = text[2, 0] = -1
    for name in ("log_prob", "filter", "smooth", "counts"):
        run = getattr(inference, name)
        truth = run(hmm, text, belief=belief, implementation="reference", **how)
        ours = run(there, text.to(DEVICE), belief=theirs, implementation="kernel", **how)
        close(ours.log_evidence, truth.log_evidence, within)
        close(ours.belief.log_probs.exp(), truth.belief.log_probs.exp(), within)
        if isinstance(truth, StateProbs):
            close(ours.dense(25).exp(), truth.dense(25).exp(), within)
        if isinstance(truth, Counts):
            for one, other in zip(ours.fields(), truth.fields(), strict=True):
                close(one, other, within)
        else:
            close(ours.token_log_probs, truth.token_log_probs, within)


@pytest.mark.parametrize(("shape", "stretch", "carried", "transitions"), STRETCHES)
def test_paths(shape: str, stretch: int, carried: bool, transitions: str, monkeypatch) -> None:
    """The best path is as good as the reference's, and is what it says; drawn ones are possible."""
    hmm = make_hmm(how_made(shape, stretch, monkeypatch), transitions, scale=0.7)
    there = hmm.to(DEVICE, torch.float32)
    belief, theirs = carried_belief(hmm) if carried else (None, None)
    how = {"lengths": LENGTHS, "reset_id": 4}
    text = tokens()
    if shape not in WITHOUT_GAPS:
        text[0, 3] = text[2, 0] = -1
    truth = inference.viterbi(hmm, text, belief=belief, **how)
    ours = inference.viterbi(there, text.to(DEVICE), belief=theirs, implementation="kernel", **how)
    close(ours.log_prob, truth.log_prob)
    path = ours.states.cpu()
    assert torch.equal(path < 0, truth.states < 0)
    for row in range(3):
        score = path_score(hmm, text[row], path[row], int(LENGTHS[row]), belief, row)
        assert score == pytest.approx(float(truth.log_prob[row]), abs=2e-4)
    drawn = inference.sample_paths(
        there, text.to(DEVICE), belief=theirs, num_samples=5, implementation="kernel",
        generator=torch.Generator().manual_seed(0), **how,
    ).states.cpu()  # fmt: skip
    for row in range(3):
        for path in drawn[row]:
            assert path_score(hmm, text[row], path, int(LENGTHS[row]), belief, row) > -100.0
            assert bool((path[LENGTHS[row] :] == -1).all())


def path_score(
    hmm: HMM, text: Tensor, path: Tensor, length: int, belief: Belief | None, row: int
) -> float:
    """log p(z, x) of one path, state by state."""
    table, score = hmm.transitions.rows(0, hmm.num_states), 0.0
    for step in range(length):
        word, state = int(text[step]), int(path[step])
        fresh = int(text[step - 1]) == 4 if step else belief is None or bool(belief.fresh[row])
        if fresh:
            score += float(hmm.log_init[state])
        elif step:
            score += float(table[int(path[step - 1]), state])
        else:
            assert belief is not None
            real = belief.states[row] >= 0
            into = belief.log_probs[row][real] + table[belief.states[row][real], state]
            score += float(into.logsumexp(0))
        if word >= 0:
            (place,) = (hmm.support.states_of(torch.tensor([word]))[0] == state).nonzero()[0]
            score += float(hmm.log_emit[word, place])
    return score


@pytest.mark.parametrize("shape", ["blocks", "one tile", "dense"])
def test_drawn_paths_are_as_frequent_as_their_posterior(shape: str, monkeypatch) -> None:
    hmm = make_hmm(how_made(shape, 2, monkeypatch), "dense", scale=0.7)
    text, number = tokens()[:1, :4], 250
    truth = inference.smooth(hmm, text).dense(25).exp()[0]  # (4, 25)
    drawn = inference.sample_paths(
        hmm.to(DEVICE, torch.float32), text.to(DEVICE), num_samples=number,
        generator=torch.Generator().manual_seed(1), implementation="kernel",
    ).states[0].cpu()  # fmt: skip
    found = torch.nn.functional.one_hot(drawn, 25).double().mean(0)
    assert bool(((found - truth).abs() < 5 * (truth * (1 - truth) / number).sqrt() + 1e-9).all())
    # Neighbours too: a path is drawn as one.
    table = hmm.transitions.rows(0, hmm.num_states)
    pairs = torch.nn.functional.one_hot(drawn[:, 1] * 25 + drawn[:, 2], 625).double().mean(0)
    message = inference.filter(hmm, text[:, :2]).dense(25)[0, 1]
    back = (inference.smooth(hmm, text).dense(25) - inference.filter(hmm, text).dense(25))[0, 2]
    size = hmm.num_states
    emit = torch.full((25,), -torch.inf, dtype=torch.float64)
    states = hmm.support.states_of(text[:, 2])[0]
    emit[states[states >= 0]] = hmm.log_emit[text[0, 2]][states >= 0]
    joint = message[:size, None] + table + (emit + back.nan_to_num(neginf=0.0))[None, :size]
    expected = torch.zeros(25, 25, dtype=torch.float64)
    expected[:size, :size] = joint.flatten().softmax(0).view(size, size)
    gap = (pairs.view(25, 25) - expected).abs()
    assert bool((gap < 5 * (expected * (1 - expected) / number).sqrt() + 1e-9).all())


@pytest.mark.parametrize("shape", SUPPORTS)
@pytest.mark.parametrize(
    ("transitions", "gap"), [("dense", 200.0), ("factored", 200.0), ("dense", 800.0)]
)
def test_a_row_that_loses_digits_is_redone(
    shape: str, transitions: str, gap: float, monkeypatch
) -> None:
    """In float64, by kernels where there are such; in log space what loses digits there too."""
    hmm = make_hmm(how_made(shape, 4, monkeypatch), transitions, scale=0.7)
    hmm.log_emit[3, 0] = -gap
    text = tokens()
    text[0, 2] = 3
    there = hmm.to(DEVICE, torch.float32)
    truth = inference.counts(hmm, text, implementation="reference")
    ways = spy_on_ways(monkeypatch)
    ours = inference.counts(there, text.to(DEVICE), implementation="kernel")
    wider = ("scaled" if shape == "dense" else "kernel", torch.float64)
    log_space = [("reference", torch.float64)] if gap == 800.0 else []
    assert ways == [("kernel", torch.float32), wider, *log_space]
    close(ours.log_evidence, truth.log_evidence)
    for one, other in zip(ours.fields(), truth.fields(), strict=True):
        close(one, other)
    best = inference.viterbi(there, text.to(DEVICE), implementation="kernel")
    close(best.log_prob, inference.viterbi(hmm, text).log_prob)


def spy_on_ways(monkeypatch) -> list[tuple[str, torch.dtype]]:
    """The implementations that counts run in from here on, and the types of the tables."""
    ways, real = [], dispatch.recursion

    def run(chain: Chain, name: str, **how):
        ways.append((name, chain.hmm.dtype))
        return real(chain, name, **how)

    monkeypatch.setattr("hmmlm.inference.smoothing.recursion", run)
    return ways


PEAKED = Support.from_clusters([0, 1, 2, 1, 0, 2, 1], [20, 33, 17])


def make_peaked(transitions: str) -> HMM:
    """Logits of a standard deviation of 16, as products of N(0, 1) of width 256 have; float32."""
    made = make_hmm(PEAKED, "dense", scale=16.0, dtype=torch.float32)
    if transitions == "dense":
        return made
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, PEAKED.num_states, 256, generator=generator)
    norms = Factored.normalise(left.double(), right.double()).log_norm
    return replace(made, transitions=Factored(left, right, norms.float()))


@pytest.mark.parametrize("transitions", TRANSITIONS)
def test_peaked_transitions_by_kernels_in_float64(transitions: str, monkeypatch) -> None:
    """Every row loses digits in float32, none in float64, where nothing but kernels is asked."""
    hmm = make_peaked(transitions)
    truth_hmm, there, text = hmm.to(dtype=torch.float64), hmm.to(DEVICE), tokens()[:2, :5]
    truth = {
        name: getattr(inference, name)(truth_hmm, text, implementation="reference")
        for name in ("counts", "log_prob", "smooth", "viterbi")
    }
    restart = torch.zeros_like(text, dtype=torch.bool)
    restart[:, 0] = True
    given = [part.to(DEVICE) for part in (text, restart, torch.full((2,), 5), torch.ones(2))]
    assert count(there, *given).low.all()
    made = count(there, *given, wide=True)
    assert not made.low.any()
    expected = truth["counts"]
    close(made.log_scales.sum(1) / expected.log_evidence.to(DEVICE), torch.ones(2), 1e-6)
    for one, other in zip(made.fields, expected.fields(), strict=True):
        close(one / other.abs().max(), other / other.abs().max(), 1e-5)
    for name in ("DenseScaled", "Stepwise"):
        monkeypatch.setattr(dispatch, name, None)
    monkeypatch.setattr("hmmlm.inference.blocks.BlockScaled", None)
    monkeypatch.setattr("hmmlm.inference.paths._viterbi", None)
    ask = {name: getattr(inference, name) for name in truth}
    ours = {name: run(there, given[0], implementation="kernel") for name, run in ask.items()}
    for one, other in zip(ours["counts"].fields(), expected.fields(), strict=True):
        close(one / other.abs().max(), other / other.abs().max(), 1e-6)
    for name in ("counts", "log_prob", "smooth"):
        close(ours[name].log_evidence, truth[name].log_evidence, 1e-4)
    close(ours["smooth"].dense(70).exp(), truth["smooth"].dense(70).exp(), 1e-6)
    assert torch.equal(ours["viterbi"].states.cpu(), truth["viterbi"].states)
    drawn = inference.sample_paths(
        there, given[0], num_samples=3, generator=torch.Generator().manual_seed(0),
        implementation="kernel",
    ).states.cpu()  # fmt: skip
    posterior = truth["smooth"].dense(70)
    assert bool((posterior.gather(2, drawn.transpose(1, 2)) > -20.0).all())


@pytest.mark.parametrize("transitions", TRANSITIONS)
def test_a_row_that_loses_digits_only_on_the_way_back(transitions: str, monkeypatch) -> None:
    """A state that hardly goes where the text goes, beside others that do: counts begin again."""
    hmm = make_hmm(BLOCKS, transitions, scale=0.7)
    rows = BLOCKS.rows
    far, into = int(rows[0, 0]), rows[1][rows[1] >= 0]
    if isinstance(hmm.transitions, Factored):
        left, right = (part.clone() for part in hmm.transitions.fields()[:2])
        left[far, 0], right[:, 0] = 250.0, 1.0
        right[into, 0] = 0.0
        hmm = replace(hmm, transitions=Factored.normalise(left, right))
    else:
        hmm.transitions.log_trans[far, into] -= 250.0
        hmm.transitions.log_trans[far] -= hmm.transitions.log_trans[far].logsumexp(0)
    text = tokens()
    text[[0, 2]] = torch.where(text[[0, 2]] % 4 == 0, 2, text[[0, 2]])  # none of the first block
    text[1, 3:6] = torch.tensor([0, 1, 0])  # words of the two blocks
    there = hmm.to(DEVICE, torch.float32)
    passes = dispatch.kernel_passes(Chain(there, text.to(DEVICE)), back=True)
    assert not passes.forward(0, 9, None, keep=False).low.any()
    truth = inference.counts(hmm, text, implementation="reference")
    redone, real = [], Chain.widened
    monkeypatch.setattr(Chain, "widened", lambda *given: redone.append(given[1]) or real(*given))
    ours = inference.counts(there, text.to(DEVICE), implementation="kernel")
    assert [rows.tolist() for rows in redone] == [[1]]
    close(ours.log_evidence, truth.log_evidence)
    for one, other in zip(ours.fields(), truth.fields(), strict=True):
        close(one / other.abs().max(), other / other.abs().max())


@pytest.mark.parametrize("gaps", [(46.0, 53.0), (20.0, 80.0), (52.0, 49.0)])
@pytest.mark.parametrize("shape", SUPPORTS)
def test_two_gaps_in_a_row(shape: str, gaps: tuple[float, float], monkeypatch) -> None:
    """Neither alone loses digits, but both together do, before a message is divided again."""
    if shape == "dense":
        monkeypatch.setattr(dispatch, "ONE_TILE", 0)
    one, two = gaps
    trans = torch.full((6, 6), -9.0, dtype=torch.float64)
    trans[0, [0, 2, 3]] = torch.tensor([0.0, -one, -one - 1], dtype=torch.float64)
    trans[1, [2, 3]] = torch.tensor([0.0, -0.1], dtype=torch.float64)
    trans[2:4, 4:] = torch.tensor([[-two, 0.0], [-two - 0.7, -0.1]], dtype=torch.float64)
    trans[4:] = 0.0
    never = -torch.inf
    emit = torch.tensor([[0.0, never], [0, 0], [0.0, never], [never, 0.0], [never, 0.0]]).double()
    support = Support.from_clusters([0, 1, 2, 0, 2], [2, 2, 2])
    if shape not in WITHOUT_GAPS:
        wide = torch.full((5, 6), never).double()
        emit = wide.scatter(1, support.rows[support.row_of_word], emit)
        support = Support.dense(5, 6)
    start = torch.full((6,), 1 / 6).double().log()
    hmm = HMM(start, Dense(trans.log_softmax(1)), emit, support).validate()
    there, text = hmm.to(DEVICE, torch.float32), torch.tensor([[0, 1, 2]])
    truth = inference.counts(hmm, text, implementation="reference")
    ours = inference.counts(there, text.to(DEVICE), implementation="kernel")
    close(ours.log_evidence, truth.log_evidence)
    for one_field, other in zip(ours.fields(), truth.fields(), strict=True):
        close(one_field, other)
    best = inference.viterbi(there, text.to(DEVICE), implementation="kernel")
    close(best.log_prob, inference.viterbi(hmm, text).log_prob)


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")  # of the interpreter
@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("shape", SUPPORTS)
def test_rows_that_cannot_be_leave_others_alone(shape: str, transitions: str, monkeypatch) -> None:
    """One of probability zero, and one with a word of e^-90, beside an ordinary one."""
    hmm = make_hmm(how_made(shape, 100, monkeypatch), transitions, scale=0.7)
    hmm.log_emit[3], hmm.log_emit[6] = -torch.inf, hmm.log_emit[6] - 90.0
    text = torch.where((tokens() == 3) | (tokens() == 6), 1, tokens())
    text[1, 4], text[2, 2] = 3, 6
    truth = inference.counts(hmm, text, implementation="reference")
    ours = inference.counts(hmm.to(DEVICE, torch.float32), text.to(DEVICE), implementation="kernel")
    assert ours.log_evidence.isneginf().tolist() == [False, True, False]
    for one, other in zip(ours.fields(), truth.fields(), strict=True):
        close(one, other)


def test_one_row_of_states_in_another_order() -> None:
    """One row is dense only where its states come as their numbers do."""
    dense = make_hmm(Support.dense(7, 5), "dense", scale=0.7)
    hmm = dense.restrict(torch.tensor([2, 0, 1, 4, 3]))
    assert len(hmm.support.rows) == 1 and not hmm.support.is_dense
    there, text = hmm.to(DEVICE, torch.float32), tokens()
    truth = inference.counts(hmm, text, implementation="reference")
    ours = inference.counts(there, text.to(DEVICE), implementation="kernel")
    for one, other in zip(ours.fields(), truth.fields(), strict=True):
        close(one, other)
    restart = torch.zeros_like(text, dtype=torch.bool)
    restart[:, 0] = True
    given = (text, restart, torch.full((3,), 9), torch.ones(3))
    made = count(there, *(part.to(DEVICE) for part in given))
    close(made.log_scales.sum(1), truth.log_evidence)
    for one, other in zip(made.fields, truth.fields(), strict=True):
        close(one, other)


def test_sources_that_are_no_states(monkeypatch) -> None:
    """As many sources as slots, padding included: those of carried states are counted too."""
    hmm = make_hmm(Support.from_clusters([0, 1], [4, 6]), "factored", scale=0.7)
    sub = hmm.restrict(torch.tensor([0, 1, 2, 4, 5, 6, 7, 8]), carried=torch.tensor([3, 9]))
    assert sub.transitions.num_sources == sub.support.rows.numel()
    logs = torch.tensor([[-0.7, -0.7]])
    belief = Belief(torch.tensor([[3, 9]]), logs.double(), torch.tensor([False]))
    theirs = Belief(*(part.to(DEVICE) for part in belief))
    text = torch.tensor([[0, 1, 1, 0]])
    truth = inference.counts(sub, text, belief=belief, implementation="reference")
    plain = torch.empty
    spoilt = lambda *size, **how: plain(*size, **how).fill_(-(1 << 10))  # noqa: E731
    monkeypatch.setattr(torch, "empty", spoilt)
    ours = inference.counts(
        sub.to(DEVICE, torch.float32), text.to(DEVICE), belief=theirs, implementation="kernel"
    )
    for one, other in zip(ours.fields(), truth.fields(), strict=True):
        close(one, other)


def test_a_gradient_whose_kernel_fails(monkeypatch) -> None:
    """Scoring works, the way back does not: it is found without kernels."""
    hmm = make_hmm(BLOCKS, "dense", dtype=torch.float32).to(DEVICE)
    hmm.log_emit.requires_grad_()
    text, real = tokens().to(DEVICE), dispatch.choose

    def choose(name: str, *given):
        return ("kernel", "it is a test") if name == "auto" else real(name, *given)

    def fail(*given, **more):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(dispatch, "choose", choose)
    monkeypatch.setattr(dispatch, "_told", set())
    evidence = inference.log_prob(hmm, text).log_evidence.sum()
    monkeypatch.setattr(block_kernels.kernel, "meet", fail)
    with pytest.warns(UserWarning, match="Kernels failed, so scaled runs"):
        (ours,) = torch.autograd.grad(evidence, hmm.log_emit)
    truth = inference.counts(hmm.detach(), text, implementation="scaled").emit
    close(ours, truth.cpu())


@pytest.mark.parametrize("implementation", ["kernel", "scaled", "reference"])
def test_a_gradient_is_of_what_was_asked(implementation: str) -> None:
    """Also where the caller has used the tensors for something else since."""
    hmm = make_hmm(BLOCKS, "dense", dtype=torch.float32).to(DEVICE)
    hmm.log_emit.requires_grad_()
    belief = inference.log_prob(hmm.detach(), tokens().to(DEVICE)).belief
    found = []
    for spoil in (False, True):
        given = [part.clone() for part in (tokens().to(DEVICE), LENGTHS.to(DEVICE), *belief)]
        text, lengths, *parts = given
        scored = inference.log_prob(
            hmm, text, lengths=lengths, belief=Belief(*parts), implementation=implementation
        )
        if spoil:
            text.fill_(0), lengths.fill_(2), parts[0].fill_(0), parts[1].fill_(-9.0)
            parts[2].fill_(True)
        found += torch.autograd.grad(scored.log_evidence.sum(), hmm.log_emit)
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_kernel_that_fails(monkeypatch) -> None:
    """By itself the plain implementation answers and says so once; who asked for it is told why."""
    hmm = make_hmm(BLOCKS, "dense", dtype=torch.float32).to(DEVICE)
    text = tokens().to(DEVICE)
    truth = inference.log_prob(hmm, text, implementation="scaled")

    def fail(*given, **more):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    monkeypatch.setattr(block_kernels.kernel, "emissions_of", fail)
    with pytest.raises(InputError, match=r"it failed \(OutOfMemoryError.*2 GiB.*; use scaled"):
        inference.log_prob(hmm, text, implementation="kernel")
    with pytest.raises(InputError, match="use reference"):
        inference.viterbi(hmm, text, implementation="kernel")
    real = dispatch.choose

    def choose(name: str, *given):
        return ("kernel", "it is a test") if name == "auto" else real(name, *given)

    monkeypatch.setattr(dispatch, "choose", choose)
    monkeypatch.setattr(dispatch, "_told", set())
    with pytest.warns(UserWarning, match="Kernels failed, so scaled runs, slower: OutOfMemory"):
        ours = inference.log_prob(hmm, text)
    close(ours.log_evidence, truth.log_evidence.cpu())
    for name in ("filter", "smooth", "counts", "sample_paths", "viterbi"):
        getattr(inference, name)(hmm, text)  # another warning would be an error
    monkeypatch.setattr(block_kernels.kernel, "emissions_of", lambda *given, **more: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # that is a fault of ours, and not to be hidden
        inference.log_prob(hmm, text)


def test_what_no_kernel_takes(monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "ONE_TILE", 0)
    missing = tokens()
    missing[1, 0] = -1
    for support, dtype, text, said in (
        (Support.ragged([range(1025), *[[0]] * 6], 1025), torch.float32, tokens(), "has 1,025"),
        (Support.dense(7, 5), torch.float64, tokens(), "tables are float64, and the .* float32"),
        (BLOCKS, torch.float32, missing, "a token is missing"),
    ):
        hmm = make_hmm(support, "dense", dtype=dtype)
        with pytest.raises(InputError, match=f"{said}.*use scaled, or auto"):
            inference.log_prob(hmm, text, implementation="kernel")
        assert torch.isfinite(inference.log_prob(hmm, text).log_evidence).all()


def test_a_kernel_where_there_is_no_gpu(monkeypatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    hmm = make_hmm(BLOCKS, "dense", dtype=torch.float32)
    with pytest.raises(InputError, match="this is cpu; use scaled"):
        inference.log_prob(hmm, tokens(), implementation="kernel")


@pytest.mark.filterwarnings("ignore:divide by zero")  # of the interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_no_text_goes_from_part_to_part_of_a_mixture(dtype: torch.dtype) -> None:
    """Nor between two blocks each of which has states of one part alone."""
    parts = [make_hmm("blocks", "factored", seed=seed, dtype=dtype) for seed in (1, 2)]
    whole = mixture(parts).to(DEVICE)
    for states in (None, [0, 1, 6, 7]):
        hmm = whole if states is None else whole.restrict(torch.tensor(states))
        text = torch.tensor([[0, 1, 2], [0, 3, 0], [1, 4, 2]], device=DEVICE)
        ours, truth = (
            inference.counts(hmm, text, implementation=how) for how in ("kernel", "reference")
        )
        close(ours.log_evidence, truth.log_evidence.cpu())
        for a, b in zip(ours.fields(), truth.fields(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        ours, truth = (
            inference.viterbi(hmm, text, implementation=how) for how in ("kernel", "reference")
        )
        assert ours.states.equal(truth.states)
        close(ours.log_prob, truth.log_prob.cpu())
        assert torch.isneginf(truth.log_prob).tolist() == [states is not None, False, False]


def test_states_of_a_word_that_are_too_many_for_kernels_are_told_once(monkeypatch) -> None:
    """Such as a mixture has: slower on a GPU, whatever the text, and so not in silence."""
    part = make_hmm(BLOCKS, "factored", dtype=torch.float32).to(DEVICE)
    mixed = mixture([part, part, part])
    truth = inference.log_prob(part, tokens())
    monkeypatch.setattr(dispatch, "why_not", lambda device: None)
    monkeypatch.setattr(dispatch, "_told", set())
    name, reason = dispatch.choose("auto", dispatch.WITH_KERNEL, Chain(mixed, tokens()))
    assert name == "kernel" and "fastest" in reason
    monkeypatch.setattr(dispatch, "WIDEST", 17)
    name, reason = dispatch.choose("auto", dispatch.WITH_KERNEL, Chain(mixed, tokens()))
    assert name == "scaled" and "a word has 51 states, and the kernel takes 17" in reason
    said = "Kernels cannot run, so scaled runs, slower: a word has 51 states"
    with pytest.warns(UserWarning, match=said):
        ours = inference.log_prob(mixed, tokens())
    close(ours.log_evidence, truth.log_evidence.cpu())
    inference.smooth(mixed, tokens())  # another warning would be an error
    monkeypatch.setattr(dispatch, "_told", set())
    inference.log_prob(mixed, tokens(), implementation="scaled")  # as it was asked to
    inference.log_prob(part, tokens())  # which kernels take
