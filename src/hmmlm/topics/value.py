"""An HMM with topics, a value: the HMM, what each topic tilts, and how topics follow each other."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from hmmlm.errors import InputError
from hmmlm.hmm import HMM, emission_rows, emission_table, renormalise
from hmmlm.products import full_products
from hmmlm.support import Support
from hmmlm.transitions import FAR, Dense, Factored

GROUP = 1 << 24
"""Cells of the transitions that are made at a time."""

LEAST = 1e-250
"""Where a state's share falls under this float64 has lost digits, or will."""

LARGEST = 1 << 28
"""Cells of a dense table that `joined` makes."""


@dataclass(frozen=True)
class TopicHMM:
    """An HMM whose sentences each have a topic g, in proportion to what the topic makes of them:

        p(z' | z, g) = p(z' | z) exp(state_tilts[g, z']) / N(z, g),  p(z1 | g) likewise,
        p(x | z, g) = p(x | z) exp(word_tilts[g, x]) / N'(z, g).

    The first sentence of a text has a topic from `log_start`, the next one from
    `log_moves[topic, next]`. Within a sentence nothing moves: it is read from p(z1 | g). So it is
    an HMM of G x Z states, pairs of a topic and a state (`joined`), of which nearly all transitions
    are zero. `log_norms` is log N.
    """

    hmm: HMM
    word_tilts: Float[Tensor, "G V"]
    state_tilts: Float[Tensor, "G Z"]
    log_norms: Float[Tensor, "G Z"]
    log_start: Float[Tensor, " G"]
    log_moves: Float[Tensor, "G G"]

    @staticmethod
    def make(
        hmm: HMM,
        word_tilts: Float[Tensor, "G V"],
        state_tilts: Float[Tensor, "G Z"],
        log_start: Float[Tensor, " G"],
        log_moves: Float[Tensor, "G G"],
    ) -> "TopicHMM":
        """The checked value of these, its normalisers computed. O(Z^2 (G + H)) time."""
        hmm = hmm.detach()
        check_base(hmm)
        tilts = (part.to(hmm.device, hmm.dtype) for part in (word_tilts, state_tilts))
        moves = (part.to(hmm.device, torch.float64) for part in (log_start, log_moves))
        words, states = tilts
        made = TopicHMM(hmm, words, states, _log_norms(hmm, states), *moves)
        return made.validate()

    @property
    def num_topics(self) -> int:
        return len(self.log_start)

    def topics(self) -> tuple[Tensor, ...]:
        """All that the HMM without topics does not have."""
        return (
            self.word_tilts,
            self.state_tilts,
            self.log_norms,
            self.log_start,
            self.log_moves,
        )

    def to(self, device: torch.device | str) -> "TopicHMM":
        return TopicHMM(self.hmm.to(device), *(part.to(device) for part in self.topics()))

    def validate(self) -> "TopicHMM":
        """This value, after checking shapes, numbers, and that topics sum to one."""
        number, words, states = self.num_topics, self.hmm.vocab_size, self.hmm.num_states
        wanted = ((number, words), (number, states), (number, states), (number,), (number, number))
        given = tuple(tuple(part.shape) for part in self.topics())
        if number < 1 or given != wanted:
            raise InputError(
                f"The tables of topics are {', '.join(map(str, given))}, which does not fit an HMM "
                f"of {states:,} states and {words:,} words: it needs "
                f"{', '.join(map(str, wanted))}."
            )
        if not all(bool(part.isfinite().all()) for part in self.topics()):
            raise InputError(
                "A table of topics has a NaN or infinite cell; learn them again, with more penalty."
            )
        for name, table in (("log_start", self.log_start[None]), ("log_moves", self.log_moves)):
            error = float((table.exp().sum(1) - 1).abs().max())
            if error > 1e-4:
                raise InputError(
                    f"{name} of the topics is not normalised: a row sums to one only within "
                    f"{error:.3g}; apply log_softmax to your logits first."
                )
        return self

    def part(self, topic: int) -> HMM:
        """The HMM of a sentence whose topic is known. O(V K + Z H) time; factors are copied."""
        if not 0 <= topic < self.num_topics:
            raise InputError(
                f"There is no topic {topic:,}; this model has 0 to {self.num_topics - 1:,}."
            )
        hmm, tilt, norms = self.hmm, self.state_tilts[topic], self.log_norms[topic]
        table = hmm.transitions
        # Tilts are not rounded, whatever the table's own factors were rounded to.
        if isinstance(table, Dense):
            table = Dense(table.log_trans + tilt - norms[:, None])
        else:
            left = _with_column(table, table.left, torch.ones_like(tilt))
            right = _with_column(table, table.right, tilt)
            table = Factored(left, right, table.log_norm + norms, marks=table.marks)
        emissions = hmm.log_emit + self.word_tilts[topic][:, None]
        return replace(
            hmm,
            log_init=renormalise(hmm.log_init + tilt),
            transitions=table,
            log_emit=emission_table(emissions, hmm.support),
        )

    def parts(self) -> Iterator[HMM]:
        """The HMM of each topic, one at a time."""
        return map(self.part, range(self.num_topics))

    def joined(self, eos_id: int) -> HMM:
        """The one HMM of G x Z states that reads a text from its beginning to its end.

        State g Z + z is state z of topic g. The states of `<eos>` must emit nothing else: from
        them the topic moves and a sentence begins. Where all words have all states no state is
        of `<eos>` alone. O(G Z) rows; a dense table has (G Z)^2 cells.
        """
        owners = self.hmm.support.states_of(torch.tensor(eos_id, device=self.hmm.device))
        ends = torch.zeros(self.hmm.num_states, dtype=torch.bool, device=self.hmm.device)
        ends[owners[owners >= 0]] = True
        cells = self.hmm.support.state_words
        if bool((ends[cells.states] & (cells.words != eos_id)).any()):
            raise InputError(
                "States that emit <eos> emit other words too, so that no state says that a "
                "sentence is over; train a model with --blocks, where <eos> has a block of its own."
            )
        if isinstance(self.hmm.transitions, Dense):
            _check_table(len(self.log_start), self.hmm.num_states)
        parts = list(self.parts())
        support = _side_by_side(self.hmm.support, len(parts))
        starts = torch.stack([part.log_init for part in parts])  # (G, Z)
        emissions = torch.cat([part.log_emit for part in parts], 1)
        first = (self.log_start[:, None] + starts).flatten().to(self.hmm.dtype)
        onward = self.log_moves[:, :, None] + starts  # (G, G, Z)
        tables = [part.transitions for part in parts]
        factored = [table for table in tables if isinstance(table, Factored)]
        if len(factored) == len(tables):
            joint = _join_factors(factored, ends, starts, self.log_moves)
        else:
            joint = _join_tables(tables, ends, onward.flatten(1).to(self.hmm.dtype))
        return HMM(first, joint, emissions, support)


def check_base(hmm: HMM) -> None:
    if hmm.state_ids is not None or hmm.source_ids is not None:
        raise InputError("This HMM has some states of a larger one; give topics to the whole one.")
    if hmm.num_soft:
        raise InputError("This HMM has soft evidence; give topics to the one without.")
    if hmm.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"This HMM is in {str(hmm.dtype).removeprefix('torch.')} but topics need float32 or "
            f"float64; convert it first, as in hmm.to(dtype=torch.float32)."
        )


def _check_table(topics: int, states: int) -> None:
    if (cells := (topics * states) ** 2) > LARGEST:
        raise InputError(
            f"{topics:,} topics of {states:,} states make a table of {cells:,} cells, but "
            f"{LARGEST:,} is the most; join a model whose transitions are factored (kind lowrank "
            f"or mlp)."
        )


@torch.no_grad()
@full_products()
def _log_norms(hmm: HMM, tilts: Float[Tensor, "G Z"]) -> Float[Tensor, "G Z"]:
    """log sum_z' p(z' | z) exp(tilts[g, z']), summed in float64, some rows at a time."""
    most = tilts.double().amax(1)  # (G,)
    weights = (tilts.double() - most[:, None]).exp().T  # (Z, G)
    found = tilts.new_empty(tilts.shape)
    step = max(1, GROUP // hmm.num_states)
    for start in range(0, hmm.num_states, step):
        stop = min(start + step, hmm.num_states)
        rows = hmm.transitions.rows(start, stop).double()
        sums = rows.exp() @ weights  # (R, G)
        found[:, start:stop] = (sums.log() + most).T
        # Rows that do not reach the most tilted state, and others are hundreds of nats behind it.
        for topic in (sums < LEAST).any(0).nonzero()[:, 0].tolist():
            low = (sums[:, topic] < LEAST).nonzero()[:, 0]
            whole = torch.logsumexp(rows[low] + tilts[topic].double(), 1)
            found[topic, start + low] = whole.to(found.dtype)
    return found


def sum_by_state(
    emissions: list[tuple[Tensor, Tensor, Tensor]], values: Float[Tensor, "V G"], number: int
) -> Float[Tensor, "Z G"]:
    """sum_x p(x | z) values_x of every state. O(V K G) time."""
    states = torch.cat([part[0] for part in emissions])
    sums = [probs @ F.embedding(words, values) for _, words, probs in emissions]
    return values.new_zeros(number, values.shape[1]).index_add(0, states, torch.cat(sums))


def emission_parts(hmm: HMM, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The states of each block, its words, and p(word | state), (states, words), in a dtype.

    Where words share only some of their states there is one block: all of them. O(V Z) numbers
    then, and O(V K) otherwise.
    """
    support = hmm.support
    if not support.is_dense and not support.is_partition:
        states, words = (torch.arange(size) for size in (support.num_states, support.vocab_size))
        yield states.to(hmm.device), words.to(hmm.device), emission_rows(hmm).to(dtype).exp()
        return
    for states, words in zip(support.rows, support.words_by_row, strict=True):
        here = states >= 0
        yield states[here], words, hmm.log_emit[words][:, here].to(dtype).exp().T.contiguous()


def _with_column(
    table: Factored, factor: Float[Tensor, "Z H"], column: Float[Tensor, " Z"]
) -> Float[Tensor, "Z H+1"]:
    """A factor with a further column, before its marks."""
    return torch.cat([factor[:, : table.width], column[:, None], factor[:, table.width :]], 1)


def _side_by_side(support: Support, number: int) -> Support:
    """So many copies of a support, the states of one after those of the other."""
    shifts = support.num_states * torch.arange(number, device=support.rows.device)
    rows = torch.where(support.rows < 0, -1, support.rows + shifts[:, None, None])  # (G, R, K)
    joint = rows.transpose(0, 1).flatten(1)
    return Support(joint, support.row_of_word, number * support.num_states)


def _join_factors(
    tables: list[Factored],
    ends: Tensor,
    starts: Float[Tensor, "G Z"],
    moves: Float[Tensor, "G G"],
) -> Factored:
    """Factors of all pairs: two further columns say how a sentence begins, G more its topic.

    Within a sentence they are a mark between parts (`Factored.marks`); a state in which one ends
    has the moves of its topic there.
    """
    number, lefts, rights, norms = len(tables), [], [], []
    marks = torch.eye(number, device=starts.device, dtype=starts.dtype)
    for topic, table in enumerate(tables):
        begins = starts[topic].clamp(min=-FAR)[:, None]
        inside = torch.cat([table.left, 0 * begins], 1)
        outside = torch.cat([torch.zeros_like(table.left), torch.ones_like(begins)], 1)
        here = torch.where(ends[:, None], outside, inside)
        kept = -FAR * (1 - marks[topic]).expand(len(here), number)
        onward = moves[topic].to(starts.dtype).expand(len(here), number)
        lefts.append(torch.cat([here, torch.where(ends[:, None], onward, kept)], 1))
        own = marks[topic].expand(len(here), number)
        rights.append(torch.cat([table.right, begins, own], 1))
        norms.append(table.log_norm.masked_fill(ends, 0.0))
    return Factored(torch.cat(lefts), torch.cat(rights), torch.cat(norms), marks=number)


def _join_tables(
    tables: list[Dense | Factored], ends: Tensor, onward: Float[Tensor, "G GZ"]
) -> Dense:
    """The dense table of all pairs."""
    states = len(ends)
    joint = onward.new_full((len(tables) * states,) * 2, -torch.inf)
    for topic, table in enumerate(tables):
        own = slice(topic * states, (topic + 1) * states)
        joint[own, own] = table.rows(0, states)
        joint[own][ends] = onward[topic]
    return Dense(joint)
