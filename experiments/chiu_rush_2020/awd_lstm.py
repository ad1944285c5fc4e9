"""AWD-LSTM on PTB: how strongly its weights decay, chosen on validation for table 1.

    python -m experiments.chiu_rush_2020.awd_lstm --data DIR --work DIR [--row NAME]

Deviations from the paper:
- The paper quotes Merity et al. 2017, who train 500 epochs by averaged SGD; these are AdamW's, of
  100 epochs.
"""

from experiments.chiu_rush_2020.recipes import AWD_PTB
from experiments.rows import Row
from experiments.runner import main

EXPERIMENT = "chiu_rush_2020/awd_lstm"
DECAYS = {"0.01": (), "0.05": ("train.weight_decay=0.05",), "0.1": ("train.weight_decay=0.1",)}
"""The first is the recipe's own. At 0.2 it was behind after a third, and stopped."""

ROWS = tuple(
    Row(f"decay {decay}", "ptb", "awd_lstm", mode="streaming", epochs=100,
        settings=(*AWD_PTB, *changed), paper_val=60.0, paper_test=57.3)
    for decay, changed in DECAYS.items()
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
