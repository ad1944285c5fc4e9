"""Neural tables: residual networks on embeddings of the states (Chiu & Rush 2020, section 4)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hmmlm.errors import check_least
from hmmlm.ops import residual
from hmmlm.params.checks import check_halves, check_layers, check_start
from hmmlm.params.embedding import Composed, Table
from hmmlm.params.features import Features
from hmmlm.products import wanted_operand
from hmmlm.support import Support


class Residual(nn.Module):
    """y = ReLU(W1 x + b1); LayerNorm(ReLU(W2 y + b2) + y): the skip is around the second layer.

    With one layer, it is around that one. Each part can be left out.
    """

    def __init__(
        self,
        width: int,
        *,
        layers: int = 2,
        skip: bool = True,
        relu: bool = True,
        layer_norm: bool = True,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        check_layers(layers)
        self.linears = nn.ModuleList(
            linear(width, width, generator=generator, dtype=dtype) for _ in range(layers)
        )
        self.skip, self.relu = skip, relu
        self.norm = nn.LayerNorm(width, dtype=dtype) if layer_norm else None

    def forward(self, inputs: Float[Tensor, "S H"]) -> Float[Tensor, "S H"]:
        if self.is_rounded:
            return self._by_kernel(inputs)
        before, answer = inputs, inputs
        for layer in self.linears:
            before, answer = answer, layer(answer)
            answer = torch.relu(answer) if self.relu else answer
        answer = answer + before if self.skip else answer
        return answer if self.norm is None else self.norm(answer)

    @property
    def is_whole(self) -> bool:
        """Whether no part was left out."""
        return len(self.linears) == 2 and self.skip and self.relu and self.norm is not None

    @property
    def is_rounded(self) -> bool:
        """Whether a kernel makes the answer, whose numbers fit autocast's type; else torch."""
        weight = next(self.parameters())
        place = weight.device.type
        if not (self.is_whole and torch.is_autocast_enabled(place)):
            return False
        operand = wanted_operand(place)
        return residual.choose(weight.device, weight.shape[1], operand)[0] == "kernel"

    def _by_kernel(self, inputs: Tensor) -> Tensor:
        from hmmlm.ops.residual import kernel

        layers = [part for layer in self.linears for part in (layer.weight, layer.bias)]
        norm, operand = self.norm, wanted_operand(inputs.device.type)
        assert norm is not None
        with torch.autocast(inputs.device.type, enabled=False):
            return kernel.Residual.apply(inputs, *layers, norm.weight, norm.bias, norm.eps, operand)


def linear(
    inputs: int,
    outputs: int,
    *,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> nn.Linear:
    """A linear layer, uniform as torch makes it but drawn from the generator."""
    layer = nn.Linear(inputs, outputs, dtype=dtype, device="meta").to_empty(
        device=torch.get_default_device()
    )
    limit = 1 / math.sqrt(inputs)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-limit, limit, generator=generator)
    return layer


@runtime_checkable
class Plan(Protocol):
    """What `assemble` reads of the settings of a neural parameterisation."""

    @property
    def width(self) -> int: ...
    @property
    def split(self) -> bool: ...
    @property
    def monolithic(self) -> bool: ...
    @property
    def destination(self) -> bool: ...
    @property
    def start(self) -> str: ...
    @property
    def composed(self) -> bool: ...
    @property
    def bias(self) -> bool: ...
    @property
    def scale(self) -> float: ...


@dataclass(frozen=True)
class Settings:
    """The readings of Chiu & Rush 2020, and the variants of Lee & Berg-Kirkpatrick's table 3.

    `split`: an embedding for each of source, destination and emission instead of one for all.
    `monolithic`: one network for all roles, with a linear head for each where they share their
    embedding; else one for each. `destination`: a network on the destination side too (the paper)
    or the plain embedding (the released code). `start`: "network" gives the start a network of its
    own (the released code), "linear" reads the destination's features (the paper leaves it open).
    `layers`, `skip`, `relu`, `layer_norm` are the parts of the network. `composed`: block and state
    embeddings, mixed by a further network for each role. `scale` is the standard deviation of the
    embeddings at the start; the released code has 1.
    """

    width: int = 256
    layers: int = 2
    skip: bool = True
    relu: bool = True
    layer_norm: bool = True
    split: bool = False
    monolithic: bool = False
    destination: bool = False
    start: str = "network"
    composed: bool = False
    bias: bool = True
    scale: float = 0.2

    def __post_init__(self) -> None:
        check_least(self, width=1, scale=0)
        check_layers(self.layers)
        check_start(self.start)
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
            return Residual(
                self.width,
                layers=self.layers,
                skip=self.skip,
                relu=self.relu,
                layer_norm=self.layer_norm,
                **how,
            )

        return assemble(self, support, network, word_probs=word_probs, **how)


class After(nn.Sequential):
    """One network after another; it must see all states at once if any of them must."""

    @property
    def whole(self) -> bool:
        return any(getattr(network, "whole", False) for network in self)


def assemble(
    settings: Plan,
    support: Support,
    network: Callable[[], nn.Module],
    *,
    word_probs: Float[Tensor, " V"] | None,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Features:
    """Embeddings and networks put together as the settings say."""
    how = {"generator": generator, "dtype": dtype}

    def table() -> nn.Module:
        if settings.composed:
            return Composed(support, settings.width, scale=settings.scale, **how)
        return Table(support.num_states, settings.width, scale=settings.scale, **how)

    roles = ["source", "emit"]
    if settings.destination:
        roles.insert(1, "destination")
    if settings.start == "network":
        roles.insert(0, "start")
    tables = ("source", "destination", "emit")
    embeddings = {role: table() for role in tables} if settings.split else {"all": table()}
    if settings.split and settings.start == "network":
        embeddings["start"] = table()
    heads = {}
    if settings.monolithic:
        networks = {"all": network()}
        if not settings.split:
            heads = {role: linear(settings.width, settings.width, **how) for role in roles}
    else:
        networks = {role: network() for role in roles}
    plain = () if settings.destination else ("destination",)
    if settings.composed:
        for role in networks:
            networks[role] = After(Residual(settings.width, **how), networks[role])
        for role in plain:
            networks[role] = Residual(settings.width, **how)
        plain = ()
    return Features(
        support,
        settings.width,
        embeddings=embeddings,
        networks=networks,
        heads=heads,
        plain=plain,
        bias=settings.bias,
        start_bias=True,
        word_probs=word_probs,
        scale=settings.scale,
        **how,
    )
