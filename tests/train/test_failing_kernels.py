"""Kernels and graphs that fail: training goes on as if they had never been tried, and says so."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hmmlm.errors import InputError
from hmmlm.ops.kernels import are_allowed
from hmmlm.params import lowrank
from hmmlm.support import Support
from hmmlm.train import graph
from hmmlm.train import loss as hmm_loss
from hmmlm.train.graph import Widths, describe
from hmmlm.train.loop import TrainSettings
from hmmlm.train.loss import Dropout, HmmLoss
from hmmlm.train.sgd import Sgd
from train.test_graph import BLOCKS, DEVICE, make_batch, make_optimiser

triton = pytest.importorskip("triton")
from triton.compiler.errors import CompilationError  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

TROUBLE = {
    "memory": (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), "2 GiB"),
    "resources": (OutOfResources(300_000, 232_448, "shared memory"), "shared memory"),
    "compiler": (CompilationError("def f():\n  x", None, "no such tile"), "Error: no such tile"),
    "anything": (RuntimeError("Failed to find C compiler."), "RuntimeError: Failed to find C"),
}
ERROR = 0.0 if DEVICE == "cpu" else 1e-5
"""Relative; on a GPU the plain step adds in whatever order it comes to."""


@pytest.fixture(autouse=True)
def _no_device(monkeypatch) -> None:
    """Steps by kernels also without a GPU, in the interpreter."""
    monkeypatch.setattr("hmmlm.train.sgd.why_no_graph", lambda *given: None)


def make(
    *, support: Support = BLOCKS, implementation: str = "auto", carry: bool = False
) -> tuple[Sgd, list[str]]:
    """A learner and what it says."""
    start = torch.Generator().manual_seed(0)
    model = lowrank.Settings(width=16).build(support, generator=start).to(DEVICE)
    loss = HmmLoss(
        model, support, dropout=Dropout(0.5), carry=carry, seed=3, implementation=implementation
    )
    sgd, told = Sgd(model, loss, TrainSettings()), []
    sgd.notice = told.append
    assert sgd.graphed is not None
    if DEVICE == "cpu":
        sgd.optimiser = sgd.graphed.optimiser = make_optimiser(model)
    return sgd, told


def run(sgd: Sgd, first: int, last: int) -> list[float]:
    return [sgd.step(iter([make_batch(n)]), 0.01, 0.0).loss for n in range(first, last)]


def near(losses: list[float]) -> Any:
    return pytest.approx(losses, rel=ERROR, abs=0.0)


def check_same(one: Sgd, two: Sgd) -> None:
    held, other = ({**sgd.model.state_dict(), **sgd.state()} for sgd in (one, two))
    assert held.keys() == other.keys() and len(held) > 4
    for name in held:
        torch.testing.assert_close(held[name], other[name], rtol=ERROR, atol=ERROR, msg=name)


def fails(error: Exception, seen: list[Any] | None = None) -> Callable[..., Any]:
    def fail(*given, **named):
        if seen is not None:
            seen.append(given)
        raise error

    return fail


@pytest.mark.parametrize("name", TROUBLE)
@pytest.mark.parametrize("before", [0, 1])
def test_kernels_that_fail_are_left(name: str, before: int, monkeypatch) -> None:
    error, said = TROUBLE[name]
    (sgd, told), (plain, _), tried = make(), make(), []
    assert run(sgd, 0, before) == near(run(plain, 0, before))
    plain.graphed, plain.is_plain = None, True
    with monkeypatch.context() as patch:
        patch.setattr(hmm_loss, "count", fails(error, tried))
        losses = run(sgd, before, 4)
    assert losses == near(run(plain, before, 4))
    check_same(sgd, plain)
    assert len(tried) == len(told) == 1 and sgd.graphed is None
    assert told[0].startswith("Steps go on without kernels, slower, because they failed: ")
    assert said in told[0] and said in str(sgd.why_no_graph)


def test_a_step_of_the_optimiser_that_fails_leaves_nothing() -> None:
    (sgd, told), (plain, _), patch = make(), make(), pytest.MonkeyPatch()
    plain.graphed, plain.is_plain = None, True

    def step() -> None:
        patch.undo()
        parameter = next(sgd.model.parameters())
        sgd.optimiser.state[parameter]["step"] = torch.zeros(())  # the moments found no room
        raise TROUBLE["memory"][0]

    patch.setattr(sgd.optimiser, "step", step)
    assert run(sgd, 0, 3) == near(run(plain, 0, 3))
    check_same(sgd, plain)
    assert sgd.optimiser.grad_scale is None and len(told) == 1


def test_nothing_of_an_attempt_is_held_when_the_plain_step_runs(monkeypatch) -> None:
    sgd, _ = make()
    left: list[Any] = []

    def norm(*given):
        big = torch.zeros(1000)
        left.append(weakref.ref(big))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def step(batches, rate, done):
        assert left[0]() is None
        assert all(part.grad is None for part in sgd.model.parameters())
        return Sgd._step(sgd, batches, rate, done)

    monkeypatch.setattr(torch.nn.utils, "get_total_norm", norm)
    monkeypatch.setattr(sgd, "_step", step)
    gc.disable()
    try:
        run(sgd, 0, 1)
    finally:
        gc.enable()
    assert len(left) == 1


def break_captures(monkeypatch) -> list[Any]:
    """On a GPU by waiting for it within a capture."""
    tried: list[Any] = []
    if DEVICE == "cpu":
        error = RuntimeError("operation not permitted when stream is capturing")
        monkeypatch.setattr(graph, "Replay", fails(error, tried))
        return tried
    compute = graph.GraphedSteps.compute

    def wait(self, packed, level, wide):
        if torch.cuda.is_current_stream_capturing():
            tried.append(packed)
            torch.cuda.synchronize()
        return compute(self, packed, level, wide)

    monkeypatch.setattr(graph.GraphedSteps, "compute", wait)
    return tried


def test_kernels_go_on_where_only_the_graph_fails(monkeypatch) -> None:
    (sgd, told), (other, _) = make(implementation="kernel"), make()
    assert other.graphed is not None
    other.graphed.may_capture = False
    losses = run(other, 0, 4)
    tried = break_captures(monkeypatch)
    assert run(sgd, 0, 4) == near(losses)
    check_same(sgd, other)
    assert len(tried) == len(told) == 1 and sgd.graphed is not None
    assert told[0].startswith(
        "Steps go on without a CUDA graph, by the same kernels, because the graph failed: "
    )
    assert "not permitted when stream is capturing" in told[0]


@pytest.mark.skipif(DEVICE != "cpu", reason="the graph is a fake")
def test_a_graph_that_runs_out_of_memory_later(monkeypatch) -> None:
    class Replay:
        def __init__(self, run, given, generator, device, pool) -> None:
            self.run, self.calls = run, 0

        def __call__(self, given):
            self.calls += 1
            if self.calls == 2:
                raise TROUBLE["memory"][0]
            return self.run(given)

    (sgd, told), (other, _) = make(), make()
    assert sgd.graphed is not None and other.graphed is not None
    other.graphed.may_capture = False
    losses = run(other, 0, 5)
    monkeypatch.setattr(graph, "Replay", Replay)
    assert run(sgd, 0, 5) == near(losses)
    check_same(sgd, other)
    assert len(told) == 1 and not sgd.graphed.graphs


def test_graph_and_kernels_fail_one_after_the_other(monkeypatch) -> None:
    (sgd, told), (other, _) = make(), make()
    assert other.graphed is not None
    other.graphed.may_capture = False
    assert run(sgd, 0, 2) == near(run(other, 0, 2))
    other.graphed, other.is_plain = None, True
    tried = break_captures(monkeypatch)
    monkeypatch.setattr(hmm_loss, "count", fails(TROUBLE["memory"][0]))
    assert run(sgd, 2, 4) == near(run(other, 2, 4))
    check_same(sgd, other)
    assert len(tried) == 1 and len(told) == 2 and sgd.graphed is None


@pytest.mark.parametrize("name", TROUBLE)
def test_kernels_that_were_asked_for_must_work(name: str, monkeypatch) -> None:
    error, said = TROUBLE[name]
    (sgd, told), (fresh, _) = make(implementation="kernel"), make()
    monkeypatch.setattr(hmm_loss, "count", fails(error))
    with pytest.raises(InputError) as refused:
        run(sgd, 0, 1)
    assert said in str(refused.value) and not told
    assert str(refused.value).startswith("implementation is 'kernel' but the kernels of a step")
    assert str(refused.value).endswith("; use auto, which goes on without them, or scaled.")
    assert not sgd.optimiser.state
    for name, part in sgd.model.state_dict().items():
        assert torch.equal(part, fresh.model.state_dict()[name])
    assert isinstance(sgd.loss, HmmLoss) and isinstance(fresh.loss, HmmLoss)
    assert torch.equal(sgd.loss.generator.get_state(), fresh.loss.generator.get_state())


def test_mistakes_of_a_user_are_not_hidden(monkeypatch) -> None:
    sgd, told = make()
    monkeypatch.setattr(hmm_loss, "count", fails(InputError("This is yours.")))
    with pytest.raises(InputError, match=r"This is yours\."):
        run(sgd, 0, 1)
    assert not told


def test_a_step_is_not_taken_twice_because_the_next_batch_fails() -> None:
    (sgd, told), (other, _) = make(), make()
    run(other, 0, 1)
    sgd.peek = fails(OSError("the disk is gone"))
    with pytest.raises(OSError, match="the disk is gone"):
        run(sgd, 0, 1)
    check_same(sgd, other)
    assert not told


def lose_digits(monkeypatch, kinds: tuple[bool, ...]) -> list[bool]:
    """Rows lose digits in float32 (False) or float64 (True); gives what is tried from here on."""
    real, tried = hmm_loss.count, []

    def lose(*given, wide: bool):
        tried.append(wide)
        counted = real(*given, wide=wide)
        return counted._replace(low=torch.full_like(counted.low, wide in kinds))

    monkeypatch.setattr(hmm_loss, "count", lose)
    return tried


@pytest.mark.parametrize("implementation", ["auto", "kernel"])
@pytest.mark.parametrize("support", [Support.dense(10, 7), BLOCKS])
def test_a_step_that_loses_digits_draws_the_same_states_again(
    support: Support, implementation: str, monkeypatch
) -> None:
    """By the plain step, where float64 loses digits too."""
    sgd, told = make(support=support, implementation=implementation)
    plain, _ = make(support=support)
    plain.graphed = None
    tried = lose_digits(monkeypatch, (False, True))
    assert run(sgd, 0, 2) == near(run(plain, 0, 2))
    assert sgd.graphed is not None and not told
    assert tried == [False, True] * 2
    sgd.graphed.widths.restore({})
    check_same(sgd, plain)


def test_a_step_in_float64_draws_the_same_states(monkeypatch) -> None:
    (sgd, told), (other, _) = make(), make()
    wanted = run(other, 0, 2)
    tried, batches = lose_digits(monkeypatch, (False,)), []
    monkeypatch.setattr(sgd, "_step", fails(AssertionError("the plain step")))
    sgd.peek = lambda: batches.append(1)  # once for each step
    assert run(sgd, 0, 2) == pytest.approx(wanted, rel=1e-5)
    assert tried == [False, True, True] and len(batches) == 2 and not told
    # A learner that goes on later goes on with the same.
    other.restore(sgd.state())
    assert other.graphed is not None and other.graphed.widths.left == graph.SHORTEST - 2
    assert other.graphed.widths.pause == 2 * graph.SHORTEST


def test_float32_is_tried_again_now_and_then() -> None:
    """After 50 steps in float64, then 100, up to 1,000, and 50 again once it has worked."""
    widths, tried = Widths(can_widen=True), []
    for step in range(4000):
        loses = step not in range(2500, 3600)
        for wide in widths.ways():
            skipped = loses and not wide
            widths.note(wide, skipped)
            if not wide:
                tried.append(step)
            if not skipped:
                break
    assert tried == [0, 50, 150, 350, 750, 1550, *range(2550, 3601), 3650, 3750, 3950]
    assert Widths(can_widen=False).ways() == (False,)


def test_float64_that_fails_leaves_float32(monkeypatch) -> None:
    (sgd, told), (plain, _) = make(), make()
    assert sgd.graphed is not None
    plain.graphed, sgd.graphed.may_capture = None, False
    tried, real = lose_digits(monkeypatch, (False,)), hmm_loss.count

    def count(*given, wide: bool):
        made = real(*given, wide=wide)
        if wide:
            raise TROUBLE["memory"][0]
        return made

    monkeypatch.setattr(hmm_loss, "count", count)
    assert run(sgd, 0, 3) == near(run(plain, 0, 3))
    assert tried == [False, True, False, False] and len(told) == 1
    assert told[0].startswith("Steps that lose digits are slower, because float64 failed: OutOf")


@pytest.mark.parametrize("carry", [False, True])
def test_plain_steps_leave_kernels_of_tables_too(carry: bool, monkeypatch) -> None:
    (sgd, told), (plain, _) = make(carry=carry), make(carry=carry)
    sgd.graphed = plain.graphed = None
    plain.is_plain = True
    count, tried = HmmLoss.__call__, []
    batches = [make_batch(n)._replace(restart=torch.zeros(3, 6).bool()) for n in range(4)]
    pairs = [batches[:2], batches[2:]]
    wanted = [plain.step(iter(pair), 0.01, 0.0).loss for pair in pairs]

    def call(self, batch, done):
        nats = count(self, batch, done)
        if are_allowed():
            tried.append(batch)
            raise TROUBLE["compiler"][0]
        return nats

    monkeypatch.setattr(HmmLoss, "__call__", call)
    monkeypatch.setattr("hmmlm.train.sgd.why_not", lambda device: None)
    assert [sgd.step(iter(pair), 0.01, 0.0).loss for pair in pairs] == near(wanted)
    check_same(sgd, plain)
    assert len(tried) == len(told) == 1 and "no such tile" in told[0]


def test_more_memory_is_not_found_by_trying_again(monkeypatch) -> None:
    sgd, told = make()
    sgd.graphed = None
    monkeypatch.setattr("hmmlm.train.sgd.why_not", lambda device: None)
    monkeypatch.setattr(HmmLoss, "__call__", fails(TROUBLE["memory"][0]))
    with pytest.raises(torch.OutOfMemoryError):
        run(sgd, 0, 1)
    assert not told


def test_without_anybody_who_listens_it_is_a_warning(monkeypatch) -> None:
    sgd, _ = make()
    sgd.notice = None
    monkeypatch.setattr(hmm_loss, "count", fails(TROUBLE["anything"][0]))
    with pytest.warns(UserWarning, match="without kernels, slower, because they failed: Runtime"):
        run(sgd, 0, 1)


def test_what_broke_a_capture_is_told() -> None:
    with pytest.raises(RuntimeError) as caught:
        try:
            raise ValueError("the true one\nand more")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")
    assert describe(caught.value) == "ValueError: the true one"
    assert len(describe(RuntimeError("word " * 100))) <= 240
