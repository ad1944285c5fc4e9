"""Figure 1: more states, as they are and with products and distillation.

    python -m experiments.lee_berg_kirkpatrick_2025.figure1 --data DIR --work DIR [--row NAME]

Deviations from the paper: those of `recipes`.
- The best is ablation B taught by a decoder of ours that has read the text. Rates are those of 512
  states.
"""

from experiments.lee_berg_kirkpatrick_2025.recipes import MODELS, lvd, train
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/figure1"
STATES = (64, 128, 256, 512, 1024, 2048)
BEST = "Ablation B (split H)"

ROWS = tuple(
    row
    for states in STATES
    for row in (
        *train(f"HMM, {states} states", MODELS["HMM"], like="HMM", states=states),
        *train(f"best, {states} states", MODELS[BEST], like=BEST, states=states, taught=lvd()),
    )
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
