"""A text larger than memory should be, prepared and trained on: what that takes.

The test in tests/more makes a tenth of it. All: python tests/out_of_core.py 2000000000 FOLDER
"""

import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from memory import run_measured

WORDS, STEPS = 50_000, 100

PREPARE = """
import resource
from hmmlm.cli import main

if __name__ == "__main__":
    sys.argv = ["hmmlm", "prepare", "text.txt", "--out=corpus", "--json"]
    try:
        main()
    except SystemExit as end:
        assert not end.code
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps({"bytes": status("VmHWM"), "worker": workers}), file=sys.stderr)
"""

# What `hmmlm train` does, but for 100 steps. Memory is counted from after two steps on a few
# tokens: those have loaded the libraries, and made the model and its optimiser.
TRAIN = """
from itertools import islice
import torch
from hmmlm.baselines.ngram import Unigram
from hmmlm.data.shards import Corpus, TokenArray
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.support import Support
from hmmlm.train.config import make_batches, make_config
from hmmlm.train.loss import HmmLoss
from hmmlm.train.sgd import train

words = Tokenizer.load("corpus/tokenizer.json")
config = make_config({"model": {"kind": "lowrank", "width": 32, "states": 64, "blocks": 0}})
support = Support.dense(words.vocab_size, 64)
model = config.params.build(support, generator=torch.Generator().manual_seed(0))
loss = HmmLoss(model, support, dropout=config.dropout, reset_id=words.eos_id, seed=0)

def steps(tokens, number):
    batches = make_batches(config, tokens)
    return list(islice(train(model, loss, batches, settings=config.train), number))

steps(TokenArray.from_ids([2, 3, words.eos_id] * 1000, eos_id=words.eos_id), 2)
before = status("VmRSS")
restart_peak()
tokens = Corpus.open("corpus").split("train")
Unigram(tokens, words.vocab_size)
done = steps(tokens, int(sys.argv[1]))
print(json.dumps({"bytes": status("VmHWM") - before, "steps": len(done), "tokens": len(tokens),
                  "loss": done[-1].loss}), file=sys.stderr)
"""


class Result(NamedTuple):
    seconds: float
    numbers: dict[str, float]


def make_text(path: Path, size: int) -> None:
    """About so many bytes of lines of words, as frequent as Zipf says; a stretch, often."""
    random = np.random.default_rng(0)
    share = 1 / np.arange(1, WORDS + 1)
    words = np.array([f"{number:x}" for number in range(WORDS)])
    drawn = random.choice(WORDS, 2_000_000, p=share / share.sum())
    ends = np.where(random.random(len(drawn)) < 0.05, "\n", " ")
    stretch = "".join(np.char.add(words[drawn], ends)).rstrip() + "\n"
    with path.open("w") as file:
        for _ in range(-(-size // len(stretch))):
            file.write(stretch)


def run(script: str, folder: Path, *arguments: str) -> Result:
    began = time.perf_counter()
    numbers = run_measured(script, folder, *arguments)
    return Result(time.perf_counter() - began, numbers)


def prepare_and_train(folder: Path, size: int) -> tuple[Result, Result]:
    make_text(folder / "text.txt", size)
    return run(PREPARE, folder), run(TRAIN, folder, str(STEPS))


if __name__ == "__main__":
    size, place = int(sys.argv[1]), Path(sys.argv[2])
    place.mkdir(parents=True)
    for what, result in zip(("prepare", "train"), prepare_and_train(place, size), strict=True):
        print(f"{what}: {result.seconds:.1f} s", json.dumps(result.numbers))
