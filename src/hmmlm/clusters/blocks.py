"""From clusters of words to emission blocks: every token of a vocabulary gets one, by rule."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from hmmlm.clusters.brown import brown
from hmmlm.clusters.clustering import balance, check_clusters
from hmmlm.clusters.counts import count_bigrams, count_words
from hmmlm.clusters.exchange import exchange
from hmmlm.clusters.kept import read_kept, write_kept
from hmmlm.data.shards import Corpus
from hmmlm.errors import InputError, counted

METHODS = {"brown": brown, "exchange": exchange}
MOST = 2
"""No block has more than so many times the average: steps take time in its square."""


class Blocks(NamedTuple):
    """The block of every token, and the rules by which those without a cluster got one."""

    block_of_word: Int[np.ndarray, " V"]
    num_blocks: int
    rules: tuple[str, ...]


def assign_blocks(
    cluster_of_word: Int[np.ndarray, " V"],
    counts: Int[np.ndarray, " V"],
    *,
    eos_id: int,
    unk_id: int | None,
    like_hmm_lm: bool = False,
) -> Blocks:
    """Clusters as blocks; `counts` are those of the training text, `<eos>` included.

    `<eos>`, and `<unk>` where it occurs, have a block of their own, after the clusters unless they
    already are alone in one. A token that never occurs is in the block with the most words.
    `like_hmm_lm` instead puts all without a cluster into the last, as the released code of Chiu &
    Rush did.
    """
    check_clusters(cluster_of_word, len(counts))
    found = cluster_of_word.astype(np.int64)
    number = int(found.max(initial=-1)) + 1
    if number == 0:
        raise InputError("there are no clusters; give at least one word a cluster.")
    if like_hmm_lm:
        missing = np.flatnonzero(found < 0)
        found[missing] = number - 1
        names = f"{counted(len(missing), 'token')} without a cluster"
        names += ", <eos> among them," if eos_id in missing else ""
        verb = "is" if len(missing) == 1 else "are"
        rule = f"{names} {verb} in the last cluster, {number - 1:,}, as in hmm-lm"
        return Blocks(found, number, (rule,) if len(missing) else ())
    occurs = counts > 0
    lost = np.flatnonzero(occurs & (found < 0))
    lost = lost[~np.isin(lost, [eos_id])]
    if len(lost):
        have = "has" if len(lost) == 1 else "have"
        raise InputError(
            f"{counted(len(lost), 'token')} of the training text {have} no cluster, the first is "
            f"{lost[0]:,}; give clusters of this text, or --like-hmm-lm to put them into the last "
            "cluster."
        )
    rules = []
    for name, word in (("<eos>", eos_id), ("<unk>", unk_id)):
        if word is None or (word != eos_id and not occurs[word]):
            continue
        if found[word] < 0 or np.count_nonzero(found == found[word]) > 1:
            found[word] = number
            number += 1
        rules.append(f"{name} has block {found[word]:,} to itself")
    unseen = np.flatnonzero(found < 0)
    if len(unseen):
        largest = int(np.bincount(found[found >= 0]).argmax())
        found[unseen] = largest
        which = "that never occurs is" if len(unseen) == 1 else "that never occur are"
        which = f"{counted(len(unseen), 'token')} {which}"
        rules.append(f"{which} in block {largest:,}, the one with the most words")
    return Blocks(found, number, tuple(rules))


def block_facts(made: Blocks, counts: Int[np.ndarray, " V"], origin: str) -> dict[str, Any]:
    """What a model's config says of its blocks: where they come from, by which rules, how even."""
    sizes = balance(made.block_of_word, counts)
    return {"origin": origin, "rules": list(made.rules), **sizes._asdict()}


def states_of_blocks(
    states: int, tokens: Int[np.ndarray, " M"], uneven: float, *, widest: int | None = None
) -> Int[np.ndarray, " M"]:
    """How many states each block has, in proportion to tokens^uneven: all alike for 0.

    `tokens` are those of the block's words in the training text. Every state is given to a block,
    one at least to each, and to none more than twice the average, nor than `widest` unless the
    average is more.
    """
    blocks = len(tokens)
    if states < blocks:
        raise InputError(
            f"{counted(states, 'state')} are fewer than {blocks:,} blocks, each of which needs one."
        )
    most = max(1, MOST * states // blocks)
    if widest is not None:
        most = max(-(-states // blocks), min(most, widest))
    weights = np.maximum(tokens, 1).astype(np.float64) ** uneven
    low, high = 0.0, states / weights.min()
    for _ in range(100):  # the largest factor that gives no more than there are
        factor = (low + high) / 2
        fits = np.clip(factor * weights, 1, most).sum() <= states
        low, high = (factor, high) if fits else (low, factor)
    wanted = np.clip(low * weights, 1, most)
    found = wanted.astype(np.int64)
    # What rounding has left goes where most was cut off, the first of equals.
    rest = np.where(found < most, wanted - found, -1)
    found[np.argsort(-rest, kind="stable")[: states - found.sum()]] += 1
    return found


def corpus_blocks(
    corpus: Corpus,
    blocks: int,
    *,
    method: str = "exchange",
    pairs: str = "lines",
    like_hmm_lm: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[Blocks, bool]:
    """Blocks from clusters of the training text, and whether these were there already.

    The number of blocks counts those of `<eos>` and `<unk>`: of 128, 126 are clusters. Clusters
    are kept in the corpus' folder, where that can be written, under a name that says how they were
    made.
    """
    if method not in METHODS:
        raise InputError(f"method is {method!r} but must be {' or '.join(METHODS)}.")
    words, tokens = corpus.tokenizer, corpus.split("train")
    counts = count_words(tokens, words.vocab_size)
    unk = words.unk_id
    alone = [] if like_hmm_lm or unk is None or counts[unk] == 0 else [unk]
    clusters = blocks if like_hmm_lm else blocks - 1
    types = int(np.count_nonzero(counts)) - int(counts[words.eos_id] > 0)
    # One word at least beside those that have a block to themselves.
    fewest = 1 if like_hmm_lm else len(alone) + 1 + (types > len(alone))
    if not fewest <= blocks <= types + (not like_hmm_lm):
        raise InputError(
            f"{blocks:,} blocks were asked for but with {types:,} different words in the training "
            f"text there can be {fewest:,} to {types + (not like_hmm_lm):,}."
        )
    how = f"{method}-{pairs}-{clusters}{'-unk-alone' if alone else ''}"
    occurs = counts > 0
    occurs[words.eos_id] = False
    found = read_kept(corpus.folder, how, occurs, clusters)
    cached = found is not None
    if found is None:
        bigrams = count_bigrams(tokens, words.vocab_size, pairs=pairs)
        made = METHODS[method](bigrams, clusters, alone=alone, progress=progress)
        found = made.cluster_of_word
        write_kept(corpus.folder, how, found)
    return (
        assign_blocks(found, counts, eos_id=words.eos_id, unk_id=unk, like_hmm_lm=like_hmm_lm),
        cached,
    )
