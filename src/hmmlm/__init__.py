"""Hidden Markov language models with tens of thousands of states."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["HMM", "Model", "Support", "__version__"]

if TYPE_CHECKING:
    from hmmlm.hmm import HMM
    from hmmlm.model import Model
    from hmmlm.support import Support


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `hmmlm --help` does not wait for torch.
    if name == "HMM":
        from hmmlm.hmm import HMM as value
    elif name == "Support":
        from hmmlm.support import Support as value
    elif name == "Model":
        from hmmlm.model import Model as value
    else:
        raise AttributeError(f"module 'hmmlm' has no attribute {name!r}")
    return value
