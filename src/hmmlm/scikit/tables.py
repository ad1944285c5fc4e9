"""Tables of probabilities, as users set and read them: checked, and as an HMM."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.random import RandomState
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.hmm import HMM, emission_rows

MOST = 1 << 28
"""Cells that a table may have: 2 GiB."""

FAINT = 1e-17
"""The least probability that is drawn or learnt, but for zero: with less, scaled sums lose digits
and every row would be redone in log space, a hundred times slower."""

Arrays = tuple[Float[np.ndarray, " Z"], Float[np.ndarray, "Z Z"], Float[np.ndarray, "Z V"]]
"""p(z1), p(z' | z) and p(x | z)."""


def checked(name: str, table: Any, shape: tuple[int, ...]) -> Float[np.ndarray, "..."]:
    """A table of distributions in float64; `name` is what users call it."""
    try:
        found = np.asarray(table, dtype=np.float64)
    except (ValueError, TypeError):
        raise InputError(
            f"{name} is no table of numbers; give {shape} probabilities, by n_components and "
            "n_features."
        ) from None
    if found.shape != shape:
        raise InputError(
            f"{name} has shape {found.shape} but must have {shape}, by n_components and n_features."
        )
    if not (found >= 0).all():
        raise InputError(f"{name} has {found.min()} among its probabilities; none may be below 0.")
    sums = found.sum(-1)
    if not np.allclose(sums, 1, rtol=0, atol=1e-5):
        worst = float(sums.flat[np.abs(sums - 1).argmax()])
        rows = "rows must sum to 1" if found.ndim > 1 else "must sum to 1"
        raise InputError(f"{name}: {rows}, not {worst:.6g}; divide each by its sum.")
    return found


def check_size(states: int, symbols: int) -> None:
    """Refuses tables that are too large to be kept as arrays."""
    if states * max(states, symbols) > MOST:
        raise InputError(
            f"An HMM of {states:,} states and {symbols:,} symbols has tables of up to "
            f"{states * max(states, symbols):,} cells, more than the {MOST:,} that an estimator "
            "keeps; number symbols from 0 on without gaps, or use hmmlm train and hmmlm.inference."
        )


def as_hmm(tables: Arrays, device: Any, dtype: torch.dtype) -> HMM:
    """The HMM of checked tables, every symbol with all states."""
    logs = (torch.from_numpy(table).to(device).log().to(dtype) for table in tables)
    return HMM.from_tables(*logs)


def of_hmm(hmm: HMM) -> Arrays:
    """The tables of an HMM of any kind, with zeros where a state may not emit a symbol."""
    check_size(hmm.num_states, hmm.vocab_size)
    trans = hmm.transitions.rows(0, hmm.num_states)
    return as_arrays(hmm.log_init, trans, emission_rows(hmm.detach()))


def as_arrays(
    log_init: Float[Tensor, " Z"], log_trans: Float[Tensor, "Z Z"], log_emit: Float[Tensor, "Z V"]
) -> Arrays:
    """Probabilities whose rows sum to one in float64."""
    init, trans, emit = (
        torch.softmax(table.detach().cpu().double(), -1).numpy()
        for table in (log_init, log_trans, log_emit)
    )
    return init, trans, np.ascontiguousarray(emit)


def drawn(
    letters: str, num_states: int, num_symbols: int, first: RandomState, second: RandomState
) -> dict[str, np.ndarray]:
    """Tables to begin with, by their letters: those that hmmlearn draws from the same sources."""
    even, found = np.full(num_states, 1 / num_states), {}
    if "s" in letters:
        found["s"] = first.dirichlet(even)
    if "t" in letters:
        found["t"] = first.dirichlet(even, size=num_states)
    if "e" in letters:
        emit = second.rand(num_states, num_symbols)
        found["e"] = emit / emit.sum(1, keepdims=True)
    return {name: np.where((t > 0) & (t < FAINT), FAINT, t) for name, t in found.items()}


def stationary(tables: Arrays, hmm: HMM) -> Float[np.ndarray, " Z"]:
    """The distribution that a transition leaves as it is; where there are several, that of p(z1).

    O(Z^3).
    """
    trans = tables[1]
    states = len(trans)
    try:
        found = np.linalg.solve((np.eye(states) - trans + 1.0).T, np.ones(states))
    except np.linalg.LinAlgError:
        found = np.full(states, np.nan)
    if not np.allclose(found @ trans, found, rtol=0, atol=1e-9) or found.min() < -1e-9:
        found = hmm.long_run(rounds=10_000).cpu().double().numpy()
    found = found.clip(0)
    return found / found.sum()


def walk(
    tables: Arrays, steps: int, state: int | None, source: RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Symbols and states drawn from the tables, by one number from `source` for each.

    hmmlearn uses the numbers in the same order, so that the same source gives the same draws.
    """
    init, trans, emit = tables

    def draw(probs: np.ndarray) -> int:
        reached = probs.cumsum()
        return int(reached.searchsorted(source.rand() * reached[-1], side="right"))

    symbols, states = np.empty((steps, 1), dtype=int), np.empty(steps, dtype=int)
    for step in range(steps):
        if step or state is None:
            state = draw(trans[state] if step else init)
        symbols[step], states[step] = draw(emit[state]), state
    return symbols, states
