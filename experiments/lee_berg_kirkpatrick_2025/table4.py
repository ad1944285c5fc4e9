"""Table 4: transfer and distillation together, tables from a language model, 512 states.

    python -m experiments.lee_berg_kirkpatrick_2025.table4 --data DIR --work DIR [--row NAME]

Deviations from the paper: those of `recipes`.
- The language model and teacher is SmolLM2-135M instead of TinyLlama-1.1B, the text in its tokens.
"""

from experiments.lee_berg_kirkpatrick_2025.recipes import MODELS, SMOLLM2, lvd, train
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/table4"
PAPER = {
    "random": ("SmolLM2, random", False, 365.0),
    "random, LVD": ("SmolLM2, random", True, 317.0),
    "pretrained": ("SmolLM2", False, 333.0),
    "pretrained, LVD": ("SmolLM2", True, 313.0),
}

ROWS = tuple(
    row
    for name, (model, is_taught, paper) in PAPER.items()
    for row in train(
        name,
        MODELS[model],
        like=model,
        dataset="web-smollm2",
        layers=SMOLLM2,
        taught=lvd(SMOLLM2) if is_taught else None,
        paper=paper,
    )
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
