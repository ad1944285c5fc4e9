"""The section of docs/results.md on what goes past both papers: models that were tested."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

Line = Mapping[str, Any]
HEAD = """
# Past both papers
[Lines](../experiments/results/past.jsonl). Pure HMMs on the standard tokens, by recipes that were
chosen on validation text; each model was tested once. Means of all seeds (least and largest).
*By sentence* the belief is p(first state) after every `<eos>`; *streaming* a model without topics
carries its belief on, and one with [topics](topics.md) its topic alone. Chiu & Rush 2020 have 125.0
/ 116.0 on PTB and 166.6 / 158.2 on WikiText-2, streaming, with 32,768 states; the 2 x 256 LSTM of
table 1 has 96.0 / 90.8 and 114.2 / 107.7.

The goals, 105 and 140 on test with three seeds, are of large models on a GPU (`past/final`).
"""
LARGE = ("past/final", "past/mixture", "past/ablation", "past/million")
COLUMNS = ("model", "text", "topics", "seeds", *(
    f"{split}, {mode}" for split in ("val", "test") for mode in ("sentence", "streaming")
), "device", "commit")  # fmt: skip


def section(lines: Sequence[Line]) -> str:
    """A table of the models that were tested, those of one recipe in a row, and what is to come."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        if line["test"] is not None:
            name = line["row"].partition(", seed")[0]
            key = (name, line["dataset"], line["config"].get("topics"), line["experiment"])
            groups.setdefault(key, []).append(line)
    run = {line["experiment"] for line in lines}
    left = ", ".join(f"`{name}`" for name in LARGE if name not in run)
    said = f"{HEAD}\nNot run yet: {left}.\n" if left else HEAD
    if not groups:
        return said
    table = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for (name, text, topics, _), some in groups.items():
        seeds = {line["seed"] for line in some}
        read = [
            _numbers([line[split] for line in some if line["mode"] == mode])
            for split in ("val", "test")
            for mode in ("sentence", "streaming")
        ]
        made = [", ".join(sorted({line[key] for line in some})) for key in ("device", "commit")]
        cells = [name, text, str(topics or ""), str(len(seeds)), *read, *made]
        table.append(f"| {' | '.join(cells)} |")
    return said + "\n" + "\n".join(table) + "\n"


def _numbers(found: Sequence[float]) -> str:
    if not found:
        return ""
    return f"{mean(found):.1f} ({min(found):.1f}-{max(found):.1f})"
