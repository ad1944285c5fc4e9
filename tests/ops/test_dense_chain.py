"""The recursions of dense chains, compiled and with torch, against a plain loop in log space."""

import itertools
import math
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from hmmlm.ops import dense_chain
from hmmlm.ops.dense_chain import compiled, scaled

SIZES = (1, 3, 17, 63, 257)
BATCHES = (1, 2, 3, 5, 8, 19)
LOOPS = pytest.mark.parametrize("loops", [scaled, compiled], ids=["scaled", "compiled"])
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
WORDS, STEPS = 7, 6


class Problem(NamedTuple):
    """Log tables in float64 and what happens at every step."""

    log_init: Tensor
    log_trans: Tensor
    log_weights: Tensor
    index: Tensor
    restart: Tensor
    active: Tensor
    counted: Tensor
    log_message: Tensor  # of the step before the first


def make(states: int, batch: int, *, seed: int = 0) -> Problem:
    """Random tables with impossible words and transitions, absent words, restarts and tails."""
    generator = torch.Generator().manual_seed(seed + 100 * states + batch)

    def normal(*size: int) -> Tensor:
        return 2 * torch.randn(size, generator=generator, dtype=torch.float64)

    trans, weights = normal(states, states), normal(WORDS, states)
    if states > 1:
        trans[torch.rand(trans.shape, generator=generator) < 0.3] = -torch.inf
        trans[:, 0] = 0.5  # a way on from everywhere
        weights[torch.rand(weights.shape, generator=generator) < 0.2] = -torch.inf
        weights[:, 0] = -1.0
    index = torch.randint(-1, WORDS, (batch, STEPS), generator=generator)
    restart = torch.rand(batch, STEPS, generator=generator) < 0.2
    lengths = torch.randint(1, STEPS + 1, (batch,), generator=generator)
    return Problem(
        normal(states).log_softmax(0),
        trans.log_softmax(1),
        weights.log_softmax(0),
        index,
        restart,
        torch.arange(STEPS) < lengths[:, None],
        torch.rand(batch, STEPS, generator=generator) < 0.8,
        normal(batch, states).log_softmax(1),
    )


class Answer(NamedTuple):
    messages: Tensor
    log_scales: Tensor
    posteriors: Tensor
    back: Tensor  # of the step before the first, its largest entry 1
    counts: Tensor  # of transitions within and into the stretch


def define(problem: Problem, begin: int) -> Answer:
    """The same in log space, a row and a step at a time; the steps before `begin` are not done."""
    batch, states = problem.log_message.shape
    shape = (batch, STEPS, states)
    messages, posteriors = torch.zeros(shape).double(), torch.zeros(shape).double()
    scales = torch.zeros(batch, STEPS).double()
    backs = torch.zeros(batch, states).double()
    counts = torch.zeros(states, states).double()
    for b in range(batch):
        message, joints, weights = problem.log_message[b], [], []
        for t in range(STEPS):
            word = int(problem.index[b, t])
            weights.append(problem.log_weights[word] if word >= 0 else torch.zeros(states).double())
            joints.append(message[:, None] + problem.log_trans)
            if t >= begin and problem.active[b, t]:
                prediction = torch.logsumexp(joints[-1], 0)
                if problem.restart[b, t]:
                    prediction = problem.log_init
                message = prediction + weights[-1]
                scales[b, t] = torch.logsumexp(message, 0)
                message = message - scales[b, t]
            messages[b, t] = message
        back = torch.zeros(states).double()
        for t in range(STEPS - 1, -1, -1):
            posteriors[b, t] = (messages[b, t] + back).softmax(0)
            if problem.active[b, t] and not problem.restart[b, t]:
                joint = joints[t] + weights[t] + back
                if problem.counted[b, t]:
                    counts += joint.flatten().softmax(0).view_as(joint)
                back = torch.logsumexp(problem.log_trans + weights[t] + back, 1)
                back -= back.max()
            else:
                back = torch.zeros(states).double()
        backs[b] = back
    return Answer(messages.exp(), scales, posteriors, backs.exp(), counts)


def poisoned(*size: int, dtype: torch.dtype) -> Tensor:
    return torch.full(size, torch.nan, dtype=dtype)


def solve(loops: ModuleType, problem: Problem, dtype: torch.dtype, begin: int = 0) -> Answer:
    batch, states = problem.log_message.shape
    log_trans, size = problem.log_trans.to(dtype), (batch, STEPS, states)
    log_weights = problem.log_weights.to(dtype)
    messages, log_scales = poisoned(*size, dtype=dtype), poisoned(*size[:2], dtype=dtype)
    low = torch.zeros(batch, dtype=torch.bool)
    start = problem.log_message.to(dtype).exp()
    messages[:, :begin], log_scales[:, :begin] = start[:, None], 0.0
    last = loops.forward(
        start,
        loops.pack(log_trans),
        log_weights,
        problem.index,
        problem.restart,
        problem.active,
        problem.log_init.to(dtype).exp(),
        log_scales,
        low,
        messages,
        begin=begin,
        exact_zeros=True,
    )
    torch.testing.assert_close(last, messages[:, -1], rtol=0, atol=0)
    posteriors, totals = poisoned(*size, dtype=dtype), poisoned(*size[:2], dtype=dtype)
    pairs = poisoned(*size, dtype=dtype)
    cut = ~problem.active | problem.restart
    back = loops.backward(
        torch.ones_like(start),
        loops.pack(log_trans, turned=True),
        log_weights,
        problem.index,
        cut,
        messages,
        log_scales,
        problem.counted,
        posteriors,
        totals,
        low,
        pairs,
        exact_zeros=True,
    )
    assert not low.any()
    before = torch.cat([start[:, None], messages[:, :-1]], 1)
    counts = torch.einsum("bti,btj->ij", before, pairs) * log_trans.exp()
    return Answer(messages, log_scales, posteriors, back, counts)


@LOOPS
@TYPES
@pytest.mark.parametrize("states", SIZES)
@pytest.mark.parametrize("batch", BATCHES)
def test_recursions_equal_the_definition(loops, dtype, states, batch) -> None:
    problem = make(states, batch)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    for got, expected in zip(solve(loops, problem, dtype), define(problem, 0), strict=True):
        limits = {"rtol": 20 * tolerance, "atol": tolerance * (1 + float(expected.abs().max()))}
        torch.testing.assert_close(got.double(), expected, **limits)


@LOOPS
@TYPES
@pytest.mark.parametrize("begin", [1, STEPS])
def test_steps_before_the_beginning_are_left_alone(loops, dtype, begin) -> None:
    problem = make(17, 5)
    got, expected = solve(loops, problem, dtype, begin), define(problem, begin)
    for name in ("messages", "log_scales"):
        torch.testing.assert_close(
            getattr(got, name).double(), getattr(expected, name), rtol=2e-6, atol=2e-6
        )


@TYPES
def test_both_agree_without_messages_or_pairs(dtype) -> None:
    problem = make(63, 5)
    log_trans = problem.log_trans.to(dtype)
    found = []
    for loops in (scaled, compiled):
        log_scales, low = poisoned(5, STEPS, dtype=dtype), torch.zeros(5, dtype=torch.bool)
        last = loops.forward(
            problem.log_message.to(dtype).exp(),
            loops.pack(log_trans),
            problem.log_weights.to(dtype),
            problem.index,
            problem.restart,
            problem.active,
            problem.log_init.to(dtype).exp(),
            log_scales,
            low,
            None,
            begin=0,
            exact_zeros=True,
        )
        full = solve(loops, problem, dtype)
        torch.testing.assert_close(log_scales, full.log_scales)
        found.append((last, log_scales))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@LOOPS
@pytest.mark.parametrize("exact_zeros", [True, False])
@pytest.mark.parametrize("kind", ["weight", "transition", "none", "impossible", "past the end"])
def test_rows_that_lose_digits_are_marked(loops, exact_zeros, kind) -> None:
    log_trans = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log()
    log_weights = torch.tensor([[-1.0, -1.0], [-1.0, -1.0]])
    if kind in ("weight", "past the end"):
        log_weights[1, 0] = -90.0
    if kind == "transition":
        log_trans[:, 0] = -80.0
    if kind == "impossible":
        log_weights[1, 0] = -torch.inf
    index = torch.tensor([[0, 0, 0], [0, 1, 0], [0, 0, 1]])
    active = torch.ones(3, 3, dtype=torch.bool)
    if kind == "past the end":
        active[1, 1:], active[2, 2:] = False, False
    restart = torch.zeros(3, 3, dtype=torch.bool)
    ones, log_scales = torch.ones(3, 2), torch.empty(3, 3)
    low, low_back = torch.zeros(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool)
    messages = torch.empty(3, 3, 2)
    limits = {"exact_zeros": exact_zeros}
    loops.forward(
        ones / 2, loops.pack(log_trans), log_weights, index, restart, active, ones[0] / 2,
        log_scales, low, messages, begin=0, **limits,
    )  # fmt: skip
    loops.backward(
        ones, loops.pack(log_trans, turned=True), log_weights, index, ~active, messages, log_scales,
        None, torch.empty(3, 3, 2), torch.empty(3, 3), low_back, None, **limits,
    )  # fmt: skip
    marked = {
        "weight": [False, True, True],
        "transition": [True, True, True],
        "none": [False] * 3,
        "impossible": [False] * 3,
        "past the end": [False] * 3,
    }[kind]
    assert low.tolist() == marked
    if kind != "transition":  # a state that is hard to enter is as easy to leave as any other
        assert low_back.tolist() == marked


@LOOPS
def test_zeros_are_doubted_where_they_may_have_been_lost(loops) -> None:
    log_trans = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log()
    flags = torch.zeros(1, 1, dtype=torch.bool)
    for exact_zeros in (True, False):
        low = torch.zeros(1, dtype=torch.bool)
        loops.forward(
            torch.tensor([[1.0, 0.0]]), loops.pack(log_trans), torch.zeros(1, 2),
            torch.zeros(1, 1, dtype=torch.long), flags, ~flags, torch.ones(2) / 2,
            torch.empty(1, 1), low, None, begin=0, exact_zeros=exact_zeros,
        )  # fmt: skip
        assert low.tolist() == [not exact_zeros]


@LOOPS
@TYPES
@pytest.mark.parametrize("states", SIZES)
def test_rows_are_added_where_counted(loops, dtype, states) -> None:
    generator = torch.Generator().manual_seed(states)
    index = torch.randint(WORDS, (5, STEPS), generator=generator)
    counted = torch.rand(5, STEPS, generator=generator) < 0.7
    rows = torch.rand(5, STEPS, states, generator=generator).to(dtype)
    rows[~counted] = torch.nan
    table = torch.rand(WORDS, states, generator=generator).to(dtype)
    expected = table.clone()
    for b, t in itertools.product(range(5), range(STEPS)):
        if counted[b, t]:
            expected[index[b, t]] += rows[b, t]
    loops.add_rows(table, index, rows, counted)
    torch.testing.assert_close(table, expected)


@TYPES
def test_packed_matrices_are_exponentials_right_to_the_last_bits(dtype) -> None:
    lowest = {torch.float32: -103.0, torch.float64: -744.0}[dtype]
    values = torch.cat([torch.linspace(lowest, 5, 4001), torch.linspace(-1, 0, 1038)]).to(dtype)
    values = torch.cat([values, torch.tensor([-torch.inf, -1e4], dtype=dtype)])
    size = math.isqrt(len(values))
    assert size**2 == len(values)
    packed = compiled.pack(values.view(size, size))
    matrix = packed.transpose(0, 1).reshape(packed.shape[1], -1)
    assert not matrix[size:].any() and not matrix[:, size:].any()
    turned = compiled.pack(values.view(size, size), turned=True).transpose(0, 1)
    assert torch.equal(turned.reshape(matrix.shape), matrix.T)
    exact = np.exp(values.numpy().astype(np.longdouble))
    got = matrix[:size, :size].flatten().numpy()
    info = torch.finfo(dtype)
    normal = exact > 1e3 * info.tiny  # what is smaller has fewer digits
    assert (np.abs(got - exact)[normal] / exact[normal]).max() < 4 * info.eps
    assert np.abs(got - exact)[~normal].max() <= 1e3 * info.tiny * info.eps * 4
    assert got[-2] == 0 and got[-1] == 0


@LOOPS
@TYPES
def test_the_logarithm(loops, dtype) -> None:
    values = torch.tensor([[0.0, 1.0, 1e-20], [0.5, 3.0, 1e-40]], dtype=dtype)
    torch.testing.assert_close(loops.log(values), values.log())
    torch.testing.assert_close(loops.log(values.T), values.T.log())


@LOOPS
@TYPES
def test_the_least_probability_that_is_not_zero(loops, dtype) -> None:
    values = torch.tensor([[-1.0, -torch.inf], [-30.0, -2.0]], dtype=dtype)
    assert loops.least(values) == pytest.approx(math.exp(-30), rel=1e-6)
    values[0, 1] = -800.0  # too small for either type
    assert loops.least(values) == 0
    assert loops.least(torch.full((3,), -torch.inf, dtype=dtype)) == 1


def test_the_choice_says_why() -> None:
    cpu = torch.device("cpu")
    few, many = dense_chain.COMPILED_UP_TO, dense_chain.COMPILED_UP_TO + 1
    assert dense_chain.choose(cpu, few) == (
        compiled, f"{few:,} states: the compiled loop is faster up to {few:,}"
    )  # fmt: skip
    assert dense_chain.choose(cpu, many) == (
        scaled, f"{many:,} states: one product per step is faster above {few:,}"
    )  # fmt: skip
    assert dense_chain.choose(torch.device("cuda"), 3)[0] is scaled
