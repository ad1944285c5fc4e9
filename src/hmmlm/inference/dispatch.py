"""Which implementation answers, and why."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from hmmlm.errors import InputError
from hmmlm.inference.chain import Chain
from hmmlm.inference.recursion import DenseScaled, Passes, Stepwise
from hmmlm.ops.kernels import is_interpreted, why_not
from hmmlm.ops.messages import reference, scaled

if TYPE_CHECKING:
    from hmmlm.inference.block_kernels import BlockKernel
    from hmmlm.inference.dense_kernels import DenseKernel

KERNEL = "kernel"
RECURSIONS = ("reference", "scaled")
WITH_KERNEL = (*RECURSIONS, KERNEL)

ONE_TILE = 512
"""Dense states up to which one launch that reads all of the matrix beats a launch for each step."""


def choose(
    implementation: str, offered: tuple[str, ...] = RECURSIONS, chain: Chain | None = None
) -> tuple[str, str]:
    """The implementation that will run on a chain, and the reason."""
    if implementation == "auto":
        if KERNEL in offered and chain is not None and chain.hmm.device.type == "cuda":
            reason = why_no_kernel(chain)
            if reason is None:
                return KERNEL, "the fastest on a GPU at every size that was measured"
        if "scaled" in offered:
            return (
                "scaled",
                "matrix products; rows that lose digits are redone in a wider arithmetic",
            )
        return offered[0], "the only implementation"
    if implementation not in offered:
        raise InputError(
            f"implementation is {implementation!r} but this function offers "
            f"{', '.join(offered)} and auto."
        )
    if implementation == KERNEL and chain is not None:
        reason = why_no_kernel(chain)
        if reason is not None:
            plain = "scaled" if "scaled" in offered else offered[0]
            raise InputError(f"implementation is 'kernel' but {reason}; use {plain}, or auto.")
    return implementation, "asked for"


def why_no_kernel(chain: Chain) -> str | None:
    """What keeps kernels from a chain; None if nothing does."""
    hmm = chain.hmm
    if chain.dense and not chain.table.is_resident:
        return f"a table of {hmm.num_states:,} states squared is too large to be kept"
    if not chain.dense and not hmm.support.is_partition:
        return "words share only a part of their states, and the kernel is for blocks"
    if not chain.dense and hmm.support.width > WIDEST:
        return f"a block has {hmm.support.width:,} states, and the kernel takes {WIDEST:,}"
    if any(chain.wide):
        return "a token is missing (-1), which the kernel of blocks does not know"
    if hmm.dtype != torch.float32:
        return f"the tables are {str(hmm.dtype).removeprefix('torch.')}, and the kernel is float32"
    return None if is_interpreted() else why_not(hmm.device)


WIDEST = 1024
"""States of a block at most: a message of more does not fit where a program keeps it."""


def kernel_passes(chain: Chain) -> "BlockKernel | DenseKernel":
    """The passes by kernels; Triton is imported here, which need not be there."""
    if chain.dense and chain.hmm.num_states > ONE_TILE:
        from hmmlm.inference.dense_kernels import DenseKernel

        return DenseKernel(chain)
    from hmmlm.inference.block_kernels import BlockKernel

    return BlockKernel(chain)


def recursion(chain: Chain, name: str) -> Passes:
    """The forward-backward passes of an implementation over a chain."""
    if name == KERNEL:
        return kernel_passes(chain)
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
