"""Learning rates: each model with 10M tokens, one seed; the best on validation is taken.

    python -m experiments.lee_berg_kirkpatrick_2025.rates --data DIR --work DIR [--row NAME]

Deviations from the paper:
- It names only one rate, 0.4, that of the scalar HMM in its figure 3.
"""

from dataclasses import replace

from experiments.lee_berg_kirkpatrick_2025.recipes import MODELS, SEEDS, SHORT, SMOLLM2, train
from experiments.lee_berg_kirkpatrick_2025.table3 import VARIANTS
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/rates"
RATES = (0.4, 0.1, 0.03, 0.01, 0.003)

NAMES = MODELS | VARIANTS

LOWER = {kind: (0.03, 0.01, 0.003, 0.001, 3e-4) for kind in ("mlp", "transformer")}
LOWER |= {"pretrained": (0.003, 0.001, 3e-4, 1e-4, 3e-5)}
"""Of kinds that learn at lower ones."""

ROWS = tuple(
    replace(row, tested=False)
    for name, model in NAMES.items()
    for rate in LOWER.get(model[0], RATES)
    for row in train(
        f"{name}, rate {rate}",
        model,
        tokens=SHORT,
        seeds=SEEDS[:1],
        rate=rate,
        layers=SMOLLM2 if model[0] == "pretrained" else None,
    )
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
