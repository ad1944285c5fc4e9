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
DECAYS = ("0.05", "0.1", "0.2")

ROWS = tuple(
    Row(f"decay {decay}", "ptb", "awd_lstm", mode="streaming", epochs=100,
        settings=(*AWD_PTB, f"train.weight_decay={decay}"), paper_val=60.0, paper_test=57.3)
    for decay in DECAYS
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
