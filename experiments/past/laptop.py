"""What two cores can do: 4,096 states on both texts, without a network, three seeds, tested once.

    python -m experiments.past.laptop --data DIR --work DIR --clusters DIR --workers 2

A training of PTB takes a quarter of an hour on one core, of WikiText-2 half an hour. Its settings
were found on PTB's validation text with 2,048 states (LOG.md). `topics` gives these models topics.
"""

from experiments.past.final import PRINTED
from experiments.past.recipes import EXCHANGE, FALLING, SEEDS, UNEVEN
from experiments.rows import Row
from experiments.runner import main

EXPERIMENT = "past/laptop"
ROWS_OF = {"ptb": ("16", "64"), "wikitext-2": ("2", "512")}
"""1,024 tokens a step, in rows that nearly all lines fit into."""

EPOCHS = {"ptb": 6, "wikitext-2": 4}
CHANGES = {
    "model.width": "64",
    "train.learning_rate": "0.02",
    "train.weight_decay": "0.02",
    "train.average": "0.998",
    **FALLING,
    **EXCHANGE,
    **UNEVEN,
}


def _settings(dataset: str) -> tuple[str, ...]:
    rows, length = ROWS_OF[dataset]
    changes = {"data.batch_size": rows, "data.length": length, **CHANGES}
    return tuple(f"{key}={value}" for key, value in changes.items())


ROWS = tuple(
    Row(
        f"4,096 states, seed {seed}",
        dataset,
        "lowrank",
        states=4096,
        blocks=128,
        settings=_settings(dataset),
        modes=("sentence",),
        seed=seed,
        epochs=EPOCHS[dataset],
        paper_val=val,
        paper_test=test,
    )
    for dataset, (val, test) in PRINTED.items()
    for seed in SEEDS
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
