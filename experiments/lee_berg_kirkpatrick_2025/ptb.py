"""Beyond the paper: distillation into the blocks of Chiu & Rush's model, PTB, 2^14 states.

    python -m experiments.lee_berg_kirkpatrick_2025.ptb --data DIR --work DIR [--row NAME]

The paper's models are dense. Here a token's state is one of its word's block: the clusters of what
a decoder, trained on the same text, makes of the tokens of a block. The recipe is that of Chiu &
Rush's figure 3 here; in the first epoch of 14 states are shown.
"""

from experiments.chiu_rush_2020.recipes import ABLATION, HALF
from experiments.lee_berg_kirkpatrick_2025.recipes import SEEDS
from experiments.rows import Row, Taught, Teacher
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/ptb"
DECODER = (
    "model.width=256",
    "model.dropout=0.3",
    "train.epochs=20",
    "train.precision=bf16",
    "data.validation=window 64",
)
TEACHERS = {
    "no teacher": None,
    "decoder": Teacher("decoder of PTB", DECODER),
    "decoder, random": Teacher(
        "decoder of PTB, random", DECODER, options=("distill.random=true",)
    ),
}  # fmt: skip
STATES = ("distill.tokens=1000000", "distill.points=1000000", "distill.iterations=20")

ROWS = tuple(
    Row(
        name,
        "ptb",
        states=2**14,
        blocks=128,
        settings=(*ABLATION, HALF),
        taught=teacher and Taught(teacher, STATES),
        seed=seed,
    )
    for name, teacher in TEACHERS.items()
    for seed in SEEDS
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
