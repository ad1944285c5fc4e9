"""A causal language model of Hugging Face's, to draw text from."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import tokenizers
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.data.tokenizer import Tokenizer
from hmmlm.distill.drawing import DrawnText, draw_texts, rows_that_fit
from hmmlm.distill.teachers import check_dtype
from hmmlm.errors import InputError
from hmmlm.hugging_face import place_of, reading

CAUSAL_TOLERANCE = 1e-4
"""What a token may change before it, as a share of what it changes at its own place."""


class CausalTeacher:
    """A causal language model of Hugging Face's, from a folder or the hub, and its tokenizer.

    A text begins after `first_id`, the model's own first token, or its end token where it has none,
    and is over after any of `end_ids`. `tokenizer.eos_id` is the first of those.
    `signature` is another where the model is another. Messages call it `what` it is to the caller.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        dtype: str = "float32",
        device: torch.device | str = "cpu",
        gguf_file: str | None = None,
        what: str = "teacher",
    ) -> None:
        kind, source = check_dtype(dtype), str(source)
        how: dict[str, Any] = {} if gguf_file is None else {"gguf_file": gguf_file}
        named = self._named = f"The {what} {source}"
        with reading(source, what) as transformers:
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                source, dtype=kind, output_loading_info=True, **how
            )
            _check_weights(named, found)
            ends = _end_ids(model, named)
            self.tokenizer = _read_tokenizer(transformers, source, how, ends[0], named)
        self.model = model.to(device).eval().requires_grad_(False)
        first = getattr(model.config, "bos_token_id", None)
        self.first_id: int = ends[0] if first is None else first
        self.end_ids = ends
        known = signature(model.forward).parameters
        self._of_last = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        self.name = f"{source}{f'/{gguf_file}' if gguf_file else ''}, {dtype}"
        self.signature = [self.name, self.device.type, *place_of(source, model.config)]
        if self.tokenizer.vocab_size > model.config.vocab_size:
            raise InputError(
                f"{named} knows {model.config.vocab_size:,} ids but its tokenizer has "
                f"{self.tokenizer.vocab_size:,}; take the tokens that were added out of it."
            )
        self._check_causal()

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def max_length(self) -> int | None:
        """The longest text that the model was made for, if it says so."""
        return getattr(self.model.config, "max_position_embeddings", None)

    def rows_together(self, length: int) -> int:
        """How many texts of a length to draw side by side, as far as memory goes."""
        return rows_that_fit(self.device, self.bytes_of_text(length))

    def bytes_of_text(self, length: int) -> int:
        """Of keys and values of a text, and of what is made of the logits of its next token."""
        config, size = self.model.config, self.model.dtype.itemsize
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        kept = getattr(config, "num_key_value_heads", None) or heads
        cache = 2 * config.num_hidden_layers * kept * width * size * length
        return cache + config.vocab_size * (size + 5 * 4)

    def draw(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        length: int,
        temperature: float = 1.0,
        generator: torch.Generator,
    ) -> list[DrawnText]:
        """A text of at most `length` tokens after each prompt, prompt included; it may be empty.

        Each token is drawn from softmax(logits / temperature) over all tokens of the tokenizer,
        and its log p is that of this distribution.
        """
        reader = _Reader(self, len(prompts), temperature)
        how: dict[str, Any] = {"end_ids": self.end_ids, "generator": generator}
        found = draw_texts(reader, prompts, length=length, **how)
        if found is None:
            raise InputError(
                f"{self._named} gave a probability that is not a number; use dtype "
                f"float32 or bfloat16, which hold larger ones."
            )
        return found

    def next_log_probs(
        self, last: Int[Tensor, "B T"], cache: Any, temperature: float
    ) -> tuple[Float[Tensor, "B V"], Any]:
        """log p of each token after those in the cache and the last ones, and the longer cache."""
        made = self.model(input_ids=last, past_key_values=cache, use_cache=True, **self._of_last)
        logits = made.logits[:, -1, : self.tokenizer.vocab_size].float()
        return torch.log_softmax(logits / temperature, -1), made.past_key_values

    @torch.no_grad()
    def _check_causal(self) -> None:
        """Refuses an encoder, and a model that keeps what it has read in some other way."""
        rows = torch.tensor([[0, 0], [0, 1]], device=self.device)
        made = self.model(input_ids=rows, use_cache=True)
        before, at = (made.logits[0] - made.logits[1]).float().abs().amax(-1).tolist()
        if before > CAUSAL_TOLERANCE * at:
            raise InputError(
                f"{self._named} reads what comes after a token too, as encoders do, so no "
                f"text can be drawn from it; give a causal language model."
            )
        if getattr(made, "past_key_values", None) is None:
            raise InputError(
                f"{self._named} keeps no keys and values of what it has read, which drawing "
                f"goes on from; give a transformer."
            )


class _Reader:
    """What a teacher has read, in its cache."""

    def __init__(self, teacher: CausalTeacher, rows: int, temperature: float) -> None:
        self._teacher, self._temperature = teacher, temperature
        self._first = torch.full((rows, 1), teacher.first_id, device=teacher.device)
        self._cache: Any = None

    def read(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        if self._cache is None:
            tokens = torch.cat([self._first, tokens], 1)
        found, self._cache = self._teacher.next_log_probs(tokens, self._cache, self._temperature)
        return found

    def keep(self, rows: Int[Tensor, " N"]) -> None:
        self._cache.batch_select_indices(rows)


def _check_weights(named: str, found: dict[str, Any]) -> None:
    missing = sorted({*found["missing_keys"], *map(str, found["mismatched_keys"])})
    if missing:
        raise InputError(
            f"{named} lacks weights of a causal language model, such as {missing[0]}; "
            f"give a model that was trained as one."
        )


def _end_ids(model: Any, named: str) -> list[int]:
    for settings in (model.generation_config, model.config):
        found = getattr(settings, "eos_token_id", None)
        if found is not None:
            return list(found) if isinstance(found, Sequence) else [found]
    raise InputError(
        f"{named} has no end token, so where a text is over is not known; set "
        f"eos_token_id in its config.json."
    )


def _read_tokenizer(
    transformers: Any, source: str, how: dict[str, Any], eos_id: int, named: str
) -> Tokenizer:
    """That of the teacher's tokenizer.json, or of what transformers makes of other files."""
    path = None
    if not how:
        path = transformers.utils.cached_file(
            source, "tokenizer.json", _raise_exceptions_for_missing_entries=False
        )
    if path is not None:
        text = Path(path).read_text(encoding="utf-8")
    else:
        text = transformers.AutoTokenizer.from_pretrained(source, **how).backend_tokenizer.to_str()
    try:
        eos = tokenizers.Tokenizer.from_str(text).id_to_token(eos_id)
    except Exception as error:  # tokenizers raises bare Exception
        raise InputError(f"The tokenizer of {source} cannot be read: {error}.") from None
    if eos is None:
        raise InputError(
            f"{named} ends a text with the id {eos_id:,}, which its tokenizer does "
            f"not have; set eos_token_id in its config.json."
        )
    return Tokenizer.from_json(text, source=f"The tokenizer of {source}", eos=eos)
