"""Peak memory of a call: growth of the resident set, as Linux counts it."""

import ctypes
import gc
from collections.abc import Callable


def peak_growth(call: Callable[[], object]) -> int | None:
    """Bytes by which the resident set of this process grows at most during the call.

    The call should have been made once before, so that compiled code is not counted. Freed memory
    is given back to the system first, so that reusing it counts. None where Linux does not say.
    """
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # resets VmHWM to the present
        before = _status("VmRSS")
        result = call()
        peak = _status("VmHWM")
    except OSError:
        return None
    del result
    return max(0, peak - before)


def _status(name: str) -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"no {name} in /proc/self/status")
