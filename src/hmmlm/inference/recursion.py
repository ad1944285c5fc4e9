"""Forward and backward passes over a stretch of steps.

`Stepwise` works on any chain, one link at a time, in either arithmetic. `DenseScaled` is for
chains that use all states at every step, and `blocks.BlockScaled` for those that use few: whole
stretches at once. All are `Passes`, so that every inference function is written once.
"""

from collections.abc import Sequence
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hmmlm.inference.chain import Chain
from hmmlm.inference.missing import Parted
from hmmlm.ops.links import CountSums
from hmmlm.ops.messages import scaled

STRETCH = 1 << 20
"""Cells of the emissions that a dense pass gathers at a time."""

TILED = 1 << 23
"""Numbers of the tiles that a pass makes at a time, and of what they are made of."""

SUMMED = 1 << 12
"""Steps whose expected transitions are summed in the dtype of the tables, before float64."""


class Forward(NamedTuple):
    """A stretch of the forward pass: filtered messages and log p(x_t | x_<t)."""

    # (B, W) per step, one (B, C, Z), or in two places; empty when not kept.
    messages: Sequence[Tensor] | Tensor | Parted
    last: Tensor  # (B, W): the message to go on with
    log_probs: Float[Tensor, "B C"]
    low: Bool[Tensor, " B"]  # rows that lost digits and must be redone in a wider arithmetic


class Backward(NamedTuple):
    """A stretch of the backward pass: posteriors, and the message for the step before.

    The posteriors are probabilities where counts are summed, and else their logarithms, which
    need not fit a number.
    """

    posteriors: Sequence[Tensor] | Tensor | Parted
    back: Tensor  # (B, W)
    low: Bool[Tensor, " B"]


@runtime_checkable
class Passes(Protocol):
    """The two passes over a chain, in one arithmetic."""

    arithmetic: Any

    @property
    def stretch(self) -> int:
        """How many steps to ask for at a time when messages are not kept."""
        ...

    def leave(self, message: Tensor) -> Tensor:
        """The logarithm of a message."""
        ...

    def forward(self, start: int, stop: int, message: Tensor | None, *, keep: bool) -> Forward:
        """Steps from `start` up to `stop`; `message` is of the step before, None at the start."""
        ...

    def backward(
        self,
        start: int,
        stop: int,
        before: Tensor | None,
        forward: Forward,
        back: Tensor | None,
        sums: CountSums | None = None,
        times: Float[Tensor, " B"] | None = None,
    ) -> Backward:
        """Steps from `stop - 1` down to `start`, whose forward pass is given.

        `before` is the forward message of step start - 1. With `sums`, the expected transitions
        into every step are added to it, so many times for each row.
        """
        ...

    def add_emissions(
        self, table: Tensor, start: int, posteriors: Tensor, seen: Bool[Tensor, "B C"]
    ) -> None:
        """Adds the posteriors of a stretch, as one tensor, to the rows of their words."""
        ...


class Stepwise:
    """Any chain, one step at a time, in the arithmetic of `ops.messages`."""

    def __init__(self, chain: Chain, arithmetic: ModuleType) -> None:
        self.chain, self.arithmetic = chain, arithmetic
        self.leave = arithmetic.leave

    @property
    def stretch(self) -> int:
        return 1  # messages are handed out one step at a time, so nothing is kept between steps

    def forward(self, start: int, stop: int, message: Tensor | None, *, keep: bool) -> Forward:
        chain, math = self.chain, self.arithmetic
        messages = self._room(start, stop) if keep else []
        log_probs = chain.hmm.log_init.new_empty(chain.batch, stop - start)
        low = torch.zeros(chain.batch, dtype=torch.bool, device=chain.hmm.device)
        for step in range(start, stop):
            if message is None:
                prediction, scale = math.enter(chain.first), 0.0
            else:
                prediction, scale = math.push(chain.link(step), message)
                if chain.any_restart[step]:
                    fresh = chain.restart[:, step]
                    initial = math.enter(chain.initial(step))
                    prediction = torch.where(fresh[:, None], initial, prediction)
                    scale = torch.where(fresh, 0.0, scale)
            absorbed: tuple[Tensor, Tensor, Tensor] = math.absorb(prediction, chain.emission(step))
            message, log_prob, lost = absorbed
            active = chain.active[:, step]
            log_probs[:, step - start] = torch.where(active, log_prob + scale, 0.0)
            low |= lost & active
            if keep:
                messages[step - start].copy_(message)
        assert message is not None
        return Forward(messages, message, log_probs, low)

    def backward(
        self,
        start: int,
        stop: int,
        before: Tensor | None,
        forward: Forward,
        back: Tensor | None,
        sums: CountSums | None = None,
        times: Float[Tensor, " B"] | None = None,
    ) -> Backward:
        chain, math = self.chain, self.arithmetic
        messages, posteriors = forward.messages, self._room(start, stop)
        meet = math.log_posterior if sums is None else math.posterior
        low = torch.zeros(chain.batch, dtype=torch.bool, device=chain.hmm.device)
        for step in range(stop - 1, start - 1, -1):
            message = messages[step - start]
            if back is None:
                back = torch.full_like(message, math.one)
            posterior, lost = meet(message, back)
            low |= lost & chain.active[:, step]
            posteriors[step - start].copy_(posterior)
            previous = messages[step - start - 1] if step > start else before
            through = chain.active[:, step] & ~chain.restart[:, step]
            weight = math.weigh(back, chain.emission(step))
            if previous is None:
                if sums is not None and times is not None and chain.belief is not None:
                    entering, link = chain.entry()
                    low |= math.add_pairs(link, sums, math.enter(entering), weight, times * through)
                break
            link = chain.link(step)
            if sums is not None and times is not None:
                low |= math.add_pairs(link, sums, previous, weight, times * through)
            pulled, lost = math.pull(link, weight)
            low |= lost & through
            back = torch.where(through[:, None], pulled, math.one)
        assert back is not None
        return Backward(posteriors, back, low)

    def add_emissions(
        self, table: Tensor, start: int, posteriors: Tensor, seen: Bool[Tensor, "B C"]
    ) -> None:
        raise NotImplementedError("posteriors come one step at a time here")

    def _room(self, start: int, stop: int) -> list[Tensor]:
        """Room for a message at every step of a stretch, in one piece.

        Messages that are kept one by one come to lie between the large temporaries of a wide step,
        whose places then are too small to be used again.
        """
        chain = self.chain
        width = chain.hmm.support.width
        sizes = [
            chain.batch * (chain.hmm.num_states if chain.wide[step] else width)
            for step in range(start, stop)
        ]
        room = chain.hmm.log_init.new_empty(sum(sizes))
        return [part.view(chain.batch, -1) for part in room.split(sizes)]


class OnGpu:
    """What passes by kernels share, of whatever kind the chain is."""

    arithmetic = scaled
    chain: Chain

    def leave(self, message: Tensor) -> Tensor:
        return scaled.leave(message)

    def add_emissions(
        self, table: Tensor, start: int, posteriors: Tensor, seen: Bool[Tensor, "B C"]
    ) -> None:
        tokens = self.chain.tokens[:, start : start + seen.shape[1]]
        table.index_add_(0, tokens[seen], posteriors[seen].to(table.dtype))

    def _ends(self, start: int, stop: int) -> Tensor:
        """The steps that each row has in a stretch."""
        return (self.chain.lengths - start).clamp(0, stop - start)


class DenseScaled:
    """Chains that use all states at every step, with a transition matrix that fits in memory."""

    arithmetic = scaled

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.initial = chain.hmm.log_init.exp()
        self.packed = chain.table.packed
        self.loops = self.packed.loops

    def leave(self, message: Tensor) -> Tensor:
        return self.loops.log(message)

    @cached_property
    def exact_zeros(self) -> bool:
        """Whether a product of zero can only come from impossible transitions.

        So it is unless the smallest probability times the smallest number that a message may hold
        is too small for a number.
        """
        dtype = self.initial.dtype
        limit = torch.finfo(dtype).tiny / scaled.lowest(dtype)
        return min(self.packed.least, self.loops.least(self.chain.hmm.log_init)) >= limit

    @property
    def stretch(self) -> int:
        return max(1, STRETCH // (self.chain.batch * self.chain.hmm.num_states))

    def add_emissions(
        self, table: Tensor, start: int, posteriors: Tensor, seen: Bool[Tensor, "B C"]
    ) -> None:
        tokens = self.chain.tokens[:, start : start + seen.shape[1]]
        self.loops.add_rows(table, tokens, posteriors, seen)

    def forward(self, start: int, stop: int, message: Tensor | None, *, keep: bool) -> Forward:
        chain = self.chain
        tokens, log_emit = chain.tokens[:, start:stop], chain.hmm.log_emit
        size = (*tokens.shape, chain.hmm.num_states)
        messages = self.initial.new_empty(size) if keep else None
        log_probs = self.initial.new_empty(size[:2])
        low = torch.zeros(chain.batch, dtype=torch.bool, device=self.initial.device)
        begin = 0
        if message is None and chain.belief is None:
            message = self.initial.expand(chain.batch, -1)  # not read: every row restarts
        elif message is None:
            prediction, log_emission = scaled.enter(chain.first), chain.emission(0)
            joint = prediction * log_emission.exp()
            message, scale = scaled.normalise(joint)
            log_probs[:, 0] = scale.log()
            possible = torch.isfinite(chain.first) & torch.isfinite(log_emission)
            low = ((joint < scaled.lowest(joint.dtype)) & possible).any(1)
            if messages is not None:
                messages[:, 0] = message
            begin = 1
        last = self.loops.forward(
            message,
            self.packed.ahead,
            log_emit,
            tokens,
            chain.restart[:, start:stop],
            chain.active[:, start:stop],
            self.initial,
            log_probs,
            low,
            messages,
            begin=begin,
            exact_zeros=self.exact_zeros,
        )
        return Forward(() if messages is None else messages, last, log_probs, low)

    def backward(
        self,
        start: int,
        stop: int,
        before: Tensor | None,
        forward: Forward,
        back: Tensor | None,
        sums: CountSums | None = None,
        times: Float[Tensor, " B"] | None = None,
    ) -> Backward:
        chain, messages = self.chain, forward.messages
        assert isinstance(messages, Tensor)
        if back is None:
            back = torch.ones_like(messages[:, 0])
        active = chain.active[:, start:stop]
        through = active & ~chain.restart[:, start:stop]
        counted, pairs = None, None
        if sums is not None and times is not None:
            counted, pairs = through & (times != 0)[:, None], torch.empty_like(messages)
        posteriors, totals = torch.empty_like(messages), torch.empty_like(forward.log_probs)
        low = torch.zeros(chain.batch, dtype=torch.bool, device=messages.device)
        before_first = self.loops.backward(
            back,
            self.packed.behind,
            chain.hmm.log_emit,
            chain.tokens[:, start:stop],
            ~through,
            messages,
            forward.log_probs,
            counted,
            posteriors,
            totals,
            low,
            pairs,
            exact_zeros=self.exact_zeros,
        )
        low |= ((totals < scaled.lowest(totals.dtype)) & active).any(1)
        if sums is None or times is None or pairs is None:
            logs = self.leave(messages).add_(self.leave(posteriors))
            return Backward(logs.sub_(self.leave(totals)[:, :, None]), before_first, low)
        if bool(low.any()):
            # There may be NaN; the caller counts again without such rows.
            pairs.masked_fill_(low[:, None, None], 0.0)
        first = pairs[:, 0].clone()
        if bool((times != 1).any()):
            pairs.mul_(times[:, None, None])
        self._add_pairs(sums, before, messages, pairs)
        if before is None and chain.belief is not None:
            message, link = chain.entry()
            entering = torch.where(through[:, 0] & ~low, times, 0.0)
            scaled.add_pairs(link, sums, scaled.enter(message), first, entering)
        return Backward(posteriors, before_first, low)

    def _add_pairs(
        self, sums: CountSums, before: Tensor | None, messages: Tensor, pairs: Tensor
    ) -> None:
        """Adds the joints of all neighbouring steps; clears the pairs of the first step."""
        states = self.chain.hmm.num_states
        first = None if before is None else pairs[:, 0].clone()
        # The rows end to end as one: the last step of a row must not meet the next row's first.
        pairs[:, 0] = 0.0
        previous, following = messages.view(-1, states)[:-1], pairs.view(-1, states)[1:]
        for part, tile in self.chain.table.prob_tiles():
            for some in range(0, max(1, len(previous)), SUMMED):
                here = slice(some, some + SUMMED)
                counts = previous[here, part].T @ following[here]
                if some == 0 and before is not None and first is not None:
                    counts.addmm_(before[:, part].T, first)
                sums.add_rows(part, counts.mul_(tile))
