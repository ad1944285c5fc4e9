"""Transition tables, dense or factored: two plain values that give tiles of log p(to | from).

`operand` is the type that factors were rounded to. Products with the table may be made in it, and
rows still sum to one.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.products import FLOAT32, Operand, full_products

GROUP = 1 << 24
"""Cells of a factored table that are made at a time."""

FAR = 1e30
"""Between two parts of a mixture products of factors are -FAR, which stands for log 0."""


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

    def among(
        self, sources: Int[Tensor, " N"] | None, destinations: Int[Tensor, " L"] | None
    ) -> "Dense":
        """Some rows, or some columns, of the table; None stands for all. A copy."""
        rows = self.log_trans if sources is None else self.log_trans[sources]
        return replace(self, log_trans=rows if destinations is None else rows[:, destinations])

    def rows(self, start: int, stop: int) -> Float[Tensor, "N Z"]:
        """log p(. | source) for the sources from `start` up to `stop`."""
        return self.log_trans[start:stop]

    def rows_of(self, sources: Int[Tensor, " B"]) -> Float[Tensor, "B Z"]:
        """log p(. | source) for some sources."""
        return self.log_trans[sources]

    def stretch(self, sources: Int[Tensor, "B K"], start: int, stop: int) -> Float[Tensor, "B K N"]:
        """log p(z' | source) for z' from `start` up to `stop`; ids of -1 give arbitrary cells."""
        return self.log_trans[:, start:stop][sources.clamp(min=0)]

    def column(self, state: int) -> Float[Tensor, " S"]:
        """log p(state | source) for every source."""
        return self.log_trans[:, state]

    def columns_of(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N S"]:
        """log p(state | source) for some states and every source."""
        return self.log_trans.T[states]

    def row_error(self, sources: Int[Tensor, " N"]) -> float:
        """Largest |sum_z' p(z' | z) - 1| over the given sources, computed in float64."""
        return _largest_error(self.log_trans[sources].double())


@dataclass(frozen=True)
class Factored:
    """log p(z' | z) = left[z] . right[z'] - log_norm[z]; the Z x Z table is never stored.

    `left` is (S, H), `right` is (Z, H) and `log_norm` is (S,), the row's logsumexp over all z'.
    The last `marks` of the H columns say which part of a mixture a state belongs to: between two
    parts they make products of -`FAR`, which every method turns into -inf.
    """

    left: Float[Tensor, "S H"]
    right: Float[Tensor, "Z H"]
    log_norm: Float[Tensor, " S"]
    operand: Operand = FLOAT32
    marks: int = 0

    @staticmethod
    def stored(
        left: Float[Tensor, "S H"], right: Float[Tensor, "Z H"], log_norm: Float[Tensor, " S"]
    ) -> "Factored":
        """The table with these factors, as read from a file: their marks are counted. O(S H)."""
        return Factored(left, right, log_norm, marks=count_marks(left))

    @property
    def num_sources(self) -> int:
        return self.left.shape[0]

    @property
    def num_states(self) -> int:
        return self.right.shape[0]

    @property
    def width(self) -> int:
        """How many columns are not marks."""
        return self.left.shape[1] - self.marks

    def with_zeros(self, log_probs: Float[Tensor, "*cells"]) -> Float[Tensor, "*cells"]:
        """Cells of the table, with -inf for what is between two parts of a mixture."""
        if not self.marks:
            return log_probs
        return log_probs.masked_fill(log_probs < -FAR / 2, -torch.inf)

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
        return self.with_zeros(logits - self.log_norm[sources][:, :, None])

    def among(
        self, sources: Int[Tensor, " N"] | None, destinations: Int[Tensor, " L"] | None
    ) -> "Factored":
        """Some rows, or some columns, of the table; None stands for all. Factors are copied."""
        left, right, log_norm = self.fields()
        if sources is not None:
            left, log_norm = left[sources], log_norm[sources]
        return self.with_fields(
            left, right if destinations is None else right[destinations], log_norm
        )

    @full_products()
    def rows(self, start: int, stop: int) -> Float[Tensor, "N Z"]:
        """log p(. | source) for the sources from `start` up to `stop`."""
        logits = self.left[start:stop] @ self.right.T
        return self.with_zeros(logits - self.log_norm[start:stop, None])

    @full_products()
    def rows_of(self, sources: Int[Tensor, " B"]) -> Float[Tensor, "B Z"]:
        """log p(. | source) for some sources. O(B Z H) time, and no more memory than the result."""
        logits = self.left[sources] @ self.right.T
        return self.with_zeros(logits - self.log_norm[sources][:, None])

    @full_products()
    def stretch(self, sources: Int[Tensor, "B K"], start: int, stop: int) -> Float[Tensor, "B K N"]:
        """log p(z' | source) for z' from `start` up to `stop`; ids of -1 give arbitrary cells."""
        sources = sources.clamp(min=0)
        logits = self.left[sources] @ self.right[start:stop].T
        return self.with_zeros(logits - self.log_norm[sources][:, :, None])

    @full_products()
    def column(self, state: int) -> Float[Tensor, " S"]:
        """log p(state | source) for every source. O(S H)."""
        return self.with_zeros(self.left @ self.right[state] - self.log_norm)

    @full_products()
    def columns_of(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N S"]:
        """log p(state | source) for some states and every source. O(N S H)."""
        return self.with_zeros(self.right[states] @ self.left.T - self.log_norm)

    def row_error(self, sources: Int[Tensor, " N"]) -> float:
        """Largest |sum_z' p(z' | z) - 1| over the given sources, computed in float64."""
        right, errors = self.right.double().T, [0.0]
        for part in sources.split(max(1, GROUP // self.num_states)):
            logits = self.left[part].double() @ right
            errors.append(_largest_error(logits - self.log_norm[part].double()[:, None]))
        return float(torch.tensor(errors, dtype=torch.float64).max())  # NaN, if there is one

    @staticmethod
    @full_products()
    def normalise(
        left: Float[Tensor, "S H"], right: Float[Tensor, "Z H"], marks: int = 0
    ) -> "Factored":
        """The table with these factors, its normaliser computed a tile of rows at a time."""
        step = max(1, GROUP // max(1, right.shape[0]))
        norms = torch.cat([torch.logsumexp(part @ right.T, -1) for part in left.split(step)])
        return Factored(left, right, whole_norms(norms, marks), marks=marks)


Transitions = Dense | Factored


def count_marks(left: Float[Tensor, "S H"]) -> int:
    """How many of the last columns of a factor are marks: from the first that is far off."""
    is_far = (left < -FAR / 2).any(0)
    return len(is_far) - int(is_far.int().argmax()) if bool(is_far.any()) else 0


def whole_norms(norms: Float[Tensor, " S"], marks: int) -> Float[Tensor, " S"]:
    """Normalisers of factors with marks: 0 for a row that leads nowhere, which stays far off."""
    return norms.masked_fill(norms < -FAR / 2, 0.0) if marks else norms


def _largest_error(log_rows: Tensor) -> float:
    error = (log_rows.exp().sum(-1) - 1).abs()
    return float(error.max()) if error.numel() else 0.0
