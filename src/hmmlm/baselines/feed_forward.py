"""A feed-forward n-gram model: the last words side by side, two layers, a softmax over words.

Chiu & Rush 2020, appendix A.2, after Bengio et al. 2003.
"""

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
    word_log_probs,
)
from hmmlm.errors import check_least, check_rates

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

    def build(self, vocab_size: int, **how: Any) -> "FeedForward":
        """A network with random weights; `how` is the rest of `network.Making`."""
        return FeedForward(self, Making(vocab_size, **how))


class FeedForward(Network):
    """p(x_t | x_<t) = softmax(W relu(B relu(A [e(x_t-n+1); ...; e(x_t-1)]))). O(V H) a token."""

    def __init__(self, settings: Settings, making: Making) -> None:
        super().__init__(making)
        width, past = settings.width, settings.order - 1
        self.past, self.rate = past, settings.dropout
        words, weight = self.vocab_size, making.uniform
        self.words = weight(words, width, bound=0.1)
        wide, narrow = (past * width) ** -0.5, width**-0.5
        self.first = weight(width, past * width, bound=wide)
        self.second = weight(width, width, bound=narrow)
        self.first_bias, self.second_bias = weight(width, bound=wide), weight(width, bound=narrow)
        self.output = None if settings.tied else weight(words, width, bound=0.1)
        self.bias = making.word_bias() if settings.bias else None

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
