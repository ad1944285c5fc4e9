"""Forward and backward recursion of chains that use all states at every step.

One transition matrix serves all rows, so a step is one matrix product. `scaled` makes it with
torch; `compiled` runs the whole loop over time in machine code, which wins while the matrix is
small. `choose` says which, from the measurements in docs/performance.md.
"""

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor

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


@dataclass(frozen=True)
class Packed:
    """A transition matrix in the order in which the loops chosen for it read it, made once."""

    log_rows: Float[Tensor, "Z Z"]

    @cached_property
    def loops(self) -> ModuleType:
        return choose(self.log_rows.device, len(self.log_rows))[0]

    @cached_property
    def ahead(self) -> Tensor:
        return self.loops.pack(self.log_rows)

    @cached_property
    def behind(self) -> Tensor:
        return self.loops.pack(self.log_rows, turned=True)

    @cached_property
    def least(self) -> float:
        """The smallest probability that is not zero; 0 where one is too small for a number."""
        return self.loops.least(self.log_rows)
