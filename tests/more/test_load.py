"""A million tokens through `score` on 512 states: under 1 GB above the model."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from commands import SOURCE
from hmmlm import HMM, Model
from hmmlm.data.tokenizer import Tokenizer

STATES, WORDS, TOKENS = 512, 2000, 1_000_000
LIMIT = 1_000_000_000

# Memory is counted from after the model was loaded and asked once: that loads the libraries too.
SCRIPT = """
import json, sys, time
from hmmlm.cli import main
from hmmlm.model import Model

def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1]) * 1024

Model.load("model").score(["w1 w2"])
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
began = time.perf_counter()
sys.argv = ["hmmlm", "score", "model", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code
numbers = {"bytes": status("VmHWM") - before, "seconds": time.perf_counter() - began}
print(json.dumps(numbers), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("load")
    generator = torch.Generator().manual_seed(0)

    def table(*size: int) -> torch.Tensor:
        return torch.log_softmax(torch.randn(*size, generator=generator), -1)

    words = [f"w{number}" for number in range(WORDS - 2)]
    hmm = HMM.from_tables(table(STATES), table(STATES, STATES), table(STATES, WORDS))
    Model(hmm, Tokenizer.words(dict.fromkeys(words, 1))).save(folder / "model")
    draw = random.Random(0).choices
    with (folder / "lines.txt").open("w") as file:
        file.writelines(" ".join(draw(words, k=24)) + "\n" for _ in range(TOKENS // 25))
    (folder / "one.txt").write_text(" ".join(draw(words, k=TOKENS - 1)) + "\n")
    return folder


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux' /proc")
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["lines", "json"])
@pytest.mark.parametrize("text", ["lines.txt", "one.txt"])
def test_a_million_tokens_stay_under_a_gigabyte(folder, text, options):
    with (folder / "out").open("w") as out:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, text, *options],
            cwd=folder,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )
    numbers = json.loads(done.stderr.splitlines()[-1])
    print(f"{text} {options}: {numbers['bytes'] / 1e6:.0f} MB, {numbers['seconds']:.1f} s")
    assert numbers["bytes"] < LIMIT
    if options:
        result = json.loads((folder / "out").read_text())
        assert result["tokens"] == len(result["log_probs"]) == TOKENS
        assert result["nats"] == pytest.approx(-sum(result["log_probs"]))
