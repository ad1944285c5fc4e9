"""Figure 4: distillation with each architecture, 512 states.

    python -m experiments.lee_berg_kirkpatrick_2025.figure4 --data DIR --work DIR [--row NAME]

Deviations from the paper: those of `recipes`.
- The teacher is a decoder of ours that has read the text.
"""

from experiments.lee_berg_kirkpatrick_2025.recipes import MODELS, lvd, train
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/figure4"
NAMES = (
    "HMM",
    "Ablation B (split H)",
    "Chiu and Rush",
    "MLP, monolithic",
    "TRF",
    "TRF, monolithic",
)

ROWS = tuple(
    row
    for name in NAMES
    for row in (
        *train(name, MODELS[name]),
        *train(f"{name}, LVD", MODELS[name], like=name, taught=lvd()),
    )
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
