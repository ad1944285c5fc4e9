"""Exact questions to an HMM: functions of (HMM, tokens), batched.

Every function takes `tokens` (B, T), where -1 marks a missing token, and, by keyword: `lengths` of
the rows; a `belief` carried over from an earlier segment; `reset_id`, a token after which the next
state is drawn from p(z1) again; `implementation`: "auto", "reference" (log space), "scaled" (matrix
products; not `viterbi`), "kernel" (Triton's, on a GPU) or "scan" (associative over time;
`log_prob`, `filter`, `smooth` and `token_log_probs` only).

Where a text starts afresh is given, not drawn: a missing token may be any word, and the chain goes
on after it. So with `reset_id` evidence with a gap is not a sum over its words; the functions of
gaps leave the reset word out, and are.

Soft evidence, weights of words in place of a word, comes as `log_weights` (N, V): the token V + n
stands for row n. The functions of gaps, of several paths and of single tokens take it; for the
others `soften` makes an HMM that knows such tokens.
"""

from hmmlm.inference.conditioning import fill_log_prob, sample_fills, word_log_probs
from hmmlm.inference.contexts import context_log_probs, pseudo_log_prob
from hmmlm.inference.decoding import best_paths, min_risk_path, path_entropy
from hmmlm.inference.evidence import filter, log_prob, token_log_probs
from hmmlm.inference.gaps import gap_lengths, sample_gap
from hmmlm.inference.information import (
    cross_entropy,
    kl_divergence,
    state_information,
    word_information,
)
from hmmlm.inference.paths import sample_paths, viterbi
from hmmlm.inference.sampling import sample
from hmmlm.inference.smoothing import counts, smooth
from hmmlm.inference.soft import soften
from hmmlm.inference.streaming import State, advance, next_log_probs, start

__all__ = [
    "State",
    "advance",
    "best_paths",
    "context_log_probs",
    "counts",
    "cross_entropy",
    "fill_log_prob",
    "filter",
    "gap_lengths",
    "kl_divergence",
    "log_prob",
    "min_risk_path",
    "next_log_probs",
    "path_entropy",
    "pseudo_log_prob",
    "sample",
    "sample_fills",
    "sample_gap",
    "sample_paths",
    "smooth",
    "soften",
    "start",
    "state_information",
    "token_log_probs",
    "viterbi",
    "word_information",
    "word_log_probs",
]
