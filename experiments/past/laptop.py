"""What two cores can do: 4,096 states on PTB, without a network, three seeds, tested once.

    python -m experiments.past.laptop --data DIR --work DIR --clusters DIR --workers 2

A training takes a quarter of an hour on one core. Its settings were found on validation text with
2,048 states (LOG.md). `topics` gives these models topics.
"""

from experiments.past.recipes import EXCHANGE, FALLING, SEEDS, UNEVEN
from experiments.rows import Row
from experiments.runner import main

EXPERIMENT = "past/laptop"
CHANGES = {
    "data.batch_size": "16",
    "data.length": "64",
    "model.width": "64",
    "train.learning_rate": "0.02",
    "train.weight_decay": "0.02",
    "train.average": "0.998",
    **FALLING,
    **EXCHANGE,
    **UNEVEN,
}

ROWS = tuple(
    Row(
        f"4,096 states, seed {seed}",
        "ptb",
        "lowrank",
        states=4096,
        blocks=128,
        settings=tuple(f"{key}={value}" for key, value in CHANGES.items()),
        modes=("sentence",),
        seed=seed,
        epochs=6,
        paper_val=125.0,
        paper_test=116.0,
    )
    for seed in SEEDS
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
