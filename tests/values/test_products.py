"""Products in full, and numbers rounded for those that are not."""

import threading
import traceback
from collections.abc import Iterator

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hmmlm.data.batches import Batch
from hmmlm.hmm import HMM
from hmmlm.inference import counts, log_prob, next_log_probs, sample_paths, smooth
from hmmlm.inference.kernels import count
from hmmlm.inference.streaming import advance, start
from hmmlm.params import lowrank
from hmmlm.products import (
    BF16,
    FLOAT32,
    TF32,
    full_products,
    round_to_tf32,
    tf32_products,
    wanted_operand,
)
from hmmlm.support import Support
from hmmlm.train.loop import TrainSettings
from hmmlm.train.loss import HmmLoss
from hmmlm.train.sgd import Sgd
from hmmlm.transitions import Factored

PLACES = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul, torch.backends.cudnn.rnn
TEXT = torch.tensor([[0, 3, 1, 2, 2, 3]])


def test_numbers_are_rounded_to_the_nearest_of_eleven_digits() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(2000, generator=generator).double() * 10.0 ** torch.arange(-30, 20).repeat(
        40
    )
    unit = 2.0 ** (exact.abs().log2().floor() - 10)
    wanted = (exact.float().double() / unit).round() * unit  # torch rounds ties to even too
    assert torch.equal(round_to_tf32(exact.float()).double(), wanted)
    odd = torch.tensor([1 + 2.0**-11, 1 + 3 * 2.0**-11, 2 - 2.0**-12, 0.0, -0.0])
    assert round_to_tf32(odd).tolist() == [1.0, 1 + 2.0**-9, 2.0, 0.0, -0.0]
    strange = torch.tensor([torch.inf, -torch.inf, torch.nan])
    torch.testing.assert_close(round_to_tf32(strange), strange, equal_nan=True)
    assert round_to_tf32(exact).dtype == torch.float64


def test_an_operand_is_wanted_within() -> None:
    with tf32_products():
        assert wanted_operand("cpu") == TF32
    with torch.autocast("cpu", torch.bfloat16):
        assert wanted_operand("cpu") == BF16
    assert wanted_operand("cpu") == FLOAT32
    assert [one.name for one in (FLOAT32, TF32, BF16)] == ["float32", "tf32", "bfloat16"]


@pytest.fixture
def high() -> Iterator[None]:
    """A process whose own products are less than full, as those of language models often are."""
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


def test_full_products_end_where_they_began(high) -> None:
    before = [place.fp32_precision for place in PLACES]
    with pytest.raises(KeyError), full_products():
        assert [place.fp32_precision for place in PLACES] == ["ieee"] * 3
        raise KeyError
    assert [place.fp32_precision for place in PLACES] == before == ["tf32"] * 3
    assert torch.get_float32_matmul_precision() == "high"


def make(states: int) -> HMM:
    generator = torch.Generator().manual_seed(0)
    model = lowrank.Settings(width=3).build(Support.dense(4, states), generator=generator)
    with torch.no_grad():
        return model()


def gradient(states: int) -> None:
    generator = torch.Generator().manual_seed(0)
    support = Support.from_clusters(torch.arange(4) % 2, states)
    model = lowrank.Settings(width=3).build(support, generator=generator)
    batch = Batch(TEXT, torch.tensor([6]), torch.zeros(1, 6, dtype=torch.bool), 6)
    Sgd(model, HmmLoss(model, support), TrainSettings()).step(iter([batch]), 0.1, 0.0)


def kernel_counts(states: int) -> None:
    pytest.importorskip("triton")
    place = "cuda" if torch.cuda.is_available() else "cpu"
    one, afresh = torch.ones(1, device=place), torch.arange(6, device=place)[None] == 0
    count(make(states).detach().to(place), TEXT.to(place), afresh, one.long() * 6, one)


ASKED = {
    "a long run": lambda states: make(states).long_run(),
    "a step": gradient,
    "counts by kernels": kernel_counts,
    "states": lambda states: smooth(make(states), TEXT),
    "drawn paths": lambda states: sample_paths(make(states), TEXT, num_samples=2),
    "a model": make,
    "tables": lambda states: Factored.normalise(torch.ones(2, 3), torch.ones(4, 3)),
    "a tile": lambda states: make(states).transitions.tile(TEXT[:, :2], TEXT),
    "rows": lambda states: make(states).transitions.rows(0, 2),
    "evidence": lambda states: log_prob(make(states), TEXT),
    "counts": lambda states: counts(make(states), TEXT),
    "a scan": lambda states: log_prob(make(states), TEXT, implementation="scan"),
    "a word more": lambda states: next_log_probs(advance(start(make(states)), 1)),
}


@pytest.mark.parametrize("asked", ASKED)
def test_answers_are_made_of_full_products(asked: str, high, monkeypatch) -> None:
    seen = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = str(function).split(".")[1]
            if name in ("mm", "bmm", "addmm", "mv", "dot", "baddbmm"):
                where = [one for one in traceback.extract_stack() if "hmmlm" in one.filename][-1]
                seen.update((where.filename, where.lineno, p.fp32_precision) for p in PLACES)
            return function(*args, **(kwargs or {}))

    with Watch():
        ASKED[asked](5)
    assert seen and {precision for *_, precision in seen} == {"ieee"}, seen
    assert [place.fp32_precision for place in PLACES] == ["tf32"] * 3


QUESTIONS = {
    "evidence": lambda hmm: log_prob(hmm, TEXT).token_log_probs,
    "a scan": lambda hmm: log_prob(hmm, TEXT, implementation="scan").token_log_probs,
    "counts": lambda hmm: counts(hmm, TEXT).emit,
    "states": lambda hmm: smooth(hmm, TEXT).log_probs,
    "a word more": lambda hmm: next_log_probs(advance(start(hmm), 1)),
    "a long run": lambda hmm: hmm.long_run(),
    "rows": lambda hmm: hmm.transitions.rows(0, 2),
}


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("asked", QUESTIONS)
def test_answers_are_the_same_under_autocast(asked: str, blocks: int) -> None:
    support = Support.from_clusters(torch.arange(4) % blocks, 5)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        hmm = lowrank.Settings(width=3).build(support, generator=generator)()
    wanted = QUESTIONS[asked](hmm)
    with torch.autocast("cpu", torch.bfloat16):
        found = QUESTIONS[asked](hmm)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_threads_do_not_end_each_others_products(high) -> None:
    entered, may_leave, seen = threading.Event(), threading.Event(), []

    def first() -> None:
        with full_products():
            entered.set()
            may_leave.wait(5)

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait(5)
    with full_products():
        may_leave.set()
        thread.join()
        seen += [place.fp32_precision for place in PLACES]
    assert seen == ["ieee"] * 3
    assert [place.fp32_precision for place in PLACES] == ["tf32"] * 3


def test_what_was_inherited_is_inherited_again() -> None:
    backends, before = torch.backends, torch.backends.fp32_precision
    matmul = backends.cuda.matmul
    held = matmul.fp32_precision
    try:
        matmul.fp32_precision, backends.fp32_precision = "none", "tf32"
        assert matmul.fp32_precision == "tf32"
        with full_products():
            assert matmul.fp32_precision == "ieee"
        backends.fp32_precision = "ieee"
        assert matmul.fp32_precision == "ieee"
    finally:
        backends.fp32_precision, matmul.fp32_precision = before, held


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("implementation", ["scaled", "kernel"])
def test_a_gpu_keeps_all_digits(implementation: str, high) -> None:
    generator = torch.Generator().manual_seed(0)
    model = lowrank.Settings(width=64).build(Support.dense(40, 700), generator=generator).cuda()
    with torch.no_grad():
        hmm = model()
        double = hmm.to(dtype=torch.float64)
    tokens = torch.randint(40, (8, 50), generator=generator).cuda()
    found = log_prob(hmm, tokens, implementation=implementation).token_log_probs
    exact = log_prob(double, tokens, implementation="reference").token_log_probs
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-5)
