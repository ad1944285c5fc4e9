"""Past both papers: the best pure HMM on PTB and WikiText-2, and a million states."""

from types import ModuleType


def tables() -> dict[str, ModuleType]:
    """The modules by the name of their experiment, in the order in which they are run."""
    from experiments.past import ablation, drawn, final, laptop, million, search, small

    return {
        module.EXPERIMENT: module
        for module in (small, laptop, search, drawn, final, ablation, million)
    }
