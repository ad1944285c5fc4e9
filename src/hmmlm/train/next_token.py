"""The loss of a model that reads text word by word: nats per token, what it read carried on."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hmmlm.data.batches import Batch


class Read(NamedTuple):
    """log p(x_t | x_<t) of every token (0 past the end), what is carried on, and a penalty.

    `carry` has tensors by name, a row for each row of text. The `penalty` is added to the nats per
    token that training lowers, and to no result.
    """

    token_log_probs: Float[Tensor, "B T"]
    carry: dict[str, Tensor]
    penalty: Float[Tensor, ""]


@runtime_checkable
class Reader(Protocol):
    """A model that gives each token a probability, differentiably.

    A row goes on from its `carry`, or without one starts cold; it starts cold again at every
    `restart` and after every `reset_id`. With a `generator` the model is as in training: what
    dropout leaves out is drawn from it.
    """

    def read(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        lengths: Int[Tensor, " B"] | None = None,
        restart: Bool[Tensor, "B T"] | None = None,
        carry: dict[str, Tensor] | None = None,
        reset_id: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Read: ...


class NextTokenLoss:
    """-log p(batch) / tokens of a `Reader`.

    With `carry`, row b of a batch goes on where row b of the batch before ended (unless it says
    restart); no gradient flows back there. After `reset_id` the model starts cold.
    """

    def __init__(
        self, model: nn.Module, *, carry: bool = False, reset_id: int | None = None, seed: int = 0
    ) -> None:
        assert isinstance(model, Reader)
        self.model, self.carry, self.reset_id = model, carry, reset_id
        self.device = next(model.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.carried: dict[str, Tensor] = {}

    def __call__(self, batch: Batch, done: float) -> Float[Tensor, ""]:
        """The loss of a batch; its gradient is that of nats and penalty, its value the nats."""
        assert isinstance(self.model, Reader)
        carry = None
        if self.carried and not bool(batch.restart[:, 0].all()):
            rows = len(batch.tokens)  # the last ones may be over
            carry = {name: tensor[:rows] for name, tensor in self.carried.items()}
        read = self.model.read(
            batch.tokens,
            lengths=batch.lengths,
            restart=batch.restart,
            carry=carry,
            reset_id=self.reset_id,
            generator=self.generator,
        )
        if self.carry:
            self.carried = {name: tensor.detach() for name, tensor in read.carry.items()}
        nats = -read.token_log_probs.sum() / batch.num_tokens
        return nats + read.penalty - read.penalty.detach()

    def state(self) -> dict[str, Tensor]:
        """The generator of the dropout and what is carried."""
        held = {f"carry.{name}": tensor for name, tensor in self.carried.items()}
        return {"generator": self.generator.get_state(), **held}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["generator"].cpu())
        self.carried = {
            name.removeprefix("carry."): tensor.to(self.device)
            for name, tensor in state.items()
            if name.startswith("carry.")
        }
