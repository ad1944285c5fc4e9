"""Every table and figure of Lee & Berg-Kirkpatrick 2025 in one queue."""

from experiments.lee_berg_kirkpatrick_2025 import tables
from experiments.runner import main

if __name__ == "__main__":
    rows = {name: module.ROWS for name, module in tables().items()}
    raise SystemExit(main(rows, __doc__ or ""))
