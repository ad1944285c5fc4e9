"""The lines of finished runs: one for each row and evaluation mode."""

import fcntl
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from experiments.rows import Row, Teacher

KEYS = (
    "experiment", "row", "dataset", "states", "blocks", "parameters", "mode", "val", "test",
    "paper_val", "paper_test", "train", "paper_train", "ms_train_step", "ms_eval_batch",
    "tokens_val", "tokens_test", "tokens_trained", "peak_bytes", "seed", "epochs", "seconds",
    "device", "commit", "config",
)  # fmt: skip
TIMES = ("ms_train_step", "ms_eval_batch")


class _Known(dict[str, Any]):
    """What stands in a line; it says where that is when asked for what is not there."""

    def __init__(self, facts: Mapping[str, Any], where: str) -> None:
        super().__init__(facts)
        self.where = where

    def __missing__(self, key: str) -> Any:
        raise SystemExit(f"{self.where} is of another shape: no {key!r}; delete or mend that line.")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All lines of a file that are not blank; none where there is no file."""
    if not path.exists():
        return []
    found = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        where = f"{path}:{number}"
        if not text.strip():
            continue
        try:
            line = json.loads(text, object_hook=partial(_Known, where=where))
        except ValueError:
            raise SystemExit(f"{where} is not whole; delete or mend that line.") from None
        if not isinstance(line, _Known):
            raise SystemExit(f"{where} is no object of JSON; delete or mend that line.")
        found.append(line)
    return found


def add_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Appends whole lines; other processes may do so too."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if text:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            is_cut = path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
            file.write("\n" * is_cut + text)


def make_lines(
    wanted: Sequence[tuple[str, Row]], notes: Mapping[str, Any], commit: str
) -> list[dict[str, Any]]:
    """The lines of a training that was measured, for each of the rows that it is for.

    `train` is perplexity by sentence in both lines; of windows, that of windows of the first
    tokens. Where the bytes of a text are known there are `bits_per_byte` of its test. Side by side
    with other `workers`, times are longer than alone.
    """
    measured = notes["measured"]
    made = []
    for experiment, row in wanted:
        config = {
            "run": row.run,
            "text": row.text or row.dataset,
            "settings": row.changes,
            "trained_for": row.mode,
            "train_mode": measured.get("train_mode", "sentence"),
            "clusters": notes.get("clusters"),  # the file, or None: made by the training
            "workers": notes["workers"],
        }
        if row.taught is not None or row.layers is not None:
            config |= {"taught": asdict(row.taught) if row.taught else None}
            config |= {"layers": asdict(row.layers) if row.layers else None}
        if row.drawn is not None:
            config |= {"drawn": asdict(row.drawn)}
        config |= {"moved": True} if row.moved else {}
        for mode in row.modes:
            line = {
                **_about(experiment, row),
                **{key: measured[key] for key in measured if key in KEYS},
                **measured["modes"][mode],
                "mode": mode,
                "peak_bytes": notes["peak_bytes"],
                "seconds": round(notes["seconds"], 1),
                "commit": commit,
                "config": config,
            }
            extra = {key: line[key] for key in ("bits_per_byte",) if key in line}
            made.append({key: line[key] for key in KEYS} | extra)
    return made


def make_times(
    wanted: Sequence[tuple[str, Row]], notes: Mapping[str, Any], commit: str
) -> list[dict[str, Any]]:
    """How long a step and a batch of a training take on a device of its own.

    `run` is that of the short training, which trainings of other epochs share.
    """
    times = {key: notes["measured"][key] for key in (*TIMES, "device")} | {"commit": commit}
    return [{"run": run, **times} for run in dict.fromkeys(row.cut().run for _, row in wanted)]


def with_times(
    lines: Sequence[Mapping[str, Any]], times: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Lines with the times that their trainings have alone, where those were taken."""
    cut = {line["config"]["run"]: _row_of(line).cut().run for line in lines}
    known = {cut.get(taken["run"], taken["run"]): taken for taken in times}  # older: the whole's
    made = []
    for line in lines:
        config = line["config"]
        taken = known.get(cut[config["run"]])
        is_same = taken is not None and taken["device"] == line["device"]
        alone = {key: taken[key] for key in TIMES} if is_same else {}
        is_alone = is_same or config["workers"] == 1
        timed = {"is_timed_alone": is_alone, "timed_at": taken["commit"] if is_same else None}
        made.append({**line, **alone, "config": {**config, **timed}})
    return made


def _row_of(line: Mapping[str, Any]) -> Row:
    """The row of a line as it was then, but for texts and states that a short training has not."""
    config = line["config"]
    table = dict(setting.split("=", 1) for setting in config["settings"])
    kind, seed, epochs = (table.pop(key) for key in ("model.kind", "train.seed", "train.epochs"))
    return Row(
        line["row"],
        line["dataset"],
        kind,
        settings=tuple(f"{key}={value}" for key, value in table.items()),
        layers=Teacher(**config["layers"]) if config.get("layers") else None,
        moved=config.get("moved", False),
        seed=int(seed),
        epochs=int(epochs),
        text=config["text"],
    )


def is_done(lines: Iterable[Mapping[str, Any]], experiment: str, row: Row) -> bool:
    """Whether all modes of a row are there, of the settings that it has now."""
    wanted = (experiment, row.name, row.dataset, row.run)
    found = {line["mode"] for line in lines if _key(line) == wanted and _is_enough(line, row)}
    return found >= set(row.modes)


def _is_enough(line: Mapping[str, Any], row: Row) -> bool:
    """Whether a line has what its row is for: one that was only compared has no test."""
    return line["test"] is not None or not row.tested


def take_over(
    lines: Sequence[Mapping[str, Any]], wanted: Sequence[tuple[str, Row]]
) -> list[dict[str, Any]]:
    """Lines of rows that are not there but whose training is, for another row."""
    trained = {(line["config"]["run"], line["mode"]): line for line in lines}
    made = []
    for experiment, row in wanted:
        held = [trained.get((row.run, mode)) for mode in row.modes]
        if not is_done(lines, experiment, row):
            held = [line for line in held if line is not None and _is_enough(line, row)]
            # What is only compared has no test, though another row's may be known.
            unread = {} if row.tested else {"test": None, "tokens_test": None}
            made += [{**line, **_about(experiment, row), **unread} for line in held]
    return made


def _about(experiment: str, row: Row) -> dict[str, Any]:
    """What a line says of its row."""
    return {
        "experiment": experiment,
        "row": row.name,
        "dataset": row.dataset,
        "states": row.states,
        "blocks": row.blocks,
        "paper_val": row.paper_val,
        "paper_test": row.paper_test,
        "paper_train": row.paper_train,
        "seed": row.seed,
    }


def _key(line: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return line["experiment"], line["row"], line["dataset"], line["config"]["run"]
