"""Figure 6: a transformer of states that begins with the layers of one of words, by rate.

    python -m experiments.lee_berg_kirkpatrick_2025.figure6 --data DIR --work DIR [--row NAME]

Deviations from the paper: those of `recipes`.
- 25M tokens. The transformer of words is a decoder of ours that has read 100M tokens, not 4B.
"""

from experiments.lee_berg_kirkpatrick_2025.recipes import MODELS, OURS, PART, train
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/figure6"
RATES = (0.03, 0.01, 0.003, 0.001, 0.0003)
TRF = MODELS["TRF, monolithic"]

ROWS = tuple(
    row
    for rate in RATES
    for row in (
        *train(f"drawn, rate {rate}", TRF, rate=rate, tokens=PART),
        *train(f"layers of the decoder, rate {rate}", TRF, rate=rate, tokens=PART, layers=OURS),
    )
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
