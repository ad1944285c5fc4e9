"""Figure 3: teachers of different strength, 512 states without products, and table 6's directions.

    python -m experiments.lee_berg_kirkpatrick_2025.figure3 --data DIR --work DIR [--row NAME]

Deviations from the paper: those of `recipes`.
- The teachers are decoders of ours that have read 1M, 10M and 100M tokens of the text, one with
  weights as they are drawn, and SmolLM2-135M, whose own tokenizer makes another text of it: that
  has a baseline of its own. Clusters are found once for all seeds.
- Of table 6's principal directions SmolLM2's points have 64, 128 and 256, and all 576.
"""

from experiments.lee_berg_kirkpatrick_2025.recipes import (
    FULL,
    MODELS,
    RANDOM,
    SHORT,
    SMOLLM2,
    SMOLLM2_RANDOM,
    decoder,
    lvd,
    train,
)
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/figure3"
OURS = (RANDOM, decoder(1_000_000), decoder(SHORT), decoder(FULL))
HMM = MODELS["HMM"]

ROWS = (
    *train("no teacher", HMM, like="HMM"),
    *(row for who in OURS for row in train(who.name, HMM, like="HMM", taught=lvd(who))),
    *train("no teacher, SmolLM2's tokens", HMM, like="HMM", dataset="web-smollm2"),
    *(
        row
        for who in (SMOLLM2_RANDOM, SMOLLM2)
        for row in train(who.name, HMM, like="HMM", dataset="web-smollm2", taught=lvd(who))
    ),
    *(
        row
        for dim in (64, 128, 256)
        for row in train(
            f"{SMOLLM2.name}, {dim} directions",
            HMM,
            like="HMM",
            dataset="web-smollm2",
            taught=lvd(SMOLLM2, dim=dim),
        )
    ),
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
