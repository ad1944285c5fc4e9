"""From features of states to tables: what the low-rank and neural parameterisations share."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hmmlm.errors import InputError
from hmmlm.hmm import HMM, emission_table
from hmmlm.ops import emission
from hmmlm.ops.cells import Tiling, cell_products
from hmmlm.ops.normaliser import log_normaliser
from hmmlm.products import FLOAT32, Operand, full_products, wanted_operand
from hmmlm.support import Support
from hmmlm.transitions import Dense, Factored

WHOLE, LARGE = 4096, 128.0
"""Up to so many dense states a table of larger logits than this is made whole where it is asked.

A float32 of some hundreds has 5 digits after the point at most, and a network without LayerNorm, or
at a high rate, gets to tens of thousands: then rows of float32 factors do not sum to one, and no
normaliser of theirs can be held. The whole table, made in float64, does."""

ROWS = 256
"""Rows of it that are made at a time."""


class Features(nn.Module):
    """Tables of an HMM as products of features that each state has for each role.

    Its roles are to be first ("start"), left ("source"), entered ("destination"), and to "emit".
    p(z' | z) is the softmax of source(z) . destination(z'), p(x | z) that of emit(z) . words(x)
    (+ a bias for each word) over the words of z, and p(z1) that of start(z) . a vector. A role's
    features are the answer of its network, or of that for "all", to its state embeddings; roles
    named in `plain` use their embeddings as they are. A table named in `free` has a logit per cell
    instead.

    `embeddings` maps a role, or "all", to what gives its embeddings: a module from state ids
    (None for all) to (S, H). `networks` likewise; one that is `whole` must see all states at once.
    The start has its own features if it has a network, and those of the destination if not.

    Under `torch.autocast` the networks run in its type and features and words are rounded to it
    once; all else is in the type of the parameters, so rows still sum to one. Under
    `tf32_products` they are rounded to tf32.
    """

    def __init__(
        self,
        support: Support,
        width: int,
        *,
        embeddings: Mapping[str, nn.Module],
        networks: Mapping[str, nn.Module],
        heads: Mapping[str, nn.Module] | None = None,
        plain: tuple[str, ...] = (),
        free: tuple[str, ...] = (),
        bias: bool,
        start_bias: bool = False,
        word_probs: Float[Tensor, " V"] | None = None,
        scale: float,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.support, self.width, self.plain, self.free = support, width, plain, free
        self.tiling = Tiling(support.row_of_word)
        self.embeddings = nn.ModuleDict(dict(embeddings))
        self.networks = nn.ModuleDict(dict(networks))
        self.heads = nn.ModuleDict(dict(heads or {}))
        states, words = support.num_states, support.vocab_size

        def noise(*size: int, width: float = scale) -> nn.Parameter:
            return nn.Parameter(width * torch.randn(size, generator=generator, dtype=dtype))

        if "start" in free:
            self.init_logits = noise(states)
        else:
            self.start = noise(width, width=1 / math.sqrt(width))
            # A softmax does not see it; some published models have it.
            self.start_bias = nn.Parameter(torch.zeros((), dtype=dtype)) if start_bias else None
        if "trans" in free:
            self.trans_logits = noise(states, states)
        unigram = None if word_probs is None else log_word_probs(word_probs, words).to(dtype)
        if "emit" in free:
            shift = 0 if unigram is None else unigram[:, None]
            self.emit_logits = nn.Parameter(noise(words, support.width).detach() + shift)
            self.word_bias = None
        else:
            limit = 1 / math.sqrt(width)
            table = torch.rand(words, width, generator=generator, dtype=dtype)
            self.words = nn.Parameter((2 * table - 1) * limit)
            start = torch.zeros(words, dtype=dtype) if unigram is None else unigram
            self.word_bias = nn.Parameter(start) if bias else None

    def forward(
        self,
        states: Int[Tensor, " S"] | None = None,
        carried: Int[Tensor, " C"] | None = None,
        *,
        kept: Support | None = None,
    ) -> HMM:
        """The HMM on all states, or on a subset, each distribution normalised over what is kept.

        `carried` are further states that belief may come from. `kept` is the support on the
        subset, for who knows it already; then a row stands for each of `carried`, in that order,
        also for those of the subset. O(S^2 H + V K H) time.

        Without gradients, the transitions of up to `WHOLE` dense states are `Dense` where their
        logits are too large for factors.
        """
        device = next(self.parameters()).device
        if self.support.rows.device != device:
            self.support, self.tiling = self.support.to(device), self.tiling.to(device)
        support, sources = self.support, None
        if states is not None:
            states = states.to(device)
            support = support.restrict(states) if kept is None else kept
            sources = states
            if carried is not None:
                extra = carried.to(device)
                if kept is None:
                    extra = extra[~torch.isin(extra, states)]
                sources = torch.cat([states, extra])
        features = _Answers(self, sources, support.num_states, wanted_operand(device.type))
        with full_products():
            return HMM(
                self._init(features, states),
                self._transitions(features, states, sources),
                self._emissions(features, states, support),
                support,
                states,
                sources,
            )

    def _init(self, features: "_Answers", states: Tensor | None) -> Float[Tensor, " S"]:
        if "start" in self.free:
            logits = self.init_logits if states is None else self.init_logits[states]
        else:
            own = any("start" in part for part in (self.embeddings, self.networks, self.heads))
            role = "start" if own else "destination"
            logits = features(role) @ self.start
            if self.start_bias is not None:
                logits = logits + self.start_bias
        return torch.log_softmax(logits, 0)

    def _transitions(
        self, features: "_Answers", states: Tensor | None, sources: Tensor | None
    ) -> Dense | Factored:
        if "trans" in self.free:
            logits = self.trans_logits
            if states is not None and sources is not None:
                logits = logits.index_select(0, sources).index_select(1, states)
            return Dense(torch.log_softmax(logits, 1), features.operand)
        left, right = features("source"), features("destination")
        norm = log_normaliser(left, right, operand=features.operand)
        is_asked = not torch.is_grad_enabled() and features.operand == FLOAT32
        is_small = self.support.is_dense and len(right) <= WHOLE and left.dtype == torch.float32
        if is_asked and is_small and _lose_digits(left, right, norm):
            return Dense(_whole_table(left, right))
        return Factored(left, right, norm, features.operand)

    def _emissions(
        self, features: "_Answers", states: Tensor | None, support: Support
    ) -> Float[Tensor, "V K"]:
        if "emit" in self.free:
            logits = self.emit_logits
            if states is not None:
                logits = _kept_slots(logits, self.support, states, support.width)
        else:
            words, vectors = features.rounded(self.words), features("emit")
            operand = features.operand
            name, _ = emission.choose(vectors.device, support.is_partition, operand)
            if name == "kernel":
                bias = words.new_zeros(len(words)) if self.word_bias is None else self.word_bias
                return emission.log_softmax(
                    vectors, words, bias, support.rows, self.tiling, operand=operand
                )
            logits = cell_products(vectors, words, support.rows, self.tiling)
            if self.word_bias is not None:
                logits = logits + self.word_bias[:, None]
        return emission_table(logits, support)


class _Answers:
    """The features of the roles at some states, each network asked once.

    Features are rounded to `operand`, and networks run in its type.
    """

    def __init__(
        self,
        model: Features,
        sources: Tensor | None,
        num_states: int,
        operand: Operand,
    ) -> None:
        self.model, self.sources, self.num_states = model, sources, num_states
        self.operand, self.is_mixed = operand, operand.dtype != torch.float32
        self.answers: dict[tuple[str, str], Tensor] = {}
        self.embeddings: dict[str, Tensor] = {}

    def __call__(self, role: str) -> Float[Tensor, "S H"]:
        """Those of the states; of the source role, also of the states that are carried."""
        model = self.model
        table = role if role in model.embeddings else "all"
        name = role if role in model.networks or role in model.plain else "all"
        device = next(model.parameters()).device.type
        with torch.autocast(device, self.operand.dtype, enabled=self.is_mixed):
            if (table, name) not in self.answers:
                self.answers[table, name] = self._ask(table, name)
            answer = self.answers[table, name]
            if role in model.heads:
                answer = model.heads[role](answer)
            elif self._is_rounded(name):
                return answer if role == "source" else answer[: self.num_states]
        answer = self.rounded(answer)
        return answer if role == "source" else answer[: self.num_states]

    def _is_rounded(self, name: str) -> bool:
        """Whether a network's answer comes rounded already."""
        return name in self.model.networks and getattr(
            self.model.networks[name], "is_rounded", False
        )

    def rounded(self, factor: Tensor) -> Tensor:
        """A factor as the products read it: the same numbers in normaliser, tiles and counts."""
        if self.operand == FLOAT32:
            return factor
        return _Rounded.apply(factor.to(next(self.model.parameters()).dtype), self.operand)

    def _ask(self, table: str, name: str) -> Tensor:
        if name not in self.model.networks:
            return self._embeddings(table)
        network = self.model.networks[name]
        if not getattr(network, "whole", False):
            return network(self._embeddings(table))
        answer = network(self.model.embeddings[table](None))
        return answer if self.sources is None else answer[self.sources]

    def _embeddings(self, table: str) -> Tensor:
        """Those of the sources, looked up once for all roles."""
        if table not in self.embeddings:
            self.embeddings[table] = self.model.embeddings[table](self.sources)
        return self.embeddings[table]


class _Rounded(torch.autograd.Function):
    """A tensor whose numbers were rounded; its gradient is not."""

    @staticmethod
    def forward(ctx: Any, factor: Tensor, operand: Operand) -> Tensor:
        return operand.round(factor)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return grad_outputs[0], None


def _lose_digits(
    left: Float[Tensor, "S H"], right: Float[Tensor, "Z H"], norms: Float[Tensor, " S"]
) -> bool:
    """Whether a normaliser, or what a product sums, is too large for float32."""
    products = left.norm(dim=1).max() * right.norm(dim=1).max()
    return bool((norms.abs().max() > LARGE) | (products > 32 * LARGE))


def _whole_table(left: Float[Tensor, "S H"], right: Float[Tensor, "Z H"]) -> Float[Tensor, "S Z"]:
    """log p(z' | z) of all pairs, some rows at a time in float64."""
    table, exact = left.new_empty(len(left), len(right)), right.double().T
    for some, row in zip(left.split(ROWS), table.split(ROWS), strict=True):
        row.copy_(torch.log_softmax(some.double() @ exact, 1))
    return table


def log_word_probs(word_probs: Tensor, vocab_size: int) -> Float[Tensor, " V"]:
    """The logarithm of a distribution over words, after checking it."""
    if word_probs.shape != (vocab_size,) or not bool((word_probs > 0).all()):
        raise InputError(
            f"word_probs must be {vocab_size:,} positive numbers, one per word; got shape "
            f"{tuple(word_probs.shape)} with smallest {float(word_probs.min()):.3g}."
        )
    return (word_probs / word_probs.sum()).log()


def _kept_slots(
    logits: Float[Tensor, "V K"], support: Support, states: Int[Tensor, " S"], width: int
) -> Float[Tensor, "V L"]:
    """The cells of the states that are kept, moved left over those that go."""
    if support.is_dense:
        return logits[:, states.sort().values]
    return logits.gather(1, support.moves(states)[:, :width][support.row_of_word])
