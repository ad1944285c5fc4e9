"""Embeddings of states: one for each, or composed of one of its own and one of its block."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hmmlm.errors import InputError
from hmmlm.params.checks import check_halves
from hmmlm.support import Support


class Table(nn.Module):
    """One embedding for each state, N(0, scale^2)."""

    def __init__(
        self,
        num_states: int,
        width: int,
        *,
        scale: float,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        noise = torch.randn(num_states, width, generator=generator, dtype=dtype)
        self.weight = nn.Parameter(scale * noise)

    def forward(self, states: Int[Tensor, " S"] | None = None) -> Float[Tensor, "S H"]:
        return self.weight if states is None else self.weight.index_select(0, states)


class Composed(nn.Module):
    """Half of the embedding is the state's own, half is shared by all states of its block.

    Chiu & Rush, eq. 10. A network that mixes the halves comes after it.
    """

    block_of_state: Tensor

    def __init__(
        self,
        support: Support,
        width: int,
        *,
        scale: float,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if not support.is_partition:
            raise InputError(
                "Composed embeddings need states in blocks, but some words share only a part of "
                "their states; use blocks, or an embedding for each state."
            )
        check_halves(width)
        half = {"scale": scale, "generator": generator, "dtype": dtype}
        self.own = Table(support.num_states, width // 2, **half)
        self.shared = Table(support.rows.shape[0], width // 2, **half)
        self.register_buffer("block_of_state", support.row_of_state.clone(), persistent=False)

    def forward(self, states: Int[Tensor, " S"] | None = None) -> Float[Tensor, "S H"]:
        blocks = self.block_of_state if states is None else self.block_of_state[states]
        return torch.cat([self.own(states), self.shared(blocks)], 1)
