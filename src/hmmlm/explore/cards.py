"""The table of states, page by page, and the card of each."""

import math
from typing import Any

import numpy as np
import torch

from hmmlm.errors import InputError
from hmmlm.explore.blocks import check_block
from hmmlm.explore.preparing import NAME_WORDS, Missing, Prepared

CARD_WORDS, NEIGHBOURS = 30, 12
SORTS = ("use", "entropy", "id", "block", "words")


def states_page(
    prepared: Prepared, *, sort: str, order: str, q: str, block: int | None, page: int, size: int
) -> dict[str, Any]:
    """A page of the table of states."""
    use, table = prepared.use, prepared.table
    chosen, probs, note = _search(prepared, q.strip())
    if block is not None:
        chosen = chosen[check_block(prepared, block)[chosen]]
    if sort:
        key = _sort_key(prepared, sort)
        if key is None:
            note = note or _no_use(prepared)
        else:
            down = (order or ("desc" if sort == "use" else "asc")) == "desc"
            keys = key[chosen]
            chosen = chosen[np.argsort(-keys if down else keys, kind="stable")]
    rows = []
    for state in chosen[page * size : (page + 1) * size].tolist():
        row = {
            "id": state,
            "block": None if table.block is None else int(table.block[state]),
            "use": None if use is None else float(use.share[state]),
            "entropy": float(table.entropy[state]),
            "words": prepared.words(table.words[state], table.probs[state]),
        }
        if probs is not None:
            row["p"] = probs[state]
        rows.append(row)
    total = {"total": len(chosen), "page": page, "size": size}
    return {**total, "states": rows, "note": note or None, "use": prepared.use_state()}


def _no_use(prepared: Prepared) -> str:
    if prepared.use_state()["state"] == "failed":
        return "Shares of use could not be counted; states are in order."
    return "Shares of use are being computed; until then states are in order."


def _search(prepared: Prepared, q: str) -> tuple[np.ndarray, dict[int, float] | None, str]:
    """The states that a word or a number means, best first; all without one."""
    hmm = prepared.model.hmm
    if not q:
        return np.arange(hmm.num_states), None, ""
    probs: dict[int, float] = {}
    word = prepared.word_id(q)
    if word is not None:
        names = hmm.support.states_of(torch.tensor(word, device=hmm.device))
        log_probs = hmm.log_emit[word][names >= 0]
        found = zip(names[names >= 0].tolist(), log_probs.exp().tolist(), strict=True)
        probs = dict(sorted((pair for pair in found if pair[1] > 0), key=lambda p: -p[1]))
    chosen = list(probs)
    if q.isdecimal() and len(q) < 12 and int(q) < hmm.num_states:
        state = int(q)
        chosen = [state, *(one for one in chosen if one != state)]
        if word is None:
            return np.array(chosen), None, ""
        probs.setdefault(state, 0.0)
    if word is None:
        near = _near(prepared, q)
        note = f"No word of this model is {q!r}" + (f"; it has {', '.join(near)}" if near else "")
        return np.empty(0, np.int64), None, note + "."
    return np.array(chosen, np.int64), probs, ""


def _near(prepared: Prepared, q: str) -> list[str]:
    """Words that begin as asked, the shortest first."""
    found = [word for word in prepared.ids if word.lower().lstrip("▁Ġ").startswith(q.lower())]
    return sorted(found, key=lambda word: (len(word), word))[:5]


def _sort_key(prepared: Prepared, sort: str) -> np.ndarray | None:
    if sort not in SORTS:
        raise InputError(f"sort is {sort!r} but must be one of {', '.join(SORTS)}.")
    if sort == "use":
        return None if prepared.use is None else prepared.use.share
    if sort == "entropy":
        return prepared.table.entropy
    if sort == "words":
        return prepared.word_ranks
    if sort == "block" and prepared.table.block is not None:
        return prepared.table.block
    return np.arange(prepared.model.hmm.num_states)


def state_card(prepared: Prepared, state: int) -> dict[str, Any]:
    """The card of one state."""
    hmm, table, use = prepared.model.hmm, prepared.table, prepared.use
    if not 0 <= state < hmm.num_states:
        raise Missing(f"There is no state {state:,}; this model has 0 to {hmm.num_states - 1:,}.")
    words = prepared.model.top_words(state, k=CARD_WORDS)
    names = prepared.model.tag_names
    return {
        "id": state,
        "block": None if table.block is None else int(table.block[state]),
        "tag": None if names is None else names[state],
        "use": None if use is None else float(use.share[state]),
        "entropy": float(table.entropy[state]),
        "words": [(word, prob) for word, prob in words if prob > 0],
        "starts": math.exp(float(hmm.log_init[state])),
        "ends": _emits(prepared, prepared.model.tokenizer.eos_id, state),
        "from": _sources(prepared, state),
        "to": _destinations(prepared, state),
        "examples": _examples(prepared, state),
        "use_state": prepared.use_state(),
    }


def _emits(prepared: Prepared, word: int, state: int) -> float:
    support = prepared.model.hmm.support
    ids = torch.tensor([word, state], device=prepared.model.device)
    slot = support.slots_of(ids[0], ids[1])
    return 0.0 if slot < 0 else math.exp(float(prepared.model.hmm.log_emit[word, slot]))


def _sources(prepared: Prepared, state: int) -> list[dict[str, Any]] | None:
    """p(the state before | this state) where states are as frequent as in the text.

    By Bayes' rule from the model's own transitions. `id` None is the beginning of a line.
    """
    use, hmm = prepared.use, prepared.model.hmm
    if use is None:
        return None
    into = hmm.transitions.column(state).double().exp().cpu().numpy() * use.onward
    start = use.starts * math.exp(float(hmm.log_init[state]))
    total = into.sum() + start
    if not total > 0:
        return []
    best = np.argsort(-into, kind="stable")[:NEIGHBOURS]
    found = [_neighbour(prepared, int(one), float(into[one] / total)) for one in best]
    if start > 0:
        found.append({"id": None, "p": float(start / total), "words": []})
    return sorted((one for one in found if one["p"] > 0), key=lambda one: -one["p"])[:NEIGHBOURS]


def _destinations(prepared: Prepared, state: int) -> list[dict[str, Any]]:
    row = prepared.model.hmm.transitions.rows(state, state + 1)[0]
    best = row.topk(min(NEIGHBOURS, len(row)))
    pairs = zip(best.indices.tolist(), best.values.double().exp().tolist(), strict=True)
    return [_neighbour(prepared, one, prob) for one, prob in pairs if prob > 0]


def _neighbour(prepared: Prepared, state: int, prob: float) -> dict[str, Any]:
    some = slice(0, NAME_WORDS)
    words = prepared.words(prepared.table.words[state, some], prepared.table.probs[state, some])
    return {"id": state, "p": prob, "words": words}


def _examples(prepared: Prepared, state: int) -> list[dict[str, Any]] | None:
    use = prepared.use
    if use is None:
        return None
    found = []
    lines, at = use.example_line[state].tolist(), use.example_at[state].tolist()
    for line, position, prob in zip(lines, at, use.example_prob[state].tolist(), strict=True):
        if line >= 0:
            ids = prepared.reader.texts[line].tolist()
            tokens = [prepared.model.tokenizer.token(id) for id in ids]
            found.append({"tokens": tokens, "position": position, "posterior": prob})
    return found
