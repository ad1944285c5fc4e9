"""The tokenizer of an HMM as Hugging Face's transformers uses one."""

from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, BatchEncoding, PreTrainedTokenizerFast

from hmmlm.data.tokenizer import Tokenizer
from hmmlm.hf.configuration import HmmConfig


class ReadWords(BatchEncoding):
    """Ids of words, beside which a pipeline keeps the prompt, to set what is written behind it."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "prompt_text" and isinstance(value, str) and value and not value[-1].isspace():
            value += " "  # what is written begins with a word, and words do not say so themselves
        self.data[name] = value


class HmmTokenizer(PreTrainedTokenizerFast):
    """Ids as ours gives them; `<eos>` ends what is written, and is not put behind what is read.

    It pads, too, where nothing else is said.
    """

    @classmethod
    def from_pretrained(cls, *given: Any, **how: Any) -> "HmmTokenizer":
        return super().from_pretrained(*given, **how)._mended()

    @staticmethod
    def of(tokenizer: Tokenizer) -> "HmmTokenizer":
        """That of a model of ours."""
        backend = Backend.from_str(tokenizer.as_json())
        return HmmTokenizer(tokenizer_object=backend)._mended()

    def __call__(self, *given: Any, **how: Any) -> BatchEncoding:
        found = super().__call__(*given, **how)
        if not isinstance(self.backend_tokenizer.model, WordLevel):
            return found
        return ReadWords(found.data, found.encodings, n_sequences=found.n_sequences)

    def _mended(self) -> "HmmTokenizer":
        if self.eos_token is None:
            own = Tokenizer.from_json(self.backend_tokenizer.to_str(), source="The tokenizer")
            self.add_special_tokens({"eos_token": own.token(own.eos_id)})
        if self.pad_token is None:
            self.add_special_tokens({"pad_token": str(self.eos_token)})
        self.update_post_processor()
        return self


AutoTokenizer.register(HmmConfig, fast_tokenizer_class=HmmTokenizer)
