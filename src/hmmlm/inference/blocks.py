"""Passes over chains whose words have few states each, with the loop over time compiled."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.inference.chain import Chain
from hmmlm.inference.recursion import SUMMED, TILED, Backward, Forward
from hmmlm.ops.dense_chain import compiled as dense_chain
from hmmlm.ops.links import CountSums
from hmmlm.ops.messages import scaled
from hmmlm.ops.tile_chain import compiled


class TilesOfStretch(NamedTuple):
    """The different tiles of a stretch, each over its largest entry, and where they stand."""

    probs: Float[Tensor, "U K K"]
    log_most: Float[Tensor, " U"]
    tile_of_step: Int[Tensor, "B C"]
    sources: Int[Tensor, "U K"]
    destinations: Int[Tensor, "U K"]


class BlockScaled:
    """Chains on a CPU whose words have K states each, without missing tokens."""

    arithmetic = scaled

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        support = chain.hmm.support
        self.rows = support.rows  # (R, K)
        self.row_of_step = support.row_of_word[chain.tokens]  # (B, T)
        self.kept: dict[tuple[int, int], TilesOfStretch] = {}

    @property
    def stretch(self) -> int:
        width = self.rows.shape[1]
        factors = self.chain.hmm.transitions.fields()[0].shape[1]
        each = self.chain.batch * width * (width + min(2 * factors, 1024))
        # Transitions of a stretch are summed in the type of the tables, so it has no more steps.
        return max(1, min(TILED // each, SUMMED // self.chain.batch))

    def _starts(self, steps: slice) -> tuple[Float[Tensor, "N K"], Int[Tensor, "B C"]]:
        """p(z1) on the states of the steps that start afresh, and which of them a step has."""
        restart = self.chain.restart[:, steps]
        rows, place = self.row_of_step[:, steps][restart].unique(return_inverse=True)
        states = self.rows[rows]
        log_init = self.chain.hmm.log_init[states.clamp(min=0)]
        start_of_step = torch.full(restart.shape, -1)
        start_of_step[restart] = place
        return log_init.masked_fill(states < 0, -torch.inf).exp(), start_of_step

    def leave(self, message: Tensor) -> Tensor:
        return scaled.leave(message)

    def add_emissions(
        self, table: Tensor, start: int, posteriors: Tensor, seen: Bool[Tensor, "B C"]
    ) -> None:
        tokens = self.chain.tokens[:, start : start + seen.shape[1]]
        dense_chain.add_rows(table, tokens, posteriors, seen)

    def forward(self, start: int, stop: int, message: Tensor | None, *, keep: bool) -> Forward:
        chain, like = self.chain, self.chain.hmm.log_init
        size = (chain.batch, stop - start, self.rows.shape[1])
        messages = like.new_empty(size if keep else (chain.batch, 0, size[2]))
        log_probs = like.new_empty(size[:2])
        low = torch.zeros(chain.batch, dtype=torch.bool)
        first = start
        if message is None and chain.belief is None:
            message = like.new_zeros(chain.batch, size[2])  # not read: every row restarts
        elif message is None:
            message, log_prob, low = scaled.absorb(scaled.enter(chain.first), chain.emission(0))
            log_probs[:, 0] = log_prob
            if keep:
                messages[:, 0] = message
            first = start + 1
        for begin in range(start, stop, self.stretch):
            end = min(begin + self.stretch, stop)
            tiles = self._tiles(begin, end)
            span = slice(begin, end)
            part = messages[:, begin - start : end - start]
            scales = log_probs.new_empty(size[0], end - begin)
            kept = part.contiguous() if keep else messages
            initial, start_of_step = self._starts(span)
            message = compiled.forward(
                message,
                tiles.probs,
                tiles.log_most,
                tiles.tile_of_step,
                chain.hmm.log_emit,
                chain.tokens[:, span],
                initial,
                start_of_step,
                chain.active[:, span],
                scales,
                low,
                kept,
                begin=max(first - begin, 0),
            )
            done = max(first - begin, 0)
            log_probs[:, begin - start + done : end - start] = scales[:, done:]
            if keep:
                part[:, done:] = kept[:, done:]
        return Forward(messages if keep else (), message, log_probs, low)

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
        counted = sums is not None and times is not None
        posteriors, totals = torch.empty_like(messages), torch.empty_like(forward.log_probs)
        low = torch.zeros(chain.batch, dtype=torch.bool)
        for end in range(stop, start, -self.stretch):
            begin = max(end - self.stretch, start)
            span, place = slice(begin, end), slice(begin - start, end - start)
            through = chain.active[:, span] & ~chain.restart[:, span]
            previous = messages[:, begin - start - 1] if begin > start else before
            here, tiles = messages[:, place].contiguous(), self._tiles(begin, end)
            part, total = torch.empty_like(here), totals.new_empty(here.shape[:2])
            pairs = torch.empty_like(here) if counted else here.new_empty(0, 0, 0)
            shifted = self.row_of_step[:, max(begin - 1, 0) : end - 1]
            if begin == 0:
                shifted = torch.cat([shifted.new_zeros(chain.batch, 1), shifted], 1)
            back = compiled.backward(
                back,
                tiles.probs,
                tiles.tile_of_step,
                chain.hmm.log_emit,
                chain.tokens[:, span],
                ~through,
                previous,
                (self.rows[shifted] >= 0).sum(2),
                here,
                part,
                total,
                low,
                pairs,
                counted=counted,
            )
            posteriors[:, place], totals[:, place] = part, total
            if sums is not None and times is not None:
                low |= ((total < scaled.lowest(total.dtype)) & chain.active[:, span]).any(1)
                self._add_pairs(sums, times, tiles, previous, here, pairs, through, low)
        low |= ((totals < scaled.lowest(totals.dtype)) & chain.active[:, start:stop]).any(1)
        if not counted:
            posteriors = messages.log() + posteriors.log() - totals.log()[:, :, None]
        return Backward(posteriors, back, low)

    def _add_pairs(
        self,
        sums: CountSums,
        times: Float[Tensor, " B"],
        tiles: TilesOfStretch,
        previous: Tensor | None,
        messages: Tensor,
        pairs: Tensor,
        through: Bool[Tensor, "B C"],
        low: Bool[Tensor, " B"],
    ) -> None:
        """Adds the joints of neighbouring steps, so many times for each row."""
        used = torch.where(low, 0.0, times)
        counts = through & (used != 0)[:, None]
        if previous is None:
            if self.chain.belief is not None:
                message, link = self.chain.entry()
                entering = torch.where(counts[:, 0], used, 0.0)
                first = torch.where(counts[:, :1], pairs[:, 0], 0.0)
                low |= scaled.add_pairs(link, sums, scaled.enter(message), first, entering)
            counts = counts.clone()
            counts[:, 0] = False
            previous = torch.zeros_like(messages[:, 0])
        if bool((used != 1).any()):
            pairs = pairs * used[:, None, None]
        tile_counts = torch.zeros_like(tiles.probs)
        compiled.add_outer(tile_counts, tiles.tile_of_step, counts, previous, messages, pairs)
        sums.add_tile(tile_counts.mul_(tiles.probs), tiles.sources, tiles.destinations)

    def _tiles(self, start: int, stop: int) -> TilesOfStretch:
        """The tiles into the steps of a stretch; the last ones made are kept for the way back."""
        if (start, stop) in self.kept:
            return self.kept[start, stop]
        chain, number = self.chain, self.rows.shape[0]
        here = self.row_of_step[:, start:stop]
        earlier = self.row_of_step[:, max(start - 1, 0) : stop - 1]
        if start == 0:
            earlier = torch.cat([here[:, :1], earlier], 1)  # into the first step: not read
        needed = chain.active[:, start:stop] & ~chain.restart[:, start:stop]
        codes = torch.where(needed, earlier * number + here, -1)
        found, tile_of_step = codes.unique(return_inverse=True)
        found = found.clamp(min=0)
        sources, destinations = self.rows[found // number], self.rows[found % number]
        link = chain.tiles(sources, destinations)
        probs, most = scaled.tile_probs(link)
        tiles = TilesOfStretch(probs, most, tile_of_step, sources, destinations)
        self.kept = {(start, stop): tiles}
        return tiles
