"""Topics for the models of `laptop` and `final`: settings by validation, then test text once.

    python -m experiments.past.topics --work DIR [--of final] [--workers N] [--out FILE] [--smoke]

after these have run in that folder. The models of a text and a number of states, one of each seed,
get topics by every setting of `TRIED`, read on validation text alone; those of the one that was
best streaming, in the mean, are tested. What is not all there is left out, and what has its lines
is not made again.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from experiments.measurers import Measurers
from experiments.measuring import device_name
from experiments.past import final, laptop
from experiments.past.mixture import mixtures
from experiments.results import KEYS, add_lines, read_lines
from experiments.rows import BOTH, Row
from experiments.stopping import Stop

RESULTS = Path(__file__).parent.parent / "results/past.jsonl"
EXPERIMENT = "past/topics"
OF = {"laptop": laptop, "final": final}
TRIED = {
    "laptop": ((64, 0.5),),  # found with 2,048 states
    "final": ((64, 0.5), (128, 0.5)),
}
SMOKE = ((2, 1.0), (3, 1.0))


def measure(
    corpus: Any,
    watch: Callable[[], None],
    *,
    row: Row,
    topics: int,
    penalty: float,
    work: Path,
    device: str,
    tested: bool,
    workers: int,
) -> list[dict[str, Any]]:
    """Perplexities of a row's model with topics, a line for each mode; the folder is kept."""
    from hmmlm.model import Model
    from hmmlm.topic_model import TopicModel
    from hmmlm.topics import TopicSettings, learn_topics

    began = time.monotonic()
    how = TopicSettings(topics=topics, penalty=penalty, seed=row.seed)
    settings = {"topics": topics, "penalty": penalty, "learning_rate": how.learning_rate}
    name = "-".join(f"{value:g}" for value in settings.values())
    folder = work / "topics" / f"{row.run}-{name}"
    if folder.exists():
        model = TopicModel.load(folder, device=device)
    else:
        base = Model.load(work / "runs" / row.run, device=device)
        text = corpus.split("train")
        learnt = learn_topics(base.hmm, text, how, progress=lambda *_: watch()).topics
        took = {"seconds": round(time.monotonic() - began, 1), "workers": workers}
        model = TopicModel(learnt, base.tokenizer, took)
        model.save(folder)
    splits = {"val": "valid", "test": "test"} if tested else {"val": "valid"}
    made = []
    for mode in BOTH:
        line: dict[str, Any] = dict.fromkeys(KEYS)
        line |= {"experiment": EXPERIMENT, "row": row.name, "dataset": row.dataset}
        line |= {"states": row.states, "blocks": row.blocks, "seed": row.seed, "mode": mode}
        for key, split in splits.items():
            found = model.evaluate(corpus.split(split), mode=mode)
            line |= {key: found.perplexity, f"tokens_{key}": found.tokens}
        line["seconds"] = model.config["seconds"]  # that topics were learnt in
        line["device"] = device_name(device)
        line["config"] = {"run": row.run, "text": row.text or row.dataset, **settings}
        line["config"] |= {"workers": model.config["workers"]}
        made.append(line)
    return made


def search(
    rows: Sequence[Row],
    tried: Sequence[tuple[int, float]],
    out: Path,
    measure_all: Callable[..., None],
) -> None:
    """All lines of the models of a text and a number of states that are not in `out`."""
    from hmmlm.topics import TopicSettings

    rate = TopicSettings.learning_rate

    def read(settings: Sequence[tuple[int, float]], *, tested: bool) -> None:
        wanted = {(row.run, *one, rate, tested): (row, *one) for row in rows for one in settings}
        known = {_key(line) for line in read_lines(out)}
        measure_all([what for key, what in wanted.items() if key not in known], tested=tested)

    best = tried[0]
    if len(tried) > 1:
        read(tried, tested=False)
        runs, found = {row.run for row in rows}, defaultdict(list)
        for line in read_lines(out):
            key = _key(line)
            if key and key[0] in runs and key[3] == rate and line["mode"] == "streaming":
                found[key[1:3]].append(line["val"])
        best = min(tried, key=lambda one: mean(found[one]))
    read([best], tested=True)


def _key(line: dict[str, Any]) -> tuple[Any, ...] | None:
    if line["experiment"] != EXPERIMENT:
        return None
    about = line["config"]
    how = (about["topics"], about["penalty"], about["learning_rate"])
    return (about["run"], *how, line["test"] is not None)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="where they have worked")
    parser.add_argument("--out", type=Path, help="the lines; by default past.jsonl of the results")
    parser.add_argument("--of", choices=OF, default="final", help="whose models")
    parser.add_argument("--device", default="auto", help="as of hmmlm train")
    parser.add_argument("--commit", default="unknown", help="what the code is")
    parser.add_argument("--workers", type=int, default=1, help="so many side by side")
    parser.add_argument("--beside", type=int, default=0, metavar="N", help="other trainings there")
    parser.add_argument("--smoke", action="store_true", help="of the tiny models of a rehearsal")
    given = parser.parse_args(words)
    out = given.out or (given.work / "results.jsonl" if given.smoke else RESULTS)
    has_gpu = torch.cuda.is_available()
    device = given.device if given.device != "auto" else ("cuda" if has_gpu else "cpu")
    tried = SMOKE if given.smoke else TRIED[given.of]
    at_once, stop = given.workers + given.beside, Stop()
    left, done = [], 0
    with (
        stop.heard(),
        Measurers(given.workers, beside=given.beside) as measurers,
        ThreadPoolExecutor(given.workers) as pool,
    ):

        def measure_all(what: Sequence[tuple[Row, int, float]], *, tested: bool) -> None:
            def one(asked: tuple[Row, int, float]) -> None:
                row, topics, penalty = asked
                corpus = given.work / f"{row.text or row.dataset}.corpus"
                facts = {"row": row, "topics": topics, "penalty": penalty, "work": given.work}
                facts |= {"device": device, "tested": tested, "workers": at_once}
                lines = measurers.measure(stop, measure, corpus, verify=False, **facts)
                add_lines(out, [{**line, "commit": given.commit} for line in lines])

            list(pool.map(one, what))

        for (dataset, states), found in mixtures(OF[given.of].ROWS).items():
            rows = [row.shrink() for row in found] if given.smoke else found
            if all((given.work / "runs" / row.run / "config.json").exists() for row in rows):
                search(rows, tried, out, measure_all)
                done += 1
            else:
                left.append(f"{dataset}: {states:,} states")
    print(json.dumps({"made": done, "left": left}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
