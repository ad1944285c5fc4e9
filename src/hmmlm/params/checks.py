"""Checks of settings that several parameterisations share."""

from hmmlm.errors import InputError


def check_start(start: str) -> None:
    """Refuses a way to make the start that there is not."""
    if start not in ("network", "linear"):
        raise InputError(f"start is {start!r} but must be 'network' or 'linear'.")


def check_layers(layers: int) -> None:
    """Refuses a depth that a residual network cannot have."""
    if layers not in (1, 2):
        raise InputError(f"layers is {layers} but must be 1 or 2.")


def check_halves(width: int) -> None:
    """Refuses a width of composed embeddings that has no half."""
    if width % 2:
        raise InputError(f"The width is {width:,} but composed embeddings need an even one.")


def check_heads(width: int, heads: int) -> None:
    """Refuses a width that heads cannot share."""
    if width % heads:
        raise InputError(
            f"The width is {width:,}, which {heads:,} heads cannot share; make it a multiple."
        )
