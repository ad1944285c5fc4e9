"""One face for every language model."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor


class Scores(NamedTuple):
    """log p(x_t | what the model read before) of every token, 0 past the end; and the carry.

    `carry` is whatever the model needs to read on: the belief of an HMM, the last words of an
    n-gram model. Given back with the next segment, it makes two segments score as one.
    """

    token_log_probs: Float[Tensor, "B T"]
    carry: Any


@runtime_checkable
class LanguageModel(Protocol):
    """What an evaluator needs of a language model over token ids."""

    @property
    def vocab_size(self) -> int: ...

    def score_tokens(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        lengths: Int[Tensor, " B"] | None = None,
        carry: Any = None,
        reset_id: int | None = None,
        ends: bool = False,
    ) -> Scores:
        """Log-probability of each token; after `reset_id` the model starts cold again.

        Without `carry` every row starts cold. If the text `ends` here, the carry will not be used.
        """
        ...

    def row_error(self, rows: int, seed: int) -> float:
        """Largest |sum of probabilities - 1| over random conditional distributions, in float64."""
        ...

    @property
    def precision(self) -> str:
        """The dtype of the numbers the model is made of, as "float32"."""
        ...
