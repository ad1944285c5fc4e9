"""The section of docs/results.md on what goes past both papers: models that were tested."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from experiments.rows import BOTH

Line = Mapping[str, Any]
HEAD = """
# Past both papers
[Lines](../experiments/results/past.jsonl). Pure HMMs on the standard tokens, by recipes that were
chosen on validation text; each model was tested once. Means of all seeds (least and largest).
*By sentence* the belief is p(first state) after every `<eos>`; *streaming* a model without topics
carries its belief on, and one with [topics](topics.md) its topic alone: it is then one HMM of
topics x states. Chiu & Rush 2020 have 125.0 / 116.0 on PTB and 166.6 / 158.2 on WikiText-2,
streaming, with 32,768 states; the LSTM is the 2 x 256 one of table 1, trained on streams.
"""
GOALS = {"ptb": 105.0, "wikitext-2": 140.0}
TEXTS = {"ptb": "PTB", "wikitext-2": "WikiText-2"}
LSTM = "2x256 LSTM"
"""The row of Chiu & Rush's table 1."""

LARGE = ("past/final", "past/mixture", "past/ablation", "past/million")
COLUMNS = ("model", "text", "topics", "seeds", *(
    f"{split}, {mode}" for split in ("val", "test") for mode in BOTH
), "device", "commit")  # fmt: skip


def section(lines: Sequence[Line], baselines: Sequence[Line] = ()) -> str:
    """A table of the models that were tested, those of one recipe in a row, and what is to come.

    Before it, the goals, beside the LSTM of the `baselines`.
    """
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        if line["test"] is not None:
            name = line["row"].partition(", seed")[0]
            how = [line["config"].get(part) for part in ("topics", "penalty", "learning_rate")]
            key = (name, line["dataset"], *how, line["experiment"])
            groups.setdefault(key, []).append(line)
    run = {line["experiment"] for line in lines}
    left = ", ".join(f"`{name}`" for name in LARGE if name not in run)
    said = HEAD + "\n" + "".join(_goal(text, groups, baselines) for text in GOALS)
    said += f"\nNot run yet: {left}.\n" if left else ""
    if not groups:
        return said
    table = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for (name, text, topics, _, rate, _), some in groups.items():
        read = [
            _numbers([line[split] for line in some if line["mode"] == mode])
            for split in ("val", "test")
            for mode in BOTH
        ]
        made = [", ".join(sorted({line[key] for line in some})) for key in ("device", "commit")]
        seeds = str(_count_seeds(some))
        told = f"{topics} (rate {rate:g})" if topics else ""
        cells = [name, text, told, seeds, *read, *made]
        table.append(f"| {' | '.join(cells)} |")
    return said + "\n" + "\n".join(table) + "\n"


def _goal(
    text: str, groups: Mapping[tuple[Any, ...], list[Line]], baselines: Sequence[Line]
) -> str:
    """What the model with three seeds that was best on validation, streaming, has beside a goal."""
    goal = GOALS[text]
    aim = f"- *{TEXTS[text]}*, {goal:g} on test, mean of three seeds: "
    found = {
        key: {mode: _mean(some, mode, "test") for mode in BOTH}
        for key, some in groups.items()
        if key[1] == text and min(_count_seeds(some, mode) for mode in BOTH) >= 3
    }
    if not found:
        return f"{aim}no such model has been read in both modes.\n"
    key = min(found, key=lambda key: _mean(groups[key], "streaming", "val"))
    name, _, topics, *_ = key
    ours = found[key]
    told = f"{aim}**{ours['streaming']:.1f}** streaming and {ours['sentence']:.1f} by sentence"
    told += f" ({name}{f', {topics} topics' if topics else ''}): "
    met = [mode for mode in BOTH if ours[mode] <= goal]
    told += {0: "missed.", 1: f"met, {''.join(met)}.", 2: "met in both modes."}[len(met)]
    lstm = [line for line in baselines if (line["row"], line["dataset"]) == (LSTM, text)]
    if lstm:
        theirs = {mode: _mean(lstm, mode, "test") for mode in BOTH}
        told += f" The LSTM has {theirs['streaming']:.1f} and {theirs['sentence']:.1f}, so the HMM"
        told += f" is {_beside(ours['streaming'], theirs['streaming'])} streaming and"
        told += f" {_beside(ours['sentence'], theirs['sentence'])} by sentence."
    return told + "\n"


def _beside(ours: float, theirs: float) -> str:
    ratio = 100 * (ours / theirs - 1)
    return f"{abs(ratio):.1f} percent {'worse' if ratio > 0 else 'better'}"


def _mean(lines: Sequence[Line], mode: str, split: str) -> float:
    return mean(line[split] for line in lines if line["mode"] == mode)


def _count_seeds(lines: Sequence[Line], mode: str | None = None) -> int:
    return len({line["seed"] for line in lines if mode in (None, line["mode"])})


def _numbers(found: Sequence[float]) -> str:
    if not found:
        return ""
    return f"{mean(found):.1f} ({min(found):.1f}-{max(found):.1f})"
