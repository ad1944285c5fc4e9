"""Table 1: linear reparameterisations beside the HMM and Chiu & Rush's network, 512 states.

    python -m experiments.lee_berg_kirkpatrick_2025.table1 --data DIR --work DIR [--row NAME]

Deviations from the paper: those of `recipes`.
"""

from experiments.lee_berg_kirkpatrick_2025.recipes import MODELS, train
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/table1"
PAPER = {
    "Ablation A (single H)": 711.0,
    "Ablation B (split H)": 348.0,
    "HMM": 540.0,
    "Chiu and Rush": 357.0,
}

ROWS = tuple(row for name in PAPER for row in train(name, MODELS[name], paper=PAPER[name]))

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
