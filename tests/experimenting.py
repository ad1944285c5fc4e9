"""Experiments as commands."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def command(module: str, *words: str) -> list[str]:
    return [sys.executable, "-m", f"experiments.{module}", *words]


def run(module: str, *words: str) -> dict:
    """The last line of an experiment, which is JSON."""
    done = subprocess.run(command(module, *words), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
