"""The loss of a model that reads text word by word: nats per token, what it read carried on."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hmmlm.data.batches import Batch
from hmmlm.products import full_products, torch_tf32
from hmmlm.train.loss import Differentiated, arithmetic


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

    def read_on(
        self,
        tokens: Int[Tensor, "B T"],
        carry: dict[str, Tensor],
        generator: torch.Generator | None = None,
    ) -> Read:
        """As `read`, of whole rows that all go on, without waiting for the device."""
        ...


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
        self.held: dict[int, dict[str, Tensor]] = {}  # where captured steps carry it, by rows

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

    can_widen = False

    def fit(self, batch: Batch, done: float) -> float | None:
        """0.0 (there are no kept states), if `differentiate` takes the batch; else None."""
        rows, length = batch.tokens.shape
        goes_on = self.carried and not bool(batch.restart.any())
        if not goes_on or batch.num_tokens != rows * length:
            return None
        if any(len(part) != rows for part in self.carried.values()):
            return None
        held = self.held.setdefault(rows, {})
        for name, part in self.carried.items():
            if name not in held:
                held[name] = part.clone()
            elif part is not held[name]:
                held[name].copy_(part)
        self.carried = held
        return 0.0

    def differentiate(
        self,
        tokens: Int[Tensor, "B T"],
        restart: Bool[Tensor, "B T"],
        ends: Int[Tensor, " B"],
        level: float,
        precision: str,
        wide: bool = False,
    ) -> Differentiated:
        """As a call and its `backward`, for batches that `fit`; see `graph.Capturable`."""
        assert isinstance(self.model, Reader)
        with products_of(precision):
            with arithmetic(precision, self.device.type):
                read = self.model.read_on(tokens, self.carried, self.generator)
            nats = -read.token_log_probs.sum() / tokens.numel()
            (nats + read.penalty).backward()
        after = [(part, read.carry[name].detach()) for name, part in self.carried.items()]
        never = torch.zeros((), dtype=torch.bool, device=self.device)
        return Differentiated(nats.detach(), never, after)

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


def products_of(precision: str) -> AbstractContextManager[object]:
    """Within it torch's own products, and LSTMs, are made in a precision."""
    return torch_tf32() if precision == "tf32" else full_products()
