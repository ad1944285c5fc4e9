"""Neural tables from a transformer that reads the states as a sequence."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hmmlm.errors import InputError
from hmmlm.params.checks import check_halves, check_least, check_start
from hmmlm.params.features import Features
from hmmlm.params.mlp import assemble, linear
from hmmlm.support import Support


class Block(nn.Module):
    """Causal attention and a feed-forward layer of four times the width, each after a LayerNorm."""

    def __init__(
        self, width: int, heads: int, *, generator: torch.Generator, dtype: torch.dtype
    ) -> None:
        super().__init__()
        how = {"generator": generator, "dtype": dtype}
        self.heads = heads
        self.before_attention = nn.LayerNorm(width, dtype=dtype)
        self.read = linear(width, 3 * width, **how)
        self.write = linear(width, width, **how)
        self.before_layers = nn.LayerNorm(width, dtype=dtype)
        self.widen = linear(width, 4 * width, **how)
        self.narrow = linear(4 * width, width, **how)

    def forward(self, inputs: Float[Tensor, "Z H"]) -> Float[Tensor, "Z H"]:
        split = self.read(self.before_attention(inputs)).unflatten(1, (3, self.heads, -1))
        query, key, value = split.permute(1, 2, 0, 3)[:, None]  # (1, heads, Z, H / heads) each
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        inputs = inputs + self.write(mixed[0].transpose(0, 1).flatten(1))
        return inputs + self.narrow(nn.functional.gelu(self.widen(self.before_layers(inputs))))


class Decoder(nn.Module):
    """Blocks and a last LayerNorm. A state sees all states before it, so all of them are run."""

    whole = True

    def __init__(
        self,
        width: int,
        depth: int,
        heads: int,
        *,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(width, heads, generator=generator, dtype=dtype) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, dtype=dtype)

    def forward(self, inputs: Float[Tensor, "Z H"]) -> Float[Tensor, "Z H"]:
        for block in self.blocks:
            inputs = block(inputs)
        return self.norm(inputs)


@dataclass(frozen=True)
class Settings:
    """Lee & Berg-Kirkpatrick 2025, section 3: a decoder-only transformer over the states.

    `monolithic`: one transformer with a linear head for each role, else one for each role. The
    embeddings tell states apart, so there are no positions. O(Z^2 width depth) time for every
    step, whatever is dropped.
    """

    width: int = 128
    depth: int = 2
    heads: int = 4
    monolithic: bool = True
    split: bool = False
    composed: bool = False
    bias: bool = True
    scale: float = 0.2
    destination: bool = True
    start: str = "linear"

    def __post_init__(self) -> None:
        check_least(self, width=1, depth=1, heads=1, scale=0)
        check_start(self.start)
        if self.width % self.heads:
            raise InputError(
                f"The width is {self.width:,}, which {self.heads:,} heads cannot share; make it a "
                f"multiple."
            )
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

        def network() -> nn.Module:
            return Decoder(self.width, self.depth, self.heads, **how)

        return assemble(self, support, network, word_probs=word_probs, **how)
