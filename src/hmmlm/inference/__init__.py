"""Exact questions to an HMM: functions of (HMM, tokens), batched.

Every function takes `tokens` (B, T), where -1 marks a missing token, and, by keyword: `lengths` of
the rows; a `belief` carried over from an earlier segment; `reset_id`, a token after which the next
state is drawn from p(z1) again; `implementation`: "auto", "reference" (log space), "scaled" (matrix
products; not `viterbi`), "kernel" (Triton's, on a GPU) or "scan" (associative over time;
`log_prob`, `filter` and `smooth` only).
"""

from hmmlm.inference.evidence import filter, log_prob
from hmmlm.inference.paths import sample_paths, viterbi
from hmmlm.inference.sampling import sample
from hmmlm.inference.smoothing import counts, smooth
from hmmlm.inference.streaming import State, advance, next_log_probs, start

__all__ = [
    "State",
    "advance",
    "counts",
    "filter",
    "log_prob",
    "next_log_probs",
    "sample",
    "sample_paths",
    "smooth",
    "start",
    "viterbi",
]
