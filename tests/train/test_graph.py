"""Steps that a CUDA graph replays: the same numbers as the ordinary step."""

import copy
from dataclasses import replace

import pytest
import torch

from hmmlm.data.batches import Batch
from hmmlm.inference.kernels import count
from hmmlm.params import lowrank, mlp, scalar
from hmmlm.support import Support
from hmmlm.train.distributed import Ranks
from hmmlm.train.graph import GraphedSteps, pack, unpack, why_no_graph
from hmmlm.train.loop import TrainSettings
from hmmlm.train.loss import Dropout, HmmLoss
from hmmlm.train.sgd import Sgd

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCKS = Support.from_clusters([0, 1, 2, 1, 0, 2, 2, 1, 0, 0], [4, 8, 6])
OVERLAPPING = Support.uniform(10, 18, 6, torch.Generator().manual_seed(1))
LOW, MIDDLE, HIGH = [0, 1, 2, 3, 4], [1, 2, 5, 6, 7], [3, 4, 5, 6, 7]
TOGETHER = Support.ragged([LOW, HIGH, LOW, MIDDLE, HIGH] * 2, 8)
"""Words share rows, and rows share states; of eight, half leave each word one."""

SUPPORTS = [BLOCKS, OVERLAPPING, TOGETHER, Support.dense(10, 7)]
MODELS = {"mlp": mlp.Settings(width=16), "lowrank": lowrank.Settings(width=16)}
MODELS["scalar"] = scalar.Settings()
SETTINGS = TrainSettings(precision="bf16", clip=0.2)


def make(kind: str, support: Support, rate: float) -> tuple[torch.nn.Module, HmmLoss]:
    model = MODELS[kind].build(support, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    return model, HmmLoss(model, support, dropout=Dropout(rate), seed=3)


def make_optimiser(model: torch.nn.Module) -> torch.optim.AdamW:
    rate = torch.tensor(0.01, device=DEVICE)
    return torch.optim.AdamW(model.parameters(), lr=rate, fused=True)


def make_batch(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(10, (3, 6), generator=generator)
    restart = torch.rand(3, 6, generator=generator) < 0.2
    restart[:, 0] = True
    return Batch(tokens, torch.tensor([6, 2, 5]), restart, 13)


@pytest.mark.parametrize(
    ("support", "precision"),  # of bf16 the interpreter knows nothing
    [
        (BLOCKS, "float32"),
        (OVERLAPPING, "float32"),
        (TOGETHER, "tf32"),
        (Support.dense(10, 7), "tf32"),
    ],
)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_it_is_the_ordinary_step(
    kind: str, support: Support, rate: float, precision: str, monkeypatch
) -> None:
    monkeypatch.setattr("hmmlm.train.graph.WARM", 99)  # no graph without a GPU
    settings = replace(SETTINGS, precision=precision)
    model, loss = make(kind, support, rate)
    optimiser = make_optimiser(model)
    steps = GraphedSteps(model, loss, optimiser, settings)
    other, other_loss = make(kind, support, rate)
    sgd = Sgd(other, other_loss, replace(settings, weight_decay=0.01))
    for seed in range(2):
        made = steps.step(make_batch(seed), 0.01, 0.0)
        plain = sgd.step(iter([make_batch(seed)]), 0.01, 0.0)
        assert made is not None and made.tokens == plain.tokens
        # A factor may be rounded up in one of them and down in the other.
        within = {"float32": 1e-5, "tf32": 1e-4}[precision]
        assert made.loss == pytest.approx(plain.loss, rel=within)
        assert made.size == pytest.approx(plain.size, rel=1e-3)
    if kind != "mlp":  # whose start bias has no gradient, so its sign is noise to AdamW
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=2e-4)


def slices(rows: int = 3, length: int = 5, number: int = 6) -> list[Batch]:
    """Rows of text in slices: the last word of some is the one that ends sentences, 4."""
    text = torch.randint(10, (rows, length * number), generator=torch.Generator().manual_seed(1))
    text[0, 2 * length - 1] = text[1, 3 * length - 1] = text[2, 4 * length - 1] = 4
    batches = []
    for place, tokens in enumerate(text.split(length, 1)):
        restart = torch.zeros(rows, length, dtype=torch.bool)
        restart[:, 0] = place in (0, number - 1)
        restart[1, 0] |= place == 2  # one row alone starts afresh
        lengths = torch.full((rows,), length)
        lengths[2] -= int(place == 3)
        batches.append(Batch(tokens, lengths, restart, int(lengths.sum())))
    return batches


STREAMS = {
    "of its own": {},
    "reset": {"reset_id": 4},
    "reset inside": {"reset_id": 4, "reset_at_ends": False},
}


@pytest.mark.parametrize(
    ("support", "how"), [*((BLOCKS, how) for how in STREAMS), (OVERLAPPING, "reset inside")]
)
@pytest.mark.parametrize(("kind", "rate"), [("lowrank", 0.0), ("mlp", 0.4), ("scalar", 0.4)])
def test_belief_is_carried_as_in_the_ordinary_step(
    how: str, kind: str, rate: float, support: Support, monkeypatch
) -> None:
    monkeypatch.setattr("hmmlm.train.graph.WARM", 99)
    settings, taken, found = replace(SETTINGS, precision="float32"), [], []
    for captured in (True, False):
        model, _ = make(kind, support, 0.0)
        loss = HmmLoss(model, support, dropout=Dropout(rate), seed=3, carry=True, **STREAMS[how])
        sgd = Sgd(model, loss, replace(settings, weight_decay=0.01))
        if captured:
            optimiser = sgd.optimiser = make_optimiser(model)
            sgd.graphed = GraphedSteps(model, loss, optimiser, settings)
            step = sgd.graphed.step
            monkeypatch.setattr(
                sgd.graphed,
                "step",
                lambda *given, step=step: taken.append(step(*given)) or taken[-1],
            )
        steps = [sgd.step(iter([batch]), 0.01, 0.0) for batch in slices()]
        state = {key: part for key, part in loss.state().items() if key != "generator"}
        found.append(([made.loss for made in steps], [made.size for made in steps], state))
    assert [made is None for made in taken] == [True, False, False, False, False, True]
    (losses, sizes, state), (plain_losses, plain_sizes, plain_state) = found
    assert losses == pytest.approx(plain_losses, rel=1e-5)
    assert sizes == pytest.approx(plain_sizes, rel=1e-3)
    torch.testing.assert_close(state, plain_state, rtol=0, atol=1e-4)


@pytest.mark.parametrize("support", SUPPORTS)
def test_rows_start_afresh_where_nothing_is_carried(support: Support) -> None:
    batch = slices()[1]
    assert not batch.restart.any()
    gradients = []
    for captured in (True, False):
        model, _ = make("scalar", support, 0.0)
        loss = HmmLoss(model, support)
        assert loss.fit(batch, 0.0) == 0.0
        if captured:
            given = (part.to(DEVICE) for part in (batch.tokens, batch.restart, batch.lengths))
            made = loss.differentiate(*given, 0.0, "float32")
            assert not made.is_low
        else:
            loss(batch, 0.0).backward()
        gradients.append([part.grad for part in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)
    assert gradients[0][0].norm() > 1e-3


def test_what_does_not_fit_is_not_lost(monkeypatch) -> None:
    """Kernels that were asked for count the first batch of streams too."""
    monkeypatch.setattr("hmmlm.train.graph.WARM", 99)
    model, _ = make("lowrank", BLOCKS, 0.0)
    loss = HmmLoss(model, BLOCKS, carry=True, implementation="kernel")
    sgd = Sgd(model, loss, replace(SETTINGS, precision="float32"))
    sgd.optimiser = make_optimiser(model)
    sgd.graphed = GraphedSteps(model, loss, sgd.optimiser, sgd.settings)
    used, asked = [], HmmLoss._implementation
    monkeypatch.setattr(
        HmmLoss, "_implementation", lambda self: used.append(asked(self)) or used[-1]
    )
    for batch in slices()[:3]:
        sgd.step(iter([batch]), 0.01, 0.0)
    assert used == ["kernel"] and not sgd.graphed.lost


def test_a_step_of_the_optimiser_that_fails_carries_nothing_on(monkeypatch) -> None:
    monkeypatch.setattr("hmmlm.train.graph.WARM", 99)
    found = []
    for captured in (True, False):
        model, _ = make("lowrank", BLOCKS, 0.0)
        loss = HmmLoss(model, BLOCKS, carry=True)
        sgd = Sgd(model, loss, replace(SETTINGS, precision="float32"))
        sgd.notice = lambda text: None
        first, second, *_ = slices()
        sgd.step(iter([first]), 0.0, 0.0)
        if captured:
            sgd.optimiser = make_optimiser(model)
            sgd.graphed = GraphedSteps(model, loss, sgd.optimiser, sgd.settings)
            step = sgd.optimiser.step

            def fail(optimiser=sgd.optimiser, step=step) -> None:
                optimiser.step = step
                raise torch.OutOfMemoryError("CUDA out of memory.")

            sgd.optimiser.step = fail
        found.append(sgd.step(iter([second]), 0.0, 0.0).loss)
    assert sgd.graphed is None and found[0] == pytest.approx(found[1], rel=1e-6)


def test_rows_without_words_are_refused_as_ever() -> None:
    _, loss = make("lowrank", BLOCKS, 0.0)
    batch = slices()[0]
    assert loss.fit(batch._replace(lengths=torch.tensor([5, 0, 5])), 0.0) is None


@pytest.mark.parametrize("support", SUPPORTS)
def test_a_step_starts_afresh_after_sentences(support: Support, monkeypatch) -> None:
    monkeypatch.setattr("hmmlm.train.graph.WARM", 99)
    batch = slices()[0]
    model, _ = make("lowrank", support, 0.0)
    loss = HmmLoss(model, support, reset_id=int(batch.tokens[0, 1]))
    plain = float(loss(batch, 0.0).detach())
    settings = replace(SETTINGS, precision="float32")
    made = GraphedSteps(model, loss, make_optimiser(model), settings).step(batch, 0.01, 0.0)
    assert made is not None and made.loss == pytest.approx(plain, rel=1e-6)
    assert abs(plain - float(HmmLoss(model, support)(batch, 0.0).detach())) > 1e-4


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")  # of the interpreter
def test_a_step_that_loses_digits_is_not_taken() -> None:
    model, loss = make("scalar", Support.dense(10, 7), 0.0)
    batch = make_batch()
    with torch.no_grad():
        model.emit_logits[batch.tokens[0, 1]] = -800.0  # also in float64
    before = [part.clone() for part in model.parameters()]
    optimiser = make_optimiser(model)
    steps = GraphedSteps(model, loss, optimiser, replace(SETTINGS, precision="float32"))
    assert steps.step(batch, 0.01, 0.0) is None
    for part, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(part, old, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")  # of the interpreter
def test_a_word_that_lost_all_of_its_states_is_left_to_the_ordinary_step(monkeypatch) -> None:
    monkeypatch.setattr("hmmlm.train.graph.WARM", 99)
    support, batch = Support.uniform(10, 18, 2, torch.Generator().manual_seed(1)), make_batch()
    model, loss = make("lowrank", support, 0.8)
    drawn = loss.generator.get_state()
    optimiser = make_optimiser(model)
    steps = GraphedSteps(model, loss, optimiser, replace(SETTINGS, precision="float32"))
    weights = copy.deepcopy(model.state_dict())
    assert steps.step(batch, 0.01, 0.0) is None and steps.lost
    assert steps.widths.left == 0  # float64 would not have helped
    assert torch.equal(loss.generator.get_state(), drawn)
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)
    assert torch.isfinite(loss(batch, 0.0))  # where each word keeps one


def test_steps_of_peaked_transitions_are_in_float64(monkeypatch) -> None:
    """States so far apart that float32 loses digits at once."""
    monkeypatch.setattr("hmmlm.train.graph.WARM", 99)
    monkeypatch.setattr("hmmlm.train.sgd.why_no_graph", lambda *given: None)
    support, settings = Support.from_clusters([0, 1] * 5, [24, 33]), lowrank.Settings(scale=2.5)
    learners, plain_steps, plain_step = [], [], Sgd._step
    for _ in range(2):
        start = torch.Generator().manual_seed(0)
        model = settings.build(support, generator=start).to(DEVICE)
        loss = HmmLoss(model, support, dropout=Dropout(0.25), seed=3)
        sgd = Sgd(model, loss, replace(SETTINGS, precision="float32"))
        assert sgd.graphed is not None
        sgd.optimiser = sgd.graphed.optimiser = make_optimiser(model)
        learners.append(sgd)
    sgd, plain = learners
    plain.graphed = None
    tried, real = [], count

    def note(*given, wide: bool):
        made = real(*given, wide=wide)
        tried.append((wide, bool(made.low.any())))
        return made

    def step(self, *given):
        plain_steps.append(self)
        return plain_step(self, *given)

    monkeypatch.setattr("hmmlm.train.loss.count", note)
    monkeypatch.setattr(Sgd, "_step", step)
    for seed in range(2):
        ours, theirs = (one.step(iter([make_batch(seed)]), 0.0, 0.0) for one in learners)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert ours.size == pytest.approx(theirs.size, rel=1e-4)
    assert tried == [(False, True), (True, False), (True, False)]
    assert plain_steps == [plain, plain]


def test_batches_travel_whole() -> None:
    batch = make_batch()
    tokens, restart, ends = unpack(pack(batch))
    assert torch.equal(tokens, batch.tokens) and torch.equal(restart, batch.restart)
    assert torch.equal(ends, batch.lengths)


def test_the_next_batch_is_packed_before_the_answer_is_read(monkeypatch) -> None:
    monkeypatch.setattr("hmmlm.train.graph.WARM", 99)
    monkeypatch.setattr("hmmlm.train.sgd.why_no_graph", lambda *given: None)
    (model, loss), (other, other_loss) = (make("lowrank", BLOCKS, 0.5) for _ in range(2))
    sgd = Sgd(model, loss, replace(SETTINGS, precision="float32"))
    assert sgd.graphed is not None
    sgd.optimiser = sgd.graphed.optimiser = make_optimiser(model)
    plain = GraphedSteps(other, other_loss, make_optimiser(other), sgd.settings)
    batches, done = [make_batch(n) for n in range(4)], []
    wanted = [plain.step(batch, 0.01, 0.0) for batch in batches]
    compute, read = sgd.graphed.compute, torch.Tensor.tolist

    def note(what, run):
        return lambda *given: (done.append(what), run(*given))[1]

    monkeypatch.setattr("hmmlm.train.graph.pack", note("pack", pack))
    monkeypatch.setattr(sgd.graphed, "compute", note("launch", compute))
    monkeypatch.setattr(torch.Tensor, "tolist", note("read", read))
    rest = iter([*batches[1:], None])
    sgd.peek = lambda: next(rest)
    made = [sgd.step(iter([batch]), 0.01, 0.0) for batch in batches]
    # On a GPU plain tables in float32 are summed in any order.
    assert [step.loss for step in made] == pytest.approx([step.loss for step in wanted], rel=1e-6)
    assert done == ["pack", *["launch", "pack", "read"] * 3, "launch", "read"]


def test_why_there_is_no_graph(monkeypatch) -> None:
    model, loss = make("lowrank", BLOCKS, 0.5)
    assert "this is cpu" in str(why_no_graph(loss, model.cpu(), SETTINGS, 1))
    dense, (numbers, _) = Support.dense(10, 7), make("scalar", BLOCKS, 0.5)
    assert dense.is_dense and dense.is_partition  # found out now: there is no device in truth
    monkeypatch.setattr(torch.Tensor, "device", torch.device("cuda", 0))
    assert "neither that of an HMM" in str(why_no_graph(len, model, SETTINGS, 1))
    monkeypatch.setattr("hmmlm.train.graph.why_not", lambda device: None)
    assert why_no_graph(loss, model, SETTINGS, 1) is None
    assert "ranks" in str(why_no_graph(loss, model, SETTINGS, 2))
    assert "several batches" in str(why_no_graph(loss, model, replace(SETTINGS, accumulate=2), 1))
    for name, value, said in (
        ("support", Support.ragged([range(1025), [0]], 1025), "has 1,025"),
        ("implementation", "reference", "reference was asked for"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(loss, name, value)
            assert said in str(why_no_graph(loss, model, SETTINGS, 1))
    with monkeypatch.context() as patch:
        patch.setattr(loss, "carry", True)
        assert why_no_graph(loss, model, SETTINGS, 1) is None
        patch.setattr(loss, "support", dense)
        assert "over all states" in str(why_no_graph(loss, model, SETTINGS, 1))
    single = replace(SETTINGS, precision="float32")
    assert "precision is float32" in str(why_no_graph(loss, model, single, 1))
    assert why_no_graph(loss, numbers, single, 1) is None
    assert "does not take the support" in str(
        why_no_graph(loss, torch.nn.Linear(1, 1), SETTINGS, 1)
    )


def damp(sgd: Sgd) -> None:
    """Sums of kernels have no fixed order, and AdamW makes large steps of the smallest gradients:

    with a larger constant in its divisor two trainings stay as near as their gradients.
    """
    for group in sgd.optimiser.param_groups:
        group["eps"] = 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("support", SUPPORTS)
def test_graph_and_no_graph(kind: str, support: Support) -> None:
    losses = []
    settings = replace(SETTINGS, precision="float32" if kind == "scalar" else "bf16")
    for graph in (True, False):
        model, _ = make(kind, support, 0.0)
        loss = HmmLoss(model, support, dropout=Dropout(0.5, last=0.25), seed=3)
        sgd = Sgd(model, loss, settings, Ranks())
        assert sgd.why_no_graph is None and sgd.graphed is not None
        sgd.graphed.may_capture = graph
        damp(sgd)
        steps = [sgd.step(iter([make_batch(n % 7)]), 0.01, n / 40) for n in range(40)]
        assert len(sgd.graphed.graphs) == graph and sgd.graphed.may_capture == graph
        losses.append([step.loss for step in steps])
    assert losses[0][:20] == pytest.approx(losses[1][:20], rel=1e-5)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("support", [BLOCKS, OVERLAPPING])
def test_a_graph_carries_belief(kind: str, rate: float, support: Support) -> None:
    losses = []
    for graph in (True, False):
        model, _ = make(kind, support, 0.0)
        loss = HmmLoss(model, support, dropout=Dropout(rate), seed=3, carry=True, reset_id=4)
        sgd = Sgd(model, loss, SETTINGS)
        assert sgd.graphed is not None
        sgd.graphed.may_capture = graph
        damp(sgd)
        steps = [sgd.step(iter([batch]), 0.01, 0.0) for batch in slices(number=10) * 2]
        assert len(sgd.graphed.graphs) == graph
        losses.append([step.loss for step in steps])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_graphs_are_captured_again_after_going_back() -> None:
    losses = []
    for goes_back in (True, False):
        model, loss = make("lowrank", BLOCKS, 0.5)
        sgd = Sgd(model, loss, SETTINGS)
        assert sgd.graphed is not None
        steps = [sgd.step(iter([make_batch(n)]), 0.01, 0.0) for n in range(5)]
        if goes_back:
            sgd.restore(copy.deepcopy(sgd.state()))
        steps += [sgd.step(iter([make_batch(n)]), 0.01, 0.0) for n in range(5, 10)]
        assert len(sgd.graphed.graphs) == 1
        losses.append([step.loss for step in steps])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
