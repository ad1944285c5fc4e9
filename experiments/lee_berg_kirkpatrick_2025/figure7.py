"""Figure 7: an HMM whose tables come from a language model, as drawn or trained, 512 states.

    python -m experiments.lee_berg_kirkpatrick_2025.figure7 --data DIR --work DIR [--row NAME]

Deviations from the paper: those of `recipes`.
- 25M tokens. The language models are SmolLM2-135M, and decoders of ours that have read 1M, 10M and
  100M tokens, instead of TinyLlama-1.1B at several lengths of its training.
"""

from experiments.lee_berg_kirkpatrick_2025.recipes import (
    FULL,
    MODELS,
    PART,
    SHORT,
    SMOLLM2,
    decoder,
    train,
)
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/figure7"
NAME = "TRF, monolithic"
LENGTHS = (1_000_000, SHORT, FULL)

ROWS = (
    *train("decoder, random", MODELS[NAME], like=NAME, tokens=PART),
    *(
        row
        for who in map(decoder, LENGTHS)
        for row in train(who.name, MODELS[NAME], like=NAME, tokens=PART, layers=who)
    ),
    *train("SmolLM2, random", MODELS["SmolLM2, random"], tokens=PART, layers=SMOLLM2),
    *train("SmolLM2", MODELS["SmolLM2"], tokens=PART, layers=SMOLLM2),
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
