"""Shapes and types of annotated functions are checked in tests, and only there."""

import importlib.util
import os
import pkgutil
import signal

import hypothesis
import torch
from jaxtyping import install_import_hook

import hmmlm

# How long an example takes says more of what else the machine does than of the code.
hypothesis.settings.register_profile("hmmlm", deadline=None)
hypothesis.settings.load_profile("hmmlm")

# A shell that starts the tests in the background, or nohup, makes them, and all that they start,
# deaf to these.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Without a GPU, Triton's interpreter runs the kernels; it is asked for before they are imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

CHECKED = importlib.util.find_spec("beartype") is not None


def pytest_report_header() -> str:
    return "shapes: checked" if CHECKED else "shapes: NOT checked, beartype is not installed"


# Listed one by one: a package's name would take all of it, and numba and Triton cannot compile
# functions that are wrapped in checks.
if CHECKED:
    install_import_hook(
        [
            module.name
            for module in pkgutil.walk_packages(hmmlm.__path__, "hmmlm.", onerror=lambda name: None)
            if not module.ispkg
            and not module.name.endswith((".compiled", ".instructions", "kernel", "__main__"))
        ],
        "beartype.beartype",
    )
