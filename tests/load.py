"""How much memory `score` takes above its model, in a process of its own."""

import random
from pathlib import Path
from typing import NamedTuple

import torch

from hmmlm import HMM, Model
from hmmlm.data.tokenizer import Tokenizer
from memory import run_measured

STATES, WORDS = 512, 2000

# Memory is counted from after the model was loaded and asked once: that loads the libraries too.
SCRIPT = """
import time
from hmmlm.cli import main
from hmmlm.model import Model

Model.load("model").score(["w1 w2"])
before = status("VmRSS")
restart_peak()
began = time.perf_counter()
sys.argv = ["hmmlm", "score", "model", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code
numbers = {"bytes": status("VmHWM") - before, "seconds": time.perf_counter() - began}
print(json.dumps(numbers), file=sys.stderr)
"""


class Load(NamedTuple):
    bytes: int
    seconds: float
    out: str


def make_load(folder: Path, tokens: int) -> None:
    """Random tables in `model`, and a text of so many tokens: of 25 a line, and as one line."""
    generator = torch.Generator().manual_seed(0)

    def table(*size: int) -> torch.Tensor:
        return torch.log_softmax(torch.randn(*size, generator=generator), -1)

    words = [f"w{number}" for number in range(WORDS - 2)]
    hmm = HMM.from_tables(table(STATES), table(STATES, STATES), table(STATES, WORDS))
    Model(hmm, Tokenizer.words(dict.fromkeys(words, 1))).save(folder / "model")
    draw = random.Random(0).choices
    with (folder / "lines.txt").open("w") as file:
        file.writelines(" ".join(draw(words, k=24)) + "\n" for _ in range(tokens // 25))
    (folder / "one.txt").write_text(" ".join(draw(words, k=tokens - 1)) + "\n")


def score_load(folder: Path, text: str, *options: str) -> Load:
    """`hmmlm score` on such a text."""
    with (folder / "out").open("w") as out:
        numbers = run_measured(SCRIPT, folder, text, *options, stdout=out)
    return Load(int(numbers["bytes"]), numbers["seconds"], (folder / "out").read_text())
