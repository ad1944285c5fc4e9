"""All of these experiments in one queue, but the small one on a CPU."""

from experiments.past import small, tables
from experiments.runner import main

if __name__ == "__main__":
    rows = {name: module.ROWS for name, module in tables().items() if module is not small}
    raise SystemExit(main(rows, __doc__ or ""))
