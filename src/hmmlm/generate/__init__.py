"""Texts under constraints: automata, how probable it is that one is met, drawing and guiding.

from hmmlm.generate import contains, words

wanted = contains("rain", "park") & ~contains("sun") & words(8, 16)
"""

from hmmlm.generate.constraints import (
    Constraint,
    anything,
    contains,
    contains_any,
    ends_with,
    regex,
    sentences,
    starts_with,
    tokens,
    words,
)
from hmmlm.generate.guide import Guide
from hmmlm.generate.lookahead import Lookahead
from hmmlm.generate.sampling import MetSamples, sample_met

__all__ = [
    "Constraint",
    "Guide",
    "Lookahead",
    "MetSamples",
    "anything",
    "contains",
    "contains_any",
    "ends_with",
    "regex",
    "sample_met",
    "sentences",
    "starts_with",
    "tokens",
    "words",
]
