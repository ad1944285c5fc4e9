"""Random constraints, and a model of a few words to meet them."""

import random

import torch

from hmmlm.data.tokenizer import Tokenizer
from hmmlm.generate import (
    Constraint,
    contains,
    contains_any,
    ends_with,
    regex,
    sentences,
    starts_with,
    tokens,
    words,
)
from hmmlm.hmm import HMM
from hmmlm.support import Support
from models import make_hmm

WORDS = ["the", "rain", "sun", "park", "fell", "in", "and", "was", ".", "!", "bright", "a"]


def make_model(dtype: torch.dtype = torch.float32) -> tuple[Tokenizer, HMM]:
    tokenizer = Tokenizer.words([" ".join(WORDS)])
    return tokenizer, make_hmm(Support.dense(tokenizer.vocab_size, 6), dtype=dtype)


def random_constraint(seed: int) -> Constraint:
    """One of up to four parts."""
    choose = random.Random(seed)

    def leaf() -> Constraint:
        one, other = choose.sample(WORDS, 2)
        low = choose.randrange(4)
        return choose.choice(
            [
                lambda: contains(one),
                lambda: contains(one, other),
                lambda: contains(f"{one} {other}"),
                lambda: contains_any(one, other),
                lambda: contains(one[:2], whole=False),
                lambda: ~contains(one),
                lambda: starts_with(one),
                lambda: ends_with(other),
                lambda: words(low, low + choose.randrange(3)),
                lambda: words(low),
                lambda: tokens(low, low + choose.randrange(4)),
                lambda: sentences(choose.randrange(2), 2),
                lambda: regex(rf"({one}|{other})( [a-z]+)*( \.)?".replace("!", r"\!")),
                lambda: regex(r"[^!]*"),
            ]
        )()

    made = leaf()
    for _ in range(choose.randrange(4)):
        kind, other = choose.randrange(4), leaf()
        if kind == 0:
            made = made & other
        elif kind == 1:
            made = made | other
        elif kind == 2:
            made = made & ~other
        else:
            made = made.then(other)
    return made
