"""Every table of Lee & Berg-Kirkpatrick 2025 runs, in its smallest form."""

from pathlib import Path

import pytest
from experiments.lee_berg_kirkpatrick_2025 import tables

from experimenting import read, run

DISTILLED = [name.partition("/")[2] for name in tables()]
"""The files of the paper."""


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> Path:
    """One folder for all tables: those of the same settings share a training there."""
    return tmp_path_factory.mktemp("taught")


@pytest.mark.parametrize("table", DISTILLED)
def test_tables_of_lee_and_berg_kirkpatrick(table: str, taught: Path) -> None:
    said = run(
        f"lee_berg_kirkpatrick_2025.{table}", "--smoke", "--work", str(taught), "--workers", "2"
    )
    assert said["rows"] == said["done"] > 0 and not said["left"] and not said["failed"]
    lines = [line for line in read(taught / "results.jsonl") if line["experiment"].endswith(table)]
    modes = {"sentence", "streaming"} if table == "ptb" else {"window 64"}
    assert lines and {line["mode"] for line in lines} == modes
    keys = (
        ("val", "train") if table == "rates" else ("val", "test", "train")
    )  # compared, not tested
    for line in lines:
        assert all(1 < line[key] < 1000 for key in keys)
