"""Models that learn a GINC world, beside the best that any model could do on it.

    python -m experiments.ginc run [--work DIR] [--out FILE] [--smoke]
    python -m experiments.ginc page

A mixture of HMMs is an HMM, so one with enough states can be the world. `run` draws a world of
three concepts with 26 states each (Xie et al. 2021 have five with 101: more than a CPU learns in
minutes), trains on its first tokens, more and more of them, with 2 to 16 states for each word, and
compares with the optimum on text that nobody learnt. What is fixed is which states may emit which
word, not how they move. A line is a training; those that are in FILE are not run again. `page`
draws the figure and writes the table of docs/worlds.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results import add_lines, read_lines

RESULTS = Path(__file__).parent / "results/ginc.jsonl"
DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- experiments.ginc -->", "<!-- /experiments.ginc -->"

WORLD = {"concepts": 3, "entities": 5, "properties": 5, "words": 20, "length": 128}
DOCUMENTS = {"documents": 4500, "valid": 200, "test": 800}
EPOCHS = {8_192: 60, 32_768: 40, 131_072: 20, 524_288: 10}
"""Of AdamW, by the number of tokens that are learnt."""

COUNTED = 100
"""Of Baum-Welch, whose epoch is one step."""

EACH = (2, 4, 8, 16)
"""States of a word."""

ADAMW = ["train.learning_rate=0.5", "train.dropout=0"]
BAUM_WELCH = ["train.optimiser=em"]
RUNS = [("AdamW", each, tokens) for each in EACH for tokens in EPOCHS]
RUNS += [("Baum-Welch", EACH[-1], tokens) for tokens in EPOCHS]
SMOKE = [("AdamW", 2, 2_048), ("Baum-Welch", 2, 2_048)]


def run(work: Path, out: Path, *, smoke: bool) -> int:
    """Trains what has no line yet."""
    from hmmlm.data.shards import Corpus

    world = work / "world"
    if not world.exists():
        sizes = {"documents": 40, "valid": 4, "test": 10} if smoke else DOCUMENTS
        options = [f"--{key}={value}" for key, value in {**WORLD, **sizes}.items()]
        _hmmlm("world", "ginc", "--out", world, *options)
    corpus = Corpus.open(world / "corpus")
    train, test = (np.asarray(corpus.split(name)[:]) for name in ("train", "test"))
    eos_id = corpus.tokenizer.eos_id
    done = {_key(line) for line in read_lines(out)}
    for optimiser, each, tokens in SMOKE if smoke else RUNS:
        if (optimiser, each, tokens) in done:
            continue
        learnt = train[:tokens]
        blocks = len(np.unique(learnt[learnt != eos_id])) + 1
        epochs = EPOCHS.get(tokens, 2) if optimiser == "AdamW" else 2 if smoke else COUNTED
        changes = ADAMW if optimiser == "AdamW" else BAUM_WELCH
        changes = [*changes, f"data.tokens={tokens}", f"train.epochs={epochs}"]
        changes += ["model.kind=scalar", f"model.states={each * blocks}", f"model.blocks={blocks}"]
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            model = Path(scratch) / "model"
            settings = [f"--set={change}" for change in changes]
            began = time.perf_counter()
            _hmmlm("train", world / "corpus", "--out", model, "--device=cpu", *settings)
            seconds = time.perf_counter() - began
            found = _hmmlm("gap", model, world / "corpus")["whole"]
        line = {
            "experiment": "ginc", "optimiser": optimiser, "states_per_word": each,
            "states": each * blocks, "tokens": tokens, "epochs": epochs, "nats": found["model"],
            "optimum": found["teacher"], "gap": found["gap"], "error": found["error"],
            "unigram": unigram_nats(train, test), "bigram": bigram_nats(train, test, eos_id),
            "seconds": round(seconds, 1), "seed": 0, "device": "cpu, 1 thread",
            "commit": _commit(), "config": {"world": WORLD, "settings": changes},
        }  # fmt: skip
        add_lines(out, [line])
        print(f"{optimiser:>10} {each:>3} x {blocks} {tokens:>8,} {line['gap']:.4f}", flush=True)
    print(json.dumps({"lines": len(read_lines(out))}))
    return 0


def unigram_nats(train: np.ndarray, test: np.ndarray) -> float:
    """Nats per token of words by their frequency alone."""
    counts = np.bincount(train, minlength=int(max(train.max(), test.max())) + 1) + 0.01
    return float(-np.log(counts / counts.sum())[test].mean())


def bigram_nats(train: np.ndarray, test: np.ndarray, eos_id: int) -> float:
    """The same of words by the one before."""
    size = int(max(train.max(), test.max())) + 1
    counts = np.full((size, size), 0.01)
    np.add.at(counts, (np.append(eos_id, train[:-1]), train), 1)
    log_probs = np.log(counts / counts.sum(1, keepdims=True))
    return float(-log_probs[np.append(eos_id, test[:-1]), test].mean())


def _key(line: Mapping[str, Any]) -> tuple[str, int, int]:
    return line["optimiser"], line["states_per_word"], line["tokens"]


def page(lines: Sequence[Mapping[str, Any]], docs: Path) -> int:
    """Draws docs/ginc.svg and puts the table into docs/worlds.md."""
    from experiments.drawing import save_gaps

    if not lines:
        raise SystemExit("There are no lines; run it first.")
    curves: dict[str, dict[float, float]] = {}
    for line in lines:
        states = f"{line['states']} states"
        name = states if line["optimiser"] == "AdamW" else f"{states}, {line['optimiser']}"
        curves.setdefault(name, {})[line["tokens"]] = line["gap"]
    first = lines[0]
    levels = {
        "a word's frequency": first["unigram"] - first["optimum"],
        "the word before": first["bigram"] - first["optimum"],
    }
    save_gaps(
        docs / "ginc.svg", curves, levels, "tokens learnt", "nats per token above the optimum"
    )
    text = (docs / "worlds.md").read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    (docs / "worlds.md").write_text(f"{before}{BEGIN}\n{table(curves)}\n{END}{after}")
    return 0


def table(curves: Mapping[str, Mapping[float, float]]) -> str:
    """Nats per token above the optimum, a row for each model."""
    tokens = sorted({place for points in curves.values() for place in points})
    rows = [f"| tokens learnt | {' | '.join(f'{place:,}' for place in tokens)} |"]
    rows.append("|---" * (len(tokens) + 1) + "|")
    for name, points in curves.items():
        told = [f"{points[place]:.4f}" if place in points else "" for place in tokens]
        rows.append(f"| {name} | {' | '.join(told)} |")
    return "\n".join(rows)


def _hmmlm(*arguments: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "hmmlm", *map(str, arguments), "--json"],
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


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    calls = parser.add_subparsers(dest="call", required=True)
    tried = calls.add_parser("run", help="train and compare")
    tried.add_argument("--work", type=Path, help="where the world is kept, if it shall be")
    tried.add_argument("--out", type=Path, default=RESULTS)
    tried.add_argument("--smoke", action="store_true", help="two tiny trainings, in seconds")
    shown = calls.add_parser("page", help="draw the figure, write the table")
    shown.add_argument("--lines", type=Path, default=RESULTS)
    shown.add_argument("--docs", type=Path, default=DOCS)
    given = parser.parse_args(words)
    if given.call == "page":
        return page(read_lines(given.lines), given.docs)
    with tempfile.TemporaryDirectory() as scratch:
        work = given.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        return run(work, given.out, smoke=given.smoke)


if __name__ == "__main__":
    raise SystemExit(main())
