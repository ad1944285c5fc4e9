"""The one exception for a mistake that the user can mend, and how messages count."""


class InputError(ValueError):
    """What was given, what it must be, and the way out; the command line prints it and exits 2."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """1 step, 2 steps; 1 batch, 2 batches."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
