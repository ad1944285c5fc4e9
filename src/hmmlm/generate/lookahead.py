"""How probable it is that a constraint is met before a text must end, exactly."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.generate.automata import Automaton
from hmmlm.hmm import HMM
from hmmlm.inference.streaming import emission_log_probs
from hmmlm.ops.links import TILE
from hmmlm.ops.messages import scaled
from hmmlm.products import full_products

MOST_BYTES = 8 << 30
SHARE = 16
"""Words that lead to one state are weighed together with all others where they are more than one
in so many of the vocabulary, and one by one where they are fewer."""


@dataclass(frozen=True)
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
            raise InputError(
                "No text meets the constraint, however long."
                if automaton.is_empty
                else f"The shortest text that meets the constraint has {shortest:,} tokens"
                f"{'' if open_ended else ' and <eos>'} but there is room for {budget:,}; allow "
                f"more."
            )
        made = Lookahead(hmm.detach(), automaton, eos_id, budget, open_ended, log_weights, (), ())
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
        return Lookahead(
            made.hmm, automaton, eos_id, budget, open_ended, log_weights,
            tuple(tables), tuple(scales),
        )  # fmt: skip

    def legal(self, left: int) -> Bool[Tensor, " S"]:
        """Whether some text of at most so many more tokens is met, from each automaton state."""
        room = left - (not self.open_ended)
        return torch.from_numpy(self.automaton.distance <= room).to(self.hmm.device)

    def legal_next(self, places: Int[Tensor, " B"], left: int) -> Bool[Tensor, "B V"]:
        """Whether some text is met after each next token; for `<eos>`, whether it may come now."""
        found = self.legal(left - 1)[self._after[places]]
        found[:, self.eos_id] = self._end[places] > 0
        return found

    @torch.no_grad()
    def log_met(
        self, log_states: Float[Tensor, "B Z"], places: Int[Tensor, " B"], left: int
    ) -> Float[Tensor, " B"]:
        """log p(met | p(next hidden state), automaton state, tokens left), float64."""
        self._check_left(left)
        ahead, height = self._emit(self.tables[left - 1], self.scales[left - 1], left)
        return torch.logsumexp(log_states + ahead[places], 1).double() + height[places]

    @torch.no_grad()
    def next_log_met(
        self, log_states: Float[Tensor, "B Z"], places: Int[Tensor, " B"], left: int
    ) -> Float[Tensor, "B V"]:
        """log p(the next token is w, and met | the same), float64; `<eos>` is one of them."""
        self._check_left(left)
        table, scale = self.tables[left - 1], self.scales[left - 1]
        found = torch.full(
            (len(places), self.hmm.vocab_size), -torch.inf, dtype=torch.float64,
            device=self.hmm.device,
        )  # fmt: skip
        for state in places.unique().tolist():
            rows = (places == state).nonzero()[:, 0]
            found[rows] = self._weigh(log_states[rows], state, table, scale)
        if self.log_weights is not None:
            found += self.log_weights
        ending = self._ending(log_states)
        found[:, self.eos_id] = torch.where(self._end[places] > 0, ending, -torch.inf).double()
        return found

    def _weigh(
        self, log_states: Tensor, state: int, table: Tensor, scale: Tensor
    ) -> Float[Tensor, "N V"]:
        """log p(w, met after it) of rows whose automaton is in one state."""
        after = self._after[state]  # (V,)
        goals, sizes = after.unique(return_counts=True)
        out = torch.full(
            (len(log_states), len(after)), -torch.inf, dtype=torch.float64, device=after.device
        )
        small = torch.zeros_like(after, dtype=torch.bool)
        for goal, size in zip(goals.tolist(), sizes.tolist(), strict=True):
            if torch.isneginf(scale[goal]):
                continue
            words = after == goal
            if size * SHARE < len(after):
                small |= words
                continue
            whole = emission_log_probs(self.hmm, log_states + table[goal])
            out[:, words] = whole[:, words].double() + scale[goal]
        words = small.nonzero()[:, 0]
        size = self.hmm.support.width * len(log_states)
        for part in words.split(max(1, TILE // max(1, size))):
            goal = after[part]  # (N,)
            states = self.hmm.support.states_of(part)  # (N, K)
            inner = table[goal[:, None], states.clamp(min=0)] + self.hmm.log_emit[part]
            joint = log_states[:, states.clamp(min=0)] + inner  # (B, N, K)
            out[:, part] = torch.logsumexp(joint, 2).double() + scale[goal]
        return out

    def _ending(self, log_states: Tensor) -> Tensor:
        """log p(`<eos>` | p(next hidden state)), with its weight."""
        word = torch.tensor([self.eos_id], device=self.hmm.device)
        states = self.hmm.support.states_of(word)[0]
        joint = log_states[:, states.clamp(min=0)] + self.hmm.log_emit[self.eos_id]
        weight = 0.0 if self.log_weights is None else self.log_weights[self.eos_id]
        return torch.logsumexp(joint, 1) + weight

    @full_products()
    def _emit(
        self, table: Tensor, scale: Tensor, left: int
    ) -> tuple[Float[Tensor, "S Z"], Float[Tensor, " S"]]:
        """log p(met | the next token's hidden state z, automaton state q), over each row's largest.

        The sum over kinds of words of p(kind | z) p(met after it), and of `<eos>` where it accepts.
        """
        goals = self._next  # (S, C)
        kinds = self._kinds  # (C, Z), log
        tops = kinds.max(1).values.clamp(min=-1e30).double()  # (C,)
        heights = scale[goals] + tops  # (S, C)
        ends = torch.where(self._end > 0, 0.0, -torch.inf).double()
        height = torch.maximum(heights.max(1).values, ends)
        height = torch.where(torch.isneginf(height), 0.0, height)
        probs, shares = table.exp(), (kinds - tops[:, None].to(kinds)).exp()
        factors = (heights - height[:, None]).exp().to(table)  # (S, C)
        total = (ends - height).exp().to(table)[:, None] * self._ends.exp()  # (S, Z)
        for kind in range(goals.shape[1]):
            total += probs[goals[:, kind]] * shares[kind] * factors[:, kind, None]
        found = total.log()
        poor = (total < scaled.lowest(total.dtype)) & self.legal(left)[:, None]
        rows, states = poor.nonzero(as_tuple=True)
        step = max(1, TILE // goals.shape[1])
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
        top = ahead.max(1).values.clamp(min=-1e30)
        probs = (ahead - top[:, None]).exp()  # (S, Z)
        found = torch.empty_like(ahead)
        step = max(1, TILE // self.hmm.num_states)
        for start in range(0, self.hmm.num_states, step):
            rows = self.hmm.transitions.rows(start, min(start + step, self.hmm.num_states))
            total = probs @ rows.exp().T  # (S, N)
            found[:, start : start + step] = total.log()
            poor = (total < scaled.lowest(total.dtype)) & legal[:, None]
            states, sources = poor.nonzero(as_tuple=True)
            for some in torch.arange(len(states), device=states.device).split(step):
                terms = rows[sources[some]] + ahead[states[some]] - top[states[some], None]
                found[states[some], start + sources[some]] = torch.logsumexp(terms, 1)
        highest = found.max(1).values
        kept = torch.isfinite(highest)
        shift = torch.where(kept, highest, 0.0)
        rise = torch.where(kept, (top + shift).double(), -torch.inf)
        return found - shift[:, None], rise

    @cached_property
    def _next(self) -> Int[Tensor, "S C"]:
        return torch.from_numpy(self.automaton.next).to(self.hmm.device)

    @cached_property
    def _after(self) -> Int[Tensor, "S V"]:
        column = torch.from_numpy(self.automaton.column).to(self.hmm.device)
        return self._next[:, column]

    @cached_property
    def _end(self) -> Float[Tensor, " S"]:
        """1 where a text may end."""
        return torch.from_numpy(self.automaton.accepting).to(self.hmm.device, self.hmm.dtype)

    @cached_property
    def _ends(self) -> Float[Tensor, " Z"]:
        """log p(`<eos>` | z), with its weight."""
        return self._sums(torch.arange(self.hmm.vocab_size, device=self.hmm.device) == self.eos_id)[
            1
        ]

    @cached_property
    def _kinds(self) -> Float[Tensor, "C Z"]:
        """log p(a word of each kind | z), `<eos>` not among them, with their weights."""
        column = torch.from_numpy(self.automaton.column).to(self.hmm.device)
        column = column + 1
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
        log_weights.shape != (hmm.vocab_size,) or bool(torch.isnan(log_weights).any())
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
