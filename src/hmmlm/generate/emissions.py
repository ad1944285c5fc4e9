"""The probability of every word, of states that are weighed."""

from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hmmlm.hmm import HMM
from hmmlm.inference.streaming import emission_log_probs
from hmmlm.ops.messages import scaled
from hmmlm.products import full_products

REDONE = 1 << 24
"""Numbers that are held at once where sums are redone in log space."""


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
        step = max(1, REDONE // self.hmm.num_states)
        for some in torch.arange(len(rows), device=rows.device).split(step):
            row, word = rows[some], words[some]
            joint = log_states[row] - top[row] + self.hmm.log_emit[word]
            found[row, word] = torch.logsumexp(joint, 1)
        return found + top
