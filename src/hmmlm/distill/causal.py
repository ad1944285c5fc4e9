"""A causal language model of Hugging Face's, to draw text from."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.data.tokenizer import Tokenizer
from hmmlm.distill.teachers import check_dtype
from hmmlm.errors import InputError
from hmmlm.hugging_face import place_of, reading

CAUSAL_TOLERANCE = 1e-4
"""What a token may change before it, as a share of what it changes at its own place."""

LOOKS = 8
"""Steps between two looks at which texts are over."""

SHARE = 0.9
"""Of the texts that are drawn side by side: where no more of them go on, the others are left."""

ROWS = {"cpu": 64, "cuda": 1 << 14}
"""Texts that are drawn side by side, at most."""


class DrawnText(NamedTuple):
    """The tokens of a text, and log p of each given those before it; NaN where it was not drawn."""

    tokens: Int[np.ndarray, " T"]
    log_probs: Float[np.ndarray, " T"]


class CausalTeacher:
    """A causal language model of Hugging Face's, from a folder or the hub, and its tokenizer.

    A text begins after `first_id`, the model's own first token, or its end token where it has none,
    and is over after any of `end_ids`. `tokenizer.eos_id` is the first of those.
    `signature` is another where the model is another.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        dtype: str = "float32",
        device: torch.device | str = "cpu",
        gguf_file: str | None = None,
    ) -> None:
        kind, source = check_dtype(dtype), str(source)
        how: dict[str, Any] = {} if gguf_file is None else {"gguf_file": gguf_file}
        with reading(source, "teacher") as transformers:
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                source, dtype=kind, output_loading_info=True, **how
            )
            _check_weights(source, found)
            ends = _end_ids(model, source)
            self.tokenizer = _read_tokenizer(transformers, source, how, ends[0])
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
                f"The teacher {source} knows {model.config.vocab_size:,} ids but its tokenizer has "
                f"{self.tokenizer.vocab_size:,}; take the tokens that were added out of it."
            )
        self._check_causal(source)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def max_length(self) -> int | None:
        """The longest text that the model was made for, if it says so."""
        return getattr(self.model.config, "max_position_embeddings", None)

    def rows_together(self, length: int) -> int:
        """How many texts of a length to draw side by side, as far as memory goes.

        On a GPU a step takes as long for a few texts as for thousands, until its products fill it.
        """
        if self.device.type != "cuda":
            return ROWS["cpu"]
        memory = torch.cuda.get_device_properties(self.device).total_memory
        return largest_batch(memory // 2, self.bytes_of_text(length))

    def bytes_of_text(self, length: int) -> int:
        """Of keys and values of a text, and of what is made of the logits of its next token."""
        config, size = self.model.config, self.model.dtype.itemsize
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        kept = getattr(config, "num_key_value_heads", None) or heads
        cache = 2 * config.num_hidden_layers * kept * width * size * length
        return cache + config.vocab_size * (size + 5 * 4)

    @torch.no_grad()
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
        rows, place = len(prompts), self.device
        given = torch.full((rows, length), -1)
        for row, ids in zip(given.numpy(), prompts, strict=True):
            row[: len(ids)] = ids
        is_given, tokens = (given >= 0).to(place), given.to(place)
        log_probs = torch.full((rows, length), torch.nan, device=place)
        sizes = torch.full((rows,), length, device=place)
        ends = torch.tensor(self.end_ids, device=place)
        is_number = torch.ones(rows, dtype=torch.bool, device=place)
        # What all prompts have is read at once, then one token after the other.
        begun = min(map(len, prompts))
        first = torch.full((rows, 1), self.first_id, device=place)
        last, cache = torch.cat([first, tokens[:, :begun]], 1), None
        open_rows = torch.arange(rows, device=place)
        for step in range(begun, length):
            known, cache = self._next(last, cache, temperature)
            is_number[open_rows] &= ~known[:, 0].isnan()  # one that is none spoils its row
            # The largest of p / e, with e exponential, is drawn from p.
            noise = torch.empty_like(known).exponential_(generator=generator)
            drawn = known.exp().div_(noise).argmax(1)
            is_told = is_given[open_rows, step]
            token = torch.where(is_told, tokens[open_rows, step], drawn)
            tokens[open_rows, step] = token
            log_probs[open_rows, step] = known.gather(1, token[:, None])[:, 0]
            is_over = torch.isin(token, ends) & ~is_told
            mine = sizes[open_rows]
            sizes[open_rows] = torch.where(is_over, mine.clamp(max=step + 1), mine)
            last = token[:, None]
            if step % LOOKS == LOOKS - 1:
                going = (sizes[open_rows] > step + 1).nonzero()[:, 0]  # waits for the device
                if not len(going):
                    break
                if len(going) <= SHARE * len(open_rows):
                    open_rows, last = open_rows[going], last[going]
                    cache.batch_select_indices(going)
        if not bool(is_number.all()):
            raise InputError(
                f"The teacher {self.name} gave a probability that is not a number; use dtype "
                f"float32 or bfloat16, which hold larger ones."
            )
        log_probs[is_given] = torch.nan
        found = zip(tokens.cpu().numpy(), log_probs.cpu().numpy(), sizes.tolist(), strict=True)
        return [DrawnText(ids[:size], scores[:size]) for ids, scores, size in found]

    def _next(
        self, last: Int[Tensor, "B T"], cache: Any, temperature: float
    ) -> tuple[Float[Tensor, "B V"], Any]:
        """log p of each token after those in the cache and the last ones, and the longer cache."""
        made = self.model(input_ids=last, past_key_values=cache, use_cache=True, **self._of_last)
        logits = made.logits[:, -1, : self.tokenizer.vocab_size].float()
        return torch.log_softmax(logits / temperature, -1), made.past_key_values

    @torch.no_grad()
    def _check_causal(self, source: str) -> None:
        """Refuses an encoder, and a model that keeps what it has read in some other way."""
        rows = torch.tensor([[0, 0], [0, 1]], device=self.device)
        made = self.model(input_ids=rows, use_cache=True)
        before, at = (made.logits[0] - made.logits[1]).float().abs().amax(-1).tolist()
        if before > CAUSAL_TOLERANCE * at:
            raise InputError(
                f"The teacher {source} reads what comes after a token too, as encoders do, so no "
                f"text can be drawn from it; give a causal language model."
            )
        if getattr(made, "past_key_values", None) is None:
            raise InputError(
                f"The teacher {source} keeps no keys and values of what it has read, which drawing "
                f"goes on from; give a transformer."
            )


def largest_batch(memory: int, each: int) -> int:
    """The largest power of two that fits, from 1 up to what fills a GPU."""
    fits = max(1, min(ROWS["cuda"], memory // each))
    return 1 << (fits.bit_length() - 1)


def _check_weights(source: str, found: dict[str, Any]) -> None:
    missing = sorted({*found["missing_keys"], *map(str, found["mismatched_keys"])})
    if missing:
        raise InputError(
            f"The teacher {source} lacks weights of a causal language model, such as {missing[0]}; "
            f"give a model that was trained as one."
        )


def _end_ids(model: Any, source: str) -> list[int]:
    for settings in (model.generation_config, model.config):
        found = getattr(settings, "eos_token_id", None)
        if found is not None:
            return list(found) if isinstance(found, Sequence) else [found]
    raise InputError(
        f"The teacher {source} has no end token, so where a text is over is not known; set "
        f"eos_token_id in its config.json."
    )


def _read_tokenizer(transformers: Any, source: str, how: dict[str, Any], eos_id: int) -> Tokenizer:
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
            f"The teacher {source} ends a text with the id {eos_id:,}, which its tokenizer does "
            f"not have; set eos_token_id in its config.json."
        )
    return Tokenizer.from_json(text, source=f"The tokenizer of {source}", eos=eos)
