"""Which ingredients of a recipe are promising: PTB's first 120,000 tokens, 1,056 states, on a CPU.

    python -m experiments.past.small --data DIR --work DIR --clusters DIR [--row NAME]

A state for 114 tokens, where 2^13 states have the whole of PTB: so it over-fits as they do. Each
row changes one thing of the first. Validation text alone is read, its first 16,000 tokens.
"""

from experiments.rows import Row
from experiments.runner import main

EXPERIMENT = "past/small"
BASE = {
    "data.tokens": "120000",
    "data.batch_size": "8",
    "data.length": "64",
    "model.cluster_by": "brown",
    "model.width": "64",
    "train.learning_rate": "0.02",
    "train.weight_decay": "0.02",
    "train.dropout": "0.25",
    "train.checks": "2",
}


BOTH = {"train__dropout": "0.5", "train__dropout_last": "0.0", "train__average": "0.998"}
"""The two changes that helped most together: falling dropout, and averaged weights."""


def _row(
    name: str,
    epochs: int = 8,
    states: int = 1056,
    seed: int = 1111,
    blocks: int = 66,
    **changes: str,
) -> Row:
    """The first row with some settings changed, written table__key."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    kind = named.pop("model.kind", "lowrank")
    settings = tuple(f"{key}={value}" for key, value in {**BASE, **named}.items())
    return Row(name, "ptb", kind, states, blocks, settings, modes=("sentence",), epochs=epochs,
               seed=seed, text="ptb-head", tested=False)  # fmt: skip


ROWS = (
    _row("low-rank"),
    _row("averaged, 0.99", train__average="0.99"),
    _row("averaged, 0.998", train__average="0.998"),
    _row("dropout 0.5", train__dropout="0.5"),
    _row("dropout 0.5 to 0", train__dropout="0.5", train__dropout_last="0.0"),
    _row("dropout 0 to 0.5", train__dropout="0.0", train__dropout_last="0.5"),
    _row("decay 0.2", train__weight_decay="0.2"),
    _row("decay 1", train__weight_decay="1.0"),
    _row("rate 0.01", train__learning_rate="0.01"),
    _row("mlp", model__kind="mlp", train__learning_rate="0.01"),
    _row("another seed", seed=1112),
    _row("dropout 0.5 to 0, averaged, 0.998", **BOTH),
    _row("dropout 0.5 to 0, averaged, 0.998, decay 0.2", **BOTH, train__weight_decay="0.2"),
    _row("both, another seed", **BOTH, seed=1112),
    _row("both, uneven 0.3", **BOTH, model__uneven="0.3"),
    _row("both, uneven 0.5", **BOTH, model__uneven="0.5"),
    _row("both, uneven 0.5, another seed", **BOTH, model__uneven="0.5", seed=1112),
    _row("both, uneven 1", **BOTH, model__uneven="1.0"),
    _row("both, exchange", **BOTH, model__cluster_by="exchange"),
    _row("both, 33 blocks", **BOTH, blocks=33),
    _row("both, 132 blocks", **BOTH, blocks=132),
    _row("both, decay of states 0.2", **BOTH, train__decay_states="0.2"),
    _row("both, decay of words 0.2", **BOTH, train__decay_words="0.2"),
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
