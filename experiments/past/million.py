"""A million states: blocked HMMs of 2^12 to 2^20 states on the same tokens of web, and dense ones.

    python -m experiments.past.million --data DIR --work DIR --clusters DIR [--row NAME]

- 256 states for each block at every size, so 16 to 4,096 blocks of exchange clusters; a series of
  128 blocks up to 2^17 states (32 to 1,024 states each) tells the effect of blocks from that of
  states. Dense are the 512 states of Lee & Berg-Kirkpatrick, with their tokens a step (200 windows
  of 64) for all.
- Above 2^16 states a step keeps 65,536: the normaliser of all of 2^20 would take a second.
- Clusters are made before: hmmlm cluster --text WORK/web.corpus --method exchange --clusters N
  --out DIR/web-exchange-N.paths for N = 14, 62, 126, 254, 1022 and 4094.
"""

from experiments.lee_berg_kirkpatrick_2025.recipes import LENGTH, WINDOW
from experiments.lee_berg_kirkpatrick_2025.recipes import ROWS as WINDOWS
from experiments.rows import Row
from experiments.runner import main

EXPERIMENT = "past/million"
TOKENS = 50_000_000
EACH = 256
KEPT = 65_536

SETTINGS = (
    "data.layout=windows",
    "data.reset=false",
    f"data.batch_size={WINDOWS}",
    f"data.length={LENGTH}",
    f"data.tokens={TOKENS}",
    "model.width=256",
    "train.weight_decay=0.02",
    "train.clip=1.0",
    f"train.warmup_steps={TOKENS // (WINDOWS * LENGTH) // 20}",
    "train.keep=1",  # of gigabytes each
    "train.precision=bf16",
)
_BLOCKED = (
    *SETTINGS,
    "model.cluster_by=exchange",
    "model.scale=0.1",
    "train.learning_rate=0.01",
    "train.dropout=0.0",
    f"train.kept={KEPT}",
)


def _row(name: str, states: int, blocks: int, *settings: str) -> Row:
    return Row(name, "web", "lowrank", states, blocks, settings, mode=WINDOW,
               modes=(WINDOW, "streaming"), epochs=1)  # fmt: skip


ROWS = (
    *(_row(f"2^{p} states, K = 256", 2**p, 2**p // EACH, *_BLOCKED) for p in range(12, 21, 2)),
    *(_row(f"2^{p} states, M = 128", 2**p, 128, *_BLOCKED) for p in (12, 14, 16, 17)),
    _row("512 dense states", 512, 0, *SETTINGS, "train.learning_rate=0.03", "train.dropout=0.0"),
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
