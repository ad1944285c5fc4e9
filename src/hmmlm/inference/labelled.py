"""Tokens of which some have a label: only the states of the label may have emitted them."""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.results import Counts
from hmmlm.support import Support

Fold = Callable[[Counts], Counts]


def labelled(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    labels: Int[Tensor, "B T"],
    label_of_state: Int[Tensor, " Z"],
) -> tuple[HMM, Int[Tensor, "B T"], Fold]:
    """An HMM and tokens whose evidence is log p(x, labels), and how to fold its counts back.

    `labels` are -1 where nothing is known; `label_of_state` says which label each state belongs
    to. For every (word, label) of the batch the HMM has one more word, with the word's emissions
    from the states of the label and -inf from all others, so any inference function that sums over
    paths will do. What `fold` makes of its counts are those of the words of `hmm`.
    A token after which the chain is reset (`reset_id`) must have no label. O(V K) time and memory.
    """
    given = labels >= 0
    if len(label_of_state) != hmm.num_states:
        raise InputError(
            f"label_of_state is for {len(label_of_state):,} states but the HMM has "
            f"{hmm.num_states:,}; give a label for each state, -1 for none."
        )
    if bool((tokens[given] < 0).any()):
        raise InputError("A missing token has a label; label only tokens that are there.")
    number = 1 + int(labels.max())
    pairs, place = (tokens[given] * number + labels[given]).unique(return_inverse=True)
    words, wanted = (pairs // max(1, number)).to(hmm.device), (pairs % max(1, number))
    support, vocab = hmm.support, hmm.vocab_size
    states = support.states_of(words)  # (N, K)
    allowed = label_of_state.to(hmm.device)[states.clamp(min=0)]
    allowed = (allowed == wanted.to(hmm.device)[:, None]) & (states >= 0)
    emit = hmm.log_emit[words].masked_fill(~allowed, -torch.inf)
    rows = torch.cat([support.row_of_word, support.row_of_word[words]])
    # The new words share the rows of theirs: a dense support stays one, and tiles are shared.
    more = Support(support.rows, rows, support.num_states)
    tokens = tokens.clone()
    tokens[given] = vocab + place
    joint = HMM(
        hmm.log_init,
        hmm.transitions,
        torch.cat([hmm.log_emit, emit]),
        more,
        hmm.state_ids,
        hmm.source_ids,
    )

    def fold(counts: Counts) -> Counts:
        emit = counts.emit[:vocab].index_add(0, words, counts.emit[vocab:])
        return counts._replace(emit=emit)

    return joint, tokens, fold
