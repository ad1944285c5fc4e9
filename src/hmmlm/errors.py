"""The one exception for a mistake that the user can mend."""


class InputError(ValueError):
    """What was given, what it must be, and the way out; the command line prints it and exits 2."""
