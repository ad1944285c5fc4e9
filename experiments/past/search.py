"""The search for a recipe: PTB, 2^14 states in 128 blocks, one seed, validation text alone.

    python -m experiments.past.search --data DIR --work DIR --clusters DIR --workers 6

Each row changes the packed recipe of Chiu & Rush's table 1 in what its name says; those of 2^13
states see whether a change that costs time at 2^14 is worth it. It has not run: `recipes.CHOSEN`,
which `final` trains with three seeds and tests once, is of `small` and what LOG.md tells.
"""

from experiments.past.recipes import (
    AVERAGED,
    BASE,
    EXCHANGE,
    FALLING,
    TO_A_TENTH,
    UNEVEN,
    UNTIED,
    settings,
)
from experiments.rows import Row
from experiments.runner import main

EXPERIMENT = "past/search"


def _row(name: str, *changes: dict[str, str], power: int = 14, blocks: int = 128, **more) -> Row:
    return Row(
        f"{name}, 2^{power}",
        "ptb",
        more.pop("kind", "mlp"),
        states=2**power,
        blocks=blocks,
        settings=settings("ptb", BASE, *changes),
        modes=("sentence",),
        tested=False,
        **more,
    )


BOTH = (FALLING, AVERAGED)
ROWS = (
    _row("packed"),
    _row("averaged 0.999", {"train.average": "0.999"}),
    _row("averaged 0.9998", AVERAGED),
    _row("dropout 0.5 to 0", FALLING),
    _row("dropout 0.5 to 0, averaged", *BOTH),
    _row("dropout 0.6 to 0.1, averaged", *BOTH,
         {"train.dropout": "0.6", "train.dropout_last": "0.1"}),
    _row("dropout 0.3 to 0.1, averaged", *BOTH,
         {"train.dropout": "0.3", "train.dropout_last": "0.1"}),
    _row("decay 0.06", *BOTH, {"train.weight_decay": "0.06"}),
    _row("decay of states 0.1", *BOTH, {"train.decay_states": "0.1"}),
    _row("decay of states 0.5", *BOTH, {"train.decay_states": "0.5"}),
    _row("decay of words 0.2", *BOTH, {"train.decay_words": "0.2"}),
    _row("exchange", *BOTH, EXCHANGE),
    _row("exchange, uneven 0.5", *BOTH, EXCHANGE, UNEVEN),
    _row("dropout 0.5 to 0.1, averaged, exchange, uneven 0.5", AVERAGED, TO_A_TENTH, EXCHANGE,
         UNEVEN),
    _row("exchange, moved, uneven 0.5", *BOTH, EXCHANGE, UNEVEN, moved=True),
    _row("dropout 0.3, averaged, exchange, uneven 0.5", AVERAGED, EXCHANGE, UNEVEN),
    _row("exchange, uneven 0.5, decay of words 0.2", *BOTH, EXCHANGE, UNEVEN,
         {"train.decay_words": "0.2"}),
    _row("256 blocks", *BOTH, blocks=256),
    _row("uneven 0.3", *BOTH, {"model.uneven": "0.3"}),
    _row("uneven 0.5", *BOTH, UNEVEN),
    _row("three tables", *BOTH, {"model.split": "true"}),
    _row("untied, no network", *BOTH, UNTIED, kind="lowrank"),
    _row("untied, decay of states 0.3", *BOTH, UNTIED, {"train.decay_states": "0.3"},
         kind="lowrank"),
    _row("rate 0.003", *BOTH, {"train.learning_rate": "0.003"}),
    _row("24 epochs", *BOTH, epochs=24),
    _row("packed", power=13),
    _row("dropout 0.5 to 0, averaged", *BOTH, power=13),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
