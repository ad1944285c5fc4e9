"""Checks of settings that several neural models share."""

from typing import Any

from hmmlm.errors import InputError


def check_rates(settings: Any, *names: str) -> None:
    """Refuses shares that dropout cannot leave out."""
    for name in names:
        rate = getattr(settings, name)
        if not 0 <= rate < 1:
            raise InputError(f"{name} is {rate} but must be at least 0 and less than 1.")
