"""Figure 5: embeddings that begin with the clusters' centres and the teacher's head, 512 states.

    python -m experiments.lee_berg_kirkpatrick_2025.figure5 --data DIR --work DIR [--row NAME]

Deviations from the paper: those of `recipes`.
- 25M tokens. The teacher is a decoder of ours that has read the text, as wide as the embeddings.
  Frozen is what it gave for the first 4% of the steps, as in the paper.
"""

from experiments.lee_berg_kirkpatrick_2025.recipes import MODELS, PART, lvd, train
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/figure5"
NAME = "Chiu and Rush"
BEGINNINGS = {"centres": "centres", "head": "head", "both": "centres and head"}


def beginning(name: str, *settings: str) -> tuple:
    return train(name, MODELS[NAME], like=NAME, tokens=PART, taught=lvd(), settings=settings)


ROWS = (
    *train("no LVD", MODELS[NAME], like=NAME, tokens=PART),
    *beginning("LVD"),
    *(
        row
        for what, title in BEGINNINGS.items()
        for row in (
            *beginning(title, f"train.begin_with={what}"),
            *beginning(f"{title}, frozen", f"train.begin_with={what}", "train.frozen=0.04"),
        )
    ),
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
