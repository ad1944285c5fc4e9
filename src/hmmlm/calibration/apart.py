"""Measuring in a process of its own, so that its memory is that of this alone."""

import json
import signal
import subprocess
import sys

from hmmlm.calibration.ladder import Measured, Task, measure
from hmmlm.errors import InputError, is_out_of_memory

TOLD = "calibration: "
"""What the line with a reason begins with; libraries may write others."""


def measure_apart(task: Task) -> Measured:
    """`measure` in another process, in the same folder and with the same settings of threads."""
    done = subprocess.run(
        [sys.executable, "-m", "hmmlm.calibration"],
        input=json.dumps(task._asdict()),
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return Measured(**json.loads(done.stdout.splitlines()[-1]))
    told = [line for line in done.stderr.splitlines() if line.startswith(TOLD)]
    if told:
        raise InputError(told[-1].removeprefix(TOLD))
    if done.returncode == -signal.SIGKILL:
        raise InputError(
            f"The system ended the measuring of {task.part}, as it does where memory is short; use "
            f"fewer states or a smaller batch, or --no-measure."
        )
    raise RuntimeError(f"measuring {task.part} failed:\n{done.stderr}")


def answer() -> int:
    """The other process: a task from stdin, the result to stdout."""
    try:
        found = measure(Task(**json.load(sys.stdin)))
    except InputError as error:
        print(f"{TOLD}{error}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print(
            f"{TOLD}There is not enough memory to measure this; use fewer states or a smaller "
            f"batch, or --no-measure.",
            file=sys.stderr,
        )
        return 2
    print(json.dumps(found._asdict()))
    return 0
