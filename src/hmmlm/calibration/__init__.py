"""How fast something of a given shape is on this machine, and what memory it takes: by doing it."""

from hmmlm.calibration.apart import measure_apart
from hmmlm.calibration.ladder import PARTS, Measured, Task, measure

__all__ = ["PARTS", "Measured", "Task", "measure", "measure_apart"]
