"""AWD-LSTM (Merity, Keskar & Socher 2017): an LSTM with every known way not to over-fit."""

from dataclasses import dataclass, replace
from typing import Any

from hmmlm.baselines.lstm import LstmLM, Regularising
from hmmlm.baselines.network import Making
from hmmlm.errors import check_least, check_rates

_DATA = {
    "layout": "streams",
    "reset": False,
    "batch_size": 20,
    "length": 70,
    "vary_length": True,
}
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "sgd": {
        "data": _DATA,
        "train": {
            "learning_rate": 30.0,
            "weight_decay": 1.2e-6,
            "clip": 0.25,
            "schedule": "constant",
            "warmup_steps": 0,
            "average_after": 5,
            "epochs": 500,
        },
    },
    "adamw": {
        "data": _DATA,
        "train": {"learning_rate": 3e-3, "weight_decay": 0.01, "clip": 0.25, "epochs": 80},
    },
}
"""Merity et al.'s own, and a shorter one."""


@dataclass(frozen=True)
class Settings:
    """Merity et al.'s, for PTB: three layers of `width`, the last as wide as the `embedding`.

    Shares that dropout leaves out: whole words (`dropout_words`), and, the same at every step, of
    the input, between layers and of the output; `weight_drop`, of the weights from h_t-1 to h_t.
    `activation` and `change` are the weights of the penalties of `lstm.Regularising`.
    """

    embedding: int = 400
    width: int = 1150
    layers: int = 3
    dropout_words: float = 0.1
    dropout_input: float = 0.4
    dropout_between: float = 0.25
    dropout_output: float = 0.4
    weight_drop: float = 0.5
    activation: float = 2.0
    change: float = 1.0
    tied: bool = True
    bias: bool = True

    def __post_init__(self) -> None:
        check_least(self, embedding=1, width=1, layers=1, activation=0, change=0)
        check_rates(
            self,
            "dropout_words",
            "dropout_input",
            "dropout_between",
            "dropout_output",
            "weight_drop",
        )

    def build(self, vocab_size: int, **how: Any) -> LstmLM:
        """A network with random weights; `how` is the rest of `network.Making`."""
        # With frequencies in the bias plain descent finds nothing else to learn for many epochs.
        making = replace(Making(vocab_size, **how), word_probs=None)
        last = self.embedding if self.tied else self.width
        return LstmLM(
            making,
            widths=[self.embedding, *[self.width] * (self.layers - 1), last],
            regularising=Regularising(
                words=self.dropout_words,
                input=self.dropout_input,
                between=self.dropout_between,
                output=self.dropout_output,
                hidden=self.weight_drop,
                locked=True,
                activation=self.activation,
                change=self.change,
            ),
            tied=self.tied,
            bias=self.bias,
        )
