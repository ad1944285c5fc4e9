"""Missing tokens in chains whose words have few states each: those steps have all states.

The messages of such a chain lie in two places: (B, C, K) on the states of words, where nothing is
to be read at a missing token, and (N, Z) with a row for every missing token.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.inference.chain import Chain
from hmmlm.ops.links import Wide, gather, spread


@dataclass(frozen=True)
class Parted:
    """The messages of the steps from `start` up to `stop`; each by itself as the chain has it.

    `zero` is what stands at states that may not emit a word.
    """

    chain: Chain
    start: int
    stop: int
    narrow: Float[Tensor, "B C K"]
    wide: Float[Tensor, "N Z"]  # in order of (b, t)
    zero: float = 0.0

    @cached_property
    def missing(self) -> Bool[Tensor, "B C"]:
        return self.chain.missing[:, self.start : self.stop]

    @cached_property
    def order(self) -> Int[Tensor, "B C"]:
        """The row of `wide` that each missing token has."""
        return self.missing.flatten().cumsum(0).view_as(self.missing) - 1

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, at: int) -> Float[Tensor, "B W"]:
        wide = self.wide[self.order[self.missing[:, at], at]]
        return join(self.chain, self.start + at, self.narrow[:, at], wide, self.zero)


def join(
    chain: Chain, step: int, narrow: Float[Tensor, "B K"], wide: Float[Tensor, "N Z"], zero: float
) -> Float[Tensor, "B W"]:
    """The message of a step as one, in which all rows have all states if one of them has."""
    if not chain.wide[step]:
        return narrow
    states = chain.hmm.support.states_of(chain.tokens[:, step].clamp(min=0))
    whole = spread(narrow, states, chain.hmm.num_states, zero)
    whole[chain.missing[:, step]] = wide
    return whole


def part(
    chain: Chain, step: int, message: Float[Tensor, "B W"]
) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B Z"]]:
    """The message of a step on the states of words and on all, where a row has one or the other."""
    if step >= 0 and chain.wide[step]:
        states = chain.hmm.support.states_of(chain.tokens[:, step].clamp(min=0))
        return gather(message, states, 0.0), message.clone()
    return message.clone(), message.new_zeros(len(message), chain.hmm.num_states)


class Group(NamedTuple):
    """Rows whose steps go by the same kind of link; None where a step is not entered by one."""

    rows: Int[Tensor, " N"]
    steps: Int[Tensor, " N"]
    link: Wide | None
    from_gap: bool  # the token before is missing
    at_gap: bool  # the token itself is
    log_emission: Float[Tensor, "N W"]


class Gaps:
    """The steps of a chain that have a missing token on either side, for some rows at a time."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.through = chain.active & ~chain.restart  # (B, T): entered from the step before
        self.after = torch.zeros_like(chain.missing)
        self.after[:, 1:] = chain.missing[:, :-1]
        self.touched = chain.missing | (self.after & self.through)  # (B, T)
        steps = torch.arange(chain.steps)
        self.last = torch.where(self.touched, steps, -1).cummax(1).values  # (B, T): up to here
        ahead = torch.where(self.touched, steps, chain.steps).flip(1).cummin(1).values.flip(1)
        self.next = torch.cat([ahead, ahead.new_full((chain.batch, 1), chain.steps)], 1)

    def groups(self, rows: Int[Tensor, " N"], steps: Int[Tensor, " N"]) -> Iterator[Group]:
        """Touched steps of rows, by the kind of their link.

        Of the table only what some row names is made: O(K Z) for a row beside a word, O(Z^2) for
        all rows between two missing tokens.
        """
        chain, support = self.chain, self.chain.hmm.support
        linked = self.through[rows, steps] & (steps > 0)
        after, gone = self.after[rows, steps] & linked, chain.missing[rows, steps]
        for is_linked, from_gap, at_gap in (
            (False, False, True),
            (True, False, True),
            (True, True, True),
            (True, True, False),
        ):
            some = (linked == is_linked) & (after == from_gap) & (gone == at_gap)
            if not bool(some.any()):
                continue
            mine, here, link = rows[some], steps[some], None
            words = chain.tokens[mine, here]
            if is_linked:
                before = None if from_gap else support.states_of(chain.tokens[mine, here - 1])
                link = chain.among(before, None if at_gap else support.states_of(words))
            emission = self._evidence(mine, here) if at_gap else chain.hmm.log_emit[words]
            yield Group(mine, here, link, from_gap, at_gap, emission)

    def _evidence(self, rows: Int[Tensor, " N"], steps: Int[Tensor, " N"]) -> Float[Tensor, "N Z"]:
        """log p(x_t | z_t) of missing tokens: 0, or what soft evidence says."""
        hmm, soft = self.chain.hmm, self.chain.soft
        nothing = hmm.log_init.new_zeros(len(rows), hmm.num_states)
        if soft is None or hmm.log_soft is None:
            return nothing
        which = soft[rows, steps]
        return torch.where((which >= 0)[:, None], hmm.log_soft[which.clamp(min=0)], nothing)
