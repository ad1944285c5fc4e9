"""States that behave alike as one group."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from hmmlm.clusters.brown import brown
from hmmlm.clusters.counts import count_bigrams
from hmmlm.data.token_array import TokenArray
from hmmlm.errors import InputError, check_count, counted


def merge_states(lines: Sequence[Int[np.ndarray, " T"]], number: int) -> Int[np.ndarray, " Z"]:
    """The group of each state, of `number` ones: Brown's clusters of a text of states.

    Two groups merge whose neighbours on the lines are most alike: the mutual information of
    neighbouring groups, and of groups and the ends of lines, loses least. No word or tag is looked
    at. Groups are numbered by falling count; a state that is on no line has -1.
    """
    used = np.unique(np.concatenate([np.empty(0, np.int64), *lines]))
    check_count("number", number)
    if number > len(used):
        raise InputError(
            f"There are {counted(len(used), 'state')} on the lines but {number:,} groups to make "
            f"of them; ask for {len(used):,} at most."
        )
    # The places of states that are used; one for the start and end of a line, and <eos>.
    end, eos = len(used), len(used) + 1
    parts = [np.concatenate([[end], np.searchsorted(used, line), [end, eos]]) for line in lines]
    text = TokenArray.from_ids(np.concatenate(parts), eos_id=eos)
    bigrams = count_bigrams(text, eos + 1)
    cluster_of = brown(bigrams, number + 1, alone=[end]).cluster_of_word[:end]
    sizes = np.bincount(cluster_of, bigrams.words[:end], minlength=number + 1)
    place = np.empty(number + 1, np.int64)
    place[np.argsort(-sizes, kind="stable")] = np.arange(number + 1)
    groups = np.full(int(used[-1]) + 1, -1, np.int64)
    groups[used] = place[cluster_of]
    return groups
