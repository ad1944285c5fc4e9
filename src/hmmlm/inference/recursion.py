"""Forward and backward passes over a stretch of steps, for dense chains and for all others.

`Stepwise` works on any chain, one link at a time, in either arithmetic. `DenseScaled` is for
chains that use all states at every step: one product per step, and whole stretches at once.
Both offer the same three methods, so that every inference function is written once.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hmmlm.inference.chain import Chain
from hmmlm.ops import dense_chain
from hmmlm.ops.links import CountSums
from hmmlm.ops.messages import scaled

STRETCH = 1 << 20
"""Cells of the emissions that a dense pass gathers at a time."""


class Forward(NamedTuple):
    """A stretch of the forward pass: filtered messages and log p(x_t | x_<t)."""

    messages: Sequence[Tensor] | Tensor  # (B, W) per step, or one (B, C, Z); empty when not kept
    last: Tensor  # (B, W): the message to go on with
    log_probs: Float[Tensor, "B C"]
    low: Bool[Tensor, " B"]  # rows that lost digits and must be redone in log space
    emission: Tensor | None = None  # (B, C, Z) probabilities, where a dense pass kept them


class Backward(NamedTuple):
    """A stretch of the backward pass: posteriors, and the message for the step before."""

    posteriors: Sequence[Tensor] | Tensor
    back: Tensor  # (B, W)
    low: Bool[Tensor, " B"]


class Stepwise:
    """Any chain, one step at a time, in the arithmetic of `ops.messages`."""

    def __init__(self, chain: Chain, arithmetic: ModuleType) -> None:
        self.chain, self.arithmetic = chain, arithmetic

    @property
    def stretch(self) -> int:
        """How many steps to ask for at a time when messages are not kept."""
        return self.chain.steps

    def forward(self, start: int, stop: int, message: Tensor | None, *, keep: bool) -> Forward:
        """Steps from `start` up to `stop`; `message` is that of the step before, None at the start."""
        chain, math = self.chain, self.arithmetic
        messages, log_probs = [], []
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
            message, log_prob, lost = math.absorb(prediction, chain.emission(step))
            active = chain.active[:, step]
            log_probs.append(torch.where(active, log_prob + scale, 0.0))
            low |= lost & active
            if keep:
                messages.append(message)
        assert message is not None
        return Forward(messages, message, torch.stack(log_probs, 1), low)

    def backward(
        self,
        start: int,
        stop: int,
        before: Tensor | None,
        forward: Forward,
        back: Tensor | None,
        sums: CountSums | None = None,
        rows: Bool[Tensor, " B"] | None = None,
    ) -> Backward:
        """Steps from `stop - 1` down to `start`, whose forward pass is given.

        `before` is the forward message of step start - 1. With `sums`, the expected transitions
        into every step are added to it for the chosen rows.
        """
        chain, math = self.chain, self.arithmetic
        posteriors: list[Tensor] = []
        messages = forward.messages
        low = torch.zeros(chain.batch, dtype=torch.bool, device=chain.hmm.device)
        for step in range(stop - 1, start - 1, -1):
            message = messages[step - start]
            if back is None:
                back = torch.full_like(message, math.one)
            posterior, lost = math.posterior(message, back)
            low |= lost & chain.active[:, step]
            posteriors.append(posterior)
            previous = messages[step - start - 1] if step > start else before
            through = chain.active[:, step] & ~chain.restart[:, step]
            weight = math.weigh(back, chain.emission(step))
            if previous is None:
                if sums is not None and rows is not None and chain.belief is not None:
                    entering, link = chain.entry()
                    low |= math.add_pairs(link, sums, math.enter(entering), weight, rows & through)
                break
            link = chain.link(step)
            if sums is not None and rows is not None:
                low |= math.add_pairs(link, sums, previous, weight, rows & through)
            back = torch.where(through[:, None], math.pull(link, weight), math.one)
        assert back is not None
        return Backward(posteriors[::-1], back, low)


class DenseScaled:
    """Chains that use all states at every step, with a transition matrix that fits in memory."""

    arithmetic = scaled

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.probs = chain.table.probs
        self.initial = chain.hmm.log_init.exp()
        self.loops, _ = dense_chain.choose(chain.hmm.device, chain.hmm.num_states)

    @property
    def stretch(self) -> int:
        return max(1, STRETCH // (self.chain.batch * self.chain.hmm.num_states))

    def forward(self, start: int, stop: int, message: Tensor | None, *, keep: bool) -> Forward:
        """Steps from `start` up to `stop`; `message` is that of the step before, None at the start."""
        chain = self.chain
        emission = chain.hmm.log_emit[chain.tokens[:, start:stop].clamp(min=0)].exp_()
        missing = chain.missing[:, start:stop]
        if missing.any():
            emission.masked_fill_(missing[:, :, None], 1.0)
        messages = torch.empty_like(emission) if keep else None
        scales = emission.new_empty(emission.shape[:2])
        begin = 0
        if message is None:
            message, scales[:, 0], _ = scaled.normalise(scaled.enter(chain.first) * emission[:, 0])
            if messages is not None:
                messages[:, 0] = message
            begin = 1
        message = self.loops.forward(
            message,
            self.probs,
            emission,
            chain.restart[:, start:stop],
            chain.active[:, start:stop],
            self.initial,
            scales,
            messages,
            begin,
        )
        low = (scales < scaled.lowest(scales.dtype)).any(1)
        if messages is None:
            return Forward((), message, scales.log(), low)
        return Forward(messages, message, scales.log(), low, emission)

    def backward(
        self,
        start: int,
        stop: int,
        before: Tensor | None,
        forward: Forward,
        back: Tensor | None,
        sums: CountSums | None = None,
        rows: Bool[Tensor, " B"] | None = None,
    ) -> Backward:
        """Steps from `stop - 1` down to `start`, whose forward pass is given."""
        chain, messages, emission = self.chain, forward.messages, forward.emission
        assert isinstance(messages, Tensor) and emission is not None
        if back is None:
            back = torch.ones_like(messages[:, 0])
        active = chain.active[:, start:stop]
        through = active & ~chain.restart[:, start:stop]
        backs = torch.empty_like(emission)
        back = self.loops.backward(back, self.probs, emission, ~through, backs)
        posterior = messages * backs
        total = posterior.sum(2)
        lowest = scaled.lowest(posterior.dtype)
        low = ((total < lowest) & active).any(1)
        posterior /= total.clamp(min=lowest)[:, :, None]
        if sums is not None and rows is not None:
            # The joint of two steps sums to p(x_t | x_<t) times `total`, so one factor serves.
            factor = torch.exp(-forward.log_probs) / total.clamp(min=lowest)
            counted = through & (rows & ~low)[:, None]
            factor = torch.where(counted, factor, 0.0)
            weight = backs.mul_(emission).mul_(factor[:, :, None])
            self._add_pairs(sums, before, messages, weight)
            if before is None and chain.belief is not None:
                message, link = chain.entry()
                scaled.add_pairs(link, sums, scaled.enter(message), weight[:, 0], counted[:, 0])
        return Backward(posterior, back, low)

    def _add_pairs(
        self, sums: CountSums, before: Tensor | None, messages: Tensor, weight: Tensor
    ) -> None:
        states = self.chain.hmm.num_states
        previous, following = messages[:, :-1], weight[:, 1:]
        for part, tile in self.chain.table.prob_tiles():
            counts = previous[:, :, part].reshape(-1, tile.shape[0]).T @ following.reshape(-1, states)
            if before is not None:
                counts.addmm_(before[:, part].T, weight[:, 0])
            sums.add_rows(part, counts.mul_(tile))
