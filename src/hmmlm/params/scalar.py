"""The plainest parameterisation: one logit per cell of every table."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hmmlm.errors import check_least
from hmmlm.hmm import HMM, emission_table
from hmmlm.params.features import log_word_probs
from hmmlm.products import wanted_operand
from hmmlm.support import Support
from hmmlm.transitions import Dense


class Scalar(nn.Module):
    """p(z1), p(z' | z) and p(x | z) as softmaxes of free logits: (Z,), (Z, Z) and (V, K).

    Logits start as normal noise of width `scale`. With `word_probs`, (V,), every state's words
    start near that distribution (usually the unigram one) instead of near the uniform one.
    """

    def __init__(
        self,
        support: Support,
        *,
        scale: float = 1.0,
        word_probs: Float[Tensor, " V"] | None = None,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.support = support
        states, shape = support.num_states, (support.vocab_size, support.width)

        def noise(*size: int) -> Tensor:
            return scale * torch.randn(size, generator=generator, dtype=dtype)

        self.init_logits = nn.Parameter(noise(states))
        self.trans_logits = nn.Parameter(noise(states, states))
        emit = noise(*shape)
        if word_probs is not None:
            emit = emit + log_word_probs(word_probs, shape[0]).to(dtype)[:, None]
        self.emit_logits = nn.Parameter(emit)

    def forward(
        self,
        states: Int[Tensor, " S"] | None = None,
        carried: Int[Tensor, " C"] | None = None,
        *,
        kept: Support | None = None,
    ) -> HMM:
        """The HMM on all states, or on a subset, each distribution normalised over what is kept.

        `carried` are further states that belief may come from. `kept` is the support on the
        subset, for who knows it already, as `HMM.restrict` takes it. O(Z^2 + V K), or O(S Z + V K).
        """
        if self.support.rows.device != self.init_logits.device:
            self.support = self.support.to(self.init_logits.device)
        emit = self.emit_logits
        if states is not None:
            # `restrict` normalises every row anew, so it takes logits as well as probabilities.
            logits = HMM(self.init_logits, Dense(self.trans_logits), emit, self.support)
            return logits.restrict(states, carried, kept=kept)
        return HMM(
            torch.log_softmax(self.init_logits, -1),
            Dense(torch.log_softmax(self.trans_logits, -1), wanted_operand(emit.device.type)),
            emission_table(emit, self.support),
            self.support,
        )

    @staticmethod
    def from_hmm(hmm: HMM) -> "Scalar":
        """The logits are the log tables of an HMM: the same distributions, free to be learnt."""
        model = Scalar(hmm.support, scale=0.0, generator=torch.Generator(), dtype=hmm.dtype)
        model.to(hmm.device)
        cells = hmm.support.rows[hmm.support.row_of_word]
        with torch.no_grad():
            model.init_logits.copy_(hmm.log_init)
            model.trans_logits.copy_(hmm.transitions.rows(0, hmm.num_states))
            model.emit_logits.copy_(hmm.log_emit.masked_fill(cells < 0, 0.0))
        return model


@dataclass(frozen=True)
class Settings:
    """`scale` is the standard deviation of the logits at the start.

    `unigram`: every state's words start near their frequencies in the text, else near all alike.
    """

    scale: float = 1.0
    unigram: bool = True

    def __post_init__(self) -> None:
        check_least(self, scale=0)

    def build(
        self,
        support: Support,
        *,
        word_probs: Float[Tensor, " V"] | None = None,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> Scalar:
        return Scalar(
            support,
            scale=self.scale,
            word_probs=word_probs if self.unigram else None,
            generator=generator,
            dtype=dtype,
        )
