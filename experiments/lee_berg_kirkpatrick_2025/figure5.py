"""Figure 5: embeddings that begin with the clusters' centres and the teacher's head, 512 states.

    python -m experiments.lee_berg_kirkpatrick_2025.figure5 --data DIR --work DIR [--row NAME]

Deviations from the paper: those of `recipes`.
- 25M tokens, of which the first 2M have a state. The teacher is a decoder of ours that has read the
  text, as wide as the embeddings. Frozen is what it gave for twice as many tokens as have a state,
  as in the paper: there 20M of 500M and 10M, here 4M and 2M.
"""

from experiments.lee_berg_kirkpatrick_2025.recipes import MODELS, PART, lvd, train
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/figure5"
NAME = "Chiu and Rush"
BEGINNINGS = {"centres": "centres", "head": "head", "both": "centres and head"}


def beginning(name: str, *settings: str) -> tuple:
    told = ("data.shown=2000000", *settings)
    return train(name, MODELS[NAME], like=NAME, tokens=PART, taught=lvd(), settings=told)


ROWS = (
    *train("no LVD", MODELS[NAME], like=NAME, tokens=PART),
    *beginning("LVD"),
    *(
        row
        for what, title in BEGINNINGS.items()
        for row in (
            *beginning(title, f"train.begin_with={what}"),
            *beginning(f"{title}, frozen", f"train.begin_with={what}", "train.frozen=0.16"),
        )
    ),
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
