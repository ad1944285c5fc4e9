"""Neural tables from a transformer that reads the states as a sequence."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hmmlm.errors import check_least
from hmmlm.params.checks import check_halves, check_heads, check_start
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
        return self.attend(inputs[None])[0][0]

    def attend(
        self,
        inputs: Float[Tensor, "B T H"],
        past: Float[Tensor, "B 2 heads C d"] | None = None,
        bias: Float[Tensor, "B heads T S"] | None = None,
    ) -> tuple[Float[Tensor, "B T H"], Float[Tensor, "B 2 heads S d"]]:
        """What comes out, and the keys and values that it was made of, those of the `past` first.

        With a `past` the `bias` says what sees what: it is added before the softmax.
        """
        split = self.read(self.before_attention(inputs)).unflatten(2, (3, self.heads, -1))
        query, *seen = split.permute(2, 0, 3, 1, 4)  # (B, heads, T, d) each
        held = torch.stack(seen, 1)
        if past is not None:
            held = torch.cat([past.to(held.dtype), held], 3)
        mixed = nn.functional.scaled_dot_product_attention(
            query,
            held[:, 0],
            held[:, 1],
            attn_mask=None if bias is None else bias.to(query.dtype),
            is_causal=bias is None,
        )
        inputs = inputs + self.write(mixed.transpose(1, 2).flatten(2))
        layers = self.narrow(nn.functional.gelu(self.widen(self.before_layers(inputs))))
        return inputs + layers, held


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

    def attend(
        self,
        inputs: Float[Tensor, "B T H"],
        past: Float[Tensor, "B depth 2 heads C d"],
        bias: Float[Tensor, "B heads T S"],
    ) -> tuple[Float[Tensor, "B T H"], Float[Tensor, "B depth 2 heads S d"]]:
        """As of a block, of all of them."""
        held = []
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            inputs, seen = block.attend(inputs, past[:, number], bias)
            held.append(seen)
        return self.norm(inputs), torch.stack(held, 1)


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
        check_heads(self.width, self.heads)
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
