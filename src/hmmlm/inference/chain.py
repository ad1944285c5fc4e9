"""Tokens laid over an HMM: what every recursion asks for, step by step."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.errors import InputError, counted
from hmmlm.hmm import HMM
from hmmlm.ops.links import TILE, Link, Table, Tiles, Wide, gather, spread
from hmmlm.ops.messages import reference, scaled
from hmmlm.results import Belief, FoundBelief
from hmmlm.transitions import Dense

MISSING = -1
"""The id of a token that is there but unknown: it is summed over."""


FEW = 1 << 23
"""Cells of the tiles between the states of words and all states that are made at once."""

ENTERED = 1 << 26
"""Cells of the tiles between the states of a carried belief and those of the first words."""

LIFT = -230.0
"""The log of a probability that matters to no sum, and whose cube float64 still holds."""


class Chain:
    """A batch of token rows over one HMM.

    Step t of a row lives on the states that may emit its token; a missing token, and one that
    stands for soft evidence, may come from any state. Where some row has such a token and words do
    not have all states, the step is wide: all rows use all states there.
    """

    def __init__(
        self,
        hmm: HMM,
        tokens: Int[Tensor, "B T"],
        *,
        lengths: Int[Tensor, " B"] | None = None,
        belief: Belief | None = None,
        reset_id: int | None = None,
        restart: Bool[Tensor, "B T"] | None = None,
        table: Table | None = None,
    ) -> None:
        self.is_full = lengths is None  # rows have all steps
        self.vocab_size = hmm.vocab_size  # without soft evidence, which may become words here
        tokens, lengths = check_tokens(
            hmm.vocab_size, tokens, lengths, reset_id, num_soft=hmm.num_soft
        )
        if hmm.num_soft and hmm.support.is_dense:
            hmm = hmm.with_soft_words
        tokens, lengths = tokens.to(hmm.device), lengths.to(hmm.device)
        self.belief = None if belief is None else belief.checked().to(hmm.device)
        if belief is not None and belief.fresh.shape[0] != tokens.shape[0]:
            raise InputError(
                f"The belief has {counted(belief.fresh.shape[0], 'row')} but tokens has "
                f"{tokens.shape[0]:,}; carry one row of belief for each row of tokens."
            )
        self.hmm = hmm
        # Copies: a gradient may ask for them when the caller has moved on.
        self.lengths = lengths.clone()  # (B,)
        if self.is_full:
            self.active = torch.ones_like(tokens, dtype=torch.bool)  # (B, T)
            self.tokens = tokens.clone()  # (B, T)
        else:
            self.active = torch.arange(tokens.shape[1], device=hmm.device) < lengths[:, None]
            # Past a row's end the recursions go on over word 0 and what they find is not used.
            self.tokens = torch.where(self.active, tokens, 0)
        self.soft: Tensor | None = None  # (B, T): the number of a piece of soft evidence, or less
        if hmm.log_soft is not None:
            # Such a token is one that is missing, with emissions of its own.
            self.soft = self.tokens - hmm.vocab_size
            self.tokens = torch.where(self.soft >= 0, MISSING, self.tokens)
        self.reset_id = reset_id
        after_reset = torch.zeros_like(self.active)
        if reset_id is not None:
            after_reset[:, 1:] = self.tokens[:, :-1] == reset_id
        if self.belief is None:
            after_reset[:, 0].fill_(True)
        else:
            after_reset[:, 0] = self.belief.fresh
        if restart is not None:
            if restart.shape != tokens.shape or restart.dtype != torch.bool:
                raise InputError(
                    f"restart is {restart.dtype} of shape {tuple(restart.shape)} but must be "
                    f"torch.bool of shape {tuple(tokens.shape)}, as tokens is."
                )
            after_reset |= restart.to(hmm.device)
        self.restart = after_reset  # (B, T): z_t is drawn from p(z1)
        self.missing = self.active & (self.tokens == MISSING)  # (B, T)
        self.dense = hmm.support.is_dense
        self.wide: list[bool] = (
            [False] * tokens.shape[1] if self.dense else self.missing.any(0).tolist()
        )
        self.table = make_table(hmm) if table is None else table

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def steps(self) -> int:
        return self.tokens.shape[1]

    @cached_property
    def any_restart(self) -> list[bool]:
        """Whether a row starts afresh at a step."""
        return self.restart.any(0).tolist()

    @cached_property
    def missing_rows(self) -> Bool[Tensor, "B T"]:
        """Where a missing token needs more states than a word has: it is kept apart."""
        return torch.zeros_like(self.missing) if self.dense else self.missing

    @cached_property
    def missing_order(self) -> Int[Tensor, "B T"]:
        """The number of each such place, in order of (b, t)."""
        return self.missing_rows.flatten().cumsum(0).view_as(self.missing_rows.long()) - 1

    def select(self, rows: Int[Tensor, " N"]) -> "Chain":
        """The chain of some of the rows."""
        tokens = self.tokens
        if self.soft is not None:
            tokens = torch.where(self.soft >= 0, self.soft + self.hmm.vocab_size, tokens)
        return Chain(
            self.hmm,
            tokens[rows],
            lengths=self.lengths[rows],
            belief=None if self.belief is None else self.belief.select(rows),
            reset_id=self.reset_id,
            restart=self.restart[rows],
            table=self.table,
        )

    def widened(self, rows: Int[Tensor, " N"]) -> tuple["Chain", str]:
        """Some of the rows, and the arithmetic that keeps digits which `scaled` lost there.

        That is float64 first, many times faster than log space.
        """
        part = self.select(rows)
        if self.hmm.dtype == torch.float64:
            return part, "reference"
        part.hmm = self.hmm.to(dtype=torch.float64)
        part.table = make_table(part.hmm)
        return part, "scaled"

    def lifted(self) -> "Chain | None":
        """The chain with nothing in its tables so small that float64 could lose it on the way.

        No number of theirs becomes smaller, so that no message says less than the truth. None
        where tables cannot be changed so: where words have few states, those may be factors.
        """
        hmm = self.hmm
        if hmm.dtype != torch.float64 or not self.dense or not self.table.is_resident:
            return None
        if self.soft is not None or hmm.transitions.num_sources != hmm.num_states:
            return None
        least = torch.tensor(LIFT, dtype=hmm.dtype, device=hmm.device)
        log_emit = hmm.log_emit.clamp(min=2 * LIFT)
        part = self.select(torch.arange(self.batch, device=hmm.device))
        part.hmm = replace(
            hmm,
            log_init=torch.logaddexp(hmm.log_init, least),
            transitions=Dense(torch.logaddexp(self.table.log_rows, least)),
            log_emit=torch.where(hmm.log_emit > -torch.inf, log_emit, -torch.inf),
        )
        part.table = make_table(part.hmm)
        return part

    def states(self, step: int) -> Int[Tensor, "B K"] | None:
        """The local ids of the states of a step, padded with -1; None when it has all of them."""
        if self.dense or self.wide[step]:
            return None
        return self.hmm.support.states_of(self.tokens[:, step])

    def local_at(self, step: int, slots: Int[Tensor, "B N"]) -> Int[Tensor, "B N"]:
        """The local ids of states given by their place among those of a step."""
        states = self.states(step)
        return slots if states is None else states.gather(1, slots)

    def states_at(self, step: int, slots: Int[Tensor, "B N"]) -> Int[Tensor, "B N"]:
        """The global ids of states given by their place among those of a step."""
        return self.hmm.global_states(self.local_at(step, slots))

    def emission(self, step: int) -> Float[Tensor, "B W"]:
        """log p(x_t | z_t) on the states of the step; 0 where the token is missing.

        Where it stands for soft evidence, what that says of each state.
        """
        tokens = self.tokens[:, step]
        emission = self.hmm.log_emit[tokens.clamp(min=0)]  # (B, K)
        if self.wide[step]:
            states = self.hmm.support.states_of(tokens.clamp(min=0))
            emission = spread(emission, states, self.hmm.num_states, -torch.inf)
        emission = emission.masked_fill((tokens == MISSING)[:, None], 0.0)
        if self.soft is not None and self.wide[step] and self.hmm.log_soft is not None:
            which = self.soft[:, step, None]
            emission = torch.where(
                which >= 0, self.hmm.log_soft[which[:, 0].clamp(min=0)], emission
            )
        return emission

    def link(self, step: int) -> Link:
        """What stands between step - 1 and `step`."""
        return self.between(self.states(step - 1), self.states(step))

    def between(
        self, sources: Int[Tensor, "B K"] | None, destinations: Int[Tensor, "B L"] | None
    ) -> Link:
        """The link from some states to some; None stands for all of them."""
        if sources is not None and destinations is not None:
            return self.tiles(sources, destinations)
        named = destinations if sources is None else sources
        states = self.hmm.num_states
        if named is None or named.numel() >= states or named.numel() * states > FEW:
            return Wide(self.table, sources, destinations)
        # Tiles of few states by all are less than the table, which would be streamed as a whole.
        everything = torch.arange(states, device=self.hmm.device).expand(self.batch, -1)
        return self.tiles(
            everything if sources is None else sources,
            everything if destinations is None else destinations,
        )

    def among(
        self, sources: Int[Tensor, "N K"] | None, destinations: Int[Tensor, "N L"] | None
    ) -> Wide:
        """The link of some rows between named states and all: only what some row names is made."""
        named = destinations if sources is None else sources
        if named is None:
            return Wide(self.table)
        ids, place = named.unique(return_inverse=True)
        if ids[0] < 0:
            ids, place = ids[1:], place - 1  # padding stays -1
        most = 2 * len(ids) > self.hmm.num_states and isinstance(self.hmm.transitions, Dense)
        if most or not len(ids):  # rather than copy most of it, or make a table of nothing
            return Wide(self.table, sources, destinations)
        rows, columns = (None, ids) if sources is None else (ids, None)
        sources, destinations = (None, place) if sources is None else (place, None)
        part = self.hmm.transitions.among(rows, columns)
        size = self.hmm.num_states if rows is None else len(rows)
        return Wide(Table(part, size, keep=False), sources, destinations, rows, columns)

    def tiles(self, sources: Int[Tensor, "B K"], destinations: Int[Tensor, "B L"]) -> Tiles:
        """The link between named sources and named states, -inf in padding."""
        tile = self.hmm.transitions.tile(sources, destinations)
        padding = (sources < 0)[:, :, None] | (destinations < 0)[:, None, :]
        return Tiles(tile.masked_fill(padding, -torch.inf), sources, destinations)

    def columns(self, step: int, copies: int = 1) -> Iterator[tuple[slice, Float[Tensor, "R K C"]]]:
        """The link into a step as log p(j | i) for some j at a time and all i, -inf in padding.

        At most about TILE cells of a row times `copies` at once; a tile of all states is one for
        all rows.
        """
        sources, destinations = self.states(step - 1), self.states(step)
        everything = torch.arange(self.hmm.num_states, device=self.hmm.device)
        is_whole = sources is None and destinations is None
        rows = 1 if is_whole else self.batch
        sources = everything.expand(rows, -1) if sources is None else sources
        destinations = everything.expand(rows, -1) if destinations is None else destinations
        size = max(1, TILE // (self.batch * sources.shape[1] * copies))
        for start in range(0, destinations.shape[1], size):
            span = slice(start, start + size)
            if is_whole and self.table.is_resident:
                yield span, self.table.log_rows[None, :, span]
            else:
                yield span, self.tiles(sources, destinations[:, span]).log_tile

    def initial(self, step: int) -> Float[Tensor, "B W"]:
        """log p(z1) on the states of a step."""
        log_init = self.hmm.log_init.expand(self.batch, -1)
        return gather(log_init, self.states(step), -torch.inf)

    @cached_property
    def first(self) -> Float[Tensor, "B W"]:
        """log p(z_1 | what came before): from p(z1), or from the carried belief, in log space."""
        initial = self.initial(0)
        if self.belief is None or bool(self.restart[:, 0].all()):
            return initial
        message, link = self.entry()
        prediction = predict(link, message)
        return torch.where(self.restart[:, :1], initial, prediction)

    def entry(self) -> tuple[Float[Tensor, "B K"], Link]:
        """The carried belief as a message, and the link from its states to those of step 0."""
        assert self.belief is not None
        sources = self.hmm.local_sources(self.belief.states)
        message = self.belief.log_probs.to(self.hmm.dtype)
        fresh = self.restart[:, :1]
        message = torch.where(fresh, -torch.inf, message)
        destinations = self.states(0)
        table = self.hmm.transitions.num_sources * self.hmm.num_states
        most = max(TILE, min(ENTERED, table))  # beyond that the table is streamed as a whole
        if destinations is not None and sources.numel() * destinations.shape[1] <= most:
            return message, self.tiles(sources, destinations)
        return message, Wide(entry_table(self.hmm, self.table), sources, destinations)

    def belief_at_end(self, states: Int[Tensor, "B W"], log_probs: Float[Tensor, "B W"]) -> Belief:
        """The belief to carry on with, given the last step's states and log-probabilities."""
        last = self.tokens.gather(1, self.lengths[:, None] - 1)[:, 0]
        fresh = torch.zeros_like(last, dtype=torch.bool)
        if self.reset_id is not None:
            fresh = last == self.reset_id
        return FoundBelief(self.hmm.global_states(states), log_probs, fresh)


def predict(link: Link, log_message: Float[Tensor, "B K"]) -> Float[Tensor, "B L"]:
    """log sum_i exp(log_message_i) p(j | i) for every j, exact however small it is."""
    if isinstance(link, Tiles):
        return reference.push(link, log_message)[0]
    probs, _ = scaled.push(link, log_message.exp())
    log_probs = probs.log()
    # A row that begins anew comes without a message, and has nothing to lose.
    low = (probs < scaled.lowest(probs.dtype)).any(1) & log_message.isfinite().any(1)
    if low.any():
        sources = None if link.sources is None else link.sources[low]
        destinations = None if link.destinations is None else link.destinations[low]
        exact, _ = reference.push(Wide(link.table, sources, destinations), log_message[low])
        log_probs[low] = exact
    return log_probs


def make_table(hmm: HMM) -> Table:
    """The transition table as links use it: whole where every step goes through all of it."""
    return Table(hmm.transitions, hmm.num_states, keep=hmm.support.is_dense)


def entry_table(hmm: HMM, table: Table) -> Table:
    """The table for a belief that is carried in, with the rows of sources outside the states."""
    sources = hmm.transitions.num_sources
    return table if sources == hmm.num_states else Table(hmm.transitions, sources, keep=False)


def check_tokens(
    vocab_size: int,
    tokens: Any,
    lengths: Any,
    reset_id: int | None = None,
    *,
    num_soft: int = 0,
) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
    """The tokens and their lengths as int64, after checking both; arrays and lists will do.

    After the words there are ids of soft evidence, so many.
    """
    tokens = torch.as_tensor(tokens)
    if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise InputError(
            f"tokens must be integer ids of shape (batch, time), not {tokens.dtype} of shape "
            f"{tuple(tokens.shape)}."
        )
    batch, steps = tokens.shape
    if batch == 0 or steps == 0:
        raise InputError(f"tokens is empty, shape {(batch, steps)}; give at least one token.")
    tokens = tokens.long()
    last = vocab_size + num_soft - 1
    outside = (tokens > last) | (tokens < MISSING)
    is_full = lengths is None
    if is_full:
        lengths = torch.full((batch,), steps, device=tokens.device)
    lengths = torch.as_tensor(lengths, device=tokens.device)
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise InputError(f"lengths must be whole numbers, not {lengths.dtype}.")
    lengths = lengths.long()
    if lengths.shape != (batch,):
        raise InputError(
            f"lengths has shape {tuple(lengths.shape)} but tokens has "
            f"{counted(batch, 'row')}; give one length per row."
        )
    if is_full:
        wrong = outside.any()
    else:
        outside &= torch.arange(steps, device=tokens.device) < lengths[:, None]
        wrong = outside.any() | ((lengths < 1) | (lengths > steps)).any()
    if wrong:  # the one question that a GPU is waited for
        least, most = int(lengths.min()), int(lengths.max())
        if least < 1 or most > steps:
            raise InputError(
                f"lengths has {least if least < 1 else most:,} but every length must lie between 1 "
                f"and {steps:,}, the number of steps; drop empty rows."
            )
        raise InputError(
            f"tokens has id {int(tokens[outside][0]):,} but this vocabulary ends at "
            f"{last:,} (-1 marks a missing token); re-encode the text with it."
        )
    if reset_id is not None and not 0 <= reset_id < vocab_size:
        raise InputError(
            f"reset_id is {reset_id:,} but this vocabulary has ids 0 to {vocab_size - 1:,}."
        )
    return tokens, lengths


def all_states(chain: Chain) -> Int[Tensor, "B Z"]:
    """The local ids of all states, for every row."""
    return torch.arange(chain.hmm.num_states, device=chain.hmm.device).expand(chain.batch, -1)
