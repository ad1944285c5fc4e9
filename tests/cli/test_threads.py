"""Threads that wait give their core away where others want it."""

import os
import subprocess
import sys

import pytest

ASK = """
import os, sys
import hmmlm.cli
assert "torch" not in sys.modules  # which reads it once
os.getloadavg = lambda: (float(sys.argv[1]), 0.0, 0.0)
hmmlm.cli.app = lambda **_: print(os.environ.get("OMP_WAIT_POLICY"))
hmmlm.cli.main()
"""


@pytest.mark.parametrize(
    ("load", "given", "wanted"),
    [(0.1, None, "None"), (99999, None, "passive"), (99999, "active", "active")],
)
def test_threads_burn_no_core_that_others_want(load, given, wanted) -> None:
    env = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    if given is not None:
        env["OMP_WAIT_POLICY"] = given
    call = [sys.executable, "-c", ASK, str(load)]
    said = subprocess.run(call, env=env, capture_output=True, text=True)
    assert said.stdout.strip() == wanted, said.stderr
