"""Soft evidence: at a position, how likely each word is, instead of the word."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.hmm import HMM, log_sums_by_state
from hmmlm.ops.messages.reference import log_matmul


def soften(hmm: HMM, log_weights: Float[Tensor, "N V"]) -> HMM:
    """An HMM in which the token V + n stands for soft evidence n: log sum_w p(w | z) weight_n(w).

    `log_weights` are the logarithms of any weights, such as likelihoods of what was heard, -inf for
    words that it cannot have been. Every function of evidence, states and paths takes such tokens.
    It is kept apart from the words, as a row over all states, and where words do not have all
    states its step is wide, as that of a missing token is. The tables are constants: no gradient
    goes through. O(N V K) time, O(N Z) memory beyond the tables, which on a dense support are
    copied when a text is first read.
    """
    hmm = hmm.detach()
    log_soft = state_evidence(hmm, check_weights(hmm, log_weights))
    more = log_soft if hmm.log_soft is None else torch.cat([hmm.log_soft, log_soft])
    return replace(hmm, log_soft=more)


def state_evidence(hmm: HMM, log_weights: Float[Tensor, "N V"]) -> Float[Tensor, "N Z"]:
    """log sum_w p(w | z) weight_n(w) for every state, in log space."""
    if hmm.support.is_dense:
        return log_matmul(log_weights, hmm.log_emit)
    ids = hmm.support.rows[hmm.support.row_of_word]  # (V, K)
    found = hmm.log_init.new_empty(len(log_weights), hmm.num_states)
    for row, weights in zip(found, log_weights, strict=True):
        most, total = log_sums_by_state(hmm.log_emit + weights[:, None], ids, hmm.num_states)
        row.copy_(most + total)
    return found


def check_weights(hmm: HMM, log_weights: Any) -> Float[Tensor, "N V"]:
    """The weights in the type and on the device of the HMM, after checking them."""
    log_weights = torch.as_tensor(log_weights)
    if log_weights.ndim != 2 or log_weights.shape[1] != hmm.vocab_size:
        raise InputError(
            f"log_weights has shape {tuple(log_weights.shape)} but must be (N, {hmm.vocab_size:,}):"
            f" a row for each piece of evidence, with the log of a weight for each word."
        )
    if not log_weights.is_floating_point():
        raise InputError(
            f"log_weights is {log_weights.dtype} but must be floating point: logarithms of weights."
        )
    bad = torch.isnan(log_weights) | (log_weights == torch.inf)
    if bad.any():
        row, word = bad.nonzero()[0].tolist()
        raise InputError(
            f"log_weights has {float(log_weights[row, word])} at ({row:,}, {word:,}); it must be "
            f"a number, or -inf for a word that cannot be there."
        )
    return log_weights.to(hmm.device, hmm.dtype)
