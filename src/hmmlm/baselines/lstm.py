"""An LSTM language model: that of Chiu & Rush 2020 (appendix A.2), and what AWD-LSTM adds."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
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
from hmmlm.baselines.recurrent import LstmLayer
from hmmlm.errors import check_least, check_rates

RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "adamw": {
        "data": {"layout": "streams", "reset": False, "batch_size": 16, "length": 32},
        "train": {"learning_rate": 1e-3, "weight_decay": 0.01, "epochs": 50},
    }
}


@dataclass(frozen=True)
class Settings:
    """`layers` LSTMs of one `width`, as that of the embeddings, which are those of the output if
    `tied`; `dropout` before, between and after them. `bias`: a number for each word, at first its
    log frequency.
    """

    width: int = 256
    layers: int = 2
    dropout: float = 0.3
    tied: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        check_least(self, width=1, layers=1)
        check_rates(self, "dropout")

    def build(self, vocab_size: int, **how: Any) -> "LstmLM":
        """A network with random weights; `how` is the rest of `network.Making`."""
        rate = self.dropout
        return LstmLM(
            Making(vocab_size, **how),
            widths=[self.width] * (self.layers + 1),
            regularising=Regularising(input=rate, between=rate, output=rate),
            tied=self.tied,
            bias=self.bias,
        )


@dataclass(frozen=True)
class Regularising:
    """Shares that dropout leaves out, and penalties.

    `words` are whole embeddings, `hidden` weights from h_t-1 to h_t. If `locked`, what is left out
    of `input`, `between` layers and `output` is the same at every step of a row. The `activation`
    penalty is on the squares of the dropped output, that of `change` on those of the differences
    between the outputs of neighbouring steps (Merity et al. 2017, section 4.6).
    """

    words: float = 0.0
    input: float = 0.0
    between: float = 0.0
    output: float = 0.0
    hidden: float = 0.0
    locked: bool = False
    activation: float = 0.0
    change: float = 0.0


class LstmLM(Network):
    """p(x_t | x_<t) = softmax(W LSTM(x_<t) + b).

    `widths` are those of the embeddings and of each layer's output; `tied`: W is the embeddings.
    O(V H) a token, of which most is the softmax.
    """

    def __init__(
        self,
        making: Making,
        *,
        widths: list[int],
        regularising: Regularising,
        tied: bool,
        bias: bool,
    ) -> None:
        super().__init__(making)
        self.regularising = regularising
        self.words = making.uniform(self.vocab_size, widths[0], bound=0.1)
        self.widths = widths[1:]
        self.layers = nn.ModuleList(LstmLayer(*sizes, making) for sizes in pairwise(widths))
        self.output = None
        if not tied:
            self.output = making.uniform(self.vocab_size, widths[-1], bound=0.1)
        self.bias = making.word_bias() if bias else None

    def cold(self, rows: int) -> Carry:
        carry = {"word": torch.full((rows,), self.start_id, device=self.device)}
        for number, width in enumerate(self.widths):
            for part in ("h", "c"):
                zeros = torch.zeros(rows, width, dtype=self.dtype, device=self.device)
                carry[f"{part}{number}"] = zeros
        return carry

    def _read(
        self,
        tokens: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"] | None,
        carry: Carry,
        generator: torch.Generator | None,
    ) -> Piece:
        inputs = torch.cat([carry["word"][:, None], tokens[:, :-1]], 1)
        out, after = self._run(inputs, lengths, carry, generator)
        after["word"] = last_words(tokens, lengths)
        dropped = self._drop(out, self.regularising.output, generator)
        weight = self.words if self.output is None else self.output
        found = word_log_probs(dropped.flatten(0, 1), weight, self.bias, tokens.flatten())
        penalty = 0.0 if generator is None else self._penalty(out, dropped, lengths)
        return Piece(found.view(tokens.shape), after, penalty)

    def next_log_probs(self, carry: Carry) -> Float[Tensor, "B V"]:
        out, _ = self._run(carry["word"][:, None], None, carry, None)
        weight = self.words if self.output is None else self.output
        return all_log_probs(out[:, 0], weight, self.bias)

    def _run(
        self,
        inputs: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"] | None,
        carry: Carry,
        generator: torch.Generator | None,
    ) -> tuple[Float[Tensor, "B T H"], Carry]:
        """The last layer's output at every step, and the states at the end of each row."""
        rates, after = self.regularising, {}
        out = F.embedding(inputs, self.words)
        if rates.words:  # one that is left out is nowhere in the batch
            out = out * drop(out.new_ones(self.vocab_size, 1), rates.words, generator)[inputs]
        out = self._drop(out, rates.input, generator)
        for number, layer in enumerate(self.layers):
            if number:
                out = self._drop(out, rates.between, generator)
            state = (carry[f"h{number}"], carry[f"c{number}"])
            out, (h, c) = layer(out, state, lengths, weight_drop=rates.hidden, generator=generator)
            after |= {f"h{number}": h, f"c{number}": c}
        return out, after

    def _drop(self, values: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
        rows, _, width = values.shape
        shape = (rows, 1, width) if self.regularising.locked else None
        return drop(values, rate, generator, shape)

    def _penalty(self, out: Tensor, dropped: Tensor, lengths: Tensor | None) -> Tensor | float:
        rates = self.regularising
        if not rates.activation and not rates.change:
            return 0.0
        steps = out.shape[1]
        inside = torch.ones(out.shape[:2], dtype=torch.bool, device=out.device)
        if lengths is not None:
            inside = torch.arange(steps, device=out.device) < lengths.to(out.device)[:, None]
        value = rates.activation * _mean_square(dropped, inside)
        if steps > 1:
            value = value + rates.change * _mean_square(out[:, 1:] - out[:, :-1], inside[:, 1:])
        return value


def _mean_square(values: Float[Tensor, "B T H"], inside: Tensor) -> Float[Tensor, ""]:
    squares = values.pow(2).mean(2) * inside
    return squares.sum() / inside.sum().clamp(min=1)
