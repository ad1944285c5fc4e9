"""The one exception for a mistake that the user can mend; how messages count; want of memory."""


class InputError(ValueError):
    """What was given, what it must be, and the way out; the command line prints it and exits 2."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """1 step, 2 steps; 1 batch, 2 batches."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was no memory left, which torch says in words; illegal access is not that."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    told = isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    return told or isinstance(error, MemoryError)
