"""All of these experiments in one queue, but those for a CPU."""

from experiments.past import laptop, small, tables
from experiments.runner import main

if __name__ == "__main__":
    rows = {name: module.ROWS for name, module in tables().items() if module not in (small, laptop)}
    raise SystemExit(main(rows, __doc__ or ""))
