"""Doors to Hugging Face's transformers; importing this registers HMMs with its Auto classes."""

try:
    import transformers  # noqa: F401
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "hmmlm.hf needs Hugging Face's transformers, which is not installed; run pip install "
        "'hmmlm[hf]'.",
        name="transformers",
    ) from None

from hmmlm.hf.causal_lm import HmmForCausalLM
from hmmlm.hf.configuration import HmmConfig
from hmmlm.hf.guiding import GuidedLogits
from hmmlm.hf.tokenizer import HmmTokenizer

__all__ = ["GuidedLogits", "HmmConfig", "HmmForCausalLM", "HmmTokenizer"]
