"""Models of other libraries: Ctrl-G, TRACE, hmmlearn, pomegranate, dynamax. No pickle is read."""

from hmmlm.interchange.ctrl_g import write_ctrl_g
from hmmlm.interchange.libraries import from_dynamax, from_hmmlearn, from_pomegranate
from hmmlm.interchange.reading import read

__all__ = ["from_dynamax", "from_hmmlearn", "from_pomegranate", "read", "write_ctrl_g"]
