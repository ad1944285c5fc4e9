"""Checks of settings that several parameterisations share."""

import math
from typing import Any

from hmmlm.errors import InputError


def check_least(settings: Any, **least: int) -> None:
    """Refuses numbers that are not finite, or below the least they may be."""
    for name, value in least.items():
        given = getattr(settings, name)
        if not value <= given < math.inf:
            finite = " and finite" if isinstance(given, float) else ""
            raise InputError(f"{name} is {given} but must be at least {value}{finite}.")


def check_rates(settings: Any, *names: str) -> None:
    """Refuses shares that dropout cannot leave out."""
    for name in names:
        rate = getattr(settings, name)
        if not 0 <= rate < 1:
            raise InputError(f"{name} is {rate} but must be at least 0 and less than 1.")


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
