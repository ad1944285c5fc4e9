"""Section 2: descent against mini-batch Baum-Welch, and random restarts, 512 states.

    python -m experiments.lee_berg_kirkpatrick_2025.baum_welch --data DIR --work DIR [--row NAME]

Deviations from the paper: those of `recipes`.
- The paper prints no numbers. New tables weigh `rate`, or the step's number to the power of -0.6.
- Restarts: the HMM with 10M tokens from eight seeds, of which the best would be taken.
"""

from dataclasses import replace

from experiments.lee_berg_kirkpatrick_2025.recipes import MODELS, SHORT, train
from experiments.rows import Row
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/baum_welch"
HMM = MODELS["HMM"]
RATES = (0.1, 0.03, 0.01)
EM = ("train.optimiser=em", "train.accumulate=1", "train.pseudocount=0.01")
LEFT_OUT = (
    "train.beta2",
    "train.weight_decay",
    "train.clip",
    "train.warmup_steps",
    "train.precision",
)


def stepwise(name: str, *settings: str) -> tuple[Row, ...]:
    """The HMM by expected counts: without what belongs to descent."""
    changed = {setting.partition("=")[0] for setting in settings}
    rows = []
    for row in train(name, HMM, like="HMM"):
        left = {*LEFT_OUT, *changed}
        kept = [part for part in row.settings if part.partition("=")[0] not in left]
        rows.append(replace(row, settings=(*kept, *EM, *settings)))
    return tuple(rows)


ROWS = (
    *train("descent", HMM, like="HMM"),
    *(
        row
        for rate in RATES
        for row in stepwise(
            f"Baum-Welch, rate {rate}", f"train.learning_rate={rate}", "train.schedule=constant"
        )
    ),
    *stepwise(
        "Baum-Welch, power schedule", "train.learning_rate=0.7", "train.schedule=power"
    ),
    *(
        row
        for seed in range(8)
        for row in train(f"restart {seed}", HMM, like="HMM", tokens=SHORT, seeds=(seed,))
    ),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
