"""What an HMM and automata say of the next token of texts that somebody else writes."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.generate.lookahead import Lookahead
from hmmlm.inference.evidence import log_prob
from hmmlm.inference.streaming import (
    State,
    advance,
    next_state_log_probs,
    start,
)


class Guide:
    """log p(met | text, next token) - log p(met | text), for every token of the vocabulary.

    Only tokens after which the constraint can still be met in time have any: that is the
    automaton's word alone. Among them the HMM weighs, to the power of `strength`; where it gives
    all of them probability zero, it leaves the choice open.

    A text is a prompt, which the HMM reads the last `context` tokens of, and what was written
    since. Nothing is remembered but the texts of the last call, so they may come in any order.
    """

    def __init__(
        self, looks: Sequence[Lookahead], *, strength: float = 1.0, context: int = 64
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
        self.looks, self.strength, self.context = list(looks), strength, context
        self.budget, self.eos_id, self.hmm = first.budget, first.eos_id, first.hmm
        self._start = start(self.hmm, reset_id=self.eos_id)
        self._known: dict[tuple[int, ...], int] = {}
        self._state: State | None = None

    @torch.no_grad()
    def log_factors(
        self, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], which: Sequence[int]
    ) -> Float[Tensor, "B V"]:
        """Of each row, given its prompt, what was written since, and its constraint's number.

        -inf for tokens that must not come. Rows that have ended have zeros.
        """
        ahead = next_state_log_probs(self._read(prompts, texts))
        groups = []
        for number, look in enumerate(self.looks):
            for left, rows in self._open(texts, which, number).items():
                where = [look.automaton.run(texts[row]) for row in rows]
                groups.append((look, *torch.tensor([rows, where], device=ahead.device), left))
        # One product for what all rows ask, and for what comes next at all.
        asked = [look.questions(ahead[rows], where, left) for look, rows, where, left in groups]
        sizes = [len(ahead), *map(len, asked)]
        answers = self.looks[0].words.log_probs(torch.cat([ahead, *asked])).split(sizes)
        words = answers[0]
        out = torch.zeros_like(words, dtype=torch.float64)
        for (look, rows, where, left), answer in zip(groups, answers[1:], strict=True):
            joint = look.next_log_met(ahead[rows], where, left, answer)
            legal = look.legal_next(where, left)
            out[rows] = self._weigh(joint, words[rows].double(), legal)
        return out

    def _open(
        self, texts: Sequence[Sequence[int]], which: Sequence[int], number: int
    ) -> dict[int, list[int]]:
        """The rows of a constraint that have not ended, by the tokens that they have left."""
        found: dict[int, list[int]] = {}
        for row, (text, mine) in enumerate(zip(texts, which, strict=True)):
            if mine == number and self.eos_id not in text:
                if len(text) >= self.budget:
                    raise InputError(
                        f"A text has {len(text):,} tokens without <eos> but the guide was made for "
                        f"{self.budget:,}; make it with the max_new_tokens of the generation."
                    )
                found.setdefault(self.budget - len(text), []).append(row)
        return found

    def _weigh(
        self, joint: Tensor, words: Tensor, legal: Bool[Tensor, "N V"]
    ) -> Float[Tensor, "N V"]:
        """log p(met | text, w) - log p(met | text) of what is legal, or zeros if that has none."""
        if not bool(legal.any(1).all()):
            raise InputError(
                "A text cannot meet its constraint any more: a token was written that the guide "
                "had ruled out."
            )
        if not self.strength:
            return torch.where(legal, 0.0, -torch.inf).to(joint)
        factors = self.strength * (joint - words - torch.logsumexp(joint, 1, keepdim=True))
        factors = torch.where(legal, factors.nan_to_num(nan=-torch.inf), -torch.inf)
        is_open = torch.isneginf(factors).all(1, keepdim=True)
        return torch.where(is_open & legal, 0.0, factors)

    def _read(self, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> State:
        """The HMM's state after each text: one token on from the last call's, or read anew."""
        keys = [
            (*prompt[max(0, len(prompt) - self.context) :], -1, *text)
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        before = [self._known.get(key[:-1]) if key[-1] >= 0 else None for key in keys]
        if self._state is not None and None not in before:
            tokens = torch.tensor([key[-1] for key in keys], device=self.hmm.device)
            state = advance(self._state.select(before), tokens)  # type: ignore[arg-type]
        else:
            state = self._read_anew([[id for id in key if id >= 0] for key in keys])
        self._known = {key: row for row, key in enumerate(keys)}
        self._state = state
        return state

    def _read_anew(self, rows: Sequence[Sequence[int]]) -> State:
        fresh = self._start.select([0] * len(rows))
        longest = max(map(len, rows))
        if not longest:
            return fresh
        lengths = torch.tensor([len(row) for row in rows], device=self.hmm.device)
        tokens = torch.zeros(len(rows), longest, dtype=torch.long)
        for place, row in enumerate(rows):
            tokens[place, : len(row)] = torch.tensor(row, dtype=torch.long)
        read = log_prob(self.hmm, tokens.to(self.hmm.device), lengths=lengths, reset_id=self.eos_id)
        return replace(fresh, belief=read.belief, log_evidence=read.log_evidence)


def _kind(look: Lookahead) -> tuple[int, ...]:
    """What the constraints of a guide must share: the memory of the HMM's tables, and numbers."""
    tables = (table.data_ptr() for table in look.hmm.fields())
    return (*tables, look.eos_id, look.budget)
