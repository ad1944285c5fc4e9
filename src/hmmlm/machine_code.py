"""Loops in machine code."""

from typing import Any

import numba


# Any: checkers would take the functions for what they are before they are compiled.
def compile_loop(function: Any, **how: Any) -> Any:
    """Compiles a function at its first use, without the interpreter's lock; kept on disk."""
    how = {"nogil": True, "error_model": "numpy", **how}
    try:
        return numba.njit(cache=True, **how)(function)
    except RuntimeError:  # nowhere to write a cache: neither beside the file nor at home
        return numba.njit(**how)(function)
