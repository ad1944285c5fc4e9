"""Which implementation answers, and why."""

from collections.abc import Iterator

from hmmlm.errors import InputError
from hmmlm.inference.chain import Chain
from hmmlm.inference.recursion import DenseScaled, Passes, Stepwise
from hmmlm.ops.messages import reference, scaled

RECURSIONS = ("reference", "scaled")


def choose(implementation: str, offered: tuple[str, ...] = RECURSIONS) -> tuple[str, str]:
    """The implementation that will run, and the reason."""
    if implementation == "auto":
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
    return implementation, "asked for"


def recursion(chain: Chain, name: str) -> Passes:
    """The forward-backward passes of an implementation over a chain."""
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
