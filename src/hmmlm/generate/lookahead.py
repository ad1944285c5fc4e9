"""How probable it is that a constraint is met before a text must end, exactly."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.errors import InputError, counted
from hmmlm.generate.automata import Automaton
from hmmlm.generate.emissions import REDONE, Words
from hmmlm.generate.plans import Plan, Plans
from hmmlm.hmm import HMM
from hmmlm.ops.links import TILE
from hmmlm.ops.messages import scaled
from hmmlm.products import full_products

MOST_BYTES = 8 << 30
KEPT = 8192


class Place(NamedTuple):
    """Where a text stands: its constraint, the state of the automaton, and the tokens left."""

    look: "Lookahead"
    state: int
    left: int


class NextWords(NamedTuple):
    """Of each word, in some texts: log p(it comes, and met), log p(it comes), may it come."""

    log_met: Float[Tensor, "B V"]  # float64
    log_probs: Float[Tensor, "B V"]
    legal: Bool[Tensor, "B V"]


@dataclass(frozen=True, eq=False)
class Lookahead:
    """An HMM beside an automaton: p(met | where both are, tokens left).

    A text is met if it ends in `<eos>` within the tokens left and the automaton accepts what comes
    before; with `open_ended` also if it fills them and is accepted as it is then. Texts of
    different lengths exclude each other, so this is a probability. With `log_weights`, one for
    each word, it is the expectation of the product of its words' weights over the texts that are
    met.

    `tables[r][q, z]` + `scales[r][q]` is log p(met | automaton in state q, hidden state z of the
    last token, r more tokens). Memory: budget x states of the automaton x states of the HMM.
    """

    hmm: HMM
    automaton: Automaton
    eos_id: int
    budget: int
    open_ended: bool
    log_weights: Float[Tensor, " V"] | None
    tables: tuple[Float[Tensor, "S Z"], ...]
    scales: tuple[Float[Tensor, " S"], ...]
    words: Words

    @staticmethod
    @torch.no_grad()
    def build(
        hmm: HMM,
        automaton: Automaton,
        *,
        eos_id: int,
        budget: int,
        open_ended: bool = False,
        log_weights: Float[Tensor, " V"] | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> "Lookahead":
        """O(budget (S Z^2 + S C Z)) for S states and C kinds of words of the automaton."""
        _check(hmm, automaton, eos_id, budget, log_weights, most_bytes)
        shortest = int(automaton.distance[0])
        if shortest + (not open_ended) > budget:
            if automaton.is_empty:
                raise InputError("No text meets the constraint, however long.")
            raise InputError(
                f"The shortest text that meets the constraint has {counted(shortest, 'token')}"
                f"{'' if open_ended else ' and <eos>'} but there is room for {budget:,}; allow "
                f"more."
            )
        hmm = hmm.detach()
        words = Words(hmm)
        made = Lookahead(hmm, automaton, eos_id, budget, open_ended, log_weights, (), (), words)
        tables, scales = [], []
        table = hmm.log_init.new_zeros(automaton.num_states, hmm.num_states)
        scale = made._end.log() if open_ended else torch.full_like(made._end, -torch.inf).double()
        tables.append(table)
        scales.append(scale.double())
        for left in range(1, budget):
            ahead, height = made._emit(tables[-1], scales[-1], left)
            table, rise = made._move(ahead, made.legal(left))
            tables.append(table)
            scales.append(height + rise)
        return replace(made, tables=tuple(tables), scales=tuple(scales))

    def legal(self, left: int) -> Bool[Tensor, " S"]:
        """Whether some text of at most so many more tokens is met, from each automaton state."""
        return self._distance <= left - (not self.open_ended)

    def is_legal(self, state: int, left: int) -> bool:
        """The same of one state."""
        return bool(self.automaton.distance[state] <= left - (not self.open_ended))

    @torch.no_grad()
    def log_met(
        self, log_states: Float[Tensor, "B Z"], places: Int[Tensor, " B"], left: int
    ) -> Float[Tensor, " B"]:
        """log p(met | p(next hidden state), automaton state, tokens left), float64."""
        self._check_left(left)
        ahead, height = self._emit(self.tables[left - 1], self.scales[left - 1], left, places)
        return torch.logsumexp(log_states + ahead, 1).double() + height

    def next_log_met(
        self, log_states: Float[Tensor, "B Z"], places: Int[Tensor, " B"], left: int
    ) -> Float[Tensor, "B V"]:
        """log p(the next token is w, and met | the same), float64; `<eos>` is one of them."""
        where = [Place(self, state, left) for state in places.tolist()]
        step = max(1, REDONE // self.hmm.vocab_size)
        found = [
            weigh_next(log_states[first : first + step], where[first : first + step]).log_met
            for first in range(0, len(where), step)
        ]
        return torch.cat(found)

    @full_products()
    def _emit(
        self, table: Tensor, scale: Tensor, left: int, places: Tensor | None = None
    ) -> tuple[Float[Tensor, "S Z"], Float[Tensor, " S"]]:
        """log p(met | the next token's hidden state z, automaton state q), over each row's largest.

        The sum over kinds of words of p(kind | z) p(met after it), and of `<eos>` where it accepts.
        Of all states of the automaton, or of those of `places`.
        """
        places = torch.arange(len(self._next), device=table.device) if places is None else places
        goals = self._next[places]  # (S, C)
        kinds = self._kinds  # (C, Z), log
        tops = kinds.max(1).values.clamp(min=-1e30).double()  # (C,)
        heights = scale[goals] + tops  # (S, C)
        ends = torch.where(self._end[places] > 0, 0.0, -torch.inf).double()
        height = torch.maximum(heights.max(1).values, ends)
        height = torch.where(torch.isneginf(height), 0.0, height)
        probs, shares = table.exp(), (kinds - tops[:, None].to(kinds)).exp()
        factors = (heights - height[:, None]).exp().to(table)  # (S, C)
        total = (ends - height).exp().to(table)[:, None] * self._ends.exp()  # (S, Z)
        for kind in range(goals.shape[1]):
            total += probs[goals[:, kind]] * shares[kind] * factors[:, kind, None]
        found = total.log()
        poor = (total < scaled.lowest(total.dtype)) & self.legal(left)[places, None]
        if poor.any():
            poor &= self._can_emit(table, scale, places)
        rows, states = poor.nonzero(as_tuple=True)
        step = max(1, TILE // goals.shape[1])
        for some in torch.arange(len(rows), device=rows.device).split(step):
            q, z = rows[some], states[some]
            terms = table[goals[q], z[:, None]] + kinds[:, z].T + scale[goals[q]]  # (N, C)
            end = ends[q, None] + self._ends[z, None]
            exact = torch.logsumexp(torch.cat([terms, end], 1), 1) - height[q]
            found[q, z] = exact.to(found)
        return found, height

    def _can_emit(self, table: Tensor, scale: Tensor, places: Tensor) -> Bool[Tensor, "S Z"]:
        """Where `_emit` is not the logarithm of zero."""
        goals = self._next[places]
        can_go = table.isfinite() & scale.isfinite()[:, None]
        can_be = self._kinds.isfinite()
        found = (self._end[places] > 0)[:, None] & self._ends.isfinite()
        for kind in range(goals.shape[1]):
            found = found | (can_go[goals[:, kind]] & can_be[kind])
        return found

    @full_products()
    def _move(
        self, ahead: Tensor, legal: Tensor
    ) -> tuple[Float[Tensor, "S Z"], Float[Tensor, " S"]]:
        """log sum_z' p(z' | z) p(met | z'), over each row's largest."""
        top = ahead.max(1).values
        legal = legal & top.isfinite()
        top = top.clamp(min=-1e30)
        probs = (ahead - top[:, None]).exp()  # (S, Z)
        found = torch.empty_like(ahead)
        step = max(1, TILE // self.hmm.num_states)
        for start in range(0, self.hmm.num_states, step):
            stop = min(start + step, self.hmm.num_states)
            moves = (
                self.hmm.transitions.rows(start, stop).exp()
                if self._moves is None
                else self._moves[start:stop]
            )
            total = probs @ moves.T  # (S, N)
            found[:, start:stop] = total.log()
            poor = (total < scaled.lowest(total.dtype)) & legal[:, None]
            states, sources = poor.nonzero(as_tuple=True)
            rows = self.hmm.transitions.rows(start, stop) if len(states) else moves
            for some in torch.arange(len(states), device=states.device).split(step):
                terms = rows[sources[some]] + ahead[states[some]] - top[states[some], None]
                found[states[some], start + sources[some]] = torch.logsumexp(terms, 1)
        highest = found.max(1).values
        kept = torch.isfinite(highest)
        shift = torch.where(kept, highest, 0.0)
        rise = torch.where(kept, (top + shift).double(), -torch.inf)
        return found - shift[:, None], rise

    @cached_property
    def _moves(self) -> Float[Tensor, "Z Z"] | None:
        """p(z' | z), of few enough states to keep it while tables are made."""
        states = self.hmm.num_states
        return self.hmm.transitions.rows(0, states).exp() if states <= KEPT else None

    @cached_property
    def _next(self) -> Int[Tensor, "S C"]:
        return torch.from_numpy(self.automaton.next).to(self.hmm.device)

    @cached_property
    def _distance(self) -> Int[Tensor, " S"]:
        return torch.from_numpy(self.automaton.distance).to(self.hmm.device)

    @cached_property
    def _column(self) -> Int[Tensor, " V"]:
        return torch.from_numpy(self.automaton.column).to(self.hmm.device)

    @cached_property
    def plans(self) -> Plans:
        return Plans(self.automaton, self.eos_id, self._column)

    @cached_property
    def _end(self) -> Float[Tensor, " S"]:
        """1 where a text may end."""
        return torch.from_numpy(self.automaton.accepting).to(self.hmm.device, self.hmm.dtype)

    @cached_property
    def _ends(self) -> Float[Tensor, " Z"]:
        """log p(`<eos>` | z), with its weight."""
        is_eos = torch.arange(self.hmm.vocab_size, device=self.hmm.device) == self.eos_id
        return self._sums(is_eos)[1]

    @cached_property
    def _kinds(self) -> Float[Tensor, "C Z"]:
        """log p(a word of each kind | z), `<eos>` not among them, with their weights."""
        column = self._column + 1
        column[self.eos_id] = 0
        return self._sums(column)[1:]

    def _sums(self, column: Tensor) -> Tensor:
        """log sum of p(w | z) over the words of each column, summed in float64."""
        column, hmm = column.long(), self.hmm
        number = max(int(column.max()) + 1, self.automaton.num_columns + 1)
        total = torch.zeros(number, hmm.num_states, dtype=torch.float64, device=hmm.device)
        words = torch.arange(hmm.vocab_size, device=hmm.device)
        for part in words.split(max(1, TILE // hmm.support.width)):
            logs = hmm.log_emit[part].double()
            if self.log_weights is not None:
                logs = logs + self.log_weights[part, None]
            states = hmm.support.states_of(part)
            flat = column[part][:, None] * hmm.num_states + states.clamp(min=0)
            total.view(-1).index_add_(0, flat.reshape(-1), logs.exp().reshape(-1))
        return total.log().to(hmm.dtype)

    def _check_left(self, left: int) -> None:
        if not 1 <= left <= self.budget:
            raise InputError(
                f"There are {left:,} tokens left but this looks at most {self.budget:,} ahead."
            )


@torch.no_grad()
def weigh_next(log_states: Float[Tensor, "B Z"], places: Sequence[Place]) -> NextWords:
    """What may come next in texts of constraints that look ahead with one HMM and one `<eos>`.

    Row n has p(next hidden state) of `log_states[n]` and stands at `places[n]`. One product of all
    rows and goals with all words, O((B + G) V K) for G goals of many words, and sums over single
    words, O(N K).
    """
    for place in places:
        place.look._check_left(place.left)
    look, size, device = places[0].look, len(places), log_states.device
    plans = [place.look.plans.of(place.state) for place in places]
    tables = [place.look.tables[place.left - 1] for place in places]
    scales = [place.look.scales[place.left - 1] for place in places]
    goals = [plan.goals for plan in plans]
    counts = [len(some) for some in goals]
    lefts = [place.left - 1 - (not place.look.open_ended) for place in places]
    facts = np.stack([counts, np.cumsum([0, *counts[:-1]]), lefts])
    count, before, left = torch.from_numpy(facts).to(device)
    rows = torch.arange(size, device=device).repeat_interleave(count, output_size=sum(counts))
    asked = torch.cat([log_states, log_states[rows] + _gather(tables, goals)])
    words, answers = look.words.log_probs(asked).split([size, len(rows)])
    none = words.new_full((1, words.shape[1]), -torch.inf, dtype=torch.float64)
    answers = torch.cat([none, answers.double() + _gather(scales, goals)[:, None]])
    which = torch.stack([plan.which for plan in plans])
    found = answers.gather(0, torch.where(which > 0, which + before[:, None], 0))
    _put_single(found, log_states, plans, tables, scales, look.hmm)
    far = torch.stack([plan.far for plan in plans])
    eos = look.eos_id
    found[:, eos] = torch.where(far[:, eos] < 0, words[:, eos].double(), -torch.inf)
    if any(place.look.log_weights is not None for place in places):
        zeros = log_states.new_zeros(found.shape[1])
        weights = (place.look.log_weights for place in places)
        found += torch.stack([zeros if some is None else some for some in weights])
    return NextWords(found, words, far <= left[:, None])


def _put_single(
    found: Float[Tensor, "B V"],
    log_states: Float[Tensor, "B Z"],
    plans: Sequence[Plan],
    tables: Sequence[Float[Tensor, "S Z"]],
    scales: Sequence[Float[Tensor, " S"]],
    hmm: HMM,
) -> None:
    """Writes what words that lead to a goal with few others have."""
    cells = REDONE if found.device.type == "cuda" else min(TILE, REDONE)  # what a cache holds
    step = max(1, cells // hmm.support.width)
    pieces = [
        (row, *both)
        for row, plan in enumerate(plans)
        for both in zip(plan.words.split(step), plan.their_goals.split(step), strict=True)
    ]
    while pieces:
        sizes = np.cumsum([len(words) for _, words, _ in pieces])
        number = max(1, int((sizes <= step).sum()))
        some, pieces = pieces[:number], pieces[number:]
        of, words, goals = zip(*some, strict=True)
        rows = torch.from_numpy(np.repeat(of, [len(part) for part in words])).to(found.device)
        ahead = _gather([tables[row] for row in of], goals)  # (N, Z)
        height = _gather([scales[row] for row in of], goals)
        words = torch.cat(words)
        ahead += log_states[rows]
        if not hmm.support.is_dense:
            ahead = ahead.gather(1, hmm.support.states_of(words).clamp(min=0))
        total = torch.logsumexp(ahead + hmm.log_emit[words], 1)
        found[rows, words] = total.double() + height


def _gather(tables: Sequence[Tensor], rows: Sequence[Int[Tensor, " N"]]) -> Tensor:
    """The rows of each table, one after the other."""
    if all(table is tables[0] for table in tables):
        return tables[0][torch.cat(list(rows))]
    return torch.cat([table[some] for table, some in zip(tables, rows, strict=True)])


def _check(
    hmm: HMM,
    automaton: Automaton,
    eos_id: int,
    budget: int,
    log_weights: Tensor | None,
    most_bytes: int,
) -> None:
    if automaton.num_letters != hmm.vocab_size:
        raise InputError(
            f"The constraint reads {automaton.num_letters:,} tokens but the HMM emits "
            f"{hmm.vocab_size:,}; compile it for the HMM's tokenizer."
        )
    if not 0 <= eos_id < hmm.vocab_size:
        raise InputError(
            f"eos_id is {eos_id:,} but this vocabulary has ids 0 to {hmm.vocab_size - 1:,}."
        )
    if budget < 1:
        raise InputError(f"budget is {budget:,} but must be at least 1.")
    if log_weights is not None and (
        log_weights.shape != (hmm.vocab_size,)
        or bool((torch.isnan(log_weights) | (log_weights == torch.inf)).any())
    ):
        raise InputError(
            f"log_weights is {tuple(log_weights.shape)} but must be ({hmm.vocab_size},) and "
            f"numbers: one for each word."
        )
    if hmm.state_ids is not None or hmm.source_ids is not None:
        raise InputError("This HMM has some states of a larger one; look ahead with the whole one.")
    size = budget * automaton.num_states * hmm.num_states * hmm.log_init.element_size()
    if size > most_bytes:
        raise InputError(
            f"Looking {budget:,} tokens ahead through {automaton.num_states:,} x "
            f"{hmm.num_states:,} states takes {size / 2**30:.1f} GiB, over the limit of "
            f"{most_bytes / 2**30:.1f}; ask for less at once, allow fewer tokens, or raise the "
            f"limit."
        )
