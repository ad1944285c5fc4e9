"""Kills a training at random instants until it ends; its model is that of an undisturbed one.

    python tests/kills.py --times 50

Processes are killed with SIGKILL at instants drawn from the time that a whole training takes; the
next one resumes what is there.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hmmlm.data.builtin import builtin_sentences
from hmmlm.data.shards import write_corpus
from hmmlm.data.tokenizer import Tokenizer

SETTINGS = ["--states=130", "--blocks=65", "--epochs=2", "--device=cpu", "--set=train.save_steps=3"]
SETTINGS += ["--set=train.checks=3", "--set=train.average=0.9"]


def start(corpus: Path, folder: Path) -> subprocess.Popen:
    """A training into a folder, or the rest of the one that is there."""
    place = ["--resume", folder] if folder.exists() else [corpus, "--out", folder, *SETTINGS]
    return subprocess.Popen(
        [sys.executable, "-m", "hmmlm", "train", *map(str, place)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def is_over(folder: Path) -> bool:
    return (folder / "config.json").exists() and not (folder / "run.json").exists()


def kill_at_random(corpus: Path, scratch: Path, times: int, seed: int) -> Iterator[dict]:
    """What became of each process until `times` were killed and the last training is over."""
    chance, killed = random.Random(seed), 0
    whole = scratch / "whole"
    began = time.perf_counter()
    undisturbed = start(corpus, whole)
    said, _ = undisturbed.communicate()
    assert undisturbed.returncode == 0, said.decode()
    duration = time.perf_counter() - began
    number, folder = 0, scratch / "killed-0"
    while killed < times or not is_over(folder):
        if is_over(folder):
            compare(whole, folder)
            number += 1
            folder = scratch / f"killed-{number}"
        fresh, began = not folder.exists(), time.perf_counter()
        process = start(corpus, folder)
        if killed < times:
            try:
                process.wait(chance.uniform(0.3, 1.0) * duration)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        said, _ = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), said.decode()
        killed += process.returncode != 0
        if fresh and process.returncode == 0:  # the first one may have had to compile
            duration = min(duration, time.perf_counter() - began)
        kept = sorted(path.name for path in folder.glob("checkpoints/step-*"))
        yield {"returned": process.returncode, "kept": kept[-1:], "over": is_over(folder)}
    compare(whole, folder)


def compare(whole: Path, folder: Path) -> None:
    """Both models are the same, bit for bit, and so are their metrics but for the time."""
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (whole / name).read_bytes() == (folder / name).read_bytes(), f"{name} differs"
    lines = [(path / "metrics.jsonl").read_text().splitlines() for path in (whole, folder)]
    first, second = ([json.loads(line) for line in part] for part in lines)
    for line in (*first, *second):
        line.pop("tokens_per_second")
    assert first == second
    assert {path.name for path in whole.iterdir()} == {path.name for path in folder.iterdir()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        splits, corpus = builtin_sentences(), Path(scratch) / "corpus"
        write_corpus(corpus, Tokenizer.words(splits["train"], min_count=2), splits)
        processes = killed = 0
        for line in kill_at_random(corpus, Path(scratch), given.times, given.seed):
            print(json.dumps(line), flush=True)
            processes, killed = processes + 1, killed + (line["returned"] < 0)
    print(json.dumps({"processes": processes, "killed": killed, "same_weights": True}))


if __name__ == "__main__":
    main()
