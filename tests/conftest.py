"""Shapes and types of annotated functions are checked in tests, and only there."""

import pkgutil

from jaxtyping import install_import_hook

import hmmlm

# Listed one by one: a package's name would take all of it, and numba cannot compile functions that
# are wrapped in checks.
install_import_hook(
    [
        module.name
        for module in pkgutil.walk_packages(hmmlm.__path__, "hmmlm.", onerror=lambda name: None)
        if not module.ispkg and not module.name.endswith((".compiled", "__main__"))
    ],
    "beartype.beartype",
)
