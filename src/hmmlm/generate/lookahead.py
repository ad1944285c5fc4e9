"""How probable it is that a constraint is met before a text must end, exactly."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.errors import InputError, counted
from hmmlm.generate.automata import Automaton
from hmmlm.generate.blocks import Block, add_up, make_blocks
from hmmlm.generate.emissions import REDONE, Words, pieces
from hmmlm.generate.plans import Plans, put_together
from hmmlm.hmm import HMM
from hmmlm.ops.links import TILE
from hmmlm.ops.messages import scaled
from hmmlm.products import full_products

MOST_BYTES = 8 << 30
MOVES_STATES = 8192
"""Up to so many states p(z' | z) is kept while tables are made."""


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
        log_weights = None if log_weights is None else log_weights.to(hmm.device)
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
        chosen = torch.arange(len(self._next), device=table.device) if places is None else places
        goals = self._next[chosen]  # (S, C)
        kinds = self._kinds  # (C, Z), log
        tops = kinds.max(1).values.clamp(min=-1e30).double()  # (C,)
        heights = scale[goals] + tops  # (S, C)
        ends = torch.where(self._end[chosen] > 0, 0.0, -torch.inf).double()
        height = torch.maximum(heights.max(1).values, ends)
        height = torch.where(torch.isneginf(height), 0.0, height)
        shares = (kinds - tops[:, None].to(kinds)).exp()
        factors = (heights - height[:, None]).exp().to(table)  # (S, C)
        total = (ends - height).exp().to(table)[:, None] * self._ends.exp()  # (S, Z)
        blocks = self._blocks
        if places is not None:
            blocks = make_blocks(goals.cpu().numpy(), table.device)
        add_up(total, table.exp(), shares, factors, blocks)
        found = total.log()
        poor = (total < scaled.lowest(total.dtype)) & self.legal(left)[chosen, None]
        rows, states = poor.nonzero(as_tuple=True)
        if len(rows):
            can_go = table.isfinite() & scale.isfinite()[:, None]
            can_end = (self._end[chosen, None] > 0) & self._ends.isfinite()
            can, go, be = (some.to(table) for some in (can_end, can_go, kinds.isfinite()))
            poor &= add_up(can, go, be, torch.ones_like(factors), blocks) > 0
            rows, states = poor.nonzero(as_tuple=True)
        step = max(1, pieces(rows.device) // goals.shape[1])
        for some in torch.arange(len(rows), device=rows.device).split(step):
            q, z = rows[some], states[some]
            terms = table[goals[q], z[:, None]] + kinds[:, z].T + scale[goals[q]]  # (N, C)
            end = ends[q, None] + self._ends[z, None]
            exact = torch.logsumexp(torch.cat([terms, end], 1), 1) - height[q]
            found[q, z] = exact.to(found)
        return found, height

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
        size, step = self.hmm.num_states, max(1, TILE // self.hmm.num_states)
        width = step if self._moves is None else size
        for start in range(0, size, width):
            stop = min(start + width, size)
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
            redone = max(1, pieces(states.device) // size)
            for some in torch.arange(len(states), device=states.device).split(redone):
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
        return self.hmm.transitions.rows(0, states).exp() if states <= MOVES_STATES else None

    @cached_property
    def _next(self) -> Int[Tensor, "S C"]:
        return torch.from_numpy(self.automaton.next).to(self.hmm.device)

    @cached_property
    def _blocks(self) -> list[Block]:
        return make_blocks(self.automaton.next, self.hmm.device)

    @cached_property
    def _distance(self) -> Int[Tensor, " S"]:
        return torch.from_numpy(self.automaton.distance).to(self.hmm.device)

    @cached_property
    def _column(self) -> Int[Tensor, " V"]:
        return torch.from_numpy(self.automaton.column).to(self.hmm.device)

    @cached_property
    def plans(self) -> Plans:
        return Plans(self.automaton)

    @cached_property
    def _end(self) -> Float[Tensor, " S"]:
        """1 where a text may end."""
        return torch.from_numpy(self.automaton.accepting).to(self.hmm.device, self.hmm.dtype)

    @cached_property
    def _ends(self) -> Float[Tensor, " Z"]:
        """log p(`<eos>` | z), with its weight."""
        return self._sum(torch.tensor([self.eos_id]), torch.tensor([0]), 1)[0]

    @cached_property
    def _kinds(self) -> Float[Tensor, "C Z"]:
        """log p(a word of each kind | z), `<eos>` not among them, with their weights."""
        words = torch.arange(self.hmm.vocab_size)
        words = words[words != self.eos_id]
        return self._sum(
            words, torch.from_numpy(self.automaton.column)[words], self.automaton.num_columns
        )

    def _sum(self, words: Tensor, column: Tensor, number: int) -> Tensor:
        """log sum of p(w | z) over the words of each column, summed in float64."""
        hmm = self.hmm
        words, column = words.to(hmm.device), column.to(hmm.device)
        total = torch.zeros(number, hmm.num_states, dtype=torch.float64, device=hmm.device)
        step = max(1, pieces(hmm.device) // hmm.support.width)
        for some, of in zip(words.split(step), column.split(step), strict=True):
            logs = hmm.log_emit[some].double()
            if self.log_weights is not None:
                logs = logs + self.log_weights[some, None]
            if hmm.support.is_dense:
                total.index_add_(0, of, logs.exp_())
            else:
                states = hmm.support.states_of(some).clamp(min=0)
                flat = of[:, None] * hmm.num_states + states
                total.view(-1).index_add_(0, flat.reshape(-1), logs.exp_().reshape(-1))
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
    look, tables = places[0].look, [place.look.tables[place.left - 1] for place in places]
    lefts = [place.left - 1 - (not place.look.open_ended) for place in places]
    plans = [
        (place.look.plans, place.state, left) for place, left in zip(places, lefts, strict=True)
    ]
    asked = put_together(plans, log_states.device)
    ahead = _gather(tables, asked.goals.split(asked.counts))  # (R, Z)
    ahead += log_states[asked.rows]
    heights = torch.cat([place.look.scales[place.left - 1] for place in places])[asked.scales]
    together = torch.cat([log_states, ahead[asked.many]])
    words, answers = look.words.log_probs(together).split([len(places), len(asked.many)])
    none = words.new_full((1, words.shape[1]), -torch.inf, dtype=torch.float64)
    answers = torch.cat([none, answers.double() + heights[asked.many, None]])
    columns = torch.stack([place.look._column for place in places]) + asked.columns[:, None]
    found = answers.gather(0, asked.which[columns])
    if len(asked.words):
        single = look.words.log_pairs(ahead, asked.places, asked.words).double()
        found[asked.rows[asked.places], asked.words] = single + heights[asked.places]
    legal = asked.legal[columns] > 0
    legal[:, look.eos_id] = asked.ends > 0
    ends = torch.where(asked.ends > 0, words[:, look.eos_id].double(), -torch.inf)
    found[:, look.eos_id] = ends
    if any(place.look.log_weights is not None for place in places):
        zeros = log_states.new_zeros(found.shape[1])
        weights = (place.look.log_weights for place in places)
        found += torch.stack([zeros if some is None else some for some in weights])
    return NextWords(found, words, legal)


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
            f"{most_bytes / 2**30:.1f}; ask for less at once, or allow fewer tokens."
        )
