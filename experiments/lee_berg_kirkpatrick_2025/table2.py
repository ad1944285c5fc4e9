"""Table 2: which of the tables of an HMM are products, 512 states.

    python -m experiments.lee_berg_kirkpatrick_2025.table2 --data DIR --work DIR [--row NAME]

Deviations from the paper: those of `recipes`.
- The first and the last row are those of table 1, where the paper has other numbers for the same
  models (540 and 348 instead of 607 and 337).
"""

from experiments.lee_berg_kirkpatrick_2025.recipes import MODELS, train
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/table2"
PAPER = {
    "none": ("HMM", 607.0),
    "a": ("a", 814.0),
    "a, pi": ("a, pi", 865.0),
    "b": ("b", 345.0),
    "a, b": ("a, b", 338.0),
    "a, b, pi": ("Ablation B (split H)", 337.0),
}

ROWS = tuple(
    row
    for name, (model, paper) in PAPER.items()
    for row in train(name, MODELS[model], like=model, paper=paper)
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
