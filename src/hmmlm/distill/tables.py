"""The tables that make words and their known states most probable: shares of counts."""

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor

from hmmlm.data.shards import TokenArray
from hmmlm.errors import InputError
from hmmlm.hmm import HMM, emission_table
from hmmlm.support import Support
from hmmlm.transitions import Dense

CHUNK = 1 << 22


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
    rows = support.rows[support.row_of_word].cpu()  # (V, K)
    last = ended = None
    for start in range(0, len(states), CHUNK):
        mine = np.asarray(states[start : start + CHUNK]).astype(np.int64)
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
        slots = _slots(rows, torch.from_numpy(words), torch.from_numpy(mine))
        emit += np.bincount(words * support.width + slots.numpy(), minlength=len(emit))
        last, ended = int(mine[-1]), int(words[-1])
    counts = (torch.from_numpy(part) for part in (init, trans, emit))
    starts, moves, seen = ((part + pseudocount).log() for part in counts)
    table = torch.log_softmax(moves.view(number, number), 1)
    logits = seen.view(support.vocab_size, support.width)
    made = emission_table(logits.to(support.rows.device), support)
    hmm = HMM(torch.log_softmax(starts, 0), Dense(table), made.cpu(), support.to("cpu"))
    return hmm.to(dtype=torch.float32)


def _slots(rows: Tensor, words: Tensor, states: Tensor) -> Tensor:
    """Where a state stands among those of its word."""
    found = []
    step = max(1, (1 << 24) // rows.shape[1])
    for some, mine in zip(words.split(step), states.split(step), strict=True):
        is_here = rows[some] == mine[:, None]
        if not bool(is_here.any(1).all()):
            raise InputError("A token has a state that may not emit it; make states for this map.")
        found.append(is_here.int().argmax(1))
    return torch.cat(found)
