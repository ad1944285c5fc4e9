"""Topics for the models of `laptop` and `final`: settings by validation, then test text once.

    python -m experiments.past.topics --work DIR [--of final] [--out FILE] [--smoke]

after these have run in that folder. Of each text and number of states, the first seed's model gets
topics by every setting of `TRIED`, each read on validation text alone; all seeds then get them by
the one that was best streaming, and are tested. (With PTB's 2^15 states every seed had every
setting.) What is not all there is left out, and what has its lines is not made again.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.measuring import device_name
from experiments.past import final, laptop
from experiments.past.mixture import mixtures
from experiments.results import KEYS, add_lines, read_lines
from experiments.rows import BOTH, Row

RESULTS = Path(__file__).parent.parent / "results/past.jsonl"
EXPERIMENT = "past/topics"
OF = {"laptop": laptop, "final": final}
TRIED = {
    "laptop": ((64, 0.5),),  # found with 2,048 states
    "final": ((64, 0.5), (128, 0.5)),
}
SMOKE = ((2, 1.0), (3, 1.0))


def measure(
    row: Row,
    topics: int,
    penalty: float,
    work: Path,
    device: str,
    *,
    tested: bool,
    beside: int = 0,
) -> list[dict[str, Any]]:
    """Perplexities of a row's model with topics, a line for each mode; the folder is kept."""
    from hmmlm.data.shards import Corpus
    from hmmlm.model import Model
    from hmmlm.topic_model import TopicModel
    from hmmlm.topics import TopicSettings, learn_topics

    began = time.monotonic()
    corpus = Corpus.open(work / f"{row.text or row.dataset}.corpus")
    folder = work / "topics" / f"{row.run}-{topics}-{penalty:g}"
    if folder.exists():
        model = TopicModel.load(folder, device=device)
    else:
        base = Model.load(work / "runs" / row.run, device=device)
        how = TopicSettings(topics=topics, penalty=penalty, seed=row.seed)
        learnt = learn_topics(base.hmm, corpus.split("train"), how).topics
        took = {"seconds": round(time.monotonic() - began, 1), "workers": 1 + beside}
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
        line["config"] = {"run": row.run, "text": row.text or row.dataset}
        line["config"] |= {"topics": topics, "penalty": penalty}
        line["config"] |= {"workers": model.config["workers"]}  # when they were
        made.append(line)
    return made


def search(
    rows: Sequence[Row], tried: Sequence[tuple[int, float]], out: Path, work: Path, **how: Any
) -> None:
    """All lines of the models of a text and a number of states that are not in `out`."""
    commit = how.pop("commit")

    def lines(row: Row, topics: int, penalty: float, *, tested: bool) -> list[dict[str, Any]]:
        key = (row.run, topics, penalty, tested)
        known = [line for line in read_lines(out) if _key(line) == key]
        if not known:
            known = measure(row, topics, penalty, work, tested=tested, **how)
            known = [{**line, "commit": commit} for line in known]
            add_lines(out, known)
        return known

    def streamed(setting: tuple[int, float]) -> float:
        found = lines(rows[0], *setting, tested=False)
        return next(line["val"] for line in found if line["mode"] == "streaming")

    best = min(tried, key=streamed) if len(tried) > 1 else tried[0]
    for row in rows:
        lines(row, *best, tested=True)


def _key(line: dict[str, Any]) -> tuple[Any, ...] | None:
    if line["experiment"] != EXPERIMENT:
        return None
    about = line["config"]
    return (about["run"], about["topics"], about["penalty"], line["test"] is not None)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="where they have worked")
    parser.add_argument("--out", type=Path, help="the lines; by default past.jsonl of the results")
    parser.add_argument("--of", choices=OF, default="final", help="whose models")
    parser.add_argument("--device", default="auto", help="as of hmmlm train")
    parser.add_argument("--commit", default="unknown", help="what the code is")
    parser.add_argument("--beside", type=int, default=0, metavar="N", help="other trainings there")
    parser.add_argument("--smoke", action="store_true", help="of the tiny models of a rehearsal")
    given = parser.parse_args(words)
    out = given.out or (given.work / "results.jsonl" if given.smoke else RESULTS)
    has_gpu = torch.cuda.is_available()
    device = given.device if given.device != "auto" else ("cuda" if has_gpu else "cpu")
    tried = SMOKE if given.smoke else TRIED[given.of]
    left, done = [], 0
    for (dataset, states), found in mixtures(OF[given.of].ROWS).items():
        rows = [row.shrink() for row in found] if given.smoke else found
        if all((given.work / "runs" / row.run / "config.json").exists() for row in rows):
            how = {"device": device, "commit": given.commit, "beside": given.beside}
            search(rows, tried, out, given.work, **how)
            done += 1
        else:
            left.append(f"{dataset}: {states:,} states")
    print(json.dumps({"made": done, "left": left}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
