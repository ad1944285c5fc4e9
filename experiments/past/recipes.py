"""What the rows of this folder share: the best recipe known, and what may make it better."""

from experiments.chiu_rush_2020.recipes import PTB_ROWS, WIKITEXT_ROWS

SEEDS = (1111, 1112, 1113)
ROWS_OF = {"ptb": PTB_ROWS, "wikitext-2": WIKITEXT_ROWS}
EPOCHS = {"ptb": 14, "wikitext-2": 10}

BASE = {
    "model.scale": "0.2",
    "model.cluster_by": "brown",
    "data.layout": "packed",
    "train.schedule": "cosine",
    "train.checks": "2",
    "train.precision": "bf16",
    "train.dropout": "0.3",
    "train.learning_rate": "0.005",
    "train.weight_decay": "0.02",
}
"""The packed row of Chiu & Rush's table 1."""

AVERAGED = {"train.average": "0.9998"}
"""About a fifth of all steps of PTB, which was best of three on a CPU (`small`)."""

FALLING = {"train.dropout": "0.5", "train.dropout_last": "0.0"}
"""Better than 0.25 and 0.5 throughout, on a CPU (`small`)."""

TO_A_TENTH = {"train.dropout": "0.5", "train.dropout_last": "0.1"}
"""PTB, 2^15 states: 120.0 on validation after 12.5 of 14 epochs, and 122.7 if it falls to 0; but
the best weights are of 10 epochs, and there the other was not read."""

UNEVEN = {"model.uneven": "0.5"}
"""Better by 0.4 to 1.1 percent, on a CPU: frequent blocks have up to twice the states (`small`)."""

EXCHANGE = {"model.cluster_by": "exchange"}
"""Better than Brown by 3.6 percent, on a CPU: 2,048 states on all of PTB (LOG.md)."""

UNTIED = {"model.width": "256", "model.scale": "0.06", "train.learning_rate": "0.003"}
"""What kind lowrank, which has no network, has instead of the start and the rate of `BASE`."""

CHOSEN = {**BASE, **AVERAGED, **TO_A_TENTH, **UNEVEN, **EXCHANGE}
"""The recipe of `final`, `ablation` and `hmmlm train --recipe best`. What each change is worth at
2^14 states `search` is to say, which has not run."""


def settings(dataset: str, *changes: dict[str, str]) -> tuple[str, ...]:
    """The settings of a row: the first changes, with later ones in their place."""
    merged: dict[str, str] = {}
    for change in changes:
        merged |= change
    return (*ROWS_OF[dataset], *(f"{key}={value}" for key, value in merged.items()))
