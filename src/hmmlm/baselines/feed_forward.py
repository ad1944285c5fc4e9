"""A feed-forward n-gram model: the last words side by side, two layers, a softmax over words.

Chiu & Rush 2020, appendix A.2, after Bengio et al. 2003.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from hmmlm.baselines.network import (
    Carry,
    Network,
    Piece,
    all_log_probs,
    drop,
    uniform,
    word_bias,
    word_log_probs,
)
from hmmlm.params.checks import check_least, check_rates

RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "adamw": {
        "data": {"layout": "streams", "reset": False, "batch_size": 128, "length": 64},
        "train": {"learning_rate": 1e-3, "weight_decay": 0.01, "epochs": 100},
    }
}


@dataclass(frozen=True)
class Settings:
    """`order` - 1 words are read, of embeddings of a `width`, which the layers have too.

    `tied`: the output's weights are the embeddings. `bias`: a number for each word, at first its
    log frequency. `dropout` after each layer.
    """

    width: int = 256
    order: int = 5
    dropout: float = 0.3
    tied: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        check_least(self, width=1, order=2)
        check_rates(self, "dropout")

    def build(
        self,
        vocab_size: int,
        *,
        start_id: int,
        word_probs: Float[Tensor, " V"] | None = None,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> "FeedForward":
        return FeedForward(
            vocab_size,
            start_id,
            settings=self,
            word_probs=word_probs,
            generator=generator,
            dtype=dtype,
        )


class FeedForward(Network):
    """p(x_t | x_<t) = softmax(W relu(B relu(A [e(x_t-n+1); ...; e(x_t-1)]))). O(V H) a token."""

    def __init__(
        self,
        vocab_size: int,
        start_id: int,
        *,
        settings: Settings,
        word_probs: Float[Tensor, " V"] | None = None,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(vocab_size, start_id)
        width, past = settings.width, settings.order - 1
        self.past, self.rate = past, settings.dropout

        def weight(*shape: int, bound: float) -> nn.Parameter:
            return nn.Parameter(uniform(*shape, bound=bound, generator=generator, dtype=dtype))

        self.words = weight(vocab_size, width, bound=0.1)
        wide, narrow = (past * width) ** -0.5, width**-0.5
        self.first, self.second = (
            weight(width, past * width, bound=wide),
            weight(width, width, bound=narrow),
        )
        self.first_bias, self.second_bias = weight(width, bound=wide), weight(width, bound=narrow)
        self.output = None if settings.tied else weight(vocab_size, width, bound=0.1)
        self.bias = word_bias(vocab_size, word_probs, dtype) if settings.bias else None

    def cold(self, rows: int) -> Carry:
        return {"words": torch.full((rows, self.past), self.start_id, device=self.device)}

    def _read(
        self,
        tokens: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"] | None,
        carry: Carry,
        generator: torch.Generator | None,
    ) -> Piece:
        words = torch.cat([carry["words"], tokens], 1)
        contexts = words.unfold(1, self.past, 1)  # (B, T + 1, past)
        features = self._features(contexts[:, :-1].flatten(0, 1), generator)
        weight = self.words if self.output is None else self.output
        found = word_log_probs(features, weight, self.bias, tokens.flatten())
        after = contexts[:, -1]
        if lengths is not None:
            rows = torch.arange(len(tokens), device=tokens.device)
            after = contexts[rows, lengths.to(tokens.device)]
        return Piece(found.view(tokens.shape), {"words": after.clone()})

    def next_log_probs(self, carry: Carry) -> Float[Tensor, "B V"]:
        weight = self.words if self.output is None else self.output
        return all_log_probs(self._features(carry["words"], None), weight, self.bias)

    def _features(
        self, contexts: Int[Tensor, "N C"], generator: torch.Generator | None
    ) -> Float[Tensor, "N H"]:
        side_by_side = F.embedding(contexts, self.words).flatten(1)
        hidden = F.relu(F.linear(side_by_side, self.first, self.first_bias))
        hidden = drop(hidden, self.rate, generator)
        hidden = F.relu(F.linear(hidden, self.second, self.second_bias))
        return drop(hidden, self.rate, generator)
