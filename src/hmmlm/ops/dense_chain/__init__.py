"""Forward and backward recursion of chains that use all states at every step.

One transition matrix serves all rows, so a step is one matrix product. `scaled` makes it with
torch; `compiled` runs the whole loop over time in machine code, which wins while the matrix is
small. `choose` says which, from the measurements in docs/performance.md.
"""

from types import ModuleType

import torch

from hmmlm.ops.dense_chain import scaled

COMPILED_UP_TO = 2048
"""States up to which the compiled loop beats one matrix product per step on a CPU."""


def choose(device: torch.device, num_states: int) -> tuple[ModuleType, str]:
    """The implementation for a dense chain, and why."""
    if device.type != "cpu":
        return scaled, f"a compiled loop runs on a CPU only, and this is {device.type}"
    if num_states > COMPILED_UP_TO:
        return (
            scaled,
            f"{num_states:,} states: one product per step is faster above {COMPILED_UP_TO:,}",
        )
    from hmmlm.ops.dense_chain import compiled  # numba takes a second to import

    return compiled, f"{num_states:,} states: the compiled loop is faster up to {COMPILED_UP_TO:,}"
