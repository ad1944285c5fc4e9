"""Blocks learnt again: words move to the block whose states a trained model expects them in."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.data.batches import Batch, stretch_rows
from hmmlm.data.token_array import TokenArray
from hmmlm.errors import InputError, rounded
from hmmlm.hmm import HMM
from hmmlm.inference import context_log_probs
from hmmlm.support import Support
from hmmlm.train.memory import free_memory

LONGEST = 512
"""Tokens of a line that are read together: of a longer one neighbours across a cut are lost."""

READ = 1 << 24
"""Cells that are read at a time: of tokens and states, and of lines and the tiles of a step."""


class Moved(NamedTuple):
    """The block of every word, and what its move adds to log p of the text, 0 where it stays.

    Gains are the model's account, each as if no other word moved.
    """

    block_of_word: Int[np.ndarray, " V"]
    gains: Float[np.ndarray, " V"]


def check_blocks(support: Support) -> None:
    """Refuses a model whose words are not in several blocks."""
    if support.is_dense or not support.is_partition:
        raise InputError(
            "The words of this model are not in blocks, each with states of its own, so none can "
            "move to another; train one with --blocks."
        )


def move_words(
    hmm: HMM, tokens: TokenArray, *, progress: Callable[[int], None] | None = None
) -> Moved:
    """Gives every word the block in which its contexts are most probable.

    A context leads to the states of every block, p(z_t | all other tokens). In block m its word
    would share them, r_t(z) of each, and n_z words use state z, so that over the places t of w

        sum_t log p(z_t in m | others) + sum_z R_z log(R_z / n_z),  R_z = sum_t r_t(z),

    is a bound of log p(w's places) with emissions that fit them: the largest wins. Words that are
    alone in a block stay alone, `<eos>` and words that never occur stay where they are, and a block
    that all others would leave keeps the most frequent one. One pass over the text, O(K Z) a token;
    memory O(V Z). `progress(tokens)` hears how many more were read.
    """
    hmm = hmm.detach()
    support = hmm.support
    check_blocks(support)
    if not len(tokens):
        raise InputError("There are no tokens to see words in; give some text.")
    _check_room(hmm)
    blocks, states = support.num_blocks, hmm.num_states
    block_of_word, block_of_state = support.row_of_word, support.row_of_state
    membership = torch.nn.functional.one_hot(block_of_state, blocks).to(hmm.dtype)  # (Z, M)
    reached = torch.zeros(hmm.vocab_size, blocks, dtype=torch.float64, device=hmm.device)
    used = hmm.log_init.new_zeros(hmm.vocab_size, states)  # R
    counts = torch.zeros(hmm.vocab_size, dtype=torch.long, device=hmm.device)
    for batch in _lines(tokens, READ // states, READ // support.width**2):
        ids, lengths = batch.tokens.to(hmm.device), batch.lengths.to(hmm.device)
        here = torch.arange(ids.shape[1], device=hmm.device) < lengths[:, None]
        contexts = context_log_probs(hmm, ids, lengths=lengths)[here].exp_()  # (N, Z)
        words = ids[here]
        in_block = contexts @ membership  # (N, M)
        in_block.clamp_(min=torch.finfo(in_block.dtype).tiny)  # where no context leads
        reached.index_add_(0, words, in_block.log().double())
        used.index_add_(0, words, contexts.div_(in_block[:, block_of_state]))
        counts += torch.bincount(words, minlength=hmm.vocab_size)
        if progress is not None:
            progress(batch.num_tokens)
    counts[tokens.eos_id] = 0  # clusters are of the others
    scores = reached + _log_emissions(used, block_of_word, block_of_state, blocks)
    return _choose(scores, block_of_word, counts)


def _check_room(hmm: HMM) -> None:
    """Refuses a model for whose words and states there is no memory."""
    words, states = hmm.vocab_size, hmm.num_states
    needed, free = words * states * hmm.dtype.itemsize, free_memory(hmm.device)
    if free is not None and needed > free:
        raise InputError(
            f"To move words, {words:,} words x {states:,} states need {rounded(needed, 'B')} and "
            f"{rounded(free, 'B')} are free; move them by a model of fewer states."
        )


def _log_emissions(
    used: Float[Tensor, "V Z"],
    block_of_word: Int[Tensor, " V"],
    block_of_state: Int[Tensor, " Z"],
    blocks: int,
) -> Float[Tensor, "V M"]:
    """sum_z R_z log(R_z / n_z) of every word in every block, a slab of words at a time."""
    own = torch.zeros_like(used[0], dtype=torch.float64)  # n, without words that may come
    slabs = range(0, len(used), max(1, READ // used.shape[1]))
    for start in slabs:
        part = slice(start, start + slabs.step)
        is_own = block_of_word[part, None] == block_of_state
        own += torch.where(is_own, used[part], 0.0).sum(0, dtype=torch.float64)
    found = used.new_zeros(len(used), blocks, dtype=torch.float64)
    for start in slabs:
        part = slice(start, start + slabs.step)
        shares = used[part].double()
        is_own = block_of_word[part, None] == block_of_state
        total = torch.where(is_own, own, own + shares)
        terms = torch.xlogy(shares, shares) - torch.xlogy(shares, total)
        found[part].index_add_(1, block_of_state, terms)
    return found


def _choose(
    scores: Float[Tensor, "V M"], block_of_word: Int[Tensor, " V"], counts: Int[Tensor, " V"]
) -> Moved:
    """The best block of every word that may move, and what that gains."""
    alone = torch.bincount(block_of_word, minlength=scores.shape[1]) == 1
    now = scores.gather(1, block_of_word[:, None])
    best, where = scores.masked_fill(alone, -torch.inf).max(1)
    occurs = counts > 0
    gains = (best - now[:, 0]).clamp(min=0).masked_fill(~occurs, 0.0)
    held, kept = (
        torch.bincount(block_of_word[some], minlength=len(alone)) > 0
        for some in (occurs, occurs & (gains == 0))
    )
    for block in (held & ~kept).nonzero().flatten().tolist():
        members = (block_of_word == block).nonzero().flatten()
        gains[members[counts[members].argmax()]] = 0
    moved = torch.where(gains > 0, where, block_of_word)
    return Moved(moved.cpu().numpy(), gains.cpu().numpy())


def _lines(tokens: TokenArray, most: int, rows_at_once: int) -> Iterator[Batch]:
    """The lines of a text as rows, the longest first, about `most` places at a time."""
    firsts = tokens.sentence_offsets()
    lasts = np.append(firsts[1:], len(tokens))
    starts = np.concatenate([np.arange(a, b, LONGEST) for a, b in zip(firsts, lasts, strict=True)])
    lengths = np.diff(np.append(starts, len(tokens)))
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        number = min(most // int(lengths[order[begin]]), rows_at_once)
        rows = order[begin : begin + max(1, number)]
        yield stretch_rows(tokens, None, starts[rows], lengths[rows], restart=True)
        begin += len(rows)
