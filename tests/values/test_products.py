"""Products in full, and numbers rounded for those that are not."""

from collections.abc import Iterator

import pytest
import torch

from hmmlm.hmm import HMM
from hmmlm.inference import counts, log_prob, next_log_probs
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


ASKED = {
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

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            name = getattr(function, "__name__", "")
            if name in ("matmul", "__matmul__", "mm", "bmm", "addmm", "linear", "einsum"):
                seen.update((name, place.fp32_precision) for place in PLACES)
            return function(*args, **(kwargs or {}))

    with Watch():
        ASKED[asked](5)
    assert seen and {precision for _, precision in seen} == {"ieee"}, seen


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
