"""Teachers: models that have something to say of every token of a text, in numbers."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.hugging_face import place_of, read_head, read_model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@runtime_checkable
class Teacher(Protocol):
    """`hidden` is what a model makes of each token, D numbers, after a cold start.

    `name` tells it from others, `vocab_size` is how many ids it knows.
    """

    @property
    def name(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    def hidden(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]: ...


@runtime_checkable
class Predicting(Teacher, Protocol):
    """One that may have a language-modelling `head`.

    head() . hidden(tokens) are logits of the next words, up to a number for each word. None where
    there is no head that reads what is `hidden`.
    """

    def head(self) -> Float[Tensor, "V D"] | None: ...


def head_of(teacher: Teacher) -> Float[Tensor, "V D"] | None:
    """The language-modelling head of a teacher, if it has one."""
    return teacher.head() if isinstance(teacher, Predicting) else None


@dataclass(frozen=True)
class TeacherSettings:
    """`teacher` is a folder or a name on Hugging Face's hub; the rest is of `HuggingFaceTeacher`.

    A folder of a model of ours that has hidden states will do too: of it only `random` is asked.
    """

    teacher: str
    layer: int = -1
    dtype: str = "float32"
    random: bool = False
    begins: bool = True
    gguf_file: str | None = None


class HuggingFaceTeacher:
    """A causal language model or an encoder of Hugging Face's, from a folder or the hub.

    `layer` counts from the embeddings, 0, or from the last, -1, which comes after the final norm.
    With `random` it has the architecture but weights drawn from a `seed`. A row begins with the
    model's own first token, if it has one and `begins`. `gguf_file` is a file in the folder.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        layer: int = -1,
        dtype: str = "float32",
        device: torch.device | str = "cpu",
        random: bool = False,
        seed: int = 0,
        begins: bool = True,
        gguf_file: str | None = None,
    ) -> None:
        kind = check_dtype(dtype)
        self.source, self.layer, self.seed, self.random = str(source), layer, seed, random
        self.dtype = dtype
        self.how: dict[str, Any] = {"dtype": kind, "gguf_file": gguf_file or ""}
        self.how["seed"] = seed if random else None
        model = read_model(self.source, what="teacher", **self.how)
        self.model = model.to(device).eval().requires_grad_(False)
        config = self.model.config
        config.use_cache = False  # every window is read once
        layers = config.num_hidden_layers
        if not -layers - 1 <= layer <= layers:
            raise InputError(
                f"layer is {layer} but {source} has {layers}: use 0 (embeddings) to {layers}, or "
                f"-1 (the last) to {-layers - 1}."
            )
        self.first_id: int | None = getattr(config, "bos_token_id", None) if begins else None

    @property
    def name(self) -> str:
        drawn = f", random {self.seed}" if self.random else ""
        first = "" if self.first_id is None else f", after {self.first_id}"
        return f"{self.source}{self._files}, layer {self.layer}, {self.dtype}{drawn}{first}"

    @cached_property
    def _files(self) -> str:
        """What tells the files of a folder from others, or the commit on the hub."""
        found = place_of(self.source, self.model.config)
        file = f"/{self.how['gguf_file']}" if self.how["gguf_file"] else ""
        return f"{file} {hashlib.sha256(json.dumps(found).encode()).hexdigest()[:8]}"

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @torch.no_grad()
    def hidden(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        ids = tokens.to(self.model.device)
        if self.first_id is not None:
            ids = torch.nn.functional.pad(ids, (1, 0), value=self.first_id)
        is_last = self.layer == -1
        made = self.model(input_ids=ids, output_hidden_states=not is_last)
        found = made.last_hidden_state if is_last else made.hidden_states[self.layer]
        return found[:, -tokens.shape[1] :].float()

    def head(self) -> Float[Tensor, "V D"] | None:
        """The output embeddings, which read the last layer; encoders and other layers have none."""
        return self._head

    @cached_property
    def _head(self) -> Float[Tensor, "V D"] | None:
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL,
        )
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED,
        )

        config = self.model.config
        kind, is_last = config.model_type, self.layer in (-1, config.num_hidden_layers)
        if not is_last or kind not in CAUSAL or kind in MASKED:  # encoders can be made causal
            return None
        if config.tie_word_embeddings:
            return self.model.get_input_embeddings().weight.detach().float()
        return read_head(self.source, what="teacher", **self.how)


def check_dtype(dtype: str) -> torch.dtype:
    """The type of numbers with this name."""
    if dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r} but must be one of {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def check_teacher(teacher: Teacher, vocab_size: int) -> None:
    """Refuses a teacher that does not know all ids of a text."""
    if teacher.vocab_size < vocab_size:
        raise InputError(
            f"The teacher {teacher.name} knows {teacher.vocab_size:,} ids but the text has "
            f"{vocab_size:,}; prepare the text with the teacher's own tokenizer (--tokenizer)."
        )
