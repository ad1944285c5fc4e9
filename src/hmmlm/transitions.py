"""Transition tables: two plain values that answer for tiles of log p(to | from).

`operand`, of either, is what factors were rounded to: products with the table may be made in it,
and rows still sum to one.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.products import FLOAT32, Operand, full_products


@dataclass(frozen=True)
class Dense:
    """log p(z' | z) as a table with one row per source state.

    `log_trans` is (S, Z). S = Z unless a subset of states carries belief from states outside it.
    """

    log_trans: Float[Tensor, "S Z"]
    operand: Operand = FLOAT32

    @property
    def num_sources(self) -> int:
        return self.log_trans.shape[0]

    @property
    def num_states(self) -> int:
        return self.log_trans.shape[1]

    def fields(self) -> tuple[Tensor, ...]:
        return (self.log_trans,)

    def with_fields(self, log_trans: Float[Tensor, "S Z"]) -> "Dense":
        return replace(self, log_trans=log_trans)

    def tile(
        self, sources: Int[Tensor, "B K"], destinations: Int[Tensor, "B L"]
    ) -> Float[Tensor, "B K L"]:
        """log p(destination | source) for all pairs of a row; ids of -1 give arbitrary cells."""
        sources, destinations = sources.clamp(min=0), destinations.clamp(min=0)
        flat = sources[:, :, None] * self.num_states + destinations[:, None, :]
        return self.log_trans.reshape(-1)[flat]

    def rows(self, start: int, stop: int) -> Float[Tensor, "N Z"]:
        """log p(. | source) for the sources from `start` up to `stop`."""
        return self.log_trans[start:stop]

    def row_error(self, sources: Int[Tensor, " N"]) -> float:
        """Largest |sum_z' p(z' | z) - 1| over the given sources, computed in float64."""
        return _largest_error(self.log_trans[sources].double())


@dataclass(frozen=True)
class Factored:
    """log p(z' | z) = left[z] . right[z'] - log_norm[z]; the Z x Z table is never stored.

    `left` is (S, H), `right` is (Z, H) and `log_norm` is (S,), the row's logsumexp over all z'.
    """

    left: Float[Tensor, "S H"]
    right: Float[Tensor, "Z H"]
    log_norm: Float[Tensor, " S"]
    operand: Operand = FLOAT32

    @property
    def num_sources(self) -> int:
        return self.left.shape[0]

    @property
    def num_states(self) -> int:
        return self.right.shape[0]

    def fields(self) -> tuple[Tensor, ...]:
        return (self.left, self.right, self.log_norm)

    def with_fields(
        self,
        left: Float[Tensor, "S H"],
        right: Float[Tensor, "Z H"],
        log_norm: Float[Tensor, " S"],
    ) -> "Factored":
        return replace(self, left=left, right=right, log_norm=log_norm)

    @full_products()
    def tile(
        self, sources: Int[Tensor, "B K"], destinations: Int[Tensor, "B L"]
    ) -> Float[Tensor, "B K L"]:
        """log p(destination | source) for all pairs of a row; ids of -1 give arbitrary cells."""
        sources, destinations = sources.clamp(min=0), destinations.clamp(min=0)
        logits = self.left[sources] @ self.right[destinations].transpose(1, 2)  # (B, K, L)
        return logits - self.log_norm[sources][:, :, None]

    @full_products()
    def rows(self, start: int, stop: int) -> Float[Tensor, "N Z"]:
        """log p(. | source) for the sources from `start` up to `stop`."""
        return self.left[start:stop] @ self.right.T - self.log_norm[start:stop, None]

    def row_error(self, sources: Int[Tensor, " N"]) -> float:
        """Largest |sum_z' p(z' | z) - 1| over the given sources, computed in float64."""
        logits = self.left[sources].double() @ self.right.double().T
        return _largest_error(logits - self.log_norm[sources].double()[:, None])

    @staticmethod
    @full_products()
    def normalise(left: Float[Tensor, "S H"], right: Float[Tensor, "Z H"]) -> "Factored":
        """The table with these factors, its normaliser computed a tile of rows at a time."""
        step = max(1, (1 << 24) // max(1, right.shape[0]))
        norms = [torch.logsumexp(part @ right.T, -1) for part in left.split(step)]
        return Factored(left, right, torch.cat(norms))


Transitions = Dense | Factored


def _largest_error(log_rows: Tensor) -> float:
    error = (log_rows.exp().sum(-1) - 1).abs()
    return float(error.max()) if error.numel() else 0.0
