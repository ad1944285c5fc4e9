"""Doors to Hugging Face's transformers; importing this registers HMMs with its Auto classes."""

from hmmlm.hf.causal_lm import HmmForCausalLM
from hmmlm.hf.configuration import HmmConfig
from hmmlm.hf.guiding import GuidedLogits
from hmmlm.hf.tokenizer import HmmTokenizer

__all__ = ["GuidedLogits", "HmmConfig", "HmmForCausalLM", "HmmTokenizer"]
