"""A decoder-only transformer: a language model, and a teacher of hidden states."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from hmmlm.baselines.network import (
    Carry,
    Making,
    Network,
    Piece,
    all_log_probs,
    drop,
    last_words,
    word_log_probs,
)
from hmmlm.errors import check_least, check_rates
from hmmlm.params.checks import check_heads
from hmmlm.params.transformer import Decoder

RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "adamw": {
        "data": {"layout": "streams", "reset": False, "batch_size": 64, "length": 64},
        "train": {"learning_rate": 1e-3, "weight_decay": 0.1, "beta2": 0.95, "epochs": 20},
    }
}


@dataclass(frozen=True)
class Settings:
    """`depth` blocks of a `width` and so many `heads`; a layer sees `context` words back.

    `dropout` is before the first block and after the last. `bias`: a number for each word, at first
    its log frequency.
    """

    width: int = 256
    depth: int = 4
    heads: int = 4
    context: int = 64
    dropout: float = 0.1
    bias: bool = True

    def __post_init__(self) -> None:
        check_least(self, width=1, depth=1, heads=1, context=1)
        check_heads(self.width, self.heads)
        check_rates(self, "dropout")

    def build(self, vocab_size: int, **how: Any) -> "DecoderLM":
        """A network with random weights; `how` is the rest of `network.Making`."""
        return DecoderLM(self, Making(vocab_size, **how))


class DecoderLM(Network):
    """p(x_t | x_<t) = softmax(words . body(x_<t) + b), where words are also what the body reads.

    There are no positions: what lies n words back counts `slope` times n less before a head's
    softmax (Press et al. 2022). A layer sees `context` words back, so all of them depth times as
    many. Keys and values are carried, so that a text may be cut anywhere. O(V H + depth H (H + C))
    a token.
    """

    slopes: Tensor

    def __init__(self, settings: Settings, making: Making) -> None:
        super().__init__(making)
        self.rate, self.context, self.heads = settings.dropout, settings.context, settings.heads
        self.words = making.uniform(self.vocab_size, settings.width, bound=0.1)
        self.body = Decoder(
            settings.width,
            settings.depth,
            settings.heads,
            generator=making.generator,
            dtype=making.dtype,
        )
        self.output = None
        self.bias = making.word_bias() if settings.bias else None
        slopes = torch.exp2(-8 * torch.arange(1, self.heads + 1, dtype=making.dtype) / self.heads)
        self.register_buffer("slopes", slopes, persistent=False)

    def cold(self, rows: int) -> Carry:
        width = self.words.shape[1] // self.heads
        shape = (rows, len(self.body.blocks), 2, self.heads, self.context, width)
        return {
            "word": torch.full((rows,), self.start_id, device=self.device),
            "past": torch.zeros(shape, dtype=self.dtype, device=self.device),
            "age": torch.zeros(rows, dtype=torch.long, device=self.device),
        }

    def hidden(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T H"]:
        """What comes out of the last layer when each token has been read, after a cold start."""
        inputs = F.pad(tokens, (1, 0), value=self.start_id)
        return self._hear(inputs, None, self.cold(len(tokens)), None)[0][:, 1:]

    def _read(
        self,
        tokens: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"] | None,
        carry: Carry,
        generator: torch.Generator | None,
    ) -> Piece:
        inputs = torch.cat([carry["word"][:, None], tokens[:, :-1]], 1)
        features, after = self._hear(inputs, lengths, carry, generator)
        found = word_log_probs(features.flatten(0, 1), self.words, self.bias, tokens.flatten())
        return Piece(found.view_as(tokens), {"word": last_words(tokens, lengths), **after})

    def next_log_probs(self, carry: Carry) -> Float[Tensor, "B V"]:
        features, _ = self._hear(carry["word"][:, None], None, carry, None)
        return all_log_probs(features[:, 0], self.words, self.bias)

    def _hear(
        self,
        inputs: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"] | None,
        carry: Carry,
        generator: torch.Generator | None,
    ) -> tuple[Float[Tensor, "B T H"], Carry]:
        """Features after each input, and the keys and values of the last ones of each row."""
        length, age = inputs.shape[1], carry["age"]
        out = drop(F.embedding(inputs, self.words), self.rate, generator)
        out, past = self.body.attend(out, carry["past"], self._bias(age, length))
        ends = torch.full_like(age, length) if lengths is None else lengths.to(age.device)
        kept = ends[:, None] + torch.arange(self.context, device=age.device)  # (B, C)
        shape = (*past.shape[:4], self.context, past.shape[5])
        past = past.gather(4, kept[:, None, None, None, :, None].expand(shape)).to(self.dtype)
        out = drop(out, self.rate, generator)
        return out, {"past": past, "age": (age + ends).clamp(max=self.context)}

    def _bias(self, age: Int[Tensor, " B"], length: int) -> Float[Tensor, "B heads T S"]:
        """What is added for each input that another sees; -inf for what it does not see."""
        places = torch.arange(self.context + length, device=age.device)
        back = places[self.context :, None] - places  # (T, C + T)
        unseen = (back < 0) | (back > self.context)
        unseen = unseen | (places < self.context - age[:, None])[:, None, :]  # (B, T, C + T)
        bias = -self.slopes[:, None, None] * back  # (heads, T, C + T)
        return bias.masked_fill(unseen[:, None], -torch.inf)
