"""Chiu & Rush 2020, "Scaling Hidden Markov Language Models": a file for each table and figure."""

from types import ModuleType

PAPER = "Chiu & Rush 2020"


def tables() -> dict[str, ModuleType]:
    """The modules by the name of their experiment, in the order of the paper."""
    from experiments.chiu_rush_2020 import (
        appendix_a2,
        awd_lstm,
        figure3,
        table1,
        table2,
        table3,
        table4,
    )

    modules = (table1, figure3, table2, table3, table4, appendix_a2, awd_lstm)
    return {module.EXPERIMENT: module for module in modules}
