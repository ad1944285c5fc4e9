"""Mixtures of the seeds of `final`, one HMM each, then with powers that suit validation text.

    python -m experiments.past.mixture --work DIR [--out FILE] [--smoke]

after `final` has run in that folder. Weights and powers are found on validation text. A mixture
whose models are not all there is left out, and one whose lines are there is not made again.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.measuring import device_name
from experiments.past.final import EXPERIMENT, ROWS
from experiments.results import KEYS, add_lines, read_lines
from experiments.rows import Row, digest

RESULTS = Path(__file__).parent.parent / "results/past.jsonl"


def mixtures(rows: Sequence[Row] = ROWS) -> dict[tuple[str, int | None], list[Row]]:
    """The rows of each text and number of states: one for each seed."""
    found: dict[tuple[str, int | None], list[Row]] = {}
    for row in rows:
        found.setdefault((row.dataset, row.states), []).append(row)
    return found


def measure(rows: Sequence[Row], work: Path, device: str, commit: str) -> list[dict[str, Any]]:
    """Makes a mixture, as it is and flatter; a line for each and each mode."""
    began = time.monotonic()
    places = [work / "runs" / row.run for row in rows]
    mixed = work / "mixtures" / digest([row.run for row in rows])
    text = work / f"{rows[0].text or rows[0].dataset}.corpus"
    flat = mixed.with_name(f"{mixed.name}-flat")
    if not mixed.exists():
        _call("mix", *places, f"--out={mixed}", f"--weigh-on={text}", f"--device={device}")
    if not flat.exists():
        _call("temper", mixed, f"--out={flat}", f"--on={text}", f"--device={device}")
    made = []
    for folder, end in ((mixed, ""), (flat, ", flatter")):
        about = {"experiment": "past/mixture", "dataset": rows[0].dataset, "commit": commit}
        about["row"] = f"{len(rows)} x {rows[0].states:,} states{end}"
        for line in _read(folder, text, rows[0].modes, device):
            line["config"] |= {"run": folder.name, "of": EXPERIMENT}
            line["config"]["runs"] = [row.run for row in rows]
            line["config"] |= {"text": rows[0].text or rows[0].dataset, "workers": 1}
            made.append({**line, **about, "seconds": round(time.monotonic() - began, 1)})
    return made


def _call(*words: Any) -> None:
    command = [sys.executable, "-m", "hmmlm", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _read(folder: Path, text: Path, modes: Sequence[str], device: str) -> list[dict[str, Any]]:
    """Perplexity of validation and test text by a model, a line for each mode."""
    from hmmlm.data.shards import Corpus
    from hmmlm.evaluate import evaluate
    from hmmlm.model import Model

    model, corpus = Model.load(folder, device=device), Corpus.open(text)
    made = []
    for mode in modes:
        line: dict[str, Any] = dict.fromkeys(KEYS)
        for key, split in (("val", "valid"), ("test", "test")):
            eos, held_out = corpus.tokenizer.eos_id, corpus.split(split)
            found = evaluate(model.lm, held_out, mode=mode, eos_id=eos, device=device)
            line |= {key: found.perplexity, f"tokens_{key}": found.tokens}
        weights = [part["weight"] for part in model.config["parts"]]
        line |= {"states": model.hmm.num_states, "mode": mode, "device": device_name(device)}
        line["config"] = {"weights": weights, "powers": model.config.get("powers")}
        made.append(line)
    return made


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="where `final` has worked")
    parser.add_argument("--out", type=Path, help="the lines; by default past.jsonl of the results")
    parser.add_argument("--device", default="auto", help="as of hmmlm train")
    parser.add_argument("--commit", default="unknown", help="what the code is")
    parser.add_argument("--smoke", action="store_true", help="of the tiny models of a rehearsal")
    given = parser.parse_args(words)
    out = given.out or (given.work / "results.jsonl" if given.smoke else RESULTS)
    known = [line["config"]["runs"] for line in read_lines(out) if "runs" in line["config"]]
    rows = tuple(row.shrink() for row in ROWS) if given.smoke else ROWS
    left, done = [], 0
    has_gpu = torch.cuda.is_available()
    device = given.device if given.device != "auto" else ("cuda" if has_gpu else "cpu")
    for (dataset, states), parts in mixtures(rows).items():
        runs = [row.run for row in parts]
        there = all((given.work / "runs" / run / "config.json").exists() for run in runs)
        if not there:
            left.append(f"{dataset}: {states:,} states")
        elif runs not in known:
            add_lines(out, measure(parts, given.work, device, given.commit))
            known.append(runs)
            done += 1
    print(json.dumps({"made": done, "left": left}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
