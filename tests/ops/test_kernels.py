"""Triton kernels against float64: in the interpreter on a CPU, or as they are on a GPU.

In float32 at odd sizes, messages in float64 too, on memory that is full of NaN before a kernel
writes to it.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.hmm import HMM, emission_table
from hmmlm.inference import counts
from hmmlm.inference.kernels import count
from hmmlm.ops.cells import Tiling, cell_products
from hmmlm.ops.choice import kernel as choice
from hmmlm.ops.dense_chain import counts_kernel as dense_counts
from hmmlm.ops.dense_chain import kernel as dense_chain
from hmmlm.ops.emission import cells_kernel, dense_kernel
from hmmlm.ops.emission import kernel as emission
from hmmlm.ops.normaliser import log_normaliser
from hmmlm.ops.residual import kernel as residual
from hmmlm.ops.row_sums import kernel as row_sums
from hmmlm.ops.tile_chain import tiles_kernel as tiles
from hmmlm.params.mlp import Residual
from hmmlm.products import BF16, FLOAT32, TF32, Operand
from hmmlm.support import Support
from hmmlm.transitions import Dense, Factored

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = [FLOAT32, TF32, pytest.param(BF16, marks=pytest.mark.gpu)]
TOLERANCE = {FLOAT32: 2e-6, TF32: 1e-3, BF16: 8e-3}


@pytest.fixture(autouse=True)
def poisoned(monkeypatch) -> None:
    """Memory that is not cleared holds NaN, or a number that no index is."""
    plain, plain_like = torch.empty, torch.empty_like

    def spoil(tensor: Tensor) -> Tensor:
        return tensor.fill_(torch.nan if tensor.is_floating_point() else -(1 << 30))

    monkeypatch.setattr(torch, "empty", lambda *size, **how: spoil(plain(*size, **how)))
    monkeypatch.setattr(torch, "empty_like", lambda t, **how: spoil(plain_like(t, **how)))


@pytest.fixture(params=TYPES, ids=lambda operand: operand.name)
def operand(request) -> Operand:
    if request.param == BF16 and DEVICE == "cpu":
        pytest.skip("the interpreter's bfloat16 products are wrong")
    return request.param


def noise(*size: int, seed: int = 0, scale: float = 0.5) -> Tensor:
    """Numbers that bfloat16 holds, so that rounding is not what is measured."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*size, generator=generator)).bfloat16().float()


def agree(ours: Tensor, truth: Tensor, operand: Operand) -> None:
    """The distance is small beside the whole."""
    gap = float((ours.detach().cpu().double() - truth).norm())
    assert gap <= TOLERANCE[operand] * float(truth.norm()) + 1e-12


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.to(DEVICE).requires_grad_() for tensor in tensors]


@pytest.mark.parametrize(
    "size", [(1, 1, 1), (3, 17, 5), (63, 257, 16), (40, 2100, 33), (2100, 40, 33)]
)
def test_normaliser(size: tuple[int, int, int], operand: Operand) -> None:
    rows, columns, width = size
    left, right = noise(rows, width), noise(columns, width, seed=1)
    weight = torch.rand(rows, generator=torch.Generator().manual_seed(2))
    truth = [left.double().requires_grad_(), right.double().requires_grad_()]
    norms = torch.logsumexp(truth[0] @ truth[1].T, 1)
    expected = torch.autograd.grad(norms, truth, weight.double())
    factors = leaves(left, right)
    how = {"operand": operand, "implementation": "kernel"}
    ours = log_normaliser(*factors, **how)
    agree(ours, norms.detach(), FLOAT32)
    for one, other in zip(
        torch.autograd.grad(ours, factors, weight.to(DEVICE)), expected, strict=True
    ):
        agree(one, other, operand)
    with torch.no_grad():
        agree(log_normaliser(*factors, **how), norms.detach(), FLOAT32)


@pytest.mark.parametrize("blocks", [[5, 17, 3], [16, 16], [130, 1, 63]])
@pytest.mark.parametrize("width", [3, 32])
def test_emissions_of_blocks(blocks: list[int], width: int, operand: Operand) -> None:
    words = 70
    clusters = torch.arange(words) % len(blocks)
    clusters[40:] = 0  # uneven in words too
    support = Support.from_clusters(clusters, blocks)
    tiling = Tiling(support.row_of_word)
    given = noise(support.num_states, width), noise(words, width, seed=1), noise(words, seed=2)
    padding = (support.rows < 0)[support.row_of_word]
    grad = noise(words, support.width, seed=3).masked_fill(padding, 0.0)
    truth = [part.double().requires_grad_() for part in given]
    logits = cell_products(truth[0], truth[1], support.rows, tiling) + truth[2][:, None]
    table = emission_table(logits, support).masked_fill(padding, 0.0)
    expected = torch.autograd.grad(table, truth, grad.double())
    parts = leaves(*given)
    place = torch.device(DEVICE)
    ours = emission.LogSoftmax.apply(*parts, support.rows.to(place), tiling.to(place), operand)
    assert bool((torch.isneginf(ours).cpu() == padding).all())
    agree(ours.masked_fill(padding.to(place), 0.0), table.detach(), FLOAT32)
    for one, other in zip(torch.autograd.grad(ours, parts, grad.to(place)), expected, strict=True):
        agree(one, other, operand)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", ["blocks", "overlapping", "ragged"])
def test_emissions_of_cells(shape: str, dtype: torch.dtype) -> None:
    """Of a state with more cells than are read at a time, and of one with a single cell."""
    words = 300
    support = {
        "blocks": Support.from_clusters((torch.arange(words) > 0).long(), [1, 5]),
        "overlapping": Support.uniform(words, 40, 9, torch.Generator().manual_seed(0)),
        "ragged": Support.ragged([[0, 1 + word % 3] for word in range(words - 1)] + [[4]], 5),
    }[shape]
    padding = (support.rows < 0)[support.row_of_word]
    logits, grad = (noise(words, support.width, seed=n, scale=3.0) for n in (0, 1))
    logits, grad = logits.masked_fill(padding, torch.nan), grad.masked_fill(padding, 0.0)
    truth = logits.double().requires_grad_()
    table = emission_table(truth, support).masked_fill(padding, 0.0)
    (expected,) = torch.autograd.grad(table, truth, grad.double())
    rounded = BF16 if dtype == torch.bfloat16 else FLOAT32
    (part,) = leaves(logits.to(dtype))
    cells = [part.to(DEVICE) for part in support.cells_by_state]
    states = support.rows[support.row_of_word].to(DEVICE)
    ours = cells_kernel.LogSoftmax.apply(part, states, *cells)
    assert bool((torch.isneginf(ours).cpu() == padding).all())
    agree(ours.masked_fill(padding.to(DEVICE), 0.0), table.detach(), rounded)
    (made,) = torch.autograd.grad(ours, part, grad.to(DEVICE, dtype))
    agree(made, expected, rounded)


@pytest.mark.parametrize("size", [(1, 1, 1), (37, 19, 5), (200, 33, 32)])
def test_emissions_of_all_states(size: tuple[int, int, int], operand: Operand) -> None:
    words, states, width = size
    given = noise(states, width), noise(words, width, seed=1), noise(words, seed=2)
    grad = noise(words, states, seed=3)
    truth = [part.double().requires_grad_() for part in given]
    table = (truth[1] @ truth[0].T + truth[2][:, None]).log_softmax(0)
    expected = torch.autograd.grad(table, truth, grad.double())
    parts = leaves(*given)
    ours = dense_kernel.LogSoftmax.apply(*parts, operand)
    torch.testing.assert_close(ours.detach().cpu().double(), table.detach(), rtol=0, atol=1e-5)
    for one, other in zip(torch.autograd.grad(ours, parts, grad.to(DEVICE)), expected, strict=True):
        gap = float((one.cpu().double() - other).norm())
        assert gap <= TOLERANCE[operand] * float(other.norm()) + 1e-6


@pytest.mark.parametrize("size", [(1, 16), (37, 16), (50, 64)])
def test_residual_network(size: tuple[int, int], operand: Operand) -> None:
    rows, width = size
    network = Residual(width, generator=torch.Generator().manual_seed(0))
    assert network.norm is not None
    with torch.no_grad():
        network.norm.weight.copy_(1 + noise(width, seed=4))
        network.norm.bias.copy_(noise(width, seed=5))
    inputs, grad = noise(rows, width, seed=1), noise(rows, width, seed=2)
    given = [inputs, *(part.detach() for part in network.parameters())]
    # Rounded where the kernel rounds, so that the same units are cut off by relu.
    inner = (1, 3)
    truth = [
        (operand.round(part) if place in (0, *inner) else part).double().requires_grad_()
        for place, part in enumerate(given)
    ]

    def rounded(value: Tensor) -> Tensor:
        return value + (operand.round(value.float()).double() - value).detach()

    x, w1, b1, w2, b2, scale, shift = truth
    first = rounded(torch.relu(x @ w1.T + b1))
    second = torch.relu(rounded(first @ w2.T + b2)) + first
    answer = torch.nn.functional.layer_norm(second, (width,), scale, shift, network.norm.eps)
    if operand == FLOAT32:
        torch.testing.assert_close(answer.float(), network(inputs), rtol=0, atol=1e-5)
    expected = torch.autograd.grad(answer, truth, grad.double())
    parts = leaves(*given)
    ours = residual.Residual.apply(*parts, network.norm.eps, operand)
    loose = {FLOAT32: 1e-5, TF32: 1e-3, BF16: 1e-2}[operand]
    for one, other in zip(
        [ours.detach(), *torch.autograd.grad(ours, parts, grad.to(DEVICE))],
        [answer.detach(), *expected],
        strict=True,
    ):
        assert float((one.cpu().double() - other).norm()) <= loose * float(other.norm()) + 1e-9


def chain(
    support: Support, kind: str, batch: int, steps: int, *, seed: int = 0, scale: float = 0.7
) -> tuple[HMM, Tensor, Tensor, Tensor]:
    """A random HMM in float64, and rows of tokens with fresh starts and ends of their own."""
    states, words = support.num_states, support.vocab_size
    if kind == "factored":
        left, right = noise(states, 5, scale=scale), noise(states, 5, seed=1, scale=scale)
        table = Factored.normalise(left.double(), right.double())
    else:
        table = Dense(noise(states, states, scale=scale).double().log_softmax(1))
    emit = emission_table(noise(words, support.width, seed=2, scale=1.0).double(), support)
    hmm = HMM(noise(states, seed=3).double().log_softmax(0), table, emit, support)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(words, (batch, steps), generator=generator)
    lengths = torch.randint(1, steps + 1, (batch,), generator=generator)
    lengths[0] = steps
    restart = torch.rand(batch, steps, generator=generator) < 0.2
    restart[:, 0] = True
    return hmm, tokens, lengths, restart


def turned(table: Tensor) -> Tensor:
    """The same numbers, by columns in memory."""
    return table.T.contiguous().T if table.ndim == 2 else table


SHAPES = {
    "blocks": (Support.from_clusters([0, 1, 2, 1, 0, 2, 2], [5, 17, 3]), 3, 7),
    "one step": (Support.from_clusters([0, 1, 1], [2, 1]), 2, 1),
    "wide": (Support.from_clusters([0, 1, 1, 0], [130, 63]), 2, 5),
    "wider": (Support.from_clusters([0, 1, 1, 0], [257, 300]), 2, 4),
    "dense": (Support.dense(11, 17), 3, 6),
    "dense, many rows": (Support.dense(7, 40), 18, 3),
    "one state": (Support.dense(3, 1), 2, 3),
}


MESSAGES = [(shape, False) for shape in SHAPES]
MESSAGES += [(shape, True) for shape in ("blocks", "one step", "wide", "dense", "one state")]


@pytest.mark.parametrize("kind", ["factored", "dense"])
@pytest.mark.parametrize(("shape", "wide"), MESSAGES)
def test_counts(shape: str, wide: bool, kind: str, operand: Operand) -> None:
    support, batch, steps = SHAPES[shape]
    hmm, tokens, lengths, restart = chain(support, kind, batch, steps)
    times = torch.rand(batch, generator=torch.Generator().manual_seed(7)) + 0.5
    there = hmm.to(DEVICE, torch.float32)
    # Tables may lie in memory the other way round, as those read by others often do.
    fields = [turned(field) if field.ndim == 2 else field for field in there.transitions.fields()]
    table = type(hmm.transitions)(*fields, operand=operand)
    there = HMM(there.log_init, table, turned(there.log_emit), there.support)
    given = (turned(part.to(DEVICE)) for part in (tokens, restart, lengths, times))
    ours = count(there, *given, wide=wide)
    assert not ours.low.any()
    assert all(field.dtype == torch.float32 for field in ours.fields)
    total: list[Tensor] | None = None
    for row in range(batch):
        truth = counts(
            hmm,
            tokens[row, None],
            lengths=lengths[row, None],
            restart=restart[row, None],
            implementation="reference",
        )
        evidence = float(ours.log_scales[row].double().sum())
        within = 1e-5 if operand.dtype == torch.float32 else 5e-3
        assert evidence == pytest.approx(float(truth.log_evidence), abs=within)
        fields = [field * float(times[row]) for field in truth.fields()]
        total = fields if total is None else [a + b for a, b in zip(total, fields, strict=True)]
    assert total is not None
    for one, other in zip(ours.fields, total, strict=True):
        agree(one, other, operand)


def test_rows_that_lose_digits_are_marked_and_harm_no_other() -> None:
    """A word 200 nats from the rest, where it meets the only state that explains what follows."""
    support = Support.from_clusters([0, 0, 1], [2, 1])
    there, given = far_behind(support, 200.0)
    ours = count(there, *given)
    assert ours.low.tolist() == [False, True]
    alone = [part[:1] for part in given]
    torch.testing.assert_close(ours.log_scales[:1], count(there, *alone).log_scales)


def far_behind(support: Support, gap: float) -> tuple[HMM, list[Tensor]]:
    """In the second row a state is as far behind another as a gap says; nothing depends on it."""
    hmm, tokens, lengths, restart = chain(support, "dense", 2, 4)
    hmm.log_emit[1, 0] = -gap
    tokens = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0]])
    restart[:, 1:] = False
    lengths[:] = 4
    given = [part.to(DEVICE) for part in (tokens, restart, lengths, torch.ones(2))]
    return hmm.to(DEVICE, torch.float32), given


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("gap", "behind"), [(200.0, "emit"), (900.0, "emit"), (200.0, "trans")])
def test_dense_rows_are_as_good_as_exact_where_nothing_depends_on_lost_digits(
    gap: float, behind: str, wide: bool
) -> None:
    support = Support.dense(3, 3)
    there, given = far_behind(support, gap if behind == "emit" else 1.0)
    if behind == "trans":
        assert isinstance(there.transitions, Dense)
        there.transitions.log_trans[:, 1] = -gap
        there = replace(there, transitions=Dense(there.transitions.log_trans.log_softmax(1)))
    ours = count(there, *given, wide=wide)
    assert not ours.low.any()
    truth = counts(
        there.to("cpu", torch.float64),
        given[0].cpu(),
        restart=given[1].cpu(),
        implementation="reference",
    )
    evidence = float(ours.log_scales.double().sum())
    assert evidence == pytest.approx(float(truth.log_evidence.sum()), abs=1e-5)
    for one, other in zip(ours.fields, truth.fields(), strict=True):
        agree(one, other, FLOAT32)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("apart", [-torch.inf, -40.0])
@pytest.mark.parametrize("words", [(1, 28.0, 8), (14, 8.0, 29), (1, 28.0, 3)])
def test_a_path_that_both_passes_lose(words: tuple[int, float, int], apart: float, wide: bool):
    """One state falls behind, comes back, and falls behind again: each pass has lost it."""
    begin, gap, middle = words
    first = 110.0 if begin == 1 else gap
    if wide:
        first, gap, apart = (7 * part for part in (first, gap, apart))
    trans = torch.tensor([[0.0, apart], [apart, 0.0]]).double().log_softmax(1)
    emit = torch.tensor([[0.0, 0.0], [-1.0, -1.0 - first], [-1.0 - gap, -1.0]]).double()
    emit[0] = torch.log1p(-emit[1:].exp().sum(0))
    hmm = HMM(torch.tensor([0.5, 0.5]).double().log(), Dense(trans), emit, Support.dense(3, 2))
    text = [0, *[1] * begin, *[2] * middle, *[1] * begin, 0]
    tokens, restart = torch.tensor([text, [0] * len(text)]), torch.zeros(2, len(text)) > 0
    restart[:, 0] = True
    lengths = torch.tensor([len(text), 3])
    there = hmm.to(DEVICE, torch.float32)
    given = [part.to(DEVICE) for part in (tokens, restart, lengths, torch.ones(2))]
    ours = count(there, *given, wide=wide)
    truth = counts(
        there.to("cpu", torch.float64),
        tokens,
        lengths=lengths,
        restart=restart,
        implementation="reference",
    )
    assert not ours.low[1]
    assert middle != 3 or not ours.low[0]  # it stays behind, and nothing depends on it
    if not ours.low[0]:
        found = ours.log_scales.double().sum(1).cpu()
        torch.testing.assert_close(found, truth.log_evidence, rtol=1e-6, atol=1e-4)
        for one, other in zip(ours.fields, truth.fields(), strict=True):
            agree(one, other, FLOAT32)


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")  # of the interpreter
@pytest.mark.parametrize("support", [Support.from_clusters([0, 0, 1], [2, 1]), Support.dense(3, 3)])
@pytest.mark.parametrize("kind", ["factored", "dense"])
@pytest.mark.parametrize(("gap", "is_low"), [(200.0, False), (690.0, True), (800.0, True)])
def test_what_float64_holds_and_what_is_marked_there(
    gap: float, is_low: bool, kind: str, support: Support
) -> None:
    """The path goes through a state that is far behind another, which leads hardly anywhere."""
    hmm, tokens, lengths, restart = chain(support, "dense", 2, 4)
    log_trans, emit = hmm.transitions.rows(0, 3).clone(), hmm.log_emit.clone()
    log_trans[1, 0], emit[0, 1], emit[1, 0] = -300.0, -torch.inf, -gap
    if support.is_dense:  # the other path must be hopeless, or nothing would depend on this one
        log_trans[1, 0], emit[:2, 2] = -900.0, -torch.inf
    log_trans = log_trans.log_softmax(1)  # of a dense chain predictions are made to sum to one
    table = Dense(log_trans)
    if kind == "factored":
        table = Factored(log_trans, torch.eye(3).double(), torch.zeros(3).double())
    hmm = HMM(hmm.log_init, table, emit, support)
    tokens = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0]])
    restart[:, 1:] = False
    lengths[:] = 4
    there = hmm.to(DEVICE, torch.float32)
    given = [part.to(DEVICE) for part in (tokens, restart, lengths, torch.ones(2))]
    assert count(there, *given).low.tolist()[1]
    ours = count(there, *given, wide=True)
    assert ours.low.tolist() == [False, is_low]
    if not is_low:
        truth = counts(hmm, tokens, restart=restart, implementation="reference")
        for one, other in zip(ours.fields, truth.fields(), strict=True):
            agree(one, other, FLOAT32)


def test_a_transition_too_small_for_a_number_is_marked() -> None:
    """It is not impossible, and may be what explains the rest of the text."""
    support = Support.from_clusters([0, 0, 1], [2, 1])
    hmm, tokens, lengths, restart = chain(support, "dense", 1, 3)
    assert isinstance(hmm.transitions, Dense)
    hmm.transitions.log_trans[:, 1] = -200.0
    restart[:, 1:] = False
    lengths[:] = 3
    given = (part.to(DEVICE) for part in (tokens * 0, restart, lengths, torch.ones(1)))
    assert count(hmm.to(DEVICE, torch.float32), *given).low.tolist() == [True]


def test_a_row_without_steps_counts_nothing() -> None:
    hmm, tokens, lengths, restart = chain(SHAPES["blocks"][0], "factored", 3, 7)
    there = hmm.to(DEVICE, torch.float32)
    lengths[1] = 0
    given = [part.to(DEVICE) for part in (tokens, restart, lengths, torch.ones(3))]
    ours = count(there, *given)
    rest = [part[[0, 2]] for part in given]
    assert ours.log_scales[1].abs().sum() == 0
    for one, other in zip(ours.fields, count(there, *rest).fields, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("states", [1, 16, 37])
def test_products_in_the_kernel_and_before_it(states: int, operand: Operand) -> None:
    """The same messages both ways, also where a pass goes on from another."""
    hmm, tokens, lengths, restart = chain(Support.dense(7, states), "dense", 18, 4)
    restart[:9, 0] = False
    there = hmm.to(DEVICE, torch.float32)
    matrix = dense_chain.Matrix.of(there.transitions.rows(0, states), operand.dtype)
    given = [part.to(DEVICE) for part in (tokens, restart, lengths)]
    message, back = (noise(18, states, seed=seed).exp().to(DEVICE) for seed in (5, 6))
    results = []
    for fused in (True, False):
        how = {"exact_zeros": True, "fused": fused}
        passed = dense_chain.run(
            matrix, there.log_init.exp(), there.log_emit, *given, message=message, **how
        )
        alone = dense_chain.run_back(matrix, there.log_emit, *given, passed.joints, back, **how)
        inside = torch.arange(5, device=DEVICE) <= given[2][:, None]
        backs = passed.backs[:, 1:][inside[:, 1:]]  # slot 0 is not made
        results.append([passed.joints[inside], backs, alone.backs[inside]])
    loose = 1e-6 if operand.dtype == torch.float32 else 2e-2
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=loose, atol=1e-7)


def test_predictions_of_a_rounded_matrix_sum_to_one() -> None:
    """Else a perplexity would be won by rounding."""
    hmm, tokens, lengths, restart = chain(Support.dense(1, 17), "dense", 2, 5)
    there = hmm.to(DEVICE, torch.float32)
    matrix = dense_chain.Matrix.of(there.transitions.rows(0, 17), torch.float32)
    off = matrix.probs * torch.linspace(0.98, 1.02, 17, device=DEVICE)[:, None]
    matrix = dense_chain.Matrix(off, off.sum(1))
    given = [part.to(DEVICE) for part in (tokens, restart, lengths)]
    passed = dense_chain.run(matrix, there.log_init.exp(), there.log_emit, *given, exact_zeros=True)
    times = torch.ones(2, device=DEVICE)
    met = dense_counts.meet(passed, there.log_emit, *given, times)
    # With one word its probability is one, whatever came before.
    assert float(met.log_scales.abs().max()) < 1e-6


@pytest.mark.parametrize("repeated", [1, 70, 300])
def test_rows_summed_by_key(repeated: int, monkeypatch) -> None:
    monkeypatch.setattr(row_sums, "FEW", 100)
    keys = torch.tensor([3, 0, 3, 3, -1, 5, 1]).repeat(repeated)
    rows = noise(len(keys), 19)
    ours = row_sums.sum_rows(keys.to(DEVICE), rows.to(DEVICE), 4)
    truth = torch.zeros(6, 19).double().index_add_(0, keys % 6, rows.double())[:4]
    torch.testing.assert_close(ours.cpu().double(), truth, rtol=0, atol=1e-4)


def test_the_best_of_each_row_in_their_order() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.5], [0.3, 0.2, -1.0, -1.0]])
    ids = torch.tensor([[10, 11, 12, 13], [20, 21, -1, -1]])
    keep, firsts = torch.tensor([2, 1]), torch.tensor([0, 2])
    given = (part.to(DEVICE) for part in (scores, ids, keep, firsts))
    assert choice.choose(*given, 3).tolist() == [11, 12, 20]


@pytest.mark.parametrize(("dtype", "spread"), [(torch.float32, 1.0), (torch.float64, 500.0)])
def test_tiles_keep_their_digits_at_any_scale(dtype: torch.dtype, spread: float) -> None:
    """Squares are over their largest entry, so that a far block does not vanish."""
    support = Support.from_clusters([0, 1], [130, 130])
    where = tiles.Map(
        support.rows.to(DEVICE),
        torch.tensor([[0, 1]], device=DEVICE),
        torch.tensor([[tiles.NONE, 0]], device=DEVICE),
    )
    log_trans = torch.full((260, 260), -120.0)
    shares = torch.rand(260, 130, generator=torch.Generator().manual_seed(0))
    log_trans[:, 130:] -= spread * shares
    squares = tiles.squares_of_table(log_trans.to(DEVICE), where, dtype=dtype)
    assert squares.probs.dtype == dtype
    logs = logs_of(squares)
    torch.testing.assert_close(logs.cpu().float(), log_trans[:130, 130:], rtol=0, atol=1e-4)
    torch.testing.assert_close(squares.turned[1], squares.probs[1].T)


def logs_of(squares: tiles.Squares) -> Tensor:
    """log p of the second tile."""
    tile, side = squares.probs[1], squares.side
    shrink = squares.shrink[1].repeat_interleave(side, 0).repeat_interleave(side, 1)
    return (tile * shrink[: len(tile), : len(tile)]).log() + squares.log_most[1]


@pytest.mark.parametrize("width", [3, 33])
@pytest.mark.parametrize("blocks", [[5, 17], [130, 63]])
def test_products_of_float64_factors_are_float64(blocks: list[int], width: int) -> None:
    """Those of narrower ones are what they are in float32, whatever messages are."""
    support = Support.from_clusters([0, 1], blocks)
    where = tiles.Map(
        support.rows.to(DEVICE),
        torch.tensor([[0, 1]], device=DEVICE),
        torch.tensor([[tiles.NONE, 0]], device=DEVICE),
    )
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, sum(blocks), width, generator=generator, dtype=torch.float64)
    norms = torch.logsumexp(left @ right.T, 1)
    truth = (left @ right.T - norms[:, None])[: blocks[0], blocks[0] :]
    for dtype, within in ((torch.float64, 1e-12), (torch.float32, 3e-5)):
        given = [part.to(DEVICE, dtype) for part in (left, right, norms)]
        made = tiles.squares_of_factors(*given, where, "ieee", dtype=torch.float64)
        logs = logs_of(made)[: blocks[0], : blocks[1]].cpu()
        torch.testing.assert_close(logs, truth, rtol=0, atol=within)
        assert made.turned is not None
        torch.testing.assert_close(made.turned[1], made.probs[1].T)


def test_what_is_no_number_stays_none_in_tf32() -> None:
    """Also the NaN that GPUs make, whose bits are all ones."""
    place = torch.device(DEVICE)
    support = Support.from_clusters(torch.arange(6) % 2, 3)
    parts = [noise(6, 4), noise(6, 4, seed=1), noise(6, seed=2)]
    parts = [part.to(place).requires_grad_() for part in parts]
    tiling = Tiling(support.row_of_word).to(place)
    ours = emission.LogSoftmax.apply(*parts, support.rows.to(place), tiling, TF32)
    grad = torch.ones_like(ours)
    grad.view(torch.int32)[0, 0] = 0x7FFFFFFF
    assert all(part.isnan().any() for part in torch.autograd.grad(ours, parts, grad))


def test_a_normaliser_that_does_not_exist_is_refused(monkeypatch) -> None:
    with pytest.raises(InputError, match="implementation is 'scaled' but must be auto, plain or k"):
        log_normaliser(noise(2, 3), noise(2, 3), implementation="scaled")
    monkeypatch.setattr("hmmlm.ops.normaliser.is_interpreted", lambda: False)
    with pytest.raises(InputError, match="implementation is 'kernel' but kernels run on a CUDA"):
        log_normaliser(noise(2, 3), noise(2, 3), implementation="kernel")
