"""How well states agree with tags, from counts of both together."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from hmmlm.errors import InputError
from hmmlm.induction.compiled import assign


class Agreement(NamedTuple):
    """What S states say of T tags; entropies are in nats.

    `many_to_one`: the share of tokens that are right where each state stands for the tag it meets
    most. `one_to_one`: the same where no two states stand for one tag, at best; states that are
    left over are wrong. `homogeneity` is 1 - H(tag | state) / H(tag), `completeness`
    1 - H(state | tag) / H(state), either 1 where nothing can be learnt; `v_measure` is their
    harmonic mean. `variation_of_information` is H(tag | state) + H(state | tag), 0 at best.
    """

    tokens: int
    many_to_one: float
    one_to_one: float
    homogeneity: float
    completeness: float
    v_measure: float
    variation_of_information: float


class Matching(NamedTuple):
    """Pairs of a row and a column, no row or column twice, in order of rows; the cell of each."""

    rows: Int[np.ndarray, " N"]
    columns: Int[np.ndarray, " N"]
    counts: Int[np.ndarray, " N"]


def count_together(
    states: Int[np.ndarray, " N"], tags: Int[np.ndarray, " N"]
) -> Int[np.ndarray, "S T"]:
    """How many tokens have each state and each tag, both numbered from 0. Memory: O(S T)."""
    if len(states) != len(tags):
        raise InputError(
            f"There are {len(states):,} states but {len(tags):,} tags; give one of each a token."
        )
    if not len(states):
        raise InputError("There is no token to compare; give at least one.")
    if min(states.min(), tags.min()) < 0:
        raise InputError("A state or a tag is under 0; number both from 0.")
    shape = int(states.max()) + 1, int(tags.max()) + 1
    cells = np.bincount(states.astype(np.int64) * shape[1] + tags, minlength=shape[0] * shape[1])
    return cells.reshape(shape)


def agreement(counts: Int[np.ndarray, "S T"], matching: Matching | None = None) -> Agreement:
    """All measures of states (rows) against tags (columns), with `match(counts)` or what it gave.

    Time: that of `match`.
    """
    tokens = _total(counts)
    right = int(counts.max(1).sum())
    of_tag, of_state = _entropy(counts), _entropy(counts.T)
    tags, states = _entropy(counts.sum(0)[None]), _entropy(counts.sum(1)[None])
    homogeneity = max(0.0, 1 - of_tag / tags) if tags > 0 else 1.0
    completeness = max(0.0, 1 - of_state / states) if states > 0 else 1.0
    both = homogeneity + completeness
    return Agreement(
        tokens,
        right / tokens,
        int((matching or match(counts)).counts.sum()) / tokens,
        homogeneity,
        completeness,
        2 * homogeneity * completeness / both if both > 0 else 0.0,
        of_tag + of_state,
    )


def match(counts: Int[np.ndarray, "S T"]) -> Matching:
    """The pairs of rows and columns whose cells sum to most (Hungarian), those of 0 left out.

    Time: O(min(S, T)^2 max(S, T)) at worst; memory: a copy of the counts.
    """
    _total(counts)
    is_tall = counts.shape[0] > counts.shape[1]
    wide = np.ascontiguousarray(counts.T if is_tall else counts)
    first, second = np.arange(len(wide)), assign(-wide.astype(np.float64))
    rows, columns = (second, first) if is_tall else (first, second)
    order = np.argsort(rows)
    rows, columns = rows[order], columns[order]
    found = counts[rows, columns]
    return Matching(rows[found > 0], columns[found > 0], found[found > 0])


def _total(counts: np.ndarray) -> int:
    if counts.size and counts.min() < 0:
        raise InputError("counts has a number under 0; count tokens.")
    if not counts.any():
        raise InputError("counts has no token; give at least one.")
    return int(counts.sum())


def _entropy(counts: np.ndarray) -> float:
    """H(column | row) in nats; exactly 0 where each row has one column."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    logs = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
    return abs(float((counts * logs).sum())) / int(counts.sum())
