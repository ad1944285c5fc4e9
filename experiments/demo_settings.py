"""Which settings train the demo's model well: one run per change of one setting.

    python -m experiments.demo_settings --out FILE [--what factoring] [--workers 16] [--smoke]

Every line has the settings, the seconds, the best validation and the test perplexity (sentence).
Runs whose line is in FILE already are not made again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BASE = ["model.states=1040", "model.blocks=65", "train.epochs=12"]
RUNS = [
    [],
    *[[f"train.learning_rate={rate}"] for rate in (0.01, 0.06)],
    *[[f"train.dropout={rate}"] for rate in (0.0, 0.5)],
    ["train.dropout=0.5", "train.dropout_last=0.0"],
    *[[f"model.width={width}"] for width in (32, 128)],
    *[[f"model.scale={scale}"] for scale in (0.1, 0.6, 1.0)],
    *[[f"train.average={decay}"] for decay in (0.98, 0.995)],
    ["train.epochs=20"],
    *[
        [f"model.states={blocks * each}", f"model.blocks={blocks}"]
        for blocks, each in ((65, 32), (129, 8), (129, 16), (33, 32), (257, 8))
    ],
    ["model.states=256", "model.blocks=0", "train.dropout=0.0", "train.epochs=8"],
    *[["model.kind=scalar", f"train.learning_rate={rate}"] for rate in (0.2, 0.5)],
    ["model.kind=scalar", "train.dropout=0.0", "train.weight_decay=0.02"],
    *[["model.kind=mlp", "model.width=64", f"train.learning_rate={r}"] for r in (0.003, 0.01)],
    ["model.composed=true"],
]


SEEDS = (42, 52, 62)
FACTORING = [
    [
        f"model.states={states}",
        f"model.blocks={blocks}",
        "train.epochs=12",
        *kind,
        f"train.seed={s}",
    ]
    for states, blocks in ((256, 0), (1040, 65), (2080, 65))
    for kind in (
        ["model.kind=scalar", "train.learning_rate=0.2"],
        ["model.kind=scalar", "train.learning_rate=0.5"],
        ["model.shared=true"],  # ablation A
        [],  # ablation B: the low-rank default
    )
    for s in SEEDS
]
"""Lee & Berg-Kirkpatrick's table 1 on this text: one logit per cell, or products of embeddings."""


def run(changes: list[str], corpus: Path, smoke: bool) -> dict:
    """One training in a process of its own, on one thread, and its test perplexity."""
    changes = [*changes, *(["train.epochs=1"] if smoke else [])]
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        options = [f"--set={change}" for change in changes]
        began = time.perf_counter()
        trained = _hmmlm("train", str(corpus), "--out", str(model), "--device=cpu", *options)
        seconds = time.perf_counter() - began
        tested = _hmmlm("evaluate", str(model), str(corpus), "--split", "test", "--device=cpu")
    return {
        "settings": changes,
        "seconds": round(seconds, 1),
        "val": trained["val"],
        "test": tested["perplexity"],
        "mode": tested["mode"],
        "commit": _commit(),
        "device": "cpu, 1 thread",
    }


def _hmmlm(*arguments: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "hmmlm", *arguments, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty=+"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--what", choices=["settings", "factoring"], default="settings")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="one epoch of two runs")
    given = parser.parse_args()
    from hmmlm.data.builtin import builtin_sentences
    from hmmlm.data.shards import write_corpus
    from hmmlm.data.tokenizer import Tokenizer

    runs = [[*BASE, *changes] for changes in RUNS] if given.what == "settings" else FACTORING
    done = given.out.read_text().splitlines() if given.out.exists() else []
    made = [json.loads(line)["settings"] for line in done]
    runs = runs[:2] if given.smoke else [changes for changes in runs if changes not in made]
    with tempfile.TemporaryDirectory() as scratch:
        corpus, splits = Path(scratch) / "corpus", builtin_sentences()
        write_corpus(corpus, Tokenizer.words(splits["train"], min_count=2), splits)
        with ThreadPoolExecutor(given.workers) as pool, given.out.open("a") as out:
            for line in pool.map(lambda changes: run(changes, corpus, given.smoke), runs):
                out.write(json.dumps(line) + "\n")
                out.flush()
                print(f"{line['test']:8.2f}  {' '.join(line['settings'])}")


if __name__ == "__main__":
    main()
