"""Lee & Berg-Kirkpatrick 2025, "Optimizing Hidden Markov Language Models": a file for each table
and figure."""

from types import ModuleType

PAPER = "Lee & Berg-Kirkpatrick 2025"


def tables() -> dict[str, ModuleType]:
    """The modules by the name of their experiment, in the order of the paper."""
    from experiments.lee_berg_kirkpatrick_2025 import (
        baum_welch,
        figure1,
        figure2,
        figure3,
        figure4,
        figure5,
        figure6,
        figure7,
        figure8,
        ptb,
        rates,
        table1,
        table2,
        table3,
        table4,
    )

    modules = (
        rates, figure1, figure2, table1, figure3, figure8, figure4, figure6, figure7, table4,
        table2, table3, figure5, baum_welch, ptb,
    )  # fmt: skip
    return {module.EXPERIMENT: module for module in modules}
