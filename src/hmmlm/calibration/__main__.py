"""`python -m hmmlm.calibration`: reads what to measure, as JSON, and writes what was found."""

import sys

from hmmlm.calibration.apart import answer

if __name__ == "__main__":
    sys.exit(answer())
