"""The probability of every word, of states that are weighed."""

from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hmmlm.hmm import HMM
from hmmlm.inference.streaming import emission_log_probs
from hmmlm.ops.links import TILE
from hmmlm.ops.messages import scaled
from hmmlm.products import full_products

REDONE = 1 << 24
"""Numbers that are held at once where sums are redone in log space."""


def pieces(device: torch.device) -> int:
    """Numbers that a step of many is made of: what a cache holds, or enough for a large device."""
    return 1 << 25 if device.type == "cuda" else TILE


class Words:
    """log sum_z p(z) p(w | z) of every word; of dense models a table of p(w | z) is kept."""

    def __init__(self, hmm: HMM) -> None:
        self.hmm = hmm

    @cached_property
    def _probs(self) -> Float[Tensor, "V Z"]:
        return self.hmm.log_emit.exp()

    @cached_property
    def can_come(self) -> Bool[Tensor, " V"]:
        """Whether some state emits each word."""
        return self.hmm.log_emit.isfinite().any(1)

    @full_products()
    def log_probs(self, log_states: Float[Tensor, "N Z"]) -> Float[Tensor, "N V"]:
        """Rows may be over any sum. O(N V K)."""
        if not len(log_states):
            return log_states.new_empty(0, self.hmm.vocab_size)
        top = log_states.max(1, keepdim=True).values.clamp(min=-1e30)
        if not self.hmm.support.is_dense:
            return emission_log_probs(self.hmm, log_states - top) + top
        total = (log_states - top).exp() @ self._probs.T
        found = total.log()
        poor = (total < scaled.lowest(total.dtype)) & self.can_come & (top > -1e30)
        rows, words = poor.nonzero(as_tuple=True)
        if len(rows):
            found[rows, words] = self._log_pairs(log_states - top, rows, words)
        return found + top

    @full_products()
    def log_pairs(
        self, log_states: Float[Tensor, "R Z"], rows: Int[Tensor, " N"], words: Int[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        """The same of some pairs of a row and a word. O(N K)."""
        if not self.hmm.support.is_dense:
            return self._log_pairs(log_states, rows, words)
        top = log_states.max(1).values.clamp(min=-1e30)
        probs, step = (log_states - top[:, None]).exp(), self._step
        parts = zip(rows.split(step), words.split(step), strict=True)
        total = [torch.linalg.vecdot(probs[row], self._probs[word]) for row, word in parts]
        total, top = torch.cat(total), top[rows]
        found = total.log() + top
        poor = (total < scaled.lowest(total.dtype)) & self.can_come[words] & (top > -1e30)
        [poor] = poor.nonzero(as_tuple=True)
        if len(poor):
            found[poor] = self._log_pairs(log_states, rows[poor], words[poor])
        return found

    def _log_pairs(self, log_states: Tensor, rows: Tensor, words: Tensor) -> Float[Tensor, " N"]:
        """In log space."""
        hmm, found = self.hmm, log_states.new_empty(len(rows))
        for some in torch.arange(len(rows), device=rows.device).split(self._step):
            row, word = rows[some], words[some]
            if hmm.support.is_dense:
                states = log_states[row]
            else:
                states = log_states[row[:, None], hmm.support.states_of(word).clamp(min=0)]
            found[some] = torch.logsumexp(states + hmm.log_emit[word], 1)
        return found

    @property
    def _step(self) -> int:
        """Pairs at a time."""
        return max(1, min(pieces(self.hmm.device), REDONE) // self.hmm.support.width)
