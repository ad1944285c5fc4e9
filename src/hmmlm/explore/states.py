"""What is known of every state of an HMM, prepared once: its words, its entropy, its block."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from hmmlm.hmm import HMM

CELLS = 1 << 24
"""Cells of the emission table that are looked at together."""


@dataclass(frozen=True)
class StateTable:
    """The best words of each state, best first (-1 past the last one), and its entropy in bits.

    `block` is None where states are not in blocks.
    """

    words: Int[np.ndarray, "Z k"]
    probs: Float[np.ndarray, "Z k"]
    entropy: Float[np.ndarray, " Z"]
    block: Int[np.ndarray, " Z"] | None


def block_of_state(hmm: HMM) -> Int[np.ndarray, " Z"] | None:
    """The block of each state; None if every word has all states, or words share only some."""
    support = hmm.support
    if support.is_dense or not support.is_partition:
        return None
    return support.row_of_state.cpu().numpy()


def state_table(hmm: HMM, k: int) -> StateTable:
    """The k best words and the entropy of every state. O(V K) time; memory of a few such cells."""
    blocks = block_of_state(hmm)
    words = np.full((hmm.num_states, k), -1, np.int64)
    probs = np.zeros((hmm.num_states, k))
    entropy = np.zeros(hmm.num_states)
    for states, ids, log_emit in _columns(hmm):
        best = log_emit.topk(min(k, len(log_emit)), 0)  # (k, N)
        count = len(best.values)
        words[states, :count] = ids[best.indices].T.cpu().numpy()
        probs[states, :count] = best.values.T.double().exp().cpu().numpy()
        emitted = log_emit.exp()
        bits = torch.where(emitted > 0, emitted * log_emit, 0.0).sum(0, dtype=torch.float64)
        entropy[states] = (0.0 - bits / math.log(2)).clamp(min=0).cpu().numpy()
    if blocks is None and not hmm.support.is_dense:
        _fill_ragged(hmm, words, probs, entropy)
    words[probs == 0] = -1
    return StateTable(words, probs, entropy, blocks)


def _columns(hmm: HMM):
    """(states, words, log p) of states that have the same words: (N,), (W,) and (W, N)."""
    support = hmm.support
    if support.is_dense:
        words = torch.arange(hmm.vocab_size, device=hmm.device)
        states = np.arange(hmm.num_states)
        for part in np.array_split(states, max(1, hmm.log_emit.numel() // CELLS)):
            yield part, words, hmm.log_emit[:, part[0] : part[-1] + 1]
    elif support.is_partition:
        for row, words in zip(support.rows, support.words_by_row, strict=True):
            states = row[row >= 0]
            if len(words):
                yield states.cpu().numpy(), words, hmm.log_emit[words][:, row >= 0]


def _fill_ragged(hmm: HMM, words: np.ndarray, probs: np.ndarray, entropy: np.ndarray) -> None:
    """The same where each word has states of its own."""
    cells = hmm.support.state_words
    log_probs = hmm.log_emit[cells.words, cells.slots].double()
    by_prob = log_probs.argsort(descending=True, stable=True)
    order = by_prob[cells.states[by_prob].argsort(stable=True)]
    states = cells.states[order]
    place = torch.arange(len(order), device=order.device) - cells.offsets[states]
    here = place < words.shape[1]
    at = (states[here].cpu().numpy(), place[here].cpu().numpy())
    words[at] = cells.words[order[here]].cpu().numpy()
    probs[at] = log_probs[order[here]].exp().cpu().numpy()
    emitted = log_probs.exp()
    bits = torch.where(emitted > 0, -emitted * log_probs, 0.0) / math.log(2)
    total = torch.zeros(hmm.num_states, dtype=torch.float64, device=bits.device)
    entropy[:] = total.index_add(0, cells.states, bits).cpu().numpy()
