"""A corpus of 200 MB prepared and trained on for 100 steps: memory does not know its size."""

from pathlib import Path

import pytest

from out_of_core import STEPS, prepare_and_train

# A tenth of what python tests/out_of_core.py is asked for; of that size eight bytes a token would
# be 500 MB, and 60 bytes a sentence 180 MB.
SIZE = 200_000_000


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux' /proc")
def test_the_memory_of_a_large_text_does_not_grow_with_it(tmp_path):
    prepared, trained = prepare_and_train(tmp_path, SIZE)
    print(prepared, trained)
    assert prepared.numbers["bytes"] < 400_000_000 and prepared.numbers["worker"] < 250_000_000
    assert trained.numbers["steps"] == STEPS and trained.numbers["tokens"] > SIZE / 6
    assert trained.numbers["bytes"] < 250_000_000
