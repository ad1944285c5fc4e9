"""Threads that wait give their core away."""

import os
import subprocess
import sys

import pytest

ASK = """
import sys
import hmmlm.cli
assert "torch" not in sys.modules  # which reads it once
hmmlm.cli.app = lambda **_: print(__import__("os").environ["OMP_WAIT_POLICY"])
hmmlm.cli.main()
"""


@pytest.mark.parametrize("given", [None, "active"])
def test_threads_do_not_burn_a_core_while_they_wait_unless_told(given) -> None:
    env = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    if given is not None:
        env["OMP_WAIT_POLICY"] = given
    said = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True)
    assert said.stdout.strip() == (given or "passive"), said.stderr
