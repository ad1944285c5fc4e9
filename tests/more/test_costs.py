"""Memory of trainings that take some seconds, beside the estimate."""

import pytest

from costs import check_memory

LARGE = [
    ("mlp", 2048, 64, 10_000, {}, {"dropout": 0.5}),
    ("mlp", 2048, 64, 10_000, {}, {"dropout": 0.5, "accumulate": 2}),
    ("mlp", 2048, 32, 3000, {"composed": True, "scale": 0.05}, {"dropout": 0.5}),
    ("transformer", 1024, 32, 5000, {}, {"dropout": 0.5}),
    ("transformer", 1024, 32, 5000, {}, {"dropout": 0.75}),
    ("scalar", 2048, 32, 5000, {}, {"optimiser": "em"}),
]


@pytest.mark.parametrize("kind, states, blocks, words, more, train", LARGE)
def test_memory_is_what_training_takes_within_a_quarter(kind, states, blocks, words, more, train):
    model = {"kind": kind, "states": states, "blocks": blocks, **more}
    check_memory({"model": model, "train": {"epochs": 1, **train}}, words)
