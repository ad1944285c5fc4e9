"""How often the CPU waits for the device: not once for every token where it need not.

Only a device of pretence counts its waits (`pretend_gpu`).
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from hmmlm import HMM, inference
from hmmlm.distill.kmeans import k_means
from models import make_hmm
from pretend_gpu import Gpu, pretend_gpu

EOS = 1
KINDS = [("dense", "factored"), ("blocks", "factored")]
PASSES = ("log_prob", "filter", "smooth", "counts", "viterbi", "sample_paths", "path_entropy")


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with pretend_gpu() as gpu:
        yield gpu


def waits_of(gpu: Gpu, run: Callable[[], Any]) -> int:
    run()  # what is found at first use is kept
    gpu.clear()
    run()
    return sum(gpu.waits.values())


def text(hmm: HMM, rows: int, steps: int, missing: bool = False) -> dict[str, Any]:
    tokens = torch.arange(rows * steps).view(rows, steps) * 7 % 5
    if missing:
        tokens[:, 2] = -1
    lengths = torch.arange(rows) % steps + 1
    return {"tokens": tokens.to(hmm.device), "lengths": lengths.to(hmm.device), "reset_id": EOS}


@pytest.mark.parametrize("missing", [False, True], ids=["words", "missing"])
@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_a_pass_waits_as_often_for_a_long_text_as_for_a_short_one(kind, name, missing, gpu):
    hmm, run = make_hmm(*kind).to("cuda"), getattr(inference, name)
    short, long = (text(hmm, 8, steps, missing) for steps in (6, 12))
    assert waits_of(gpu, lambda: run(hmm, **long)) <= waits_of(gpu, lambda: run(hmm, **short))


@pytest.mark.parametrize(("kind", "most"), [(KINDS[0], 1), (KINDS[1], 2)], ids=["dense", "blocks"])
def test_waits_of_a_token_that_is_drawn(kind, most, gpu):
    hmm = make_hmm(*kind).to("cuda")
    draws = torch.Generator("cuda").manual_seed(0)
    counts = [
        waits_of(gpu, lambda n=n: inference.sample(hmm, length=n, generator=draws)) for n in (4, 9)
    ]
    assert counts[1] - counts[0] <= most * 5


def test_drawing_the_first_centres_waits_for_nothing(gpu):
    points = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))

    def run(number: int) -> None:
        k_means(
            points, number, iterations=1, device="cuda", generator=torch.Generator().manual_seed(0)
        )

    assert waits_of(gpu, lambda: run(20)) == waits_of(gpu, lambda: run(5))
