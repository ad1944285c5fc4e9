"""Which implementation answers, and why."""

from collections.abc import Iterator

import torch

from hmmlm.errors import InputError
from hmmlm.inference.chain import Chain
from hmmlm.inference.recursion import DenseScaled, Passes, Stepwise
from hmmlm.ops.kernels import is_interpreted, why_not
from hmmlm.ops.messages import reference, scaled

RECURSIONS = ("reference", "scaled")
WITH_KERNEL = (*RECURSIONS, "kernel")


def choose(
    implementation: str, offered: tuple[str, ...] = RECURSIONS, chain: Chain | None = None
) -> tuple[str, str]:
    """The implementation that will run on a chain, and the reason."""
    if implementation == "auto":
        if "scaled" in offered:
            return (
                "scaled",
                "matrix products; rows that lose digits are redone in a wider arithmetic",
            )
        return offered[0], "the only implementation"
    if implementation == "kernel" and chain is not None:
        reason = why_no_kernel(chain)
        if reason is not None:
            raise InputError(f"implementation is 'kernel' but {reason}; use scaled, or auto.")
    if implementation not in offered:
        raise InputError(
            f"implementation is {implementation!r} but this function offers "
            f"{', '.join(offered)} and auto."
        )
    return implementation, "asked for"


def why_no_kernel(chain: Chain) -> str | None:
    """What keeps kernels from a chain; None if nothing does."""
    hmm = chain.hmm
    if chain.dense:
        return "the kernel of dense states is for training steps"
    if not hmm.support.is_partition:
        return "words share only a part of their states, and the kernel is for blocks"
    if any(chain.wide):
        return "a token is missing (-1), which the kernel does not know"
    if hmm.dtype != torch.float32:
        return f"the tables are {str(hmm.dtype).removeprefix('torch.')}, and the kernel is float32"
    return None if is_interpreted() else why_not(hmm.device)


def recursion(chain: Chain, name: str) -> Passes:
    """The forward-backward passes of an implementation over a chain."""
    if name == "kernel":
        from hmmlm.inference.block_kernels import BlockKernel  # Triton need not be there

        return BlockKernel(chain)
    if name == "reference":
        return Stepwise(chain, reference)
    if chain.dense and chain.table.is_resident:
        return DenseScaled(chain)
    if not chain.dense and chain.hmm.device.type == "cpu" and not any(chain.wide):
        from hmmlm.inference.blocks import BlockScaled  # numba takes a second to import

        return BlockScaled(chain)
    return Stepwise(chain, scaled)


def stretches(steps: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of consecutive stretches of at most `size` steps."""
    for start in range(0, steps, size):
        yield start, min(start + size, steps)
