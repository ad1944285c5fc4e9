"""Running commands, and looking at what they leave."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import hmmlm

SOURCE = str(Path(hmmlm.__file__).parents[1])

BASE = """
[data]
corpus = "corpus"
length = 64
batch_size = 4
[model]
kind = "scalar"
states = 4
blocks = 0
[train]
epochs = 1
"""
"""The run file of a training that takes no time; a sweep's table may follow it."""


class Answer(NamedTuple):
    status: int
    out: str
    err: str


class Made(NamedTuple):
    folder: Path
    prepared: Answer
    trained: Answer


def last_json(out: str) -> dict[str, Any]:
    """What a command with --json ends with."""
    return json.loads(out.splitlines()[-1])


Tree = dict[str, bytes | None]


def tree(folder: Path) -> Tree:
    """All that is in a folder: the bytes of files, None for folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def made_up_lines(count: int, seed: int) -> list[str]:
    draw = random.Random(seed).choice
    nouns, verbs, colours = ["dog", "cat", "bird", "tree"], ["sees", "likes"], ["red", "blue"]
    return [
        f"the {draw(colours)} {draw(nouns)} {draw(verbs)} a {draw(nouns)} ." for _ in range(count)
    ]


def run_command(*arguments: object, cwd: Path, stdin: bytes = b"", **options) -> Answer:
    """`python -m hmmlm` in a process of its own, on this source."""
    done = subprocess.run(
        [sys.executable, "-m", "hmmlm", *map(str, arguments)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": SOURCE, "COLUMNS": "60"},
        timeout=240,
        **options,
    )
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


def torchrun(*arguments: object, cwd: Path) -> Answer:
    """Two ranks of one thread each."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
        timeout=120,
    )
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


def start_sweep(code: str) -> subprocess.Popen[str]:
    """A process with `many.toml` to sweep."""
    return subprocess.Popen(
        [sys.executable, "-c", code, "sweep", "many.toml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )


def one_child(process: int) -> int:
    """The number of the one process that another has started, or will soon."""
    ends = time.monotonic() + 60
    found: list[str] = []
    while not found and time.monotonic() < ends:
        time.sleep(0.02)
        found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    (child,) = found
    return int(child)


def lines_of_ours(answer: Answer) -> list[str]:
    return [line for line in answer.err.splitlines() if line.startswith("hmmlm: ")]


def stop_after_a_step(call, monkeypatch, *arguments: str) -> None:
    """A training that is asked to end while its first step runs."""
    from hmmlm.cli import fitting

    follow = fitting._follow

    def asked(training, run, interrupts, ranks):
        interrupts.asked = signal.SIGTERM
        return follow(training, run, interrupts, ranks)

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "_follow", asked)
        answer = call(*arguments)
    assert answer.status == 128 + signal.SIGTERM, answer.err
