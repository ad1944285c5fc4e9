"""Passes over chains whose words have few states each, with the loop over time compiled."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.inference.chain import Chain
from hmmlm.inference.missing import Gaps, Group, Parted, join, part
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
    """Chains on a CPU whose words have K states each.

    The compiled loop takes each row from one missing token to the next; the steps into and out of
    those, which have all states, are taken for all rows that have come to one.
    """

    arithmetic = scaled

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        support = chain.hmm.support
        self.rows = support.rows  # (R, K)
        self.row_of_step = support.row_of_word[chain.tokens.clamp(min=0)]  # (B, T)
        self.gaps = Gaps(chain)
        self.any_gap = any(chain.wide)
        self.every = torch.arange(chain.batch)
        self.kept: dict[tuple[int, int], TilesOfStretch] = {}

    @property
    def stretch(self) -> int:
        width = self.rows.shape[1]
        factors = self.chain.hmm.transitions.fields()[0].shape[1]
        each = self.chain.batch * width * (width + min(2 * factors, 1024))
        # Transitions of a stretch are summed in the type of the tables, so it has no more steps.
        steps = min(TILED // each, SUMMED // self.chain.batch)
        if self.any_gap:
            steps = min(steps, TILED // (self.chain.batch * self.chain.hmm.num_states))
        return max(1, steps)

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

    def _room(self, start: int, stop: int, steps: int, zero: float = 0.0) -> Parted:
        """Room for the messages of a stretch; those of words for so many steps."""
        like, states = self.chain.hmm.log_init, self.chain.hmm.num_states
        make = like.new_zeros if self.any_gap else like.new_empty
        gone = int(self.chain.missing[:, start:stop].sum()) if self.any_gap else 0
        narrow = make(self.chain.batch, steps, self.rows.shape[1])
        return Parted(self.chain, start, stop, narrow, like.new_empty(gone, states), zero)

    def _part(self, step: int, message: Tensor) -> tuple[Tensor, Tensor]:
        """A message on the states of words, and on all states where the chain has a gap."""
        return part(self.chain, step, message) if self.any_gap else (message, message[:, :0])

    def forward(self, start: int, stop: int, message: Tensor | None, *, keep: bool) -> Forward:
        chain = self.chain
        kept = self._room(start, stop, stop - start if keep else 0)
        log_probs = chain.hmm.log_init.new_empty(chain.batch, stop - start)
        low = torch.zeros(chain.batch, dtype=torch.bool)
        at = torch.full((chain.batch,), start)  # the step that each row takes next
        if message is not None:
            narrow, wide = self._part(start - 1, message)
        elif chain.belief is None:
            nothing = log_probs.new_zeros(chain.batch, self.rows.shape[1])
            narrow, wide = self._part(-1, nothing)  # not read: every row restarts
        else:
            message, log_probs[:, 0], low = scaled.absorb(
                scaled.enter(chain.first), chain.emission(0)
            )
            narrow, wide = self._part(0, message)
            kept.narrow[:, :1] = narrow[:, None]
            if chain.wide[0]:
                kept.wide[kept.order[kept.missing[:, 0], 0]] = wide[kept.missing[:, 0]]
            at += 1
        for begin in range(start, stop, self.stretch):
            end = min(begin + self.stretch, stop)
            span, place = slice(begin, end), slice(begin - start, end - start)
            tiles = self._tiles(begin, end)
            initial, start_of_step = self._starts(span)
            scales, some = log_probs[:, place].contiguous(), kept.narrow[:, place].contiguous()
            while True:
                until = self.gaps.next[self.every, at].clamp(max=end)
                narrow = compiled.forward(
                    narrow,
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
                    some,
                    at - begin,
                    until - begin,
                )
                at, rows = until, (until < end).nonzero()[:, 0]
                if not len(rows):
                    break
                for group in self.gaps.groups(rows, at[rows]):
                    mine, step = group.rows, group.steps - begin
                    prediction = chain.hmm.log_init.exp().expand(len(mine), -1)
                    if group.link is not None:
                        message = wide[mine] if group.from_gap else narrow[mine]
                        prediction, _ = scaled.push(group.link, message)
                    after, scales[mine, step], lost = scaled.absorb(prediction, group.log_emission)
                    low[mine] |= lost
                    if group.at_gap:
                        wide[mine] = kept.wide[kept.order[mine, group.steps - start]] = after
                    else:
                        narrow[mine] = after
                        if keep:
                            some[mine, step] = after
                at[rows] += 1
            log_probs[:, place], kept.narrow[:, place] = scales, some
        if not self.any_gap:
            return Forward(kept.narrow if keep else (), narrow, log_probs, low)
        last = join(chain, stop - 1, narrow, wide[chain.missing[:, stop - 1]], 0.0)
        return Forward(kept if keep else (), last, log_probs, low)

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
        chain, kept = self.chain, forward.messages
        if isinstance(kept, Tensor):
            kept = Parted(chain, start, stop, kept, kept.new_empty(0, chain.hmm.num_states))
        assert isinstance(kept, Parted)
        narrow, wide = self._part(-1, torch.ones_like(kept.narrow[:, 0]))
        wide.fill_(1.0)  # as it is where nothing comes back to a missing token
        entering = torch.empty_like(wide)
        if back is not None:
            narrow, found = self._part(stop - 1, back)
            gone = chain.missing[:, stop - 1]
            wide[gone] = found[gone]
        words_before = None if before is None else self._part(start - 1, before)[0]
        counted = sums is not None and times is not None
        found = self._room(start, stop, stop - start, 0.0 if counted else -torch.inf)
        totals = torch.ones_like(forward.log_probs)
        low = torch.zeros(chain.batch, dtype=torch.bool)
        for end in range(stop, start, -self.stretch):
            begin = max(end - self.stretch, start)
            span, place = slice(begin, end), slice(begin - start, end - start)
            previous = kept.narrow[:, begin - start - 1] if begin > start else words_before
            here, tiles = kept.narrow[:, place].contiguous(), self._tiles(begin, end)
            some, total = found.narrow[:, place].contiguous(), totals[:, place].contiguous()
            pairs = torch.zeros_like(here) if counted else here.new_empty(0, 0, 0)
            shifted = self.row_of_step[:, max(begin - 1, 0) : end - 1]
            if begin == 0:
                shifted = torch.cat([shifted.new_zeros(chain.batch, 1), shifted], 1)
            at = torch.full((chain.batch,), end - 1)  # the step that each row goes back from
            while True:
                first = self.gaps.last[self.every, at.clamp(min=0)].clamp(min=begin - 1) + 1
                first = torch.minimum(first, at + 1)
                narrow = compiled.backward(
                    narrow,
                    tiles.probs,
                    tiles.tile_of_step,
                    chain.hmm.log_emit,
                    chain.tokens[:, span],
                    ~self.gaps.through[:, span],
                    previous,
                    (self.rows[shifted] >= 0).sum(2),
                    here,
                    some,
                    total,
                    low,
                    pairs,
                    first - begin,
                    at + 1 - begin,
                    counted=counted,
                )
                at, rows = first - 1, (first > begin).nonzero()[:, 0]
                if not len(rows):
                    break
                used = None if times is None else torch.where(low, 0.0, times)
                for group in self.gaps.groups(rows, at[rows]):
                    mine, step = group.rows, group.steps - begin
                    slot = kept.order[mine, group.steps - start]
                    message = kept.wide[slot] if group.at_gap else here[mine, step]
                    after = wide[mine] if group.at_gap else narrow[mine]
                    met = (message * after).sum(1)
                    total[mine, step] = met
                    seen = after
                    if counted:
                        seen = message * after / met.clamp(min=scaled.lowest(met.dtype))[:, None]
                    if group.at_gap:
                        found.wide[slot] = seen
                    else:
                        some[mine, step] = seen
                    weight = scaled.weigh(after, group.log_emission)
                    narrow[mine], wide[mine] = 1.0, 1.0
                    if group.link is None:
                        entering[mine] = weight  # of use at step 0, if a belief is carried in
                        continue
                    earlier = wide if group.from_gap else narrow
                    if sums is None or used is None:
                        earlier[mine], lost = scaled.pull(group.link, weight)
                    else:
                        message = self._message_before(group, kept, before)
                        earlier[mine], lost = scaled.pull_pairs(
                            group.link, sums, message, weight, used[mine]
                        )
                    low[mine] |= lost
                at[rows] -= 1
            found.narrow[:, place], totals[:, place] = some, total
            if sums is not None and times is not None:
                low |= ((total < scaled.lowest(total.dtype)) & chain.active[:, span]).any(1)
                self._add_pairs(sums, times, tiles, previous, here, pairs, entering, span, low)
        low |= ((totals < scaled.lowest(totals.dtype)) & chain.active[:, start:stop]).any(1)
        last = narrow
        if self.any_gap and start > 0:
            last = join(chain, start - 1, narrow, wide[chain.missing[:, start - 1]], 0.0)
        if not counted:
            logs = totals.log()
            found.narrow.log_().add_(kept.narrow.log()).sub_(logs[:, :, None])
            found.wide.log_().add_(kept.wide.log()).sub_(logs[kept.missing][:, None])
        return Backward(found if self.any_gap else found.narrow, last, low)

    def _message_before(self, group: Group, kept: Parted, before: Tensor | None) -> Tensor:
        """The forward messages of the steps before those of a group."""
        place = group.steps - 1 - kept.start
        inside = place >= 0
        width = self.chain.hmm.num_states if group.from_gap else self.rows.shape[1]
        message = kept.wide.new_empty(len(place), width)
        rows, place = group.rows[inside], place[inside]
        if group.from_gap:
            message[inside] = kept.wide[kept.order[rows, place]]
        else:
            message[inside] = kept.narrow[rows, place]
        if before is not None:
            words, everything = self._part(kept.start - 1, before)
            message[~inside] = (everything if group.from_gap else words)[group.rows[~inside]]
        return message

    def _add_pairs(
        self,
        sums: CountSums,
        times: Float[Tensor, " B"],
        tiles: TilesOfStretch,
        previous: Tensor | None,
        messages: Tensor,
        pairs: Tensor,
        entering: Tensor,
        span: slice,
        low: Bool[Tensor, " B"],
    ) -> None:
        """Adds the joints of neighbouring words, so many times for each row."""
        used = torch.where(low, 0.0, times)
        through = self.gaps.through[:, span] & (used != 0)[:, None]
        counts = through & ~self.gaps.touched[:, span]
        if previous is None:
            if self.chain.belief is not None:
                message, link = self.chain.entry()
                weight = pairs[:, 0]
                if self.chain.wide[0]:
                    weight = join(self.chain, 0, weight, entering[self.chain.missing[:, 0]], 0.0)
                weight = torch.where(through[:, :1], weight, 0.0)
                begun = torch.where(through[:, 0], used, 0.0)
                low |= scaled.add_pairs(link, sums, scaled.enter(message), weight, begun)
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
        needed = (self.gaps.through & ~self.gaps.touched)[:, start:stop]
        codes = torch.where(needed, earlier * number + here, -1)
        found, tile_of_step = codes.unique(return_inverse=True)
        found = found.clamp(min=0)
        sources, destinations = self.rows[found // number], self.rows[found % number]
        link = chain.tiles(sources, destinations)
        probs, most = scaled.tile_probs(link)
        tiles = TilesOfStretch(probs, most, tile_of_step, sources, destinations)
        self.kept = {(start, stop): tiles}
        return tiles
