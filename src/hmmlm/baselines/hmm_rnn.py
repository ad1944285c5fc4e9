"""HMM+RNN, after Buys, Bisk & Choi 2018: an HMM whose transitions hear an LSTM of the words so far.

Chiu & Rush 2020 compare with it. Theirs drops the HMM's independence step by step; this one keeps
states and exact filtering, and lets transitions depend on all words before.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from hmmlm.baselines.network import Carry, Making, Network, Piece, drop, last_words
from hmmlm.baselines.recurrent import LstmLayer
from hmmlm.errors import check_least, check_rates

RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "adamw": {
        "data": {"layout": "streams", "reset": False, "batch_size": 80, "length": 35},
        "train": {"learning_rate": 5e-3, "weight_decay": 0.1, "epochs": 20},
    }
}

TINY = 1e-300


@dataclass(frozen=True)
class Settings:
    """`states`, the width of the `embedding` of words, and the `width` of the LSTM that reads them.

    `dropout` is before and after the LSTM, `scale` the standard deviation of the transition logits
    at the start. As they are they make 9.8M numbers for 10,000 words.
    """

    states: int = 1024
    embedding: int = 400
    width: int = 768
    dropout: float = 0.5
    scale: float = 0.3

    def __post_init__(self) -> None:
        check_least(self, states=1, embedding=1, width=1, scale=0)
        check_rates(self, "dropout")

    def build(self, vocab_size: int, **how: Any) -> "HmmRnn":
        """A network with random weights; `how` is the rest of `network.Making`."""
        return HmmRnn(self, Making(vocab_size, **how))


class HmmRnn(Network):
    """p(x_t | x_<t) = sum_z p(z | x_<t) p(x_t | z), where the belief is filtered exactly:

    p(z_t | z_t-1, x_<t) = softmax over z_t of trans[z_t-1, z_t] + (W LSTM(x_<t) + b)[z_t], and
    p(x | z) = softmax over x of words[x] . emit[z] + bias[x], where words are also what the LSTM
    reads. Before the first word the chain is in a state of its own, the last row of `trans`.

    A step takes O(Z^2), in float64 and without tables that change with time: the exponentials of
    both logits multiply, so that sums over states are products with one matrix.
    """

    def __init__(self, settings: Settings, making: Making) -> None:
        super().__init__(making)
        states, width, self.rate = settings.states, settings.width, settings.dropout
        self.num_states = states

        def noise(*shape: int, scale: float) -> nn.Parameter:
            drawn = torch.randn(*shape, generator=making.generator, dtype=making.dtype)
            return nn.Parameter(scale * drawn)

        self.words = noise(self.vocab_size, settings.embedding, scale=0.1)
        self.emit = noise(states, settings.embedding, scale=1.0)
        self.bias = making.word_bias()
        self.trans = noise(states + 1, states, scale=settings.scale)
        self.layer = LstmLayer(settings.embedding, width, making)
        self.push = making.uniform(states, width, bound=width**-0.5)
        self.push_bias = nn.Parameter(torch.zeros(states, dtype=making.dtype))

    def cold(self, rows: int) -> Carry:
        numbers: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        belief = torch.zeros(rows, self.num_states + 1, dtype=torch.float64, device=self.device)
        belief[:, -1] = 1.0
        return {
            "word": torch.full((rows,), self.start_id, device=self.device),
            "h": torch.zeros(rows, self.layer.width, **numbers),
            "c": torch.zeros(rows, self.layer.width, **numbers),
            "belief": belief,
        }

    def _read(
        self,
        tokens: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"] | None,
        carry: Carry,
        generator: torch.Generator | None,
    ) -> Piece:
        inputs = torch.cat([carry["word"][:, None], tokens[:, :-1]], 1)
        heard, h, c = self._hear(inputs, lengths, carry, generator)
        emit = F.embedding(tokens, self._log_emit()).double()  # (B, T, Z)
        highest = emit.detach().amax(2, keepdim=True)
        probs, leave = (emit - highest).exp(), self._leave()
        ends = None if lengths is None else lengths.to(tokens.device)
        belief, scores = carry["belief"], []
        for step in range(tokens.shape[1]):
            joint = _move(belief, leave, heard[:, step]) * probs[:, step]
            total = joint.sum(1, keepdim=True)
            scores.append(total[:, 0].log())
            new = F.pad(joint / total, (0, 1))
            belief = new if ends is None else torch.where(step < ends[:, None], new, belief)
        found = (torch.stack(scores, 1) + highest[:, :, 0]).to(self.dtype)
        after = {"word": last_words(tokens, lengths), "h": h, "c": c, "belief": belief}
        return Piece(found, after)

    def next_log_probs(self, carry: Carry) -> Float[Tensor, "B V"]:
        heard, _, _ = self._hear(carry["word"][:, None], None, carry, None)
        coming = _move(carry["belief"], self._leave(), heard[:, 0])
        return (coming @ self._log_emit().double().exp().T).log().to(self.dtype)

    def _hear(
        self,
        inputs: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"] | None,
        carry: Carry,
        generator: torch.Generator | None,
    ) -> tuple[Float[Tensor, "B T Z"], Tensor, Tensor]:
        """What the words so far do to each destination, a factor of at most one; and the state."""
        out = drop(F.embedding(inputs, self.words), self.rate, generator)
        out, (h, c) = self.layer(out, (carry["h"], carry["c"]), lengths)
        out = F.linear(drop(out, self.rate, generator), self.push, self.push_bias).double()
        return (out - out.detach().amax(2, keepdim=True)).exp(), h, c

    def _leave(self) -> Float[Tensor, "S Z"]:
        """exp(trans), the largest of each row one."""
        trans = self.trans.double()
        return (trans - trans.detach().amax(1, keepdim=True)).exp()

    def _log_emit(self) -> Float[Tensor, "V Z"]:
        # Not by log_softmax, which is slow along columns.
        logits = F.linear(self.words, self.emit) + self.bias[:, None]
        return logits - torch.logsumexp(logits, 0)


def _move(
    belief: Float[Tensor, "B S"], leave: Float[Tensor, "S Z"], heard: Float[Tensor, "B Z"]
) -> Float[Tensor, "B Z"]:
    """sum_s belief(s) leave(s, z) heard(z) / sum_z' leave(s, z') heard(z')."""
    sums = (heard @ leave.T).clamp(min=TINY)  # (B, S)
    return heard * ((belief / sums) @ leave)
