"""A tenth of the load of tests/more/test_load.py, with a tenth of its room."""

from pathlib import Path

import pytest

from load import make_load, score_load


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux' /proc")
def test_one_long_line_takes_little_memory(tmp_path):
    make_load(tmp_path, 100_000)
    load = score_load(tmp_path, "one.txt")
    assert load.out.count("\n") == 1 and load.out.count("  ") == 99_999
    assert load.bytes < 100_000_000
