"""The tables that make words and their known states most probable: shares of counts."""

import numpy as np
import torch
from jaxtyping import Integer

from hmmlm.data.token_array import TokenArray
from hmmlm.errors import InputError
from hmmlm.hmm import HMM, emission_table
from hmmlm.support import Support
from hmmlm.transitions import Dense

CELLS = 1 << 24
"""States of words that are looked through at a time."""


def count_tables(
    states: Integer[np.ndarray, " N"],
    tokens: TokenArray,
    support: Support,
    *,
    length: int = 0,
    reset: bool = False,
    pseudocount: float = 1e-3,
) -> HMM:
    """The HMM with the highest p(words, states) of the first tokens of a text, which have `states`.

    A chain begins with every `length` tokens (0: only with the text), and with `reset` after every
    `<eos>`. Each cell has `pseudocount` more than was seen: what nobody saw is not impossible.
    O(N + Z^2 + V K) time and memory of the tables.
    """
    if not pseudocount > 0:
        raise InputError(f"pseudocount is {pseudocount} but must be more than 0.")
    number = support.num_states
    init, trans = np.zeros(number), np.zeros(number * number)
    emit = np.zeros(support.vocab_size * support.width)
    support = support.to("cpu")
    step = max(1, CELLS // support.width)
    last = ended = None
    for start in range(0, len(states), step):
        mine = np.asarray(states[start : start + step]).astype(np.int64)
        words = np.asarray(tokens[start : start + len(mine)]).astype(np.int64)
        before = np.concatenate([[0 if last is None else last], mine[:-1]])
        begins = np.zeros(len(mine), dtype=bool)
        if length:
            begins |= (np.arange(len(mine)) + start) % length == 0
        if reset:
            begins[1:] |= words[:-1] == tokens.eos_id
            begins[0] |= ended == tokens.eos_id
        begins[0] |= last is None
        init += np.bincount(mine[begins], minlength=number)
        moves = before[~begins] * number + mine[~begins]
        trans += np.bincount(moves, minlength=number * number)
        slots = support.slots_of(torch.from_numpy(words), torch.from_numpy(mine))
        if bool((slots < 0).any()):
            raise InputError("A token has a state that may not emit it; make states for this map.")
        emit += np.bincount(words * support.width + slots.numpy(), minlength=len(emit))
        last, ended = int(mine[-1]), int(words[-1])
    counts = (torch.from_numpy(part) for part in (init, trans, emit))
    starts, moves, seen = ((part + pseudocount).log() for part in counts)
    table = torch.log_softmax(moves.view(number, number), 1)
    logits = seen.view(support.vocab_size, support.width)
    made = emission_table(logits, support)
    hmm = HMM(torch.log_softmax(starts, 0), Dense(table), made, support)
    return hmm.to(dtype=torch.float32)
