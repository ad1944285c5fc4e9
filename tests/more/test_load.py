"""A million tokens through `score` on 512 states: under 1 GB above the model."""

import json
from pathlib import Path

import pytest

from load import make_load, score_load

TOKENS, LIMIT = 1_000_000, 1_000_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("load")
    make_load(folder, TOKENS)
    return folder


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux' /proc")
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["lines", "json"])
@pytest.mark.parametrize("text", ["lines.txt", "one.txt"])
def test_a_million_tokens_stay_under_a_gigabyte(folder, text, options):
    load = score_load(folder, text, *options)
    print(f"{text} {options}: {load.bytes / 1e6:.0f} MB, {load.seconds:.1f} s")
    assert load.bytes < LIMIT
    if options:
        result = json.loads(load.out)
        assert result["tokens"] == len(result["log_probs"]) == TOKENS
        assert result["nats"] == pytest.approx(-sum(result["log_probs"]))
