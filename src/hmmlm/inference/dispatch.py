"""Which implementation answers, and why."""

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.inference.chain import Chain
from hmmlm.inference.recursion import DenseScaled, Passes, Stepwise
from hmmlm.ops.kernels import describe, is_interpreted, why_not
from hmmlm.ops.messages import reference, scaled
from hmmlm.products import full_products

if TYPE_CHECKING:
    from hmmlm.inference.block_kernels import BlockKernel
    from hmmlm.inference.dense_kernels import DenseKernel

KERNEL = "kernel"
RECURSIONS = ("reference", "scaled")
WITH_KERNEL = (*RECURSIONS, KERNEL)

WIDEST = 1024
"""States of a block at most: a message of more does not fit where a program keeps it."""

T = TypeVar("T")
_told: set[str] = set()

ONE_TILE = 512
"""Dense states up to which one launch that reads all of the matrix beats a launch for each step."""


def choose(
    implementation: str, offered: tuple[str, ...] = RECURSIONS, chain: Chain | None = None
) -> tuple[str, str]:
    """The implementation that will run on a chain, and the reason."""
    if implementation == "auto":
        reason, kept_from = "the only implementation", ""
        if KERNEL in offered and chain is not None:
            reason = why_not(chain.hmm.device)
            if reason is None:
                reason = why_no_kernel(chain)
                if reason is None:
                    return KERNEL, "the fastest on a GPU at every size that was measured"
                kept_from = f"; no kernel, for {reason}"
        if "scaled" in offered:
            return (
                "scaled",
                "matrix products; rows that lose digits are redone in a wider arithmetic"
                + kept_from,
            )
        return offered[0], reason
    if implementation not in offered:
        raise InputError(
            f"implementation is {implementation!r} but this function offers "
            f"{', '.join(offered)} and auto."
        )
    if implementation == KERNEL and chain is not None:
        reason = why_no_kernel(chain)
        if reason is not None:
            raise InputError(
                f"implementation is 'kernel' but {reason}; use {plain_of(offered)}, or auto."
            )
    return implementation, "asked for"


def answer(
    implementation: str, offered: tuple[str, ...], chain: Chain, run: Callable[[str], T]
) -> tuple[T, str]:
    """What an implementation that fits says of a chain, and its name.

    Where kernels fail, out of memory or because they cannot be compiled, the plain implementation
    answers, and a warning says so once; kernels that were asked for by name are refused.
    """
    name, _ = choose(implementation, offered, chain)
    if name != KERNEL:
        if implementation == "auto" and KERNEL in offered and why_not(chain.hmm.device) is None:
            _tell_if_too_wide(chain, name)
        return _in_full(run, name), name
    try:
        return _in_full(run, name), name
    except InputError:
        raise
    except Exception as error:
        if not _is_of_the_device(error):
            raise
        reason = describe(error)
    # Out of the handler, whose traceback would keep the tensors of the attempt.
    plain = plain_of(offered)
    if implementation == KERNEL:
        raise InputError(f"implementation is 'kernel' but it failed ({reason}); use {plain}.")
    if chain.hmm.device.type == "cuda":
        torch.cuda.empty_cache()
    _warn_once(f"Kernels failed, so {plain} runs, slower", reason)
    return _in_full(run, plain), plain


def _tell_if_too_wide(chain: Chain, name: str) -> None:
    """A model that kernels cannot read, whatever the text, is far slower on a GPU: says so once."""
    reason = _too_wide(chain)
    if reason is not None:
        _warn_once(f"Kernels cannot run, so {name} runs, slower", reason)


def _warn_once(said: str, reason: str) -> None:
    if reason not in _told:
        _told.add(reason)
        warnings.warn(f"{said}: {reason}", stacklevel=4)


def _too_wide(chain: Chain) -> str | None:
    width = chain.hmm.support.width
    if chain.dense or width <= WIDEST:
        return None
    return f"a word has {width:,} states, and the kernel takes {WIDEST:,}"


def _in_full(run: Callable[[str], T], name: str) -> T:
    with full_products():
        return run(name)


def _is_of_the_device(error: Exception) -> bool:
    """Out of memory, refused by the compiler or by the driver; not a fault in what was asked."""
    if isinstance(error, torch.OutOfMemoryError) or "triton" in type(error).__module__:
        return True
    said = ("Triton", "CUDA", "PassManager")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in said)


def plain_of(offered: tuple[str, ...]) -> str:
    """What runs without kernels."""
    return "scaled" if "scaled" in offered else offered[0]


def why_no_kernel(chain: Chain) -> str | None:
    """What keeps kernels from a chain; None if nothing does."""
    hmm = chain.hmm
    if chain.dense and not chain.table.is_resident:
        return f"a table of {hmm.num_states:,} states squared is too large to be kept"
    if (reason := _too_wide(chain)) is not None:
        return reason
    if any(chain.wide):
        return "a token is missing (-1), which the kernel of blocks does not know"
    known = (torch.float32,) if _is_stepwise(chain) else (torch.float32, torch.float64)
    if hmm.dtype not in known:
        names = [str(dtype).removeprefix("torch.") for dtype in (hmm.dtype, *known)]
        return f"the tables are {names[0]}, and the kernel is {' or '.join(names[1:])}"
    return None if is_interpreted() else why_not(hmm.device)


def _is_stepwise(chain: Chain) -> bool:
    """Whether kernels go over a chain with a launch for each step: those are float32 only."""
    return chain.dense and chain.hmm.num_states > ONE_TILE


def kernel_passes(chain: Chain, back: bool = False) -> "BlockKernel | DenseKernel":
    """The passes by kernels; Triton is imported here, which need not be there."""
    if _is_stepwise(chain):
        from hmmlm.inference.dense_kernels import DenseKernel

        return DenseKernel(chain)
    from hmmlm.inference.block_kernels import BlockKernel

    return BlockKernel(chain, back)


def widened(chain: Chain, name: str, rows: Int[Tensor, " N"]) -> tuple[Chain, str]:
    """Rows that an implementation lost digits of, and what keeps them: kernels stay kernels.

    In float64 first, and in log space what loses digits there too.
    """
    part, wider = chain.widened(rows)
    is_kernel = name == KERNEL and wider == "scaled" and why_no_kernel(part) is None
    return part, KERNEL if is_kernel else wider


def recursion(chain: Chain, name: str, *, back: bool = False) -> Passes:
    """The passes of an implementation over a chain: forward, and `back` if that is wanted."""
    if name == KERNEL:
        return kernel_passes(chain, back)
    if name == "reference":
        return Stepwise(chain, reference)
    if chain.dense and chain.table.is_resident:
        return DenseScaled(chain)
    if not chain.dense and chain.hmm.device.type == "cpu":
        from hmmlm.inference.blocks import BlockScaled  # numba takes a second to import

        return BlockScaled(chain)
    return Stepwise(chain, scaled)


def stretches(steps: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of consecutive stretches of at most `size` steps."""
    for start in range(0, steps, size):
        yield start, min(start + size, steps)
