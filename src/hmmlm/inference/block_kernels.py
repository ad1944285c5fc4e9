"""Passes over chains of tiles by Triton kernels, a stretch of steps at a time."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.inference.chain import Chain
from hmmlm.inference.recursion import Backward, Forward, OnGpu
from hmmlm.ops.kernels import room
from hmmlm.ops.links import CountSums
from hmmlm.ops.messages import scaled
from hmmlm.ops.tile_chain import counts_kernel, kernel, tiles_kernel
from hmmlm.ops.trace import kernel as trace_kernel
from hmmlm.transitions import Factored

TILED = 1 << 30
"""Float32 cells of the tiles made at a time, or as many as a sixteenth of the device's memory
holds."""

KEPT = 1 << 26
"""Cells of the messages of a stretch."""


class BlockKernel(OnGpu):
    """Chains on a GPU whose words have K states each: in blocks, all the same, or any.

    Messages have the type of the tables, and float64 factors are multiplied in float64. Tokens may
    be missing where there is one block. Steps between the same two blocks share a tile. Only `back`
    passes have a way back.
    """

    def __init__(self, chain: Chain, back: bool = False) -> None:
        self.chain, self.back = chain, back
        support, table = chain.hmm.support, chain.hmm.transitions
        self.rows, self.here = support.rows, support.row_of_word[chain.tokens]
        through = chain.active & ~chain.restart
        through[:, 0].fill_(False)  # what a carried belief says of step 0 is worked out apart
        self.through = through
        self.before = torch.where(through, self.here.roll(1, 1), tiles_kernel.NONE)
        self.factors: tuple[Tensor, Tensor] | None = None
        self.marks = 0
        self.dtype, (dtype, self.precision) = chain.hmm.dtype, table.operand
        if self.dtype == torch.float64:
            dtype, self.precision = self.dtype, "ieee"
        if isinstance(table, Factored):
            self.factors, self.marks = (table.left.to(dtype), table.right.to(dtype)), table.marks
        self.kept: dict[tuple[int, int], tuple[tiles_kernel.Map, tiles_kernel.Squares]] = {}

    @property
    def stretch(self) -> int:
        batch, (blocks, width) = self.chain.batch, self.rows.shape
        cells = room(self.rows.device, 16, TILED) * 4 // self.dtype.itemsize
        steps = KEPT // (batch * width)
        if (blocks * width) ** 2 > cells:  # there may be as many tiles as steps
            steps = min(steps, cells // (batch * width * tiles_kernel.line(width)))
        return max(1, min(self.chain.steps, steps))

    def forward(
        self, start: int, stop: int, message: Tensor | None, *, keep: bool, best: bool = False
    ) -> Forward:
        """As of all passes; with `best`, messages are of best paths, and so are log_probs."""
        chain, like = self.chain, self.chain.hmm.log_init
        parts, log_probs = [], like.new_zeros(chain.batch, stop - start)
        low = torch.zeros(chain.batch, dtype=torch.bool, device=like.device)
        done = 0
        if message is None and chain.belief is not None:
            message, log_probs[:, 0], low = scaled.absorb(
                scaled.enter(chain.first), chain.emission(0)
            )
            if best:
                most = message.amax(1)
                message = message / torch.where(most > 0, most, 1.0)[:, None]
                log_probs[:, 0] += most.log()
            done = 1
        for begin in range(start, stop, self.stretch):
            end = min(begin + self.stretch, stop)
            (where, squares), ends = self._tiles(begin, end), self._ends(begin, end)
            emissions = self._emissions(begin, end)
            passed = kernel.run(
                squares, where, like, emissions, ends, begin=done, message=message, best=best
            )
            totals = passed.totals[:, 1:]
            scales = totals.log() + self._log_most(where, squares, emissions)
            scales = torch.where(chain.active[:, begin:end], scales, 0.0)
            log_probs[:, begin - start + done : end - start] = scales[:, done:]
            low |= (passed.low[0] > 0) | (emissions.low > 0)
            if keep:
                parts.append(_over(passed.joints, passed.totals)[:, 1:])
            rows = torch.arange(chain.batch, device=like.device)
            message = _over(passed.joints[rows, ends], passed.totals[rows, ends])
            done = 0
        assert message is not None
        return Forward(torch.cat(parts, 1) if keep else (), message, log_probs, low)

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
        counted = sums is not None and times is not None
        ones = torch.ones_like(messages[:, 0, 0])
        posteriors = torch.empty_like(messages)
        low = torch.zeros(chain.batch, dtype=torch.bool, device=messages.device)
        for end in range(stop, start, -self.stretch):
            begin = max(end - self.stretch, start)
            place = slice(begin - start, end - start)
            (where, squares), ends = self._tiles(begin, end), self._ends(begin, end)
            emissions = self._emissions(begin, end)
            previous = messages[:, begin - start - 1] if begin > start else before
            if previous is None:
                previous = torch.zeros_like(messages[:, 0])
            # Messages as the forward pass made them: over the sum of the step before alone.
            most = self._log_most(where, squares, emissions)
            scales = (forward.log_probs[:, place] - most).exp()
            joints = torch.cat([previous[:, None], messages[:, place] * scales[:, :, None]], 1)
            totals = torch.cat([ones[:, None], scales], 1)
            none = torch.zeros(2, chain.batch, dtype=torch.int32, device=ends.device)
            passed = kernel.Passed(joints.contiguous(), totals.contiguous(), joints, none)
            passed = kernel.run(
                squares, where, chain.hmm.log_init, emissions, ends, forward=passed, back=back
            )
            met = kernel.meet(squares, emissions, passed, where, ends, ones)
            lost = (passed.low > 0).any(0)
            if counted:
                posteriors[:, place] = met.posteriors
            else:
                backs = passed.backs[:, 1:]
                meet = (messages[:, place] * backs).sum(2, keepdim=True)
                posteriors[:, place] = messages[:, place].log() + backs.log() - meet.log()
            low |= lost & chain.active[:, begin:end].any(1)
            if sums is not None and times is not None:
                used = torch.where(low, 0.0, times)
                self._add(sums, where, squares, passed, met, used, begin, end)
                if begin == 0 and chain.belief is not None:
                    message, link = chain.entry()
                    weight = emissions.probs[:, 0] * passed.backs[:, 1]
                    entering = torch.where(chain.restart[:, 0], 0.0, used)
                    low |= scaled.add_pairs(link, sums, scaled.enter(message), weight, entering)
            back = passed.backs[:, 0]
        assert back is not None
        return Backward(posteriors, back, low)

    def _add(
        self,
        sums: CountSums,
        where: tiles_kernel.Map,
        squares: tiles_kernel.Squares,
        passed: kernel.Passed,
        met: kernel.Met,
        used: Float[Tensor, " B"],
        begin: int,
        end: int,
    ) -> None:
        """Adds the joints of neighbouring steps, so many times for each row."""
        chain, counts = self.chain, (used != 0)[:, None, None]
        # What was lost may be no number, which times nothing is not nothing: it is left out.
        pairs = torch.where(counts, met.pairs * used[:, None, None], 0.0)
        joints = torch.where(counts, passed.joints, 0.0)
        assert where.shared is not None
        if chain.dense:
            # One tile for all: its counts are one product.
            through = self.through[:, begin:end, None]
            before = torch.where(through, joints[:, :-1], 0.0).flatten(0, 1)
            tile, edge = squares.probs[0], squares.side
            shrink = squares.shrink[0].repeat_interleave(edge, 0).repeat_interleave(edge, 1)
            tile = tile * shrink[: len(tile), : len(tile)]
            sums.add_rows(slice(0, len(tile)), (before.T @ pairs.flatten(0, 1)).mul_(tile))
            return
        if self.factors is None:
            states = chain.hmm.num_states
            table = counts_kernel.table_counts(squares, where, joints, pairs, states)
            sums.fields[0][:states] += table
            return
        if where.shared.there_are:
            given = (squares, where, joints, pairs)
            left, right = counts_kernel.shared_counts(*given, *self.factors, self.precision)
            self.kept = {}  # for the turned tiles are gone
            sums.fields[0].add_(left)
            sums.fields[1].add_(right)
        # A step that another follows is left as often as it is there.
        followed = torch.zeros_like(self.through[:, begin:end])
        last = self.through[:, begin + 1 : end + 1]
        followed[:, : last.shape[1]] = last
        counts = counts & followed[:, :, None]
        leaving = torch.where(counts, met.posteriors * used[:, None, None], 0.0)
        states = self.rows[self.here[:, begin:end]]  # (B, C, K)
        leaving = leaving.masked_fill(states < 0, 0.0).flatten()
        norm = sums.fields[2]
        norm.index_add_(0, states.clamp(min=0).flatten(), -leaving.to(norm.dtype))

    def _tiles(self, begin: int, end: int) -> tuple[tiles_kernel.Map, tiles_kernel.Squares]:
        """The tiles of a stretch, and where they stand; the last ones are kept for the way back."""
        if (begin, end) not in self.kept:
            self.kept = {}
            here, before = self.here[:, begin:end], self.before[:, begin:end]
            where = tiles_kernel.Map(self.rows, here.contiguous(), before.contiguous())
            if not self.chain.hmm.support.is_partition:
                where = tiles_kernel.used(where)
            where = tiles_kernel.share(where, with_order=not self.chain.dense)
            fields = self.chain.hmm.transitions.fields()
            how: dict[str, Any] = {"turned": self.back, "dtype": self.dtype}
            if self.factors is None:
                made = tiles_kernel.squares_of_table(fields[0], where, **how)
            else:
                made = tiles_kernel.squares_of_factors(
                    *self.factors, fields[2], where, self.precision, marks=self.marks, **how
                )
            self.kept = {(begin, end): (where, made)}
        return self.kept[begin, end]

    def _emissions(self, begin: int, end: int) -> kernel.Emissions:
        tokens = self.chain.tokens[:, begin:end].contiguous()
        given = (self.chain.hmm.log_emit, tokens, self._ends(begin, end))
        return kernel.emissions_of(*given, dtype=self.dtype)

    def _log_most(
        self, where: tiles_kernel.Map, squares: tiles_kernel.Squares, emissions: kernel.Emissions
    ) -> Float[Tensor, "B C"]:
        """The logs that were taken out of tiles and emissions."""
        assert where.shared is not None
        tiles = squares.log_most[where.shared.tile.clamp(min=0)]
        return emissions.log_most + torch.where(where.before < 0, 0.0, tiles)

    def trace(
        self, messages: Float[Tensor, "B T K"], num_paths: int, uniform: Tensor | None
    ) -> Int[Tensor, "B N T"]:
        """The way back through messages of all steps: the best, or drawn with `uniform` numbers."""
        chain = self.chain
        places = torch.empty(chain.batch, num_paths, chain.steps, dtype=torch.int32)
        places = places.to(messages.device)
        given = torch.full_like(places[:, :, 0], -1)
        for end in range(chain.steps, 0, -self.stretch):
            begin = max(end - self.stretch, 0)
            (where, squares), ends = self._tiles(begin, end), self._ends(begin, end)
            assert where.shared is not None
            made = trace_kernel.trace(
                _with_before(messages, begin, end, 1),
                squares.probs,
                squares.shrink,
                where.shared.tile,
                ends,
                num_paths=num_paths,
                given=given,
                uniform=None if uniform is None else _with_before(uniform, begin, end, 2),
                side=squares.side,
                is_first=begin == 0,
            )
            places[:, :, begin:end] = made[:, :, 1:]
            given = torch.where(ends[:, None] > 0, made[:, :, 0], -1)
        return places


def _over(joints: Tensor, totals: Tensor) -> Tensor:
    """Messages that sum to one, or to nothing."""
    return joints / torch.where(totals > 0, totals, 1.0)[..., None]


def _with_before(values: Tensor, begin: int, end: int, axis: int) -> Tensor:
    """The values of a stretch after those of the step before it, zeros where there is none."""
    part = values.narrow(axis, max(begin - 1, 0), end - max(begin - 1, 0))
    if begin > 0:
        return part.contiguous()
    return torch.cat([torch.zeros_like(part.narrow(axis, 0, 1)), part], axis)
