"""What an HMM and automata say of the next token of texts that somebody else writes."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.generate.lookahead import Lookahead, NextWords, Place, weigh_next
from hmmlm.inference.chain import MISSING
from hmmlm.inference.evidence import log_prob
from hmmlm.inference.streaming import (
    State,
    advance,
    next_state_log_probs,
    start,
)
from hmmlm.results import FoundBelief

START = -2
"""Stands between a prompt and a text."""

TABLE_STATES = 4096
"""A guide of at most so many states keeps p(z' | z) as a table: 64 MiB, and its logarithms."""


class Guide:
    """log p(met | text, next token) - log p(met | text), for every token of the vocabulary.

    Only tokens after which the constraint can still be met in time have any: that is the
    automaton's word alone. Among them the HMM weighs, to the power of `strength`; where it gives
    all of them probability zero, it leaves the choice open.

    A text is a prompt, which the HMM reads the last `context` tokens of, and what was written
    since. Tokens that it never emits, or does not know, are missing tokens to it. Nothing is
    remembered but the texts of the last call, so they may come in any order.

    With `keep_table` p(z' | z) is kept as a table, 8 Z^2 bytes, which makes a token faster; by
    default up to 4,096 states.
    """

    def __init__(
        self,
        looks: Sequence[Lookahead],
        *,
        strength: float = 1.0,
        context: int = 64,
        keep_table: bool | None = None,
    ) -> None:
        if not looks:
            raise InputError("There is no constraint; give at least one.")
        first = looks[0]
        if len({_kind(look) for look in looks}) > 1:
            raise InputError(
                "Constraints of one guide look ahead with one HMM, one <eos> and one budget."
            )
        if not strength >= 0 or strength == float("inf"):
            raise InputError(f"strength is {strength} but must be a number from 0 up.")
        if context < 0:
            raise InputError(f"context is {context:,} but must be at least 0.")
        # One table of p(w | z) for all, whichever rows are weighed.
        self.looks = [replace(look, words=first.words) for look in looks]
        self.strength, self.context = strength, context
        self.budget, self.eos_id, self.hmm = first.budget, first.eos_id, first.hmm
        self._can_come = first.words.can_come.tolist()
        self._start = start(self.hmm, reset_id=self.eos_id)
        if self.hmm.num_states <= TABLE_STATES if keep_table is None else keep_table:
            table = replace(self._start.table, keep=True)
            self._start = replace(self._start, table=table)
        self._known: dict[tuple[int, ...], int] = {}
        self._state: State | None = None
        self._ahead = self._start.hmm.log_init[None]

    @torch.no_grad()
    def log_factors(
        self, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], which: Sequence[int]
    ) -> Float[Tensor, "B V"]:
        """Of each row, given its prompt, what was written since, and its constraint's number.

        -inf for tokens that must not come; after `<eos>` only `<eos>` may.
        """
        if unknown := [n for n in which if not 0 <= n < len(self.looks)]:
            raise InputError(
                f"A row has constraint {unknown[0]:,} but the guide has {len(self.looks):,}, from "
                f"0 on."
            )
        rows, places = self._open(texts, which)
        ahead = self._ahead = next_state_log_probs(self._read(prompts, texts))
        if len(rows) == len(ahead) > 0:
            return self._weigh(weigh_next(ahead, places))
        size = (len(ahead), self.hmm.vocab_size)
        out = ahead.new_full(size, -torch.inf, dtype=torch.float64)
        out[:, self.eos_id] = 0.0
        if rows:
            chosen = torch.tensor(rows, device=ahead.device)
            out[chosen] = self._weigh(weigh_next(ahead[chosen], places))
        return out

    def _open(
        self, texts: Sequence[Sequence[int]], which: Sequence[int]
    ) -> tuple[list[int], list[Place]]:
        """The rows that have not ended, and where they stand."""
        rows, places = [], []
        for row, (text, number) in enumerate(zip(texts, which, strict=True)):
            if self.eos_id in text:
                continue
            if len(text) >= self.budget:
                raise InputError(
                    f"A text has {len(text):,} tokens without <eos> but the guide was made for "
                    f"{self.budget:,}; make it with the max_new_tokens of the generation."
                )
            look, left = self.looks[number], self.budget - len(text)
            state = look.automaton.run(text)
            if not look.is_legal(state, left):
                raise InputError(
                    f"The text of row {row:,} cannot meet its constraint any more: a token was "
                    f"written that the guide had ruled out."
                )
            rows.append(row)
            places.append(Place(look, state, left))
        return rows, places

    def _weigh(self, found: NextWords) -> Float[Tensor, "N V"]:
        """log p(met | text, w) - log p(met | text) of what is legal, or zeros if that has none."""
        joint, legal = found.log_met, found.legal
        if not self.strength:
            return torch.where(legal, 0.0, -torch.inf).to(joint)
        whole = torch.logsumexp(joint, 1, keepdim=True)
        factors = self.strength * (joint - found.log_probs.double() - whole)
        factors = torch.where(
            legal, factors.nan_to_num(nan=-torch.inf, neginf=-torch.inf), -torch.inf
        )
        is_open = torch.isneginf(factors).all(1, keepdim=True)
        return torch.where(is_open & legal, 0.0, factors)

    def _read(self, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> State:
        """The HMM's state after each text: one token on from the last call's, or read anew."""
        keys = [
            (*prompt[max(0, len(prompt) - self.context) :], START, *self._ended(text))
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        # A row that has ended is as it was; another has one token more than in the last call.
        same = [self._known.get(key) for key in keys]
        before = [self._known.get(key[:-1]) for key in keys]
        if self._state is None or any(
            one is None and other is None for one, other in zip(same, before, strict=True)
        ):
            state = self._read_anew([[id for id in key if id != START] for key in keys])
        else:
            chosen = [
                other if one is None else one for one, other in zip(same, before, strict=True)
            ]
            state = self._state.select(chosen)  # type: ignore[arg-type]
            further = [row for row, one in enumerate(same) if one is None]
            if further:
                tokens = torch.tensor([self._seen(keys[row][-1]) for row in further])
                is_all = len(further) == len(keys)
                begun = state if is_all else state.select(further)
                rows = torch.tensor([chosen[row] for row in further], device=self.hmm.device)
                moved = self._advance(begun, self._ahead[rows], tokens.to(self.hmm.device))
                state = moved if is_all else _put(state, further, moved)
        self._known = {key: row for row, key in enumerate(keys)}
        self._state = state
        return state

    def _advance(self, state: State, ahead: Float[Tensor, "N Z"], tokens: Tensor) -> State:
        """The state after one more token, where p(next hidden state) is known.

        Its evidence, which nobody asks for, is not brought up to date.
        """
        if not self.hmm.support.is_dense:
            return advance(state, tokens)
        emission = self.hmm.log_emit[tokens.clamp(min=0)]
        joint = torch.where(tokens[:, None] == MISSING, ahead, ahead + emission)
        total = torch.logsumexp(joint, 1, keepdim=True)
        log_probs = torch.where(torch.isneginf(total), -torch.inf, joint - total)
        states = torch.arange(self.hmm.num_states, device=joint.device).expand(len(joint), -1)
        return replace(state, belief=FoundBelief(states, log_probs, tokens == self.eos_id))

    def _ended(self, text: Sequence[int]) -> Sequence[int]:
        """A text up to its `<eos>`."""
        return text[: text.index(self.eos_id) + 1] if self.eos_id in text else text

    def _seen(self, token: int) -> int:
        """The token, or a missing one where the HMM does not know it or never emits it."""
        return token if 0 <= token < len(self._can_come) and self._can_come[token] else MISSING

    def _read_anew(self, rows: Sequence[Sequence[int]]) -> State:
        state = self._start.select([0] * len(rows))
        some = [place for place, row in enumerate(rows) if row]
        if not some:
            return state
        lengths = torch.tensor([len(rows[place]) for place in some], device=self.hmm.device)
        tokens = torch.zeros(len(some), int(lengths.max()), dtype=torch.long)
        for number, place in enumerate(some):
            seen = [self._seen(id) for id in rows[place]]
            tokens[number, : len(seen)] = torch.tensor(seen)
        read = log_prob(self.hmm, tokens.to(self.hmm.device), lengths=lengths, reset_id=self.eos_id)
        begun = state.select(some)
        begun = replace(begun, belief=read.belief, log_evidence=read.log_evidence)
        return begun if len(some) == len(rows) else _put(state, some, begun)


def _put(state: State, rows: Sequence[int], part: State) -> State:
    """A state in which some rows are those of another, whose belief may name more states."""
    chosen = torch.tensor(rows, device=state.hmm.device)
    width = max(state.belief.states.shape[1], part.belief.states.shape[1])

    def wide(values: Tensor, filler: float) -> Tensor:
        return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=filler)

    states = wide(state.belief.states, -1).index_copy(0, chosen, wide(part.belief.states, -1))
    log_probs = wide(state.belief.log_probs, -torch.inf)
    log_probs = log_probs.index_copy(0, chosen, wide(part.belief.log_probs, -torch.inf))
    fresh = state.belief.fresh.index_copy(0, chosen, part.belief.fresh)
    evidence = state.log_evidence.index_copy(0, chosen, part.log_evidence)
    return replace(state, belief=FoundBelief(states, log_probs, fresh), log_evidence=evidence)


def _kind(look: Lookahead) -> tuple[int, ...]:
    """What the constraints of a guide must share: the memory of the HMM's tables, and numbers."""
    tables = (table.data_ptr() for table in look.hmm.fields())
    return (*tables, look.eos_id, look.budget)
