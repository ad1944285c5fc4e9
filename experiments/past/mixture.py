"""The seeds of `final`, each flatter, and mixtures of them, one HMM each.

    python -m experiments.past.mixture --work DIR [--out FILE] [--smoke]

after `final` has run in that folder. Powers and weights are found on validation text, powers of
each model by itself: a mixture of the flatter ones is then no wider to search than they are. Read
by sentence alone: in a stream one part of a mixture has all the weight soon (LOG.md). What is not
all there is left out, and what has its lines is not made again.
"""

import argparse
import json
import math
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
    """Flattens each model, then mixes them, as they are and flatter; a line for each."""
    began = time.monotonic()
    text = work / f"{rows[0].text or rows[0].dataset}.corpus"
    runs = [row.run for row in rows]
    places = [work / "runs" / run for run in runs]
    flat = [work / "mixtures" / f"{run}-flat" for run in runs]
    for place, flatter in zip(places, flat, strict=True):
        if not flatter.exists():
            _call("temper", place, f"--out={flatter}", f"--on={text}", f"--device={device}")
    several = f"{len(rows)} x {rows[0].states:,} states"
    # Each model that is read, with its parts and the rows that these are of.
    named = {
        f"{row.name}, flatter": (place, [place], [row])
        for row, place in zip(rows, flat, strict=True)
    }
    for name, parts in ((several, places), (f"{several}, flatter", flat)):
        mixed = work / "mixtures" / digest([name, runs])
        named[name] = (mixed, parts, list(rows))
        if not mixed.exists():
            how = (f"--out={mixed}", f"--weigh-on={text}", f"--device={device}")
            _call("mix", *parts, *how)
    made = []
    for name, (folder, parts, of) in named.items():
        about = {"experiment": "past/mixture", "dataset": rows[0].dataset, "commit": commit}
        line = _read(folder, parts, text, device)
        line["config"] |= {"run": folder.name, "of": EXPERIMENT, "runs": [row.run for row in of]}
        line["config"] |= {"text": rows[0].text or rows[0].dataset, "workers": 1}
        line |= {"row": name, "seconds": round(time.monotonic() - began, 1), **about}
        line |= {"seed": of[0].seed if len(of) == 1 else None, "blocks": of[0].blocks}
        made.append(line)
    return made


def _call(*words: Any) -> None:
    command = [sys.executable, "-m", "hmmlm", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _read(folder: Path, parts: Sequence[Path], text: Path, device: str) -> dict[str, Any]:
    """Perplexity of validation and test text by a model, by sentence, as a line.

    log p of a sentence under a mixture is log sum_n weight_n p_n, from its parts: the one HMM that
    they are (`folder`) says the same, but has more states for a word than kernels take.
    """
    import numpy as np

    from hmmlm.data.shards import Corpus
    from hmmlm.evaluate import sentence_log_probs
    from hmmlm.model import Model

    corpus, model = Corpus.open(text), Model.load(folder, device="cpu")
    line: dict[str, Any] = dict.fromkeys(KEYS)
    line |= {"states": model.hmm.num_states, "mode": "sentence", "device": device_name(device)}
    weights = [part["weight"] for part in model.config.get("parts", [])]
    line["config"] = {"weights": weights, "powers": model.config.get("powers")}
    lms = [Model.load(part, device=device).lm for part in parts]
    for key, split in (("val", "valid"), ("test", "test")):
        held_out, eos = corpus.split(split), corpus.tokenizer.eos_id
        found = [
            sentence_log_probs(lm, held_out, eos_id=eos, device=device) + np.log(weight)
            for lm, weight in zip(lms, weights or [1.0], strict=True)
        ]
        nats = -float(np.logaddexp.reduce(found).sum())
        line |= {key: math.exp(nats / len(held_out)), f"tokens_{key}": len(held_out)}
    return line


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
