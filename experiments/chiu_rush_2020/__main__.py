"""Every table of Chiu & Rush 2020 in one queue: rows of the same settings share a training."""

from experiments.chiu_rush_2020 import tables
from experiments.runner import main

if __name__ == "__main__":
    rows = {name: module.ROWS for name, module in tables().items()}
    raise SystemExit(main(rows, __doc__ or ""))
