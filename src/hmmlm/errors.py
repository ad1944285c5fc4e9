"""The one exception for a mistake that the user can mend, and checks of numbers that raise it."""

import math
from operator import index
from typing import Any


class InputError(ValueError):
    """What was given, what it must be, and the way out; the command line prints it and exits 2."""


def check_count(name: str, value: int) -> None:
    """Refuses what is not a whole number of at least 1."""
    try:
        number = index(value)
    except TypeError:
        raise InputError(f"{name} is {value!r} but must be a whole number.") from None
    if number < 1:
        raise InputError(f"{name} is {number:,} but must be at least 1.")


def check_least(settings: Any, **least: int) -> None:
    """Refuses settings that are below the least they may be, or not finite; None may stand."""
    for name, value in least.items():
        given = getattr(settings, name)
        if given is not None and not value <= given < math.inf:
            finite = " and finite" if isinstance(given, float) else ""
            raise InputError(f"{name} is {given:,} but must be at least {value}{finite}.")


def check_rates(settings: Any, *names: str) -> None:
    """Refuses settings that are not at least 0 and less than 1."""
    for name in names:
        rate = getattr(settings, name)
        if not 0 <= rate < 1:
            raise InputError(f"{name} is {rate} but must be at least 0 and less than 1.")


def rounded(amount: float, unit: str) -> str:
    """An amount for people, with the prefix that suits it: 59 MB, 1.3 GFLOP, 1,260 TB."""
    prefixes = ["", "k", "M", "G", "T"]
    while amount >= 999.5 and len(prefixes) > 1:
        amount, prefixes = amount / 1000, prefixes[1:]
    digits = 1 if amount < 9.95 and prefixes[0] else 0
    return f"{amount:,.{digits}f} {prefixes[0]}{unit}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """1 step, 2 steps; 1 batch, 2 batches."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was no memory left, which torch says in words; illegal access is not that."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    told = isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    return told or isinstance(error, MemoryError)
