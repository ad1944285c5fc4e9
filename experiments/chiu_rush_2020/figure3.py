"""Figure 3: perplexity on PTB by the number of states, 2^10 to 2^16.

    python -m experiments.chiu_rush_2020.figure3 --data DIR --work DIR [--row NAME]

Deviations from the paper:
- The recipe is that of whole sentences in rows, 14 epochs, cosine from 0.01, embeddings
  N(0, 0.2^2); dropout (0.5), blocks (128) and how words come to them are the paper's.
- The paper prints no numbers beside the figure but those of 2^14 (table 2) and 2^15 (table 1).
"""

from experiments.chiu_rush_2020.recipes import ABLATION, HALF
from experiments.rows import Row
from experiments.runner import main

EXPERIMENT = "chiu_rush_2020/figure3"
PRINTED = {14: (134.0, None), 15: (125.0, 116.0)}

ROWS = tuple(
    Row(
        f"2^{power} states",
        "ptb",
        states=2**power,
        blocks=128,
        settings=(*ABLATION, HALF),
        paper_val=PRINTED.get(power, (None, None))[0],
        paper_test=PRINTED.get(power, (None, None))[1],
    )
    for power in range(10, 17)
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
