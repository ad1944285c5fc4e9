"""Appendix A.2: the bounds of the paper's search, state dropout and width, PTB, 2^14 states.

    python -m experiments.chiu_rush_2020.appendix_a2 --data DIR --work DIR [--row NAME]

Deviations from the paper:
- The paper names the values it tried and prints no results of its own for them; those of dropout
  0.5 and none at width 256 are in table 2.
- The recipe is that of figure 3, 14 epochs.
"""

from experiments.chiu_rush_2020.recipes import ABLATION
from experiments.rows import Row
from experiments.runner import main

EXPERIMENT = "chiu_rush_2020/appendix_a2"
PRINTED = {(0.5, 256): (134.0, 115.0), (0.0, 256): (157.0, 88.0)}


def bound(name: str, dropout: float = 0.5, width: int = 256) -> Row:
    paper_val, paper_train = PRINTED.get((dropout, width), (None, None))
    wide = () if width == 256 else (f"model.width={width}",)
    return Row(
        name,
        "ptb",
        states=2**14,
        blocks=128,
        settings=(*ABLATION, f"train.dropout={dropout}", *wide),
        paper_val=paper_val,
        paper_train=paper_train,
    )


ROWS = (
    *(bound(f"dropout {rate}", dropout=rate) for rate in (0.0, 0.25, 0.5, 0.75)),
    *(bound(f"H = {width}", width=width) for width in (128, 256, 512)),
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
