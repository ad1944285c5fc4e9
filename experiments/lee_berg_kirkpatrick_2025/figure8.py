"""Figure 8: how many tokens have a state, of 100M, 512 states without products.

    python -m experiments.lee_berg_kirkpatrick_2025.figure8 --data DIR --work DIR [--row NAME]

Deviations from the paper: those of `recipes`.
- The teacher is a decoder of ours that has read the text.
"""

from experiments.lee_berg_kirkpatrick_2025.recipes import FULL, MODELS, SHORT, lvd, train
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/figure8"
SHOWN = (100_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000)
HMM = MODELS["HMM"]


def shown(tokens: int) -> tuple:
    name, settings = f"{tokens / 1e6:g}M tokens", (f"data.shown={tokens}",)
    if tokens == SHORT:  # all that have one
        settings = ()
    return train(name, HMM, like="HMM", taught=lvd(), settings=settings)


ROWS = (
    *train("none", HMM, like="HMM"),
    *(row for tokens in SHOWN for row in shown(tokens)),
    *train("all 100M tokens", HMM, like="HMM", taught=lvd(tokens=FULL)),
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
