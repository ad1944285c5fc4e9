"""Table 4 and figure 4: factored state embeddings, and both kinds by the number of blocks, PTB.

    python -m experiments.chiu_rush_2020.table4 --data DIR --work DIR [--row NAME]

Deviations from the paper:
- The recipe is that of figure 3, 14 epochs; table 4's other rows are those of table 2.
- Figure 4 prints no numbers: those of independent embeddings are in table 3, that of factored ones
  with 128 blocks is in table 4.
"""

from typing import Any

from experiments.chiu_rush_2020 import table2
from experiments.chiu_rush_2020.recipes import ABLATION, HALF
from experiments.rows import Row
from experiments.runner import main

EXPERIMENT = "chiu_rush_2020/table4"
BLOCKS = {32: 137.0, 64: 138.0, 128: 134.0, 256: 136.0}
"""The paper's validation perplexity of independent embeddings."""


def factored(blocks: int, **paper: Any) -> Row:
    return Row(
        f"+ block emb, M = {blocks}",
        "ptb",
        states=2**14,
        blocks=blocks,
        settings=(*ABLATION, HALF, "model.composed=true"),
        **paper,
    )


def independent(blocks: int) -> Row:
    return Row(
        f"independent, M = {blocks}",
        "ptb",
        states=2**14,
        blocks=blocks,
        settings=(*ABLATION, HALF),
        paper_val=BLOCKS[blocks],
        paper_train=115.0 if blocks == 128 else None,
        paper_ms=40.0 if blocks == 128 else None,
        paper_size="7.2M" if blocks == 128 else "",
    )


ROWS = (
    *(independent(blocks) for blocks in BLOCKS),
    table2.SCALAR,
    table2.NO_DROPOUT,
    factored(32),
    factored(64),
    factored(128, paper_val=136.0, paper_train=122.0, paper_ms=48.0, paper_size="5.6M"),
    factored(256),
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
