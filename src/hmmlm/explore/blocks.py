"""The clusters of words, and the states that those of each share."""

from typing import Any

import numpy as np

from hmmlm.errors import InputError
from hmmlm.explore.preparing import TABLE_WORDS, Missing, Prepared

BLOCK_WORDS = 1000
"""Words of a block that are listed."""


def block_list(prepared: Prepared) -> dict[str, Any]:
    """The clusters of words and the states that they share."""
    if prepared.table.block is None:
        return {"blocks": [], "note": "This model has no blocks.", "use": prepared.use_state()}
    weights = prepared.word_weights
    shares = prepared.block_shares()
    found = []
    for block, words in enumerate(prepared.block_words):
        best = words[np.argsort(-weights[words], kind="stable")][:TABLE_WORDS]
        total = max(float(weights[words].sum()), 1e-300)
        found.append(
            {
                "id": block,
                "states": int((prepared.table.block == block).sum()),
                "words": len(words),
                "share": None if shares is None else float(shares[block]),
                "top": prepared.words(best, weights[best] / total),
            }
        )
    return {"blocks": found, "note": None, "use": prepared.use_state()}


def block_card(prepared: Prepared, block: int) -> dict[str, Any]:
    """The words of one block, the most probable first."""
    check_block(prepared, block)
    words, weights = prepared.block_words[block], prepared.word_weights
    order = words[np.argsort(-weights[words], kind="stable")]
    total = max(float(weights[words].sum()), 1e-300)
    shares = prepared.block_shares()
    return {
        "id": block,
        "states": int((prepared.table.block == block).sum()),
        "share": None if shares is None else float(shares[block]),
        "total": len(words),
        "words": prepared.words(order[:BLOCK_WORDS], weights[order[:BLOCK_WORDS]] / total),
    }


def check_block(prepared: Prepared, block: int) -> np.ndarray:
    blocks = prepared.table.block
    if blocks is None:
        raise InputError("This model has no blocks; leave out block.")
    if not 0 <= block <= blocks.max():
        raise Missing(f"There is no block {block:,}; this model has 0 to {blocks.max():,}.")
    return blocks == block
