"""What the final recipe owes to each of its parts: PTB, 2^14 states, three seeds, validation alone.

python -m experiments.past.ablation --data DIR --work DIR --clusters DIR --workers 6
"""

from experiments.past.recipes import (
    AVERAGED,
    BASE,
    CHOSEN,
    EXCHANGE,
    SEEDS,
    TO_A_TENTH,
    UNEVEN,
    UNTIED,
    settings,
)
from experiments.rows import Row
from experiments.runner import main

EXPERIMENT = "past/ablation"

WITHOUT: dict[str, dict[str, str]] = {
    "all of it": CHOSEN,
    "- average": {**BASE, **TO_A_TENTH, **UNEVEN, **EXCHANGE},
    "- falling dropout (0.3 throughout)": {**BASE, **AVERAGED, **UNEVEN, **EXCHANGE},
    "- uneven blocks": {**BASE, **AVERAGED, **TO_A_TENTH, **EXCHANGE},
    "- exchange (Brown)": {**BASE, **AVERAGED, **TO_A_TENTH, **UNEVEN},
    "- all four: packed": BASE,
    "- small start (N(0, 1))": {**CHOSEN, "model.scale": "1.0"},
    "- decay": {**CHOSEN, "train.weight_decay": "0.0"},
    "- network": {**CHOSEN, **UNTIED},
    "- blocks of their own for <eos> and <unk>": {**CHOSEN, "model.like_hmm_lm": "true"},
}
"""What each row has; those of `search` that have the same are the same trainings."""

ROWS = tuple(
    Row(
        f"{name}, seed {seed}",
        "ptb",
        "lowrank" if name == "- network" else "mlp",
        states=2**14,
        blocks=128,
        settings=settings("ptb", what),
        modes=("sentence",),
        seed=seed,
        tested=False,
    )
    for name, what in WITHOUT.items()
    for seed in SEEDS
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
