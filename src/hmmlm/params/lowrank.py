"""Low-rank tables: transitions H_source H_destination^T and emissions H_emit W^T."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hmmlm.errors import check_least
from hmmlm.params.checks import check_halves
from hmmlm.params.embedding import Composed, Table
from hmmlm.params.features import Features
from hmmlm.params.mlp import Residual
from hmmlm.support import Support


@dataclass(frozen=True)
class Settings:
    """Lee & Berg-Kirkpatrick 2025, tables 1 and 2.

    `shared`: one embedding for all roles (their ablation A) instead of three (ablation B).
    `factor_*`: which tables are products; the others have a logit per cell. `composed`: block and
    state embeddings, mixed by a residual network for each role. `scale` is the standard deviation
    of embeddings and free logits at the start, `bias` a number for each word, at first its log
    frequency. Without `unigram` neither that nor free logits know of frequencies at the start.
    """

    width: int = 64
    shared: bool = False
    factor_init: bool = True
    factor_trans: bool = True
    factor_emit: bool = True
    composed: bool = False
    bias: bool = True
    unigram: bool = True
    scale: float = 0.3

    def __post_init__(self) -> None:
        check_least(self, width=1, scale=0)
        if self.composed:
            check_halves(self.width)

    def build(
        self,
        support: Support,
        *,
        word_probs: Float[Tensor, " V"] | None = None,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> Features:
        how = {"generator": generator, "dtype": dtype}

        def table() -> nn.Module:
            if self.composed:
                return Composed(support, self.width, scale=self.scale, **how)
            return Table(support.num_states, self.width, scale=self.scale, **how)

        roles = []
        if self.factor_trans:
            roles += ["source", "destination"]
        elif self.factor_init:
            roles += ["destination"]  # which the start reads
        if self.factor_emit:
            roles += ["emit"]
        # Shared or not, a table that no role reads would never learn.
        tables = ["all"] if self.shared and roles else roles
        kept = {"start": self.factor_init, "trans": self.factor_trans, "emit": self.factor_emit}
        return Features(
            support,
            self.width,
            embeddings={name: table() for name in tables},
            networks={role: Residual(self.width, **how) for role in roles} if self.composed else {},
            free=tuple(name for name, factored in kept.items() if not factored),
            bias=self.bias,
            word_probs=word_probs if self.unigram else None,
            scale=self.scale,
            **how,
        )
