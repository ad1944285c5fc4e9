"""Tags that nobody told: the states of HMMs against the gold tags of the English Web Treebank.

    python -m experiments.induction --data DIR --work DIR [--row NAME] [--workers 2] [--smoke]

DIR has ewt/tagged.tsv (or .tsv.xz): a word, its universal tag and its Penn tag on a line, blank
lines between sentences. Every model is trained on all sentences, all words kept as they are
written, and tags the same sentences, as is usual where no tag is shown. Each has three seeds; the
two clusterings of words have no chance in them. `<eos>` is not compared. A line has one set of
tags, one way to choose states, and all states or those merged to so many groups.

No setting was chosen by tags: none was changed after its states had been compared with them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.machine import describe

from experiments.results import add_lines, read_lines
from experiments.rows import BUILTIN, digest
from hmmlm.clusters.brown import brown
from hmmlm.clusters.counts import count_bigrams
from hmmlm.clusters.exchange import exchange
from hmmlm.data.builtin import builtin_sentences
from hmmlm.data.gold import TaggedSentence, read_gold
from hmmlm.data.shards import Corpus, write_corpus
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.induction import agreement, count_together, merge_states
from hmmlm.model import Model

RESULTS = Path(__file__).parent / "results/induction.jsonl"
SEEDS = (1, 2, 3)
SETS = {"universal": 2, "penn": 3}
"""The columns of the tags."""

VIEWS = (None, 45, 17)
"""To how many groups states are merged."""

MEASURES = ("many_to_one", "one_to_one", "v_measure", "variation_of_information")
METHODS = {"brown": brown, "exchange": exchange}

EM = ("model.kind=scalar", "train.optimiser=em", "train.epochs=40")
SGD = ("model.kind=scalar", "train.dropout=0.0", "train.learning_rate=0.1", "train.epochs=8")
LOWRANK = ("model.kind=lowrank", "model.cluster_by=brown", "train.dropout=0.25", "train.epochs=5")


@dataclass(frozen=True)
class Row:
    """A model by the settings of `hmmlm train --set`, or the words' clusters by a `method`."""

    name: str
    states: int
    blocks: int = 0
    settings: tuple[str, ...] = ()
    method: str = ""

    @property
    def seeds(self) -> tuple[int, ...]:
        return SEEDS[:1] if self.method else SEEDS

    def changes(self, seed: int, smoke: bool) -> list[str]:
        sizes = [f"model.states={self.states}", f"model.blocks={self.blocks}"]
        fast = ["train.epochs=1"] if smoke else []
        return [*self.settings, *sizes, f"train.seed={seed}", *fast]


ROWS = (
    Row("EM, dense", 45, settings=EM),
    Row("SGD, dense", 45, settings=SGD),
    Row("SGD, 32 Brown blocks", 128, 32, LOWRANK),
    Row("SGD, 64 Brown blocks", 512, 64, LOWRANK),
    Row("SGD, 128 Brown blocks", 2048, 128, LOWRANK),
    Row("Brown clusters of words", 45, method="brown"),
    Row("exchange clusters of words", 45, method="exchange"),
)


def find_gold(folder: Path) -> Path:
    for name in ("tagged.tsv", "tagged.tsv.xz"):
        if (folder / "ewt" / name).exists():
            return folder / "ewt" / name
    raise SystemExit(f"{folder} has no ewt/tagged.tsv or ewt/tagged.tsv.xz; give --data DIR.")


def made_up_gold() -> dict[str, list[TaggedSentence]]:
    """Some built-in sentences; the tag of a word is its length, or its last letter."""
    words = [line.split() for line in builtin_sentences()["train"][:300]]
    makes = {"universal": lambda word: str(len(word)), "penn": lambda word: word[-1]}
    return {
        name: [TaggedSentence(one, [make(word) for word in one], 0) for one in words]
        for name, make in makes.items()
    }


def prepare(lines: Sequence[str], folder: Path) -> Corpus:
    if not (folder / "corpus.json").exists():
        write_corpus(folder, Tokenizer.words(lines), {"train": lines})
    return Corpus.open(folder)


def train(row: Row, seed: int, corpus: Path, work: Path, smoke: bool) -> tuple[Path, float]:
    """The folder of a model and the seconds of its training, in a process of its own."""
    changes = row.changes(seed, smoke)
    folder = work / f"{row.states}-{digest([corpus.name, *changes])}"
    notes = folder.with_suffix(".json")
    if not notes.exists():
        began = time.perf_counter()
        words = ["train", str(corpus), "--out", str(folder), "--resume-if-begun", "--device=cpu"]
        done = subprocess.run(
            [sys.executable, "-m", "hmmlm", *words, *(f"--set={change}" for change in changes)],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        notes.write_text(json.dumps({"seconds": round(time.perf_counter() - began, 1)}))
    return folder, json.loads(notes.read_text())["seconds"]


Lines = list[np.ndarray]


def states_of(row: Row, corpus: Corpus, model: Model | None, lines: list[str]) -> dict[str, Lines]:
    """The states of each line's words, by the best path and by each word's posterior."""
    if model is not None:
        ways = {"path": False, "posterior": True}
        return {
            name: [
                np.array(line.states[:-1])
                for line in model.tag_lines(lines, posterior=is_posterior)
            ]
            for name, is_posterior in ways.items()
        }
    words = corpus.tokenizer
    bigrams = count_bigrams(corpus.split("train"), words.vocab_size)
    cluster_of_word = METHODS[row.method](bigrams, row.states).cluster_of_word
    return {"path": [cluster_of_word[ids[:-1]] for ids in words.encode_lines(lines)]}


def run(
    row: Row, seed: int, gold: Mapping[str, list[TaggedSentence]], corpus: Corpus,
    given: argparse.Namespace,
) -> list[dict[str, Any]]:  # fmt: skip
    """The lines of a model: of both sets of tags, each way and each view."""
    lines = [" ".join(one.words) for one in gold["penn"]]
    model, seconds, perplexity = None, 0.0, None
    if not row.method:
        folder, seconds = train(row, seed, corpus.folder, given.work, given.smoke)
        model = Model.load(folder)
        perplexity = model.evaluate(corpus.split("train")).perplexity
    made = []
    for way, found in states_of(row, corpus, model, lines).items():
        for view in VIEWS:
            states = np.concatenate(found)
            number = len(np.unique(states))
            if view is not None:
                if view >= number:
                    continue
                states = merge_states(found, view)[states]
            for name, sentences in gold.items():
                tags = np.unique([t for one in sentences for t in one.tags], return_inverse=True)[1]
                counts = count_together(np.unique(states, return_inverse=True)[1], tags)
                made.append({
                    "experiment": "induction", "row": row.name, "dataset": "ewt", "tags": name,
                    "gold_tags": counts.shape[1], "states": row.states, "blocks": row.blocks,
                    "used": number, "by": way, "merge": view, "seed": seed,
                    **agreement(counts)._asdict(), "train": perplexity, "mode": "sentence",
                    "seconds": seconds, "device": describe()["device"], "commit": given.commit,
                    "config": {
                        "text": BUILTIN if given.smoke else "ewt", "workers": given.workers,
                        "settings": row.method or row.changes(seed, given.smoke),
                    },
                })  # fmt: skip
    return made


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a folder with ewt/tagged.tsv[.xz]")
    parser.add_argument("--work", type=Path, help="where models are kept; else nowhere")
    parser.add_argument("--row", action="append", choices=[row.name for row in ROWS])
    parser.add_argument("--workers", type=int, default=1, help="trainings side by side")
    parser.add_argument("--smoke", action="store_true", help="tiny, on made-up tags")
    parser.add_argument("--out", type=Path, help="the lines; else those of the results")
    parser.add_argument("--commit", default=describe()["commit"], help="where there is no git")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as scratch:
        given.work = given.work or Path(scratch)
        given.work.mkdir(parents=True, exist_ok=True)
        out = given.out or (given.work / "results.jsonl" if given.smoke else RESULTS)
        if given.smoke:
            gold = made_up_gold()
        elif given.data is None:
            raise SystemExit("Give --data DIR, or --smoke.")
        else:
            path = find_gold(given.data)
            gold = {name: read_gold(path, column=column) for name, column in SETS.items()}
        lines = [" ".join(one.words) for one in gold["penn"]]
        corpus = prepare(lines, given.work / ("smoke.corpus" if given.smoke else "ewt.corpus"))
        held = {(line["row"], line["seed"]) for line in read_lines(out)}
        rows = [row for row in ROWS if not given.row or row.name in given.row]
        wanted = [(row, seed) for row in rows for seed in row.seeds]
        wanted = [(row, seed) for row, seed in wanted if (row.name, seed) not in held]
        with ThreadPoolExecutor(given.workers) as pool:
            runs = {pool.submit(run, *one, gold, corpus, given): one for one in wanted}
            for future in as_completed(runs):
                made, (row, seed) = future.result(), runs[future]
                add_lines(out, made)
                best = {line["tags"]: line["many_to_one"] for line in made if not line["merge"]}
                told = ", ".join(f"{name} {value:.1%}" for name, value in best.items())
                print(f"{row.name}, seed {seed}: many-to-one {told}", flush=True)
    print(json.dumps({"runs": len(wanted), "lines": len(read_lines(out))}))
    return 0


def section(lines: Iterable[Mapping[str, Any]]) -> str:
    """What the page of results says of it: the mean over seeds and its standard deviation."""
    held: dict[tuple, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for line in lines:
        place = (line["row"], line["merge"], line["by"], line["tags"])
        held[place][line["seed"]] = line  # the newest counts
    if not held:
        return "\n# Induction of tags\nNot run yet.\n"
    first = next(iter(next(iter(held.values())).values()))
    sizes = {place[3]: next(iter(of.values()))["gold_tags"] for place, of in held.items()}
    told = " and ".join(f"{size} {name}" for name, size in sizes.items())
    parts = [
        "\n# Induction of tags",
        "[Lines](../experiments/results/induction.jsonl). States that nobody told a tag, against "
        f"the {told} tags of the English Web Treebank, {first['tokens']:,} tokens, all of them "
        "trained on and tagged ([induction.md](induction.md) says what is measured). Means over "
        "seeds, ± the standard deviation; clusters of words have no seed. *Used* are the states "
        "that the text has, *perplexity* is that of the same text by sentence. Shares in percent, "
        "information in nats (less is better). On WSJ, EM with 45 states is usually "
        "reported at 60 to 65 percent many-to-one.\n",
    ]
    for way, title in (("path", "By the best path"), ("posterior", "By each word's posterior")):
        parts += [f"## {title}", _table(held, way, list(sizes)), ""]
    left = [row.name for row in ROWS if (row.name, None, "path", "penn") not in held]
    parts += [f"Not run yet: {', '.join(left)}.\n"] if left else []
    commits = dict.fromkeys(line["commit"] for of in held.values() for line in of.values())
    parts.append(f"Device: {first['device']}. Commit: {', '.join(commits)}.")
    return "\n".join(parts) + "\n"


def _table(held: Mapping[tuple, Mapping[int, Mapping[str, Any]]], way: str, sets: list[str]) -> str:
    short = ("many-to-one", "one-to-one", "V-measure", "information")
    names = ["row", "states", "used", "seeds", "perplexity", "merged to"]
    names += [f"{name}: {measure}" for name in sets for measure in short]
    table = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in ROWS:
        for view in VIEWS:
            of = [list(held.get((row.name, view, way, name), {}).values()) for name in sets]
            if not all(of):
                continue
            blocks = f" in {row.blocks}" if row.blocks else ""
            used = _mean([line["used"] for line in of[0]], 0)
            train = [line["train"] for line in of[0] if line["train"] is not None]
            cells = [row.name, f"{row.states:,}{blocks}", used, str(len(of[0])) if train else ""]
            cells += [_mean(train, 1), str(view or "")]
            for one in of:
                for measure in MEASURES:
                    is_share = measure != MEASURES[-1]
                    values = [line[measure] * (100 if is_share else 1) for line in one]
                    cells.append(_mean(values, 1 if is_share else 2))
            table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table)


def _mean(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):,.{digits}f}{spread}"


if __name__ == "__main__":
    raise SystemExit(main())
