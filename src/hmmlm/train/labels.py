"""Tags as groups of states."""

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

from hmmlm.data.labels import Labels, labelled_words
from hmmlm.data.token_array import TokenArray
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError, counted
from hmmlm.support import Support


def share_states(num_states: int, num_tags: int) -> Int[Tensor, " Z"]:
    """The tag of each state: every tag has the same number of consecutive states."""
    if num_states < num_tags or num_states % num_tags:
        below = num_states // num_tags * num_tags
        fits = f"{below:,} or {below + num_tags:,}" if below else f"{num_tags:,}"
        raise InputError(
            f"{counted(num_states, 'state')} cannot be shared equally among "
            f"{counted(num_tags, 'tag')}; use {fits} states."
        )
    return torch.arange(num_states) // (num_states // num_tags)


def check_labels(
    support: Support,
    label_of_state: Int[Tensor, " Z"],
    labels: Labels,
    tokens: TokenArray,
    tokenizer: Tokenizer,
) -> None:
    """Refuses a word with a label none of whose states may emit it. One pass over the text."""
    pairs = labelled_words(tokens, labels.ids)
    for start in range(0, len(pairs), 1 << 16):
        words, tags = torch.from_numpy(pairs[start : start + (1 << 16)].astype(np.int64)).T
        states = support.rows[support.row_of_word[words]]
        able = (label_of_state[states.clamp(min=0)] == tags[:, None]) & (states >= 0)
        if not bool((some := able.any(1)).all()):
            bad = int((~some).nonzero()[0])
            word, tag = tokenizer.token(int(words[bad])), labels.tags[int(tags[bad])]
            owned = counted(int((label_of_state == tags[bad]).sum()), "state")
            raise InputError(
                f"The word {word!r} has the label {tag!r} but may come from none of its {owned}; "
                f"use model.blocks=0, so that every word may come from all states, or correct "
                f"the label."
            )


def check_states(
    support: Support, states: Integer[np.ndarray, " N"], tokens: TokenArray, tokenizer: Tokenizer
) -> None:
    """Refuses states that cannot be those of the first tokens. One pass over them."""
    if len(states) > len(tokens):
        raise InputError(
            f"There are states for {len(states):,} tokens but the text has {len(tokens):,}; make "
            f"them for this text."
        )
    for start in range(0, len(states), 1 << 16):
        given = torch.from_numpy(states[start : start + (1 << 16)].astype(np.int64))
        words = torch.from_numpy(np.asarray(tokens[start : start + len(given)]).astype(np.int64))
        able = support.slots_of(words, given) >= 0
        if not bool(able.all()):
            bad = int((~able).nonzero()[0])
            word = tokenizer.token(int(words[bad]))
            raise InputError(
                f"Token {start + bad + 1:,} is {word!r}, which cannot come from state "
                f"{int(given[bad]):,} that data.states has for it; make states for this model, "
                f"with {counted(support.num_states, 'state')} and the same blocks."
            )
