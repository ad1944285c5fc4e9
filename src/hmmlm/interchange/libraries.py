"""Categorical HMMs of hmmlearn, pomegranate and dynamax; none of them is imported."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.hmm import HMM, TOLERANCE
from hmmlm.interchange.tables import (
    Foreign,
    as_floats,
    build,
    check_names,
    check_shapes,
    log_of_logs,
    log_of_probs,
)

HMMLEARN = ("startprob_", "transmat_", "emissionprob_")
DYNAMAX = ("initial.probs", "transitions.transition_matrix", "emissions.probs")
POMEGRANATE = ("starts", "edges", "distributions.0.probs")
SPARSE = ("_edge_idx_starts", "_edge_idx_ends")
"""Where the edges of pomegranate's SparseHMM go."""

_STATE = re.compile(r"distributions\.(\d+)\.probs")
_BOOKKEEPING = re.compile(r"(.*\.)?(_.*|inertia|frozen|check_data)")
"""What else the state_dict of a model of pomegranate's has."""


def from_hmmlearn(model: Any) -> HMM:
    """A fitted `CategoricalHMM`, or anything with its `startprob_`, `transmat_`, `emissionprob_`.

    p(x) is hmmlearn's `score` of one sequence.
    """
    source = f"This {type(model).__name__}"
    if hasattr(model, "n_trials"):
        raise InputError(
            f"{source} emits counts of {getattr(model, 'n_features', 'several')} symbols, not one "
            f"symbol at a time; fit hmmlearn's CategoricalHMM."
        )
    found = {name: getattr(model, name) for name in HMMLEARN if hasattr(model, name)}
    return hmmlearn_hmm(source, {name: tensor(array) for name, array in found.items()}).hmm


def from_pomegranate(model: Any) -> HMM:
    """A `DenseHMM` or `SparseHMM` of `Categorical` distributions, each over one symbol.

    Where rows of edges and `ends` sum to one together, the HMM has one word more, V, with which a
    text ends: p(text, V) is pomegranate's `probability`. Where edges alone do and all `ends` are
    the same, as they are unless given, that is p(text) times this number.
    """
    source = f"This {type(model).__name__}"
    found = {name: getattr(model, name, None) for name in ("starts", "edges", "ends", *SPARSE)}
    for state, distribution in enumerate(getattr(model, "distributions", None) or ()):
        found[f"distributions.{state}.probs"] = getattr(distribution, "probs", None)
    arrays = {name: tensor(array) for name, array in found.items() if array is not None}
    return pomegranate_hmm(source, arrays).hmm


def from_dynamax(params: Any) -> HMM:
    """The parameters of a `CategoricalHMM` with one emission: p(x) is its `marginal_log_prob`."""
    source, found = f"This {type(params).__name__}", {}
    for name in DYNAMAX:
        part, _, leaf = name.partition(".")
        value = getattr(getattr(params, part, None), leaf, None)
        if value is not None:
            found[name] = tensor(value)
    return dynamax_hmm(source, found).hmm


def tensor(array: Any) -> Tensor:
    """A tensor, or anything that numpy takes for an array."""
    if isinstance(array, Tensor):
        return array
    return torch.from_numpy(np.array(array))  # a copy: others' memory may be read-only


def hmmlearn_hmm(source: str, arrays: Mapping[str, Tensor]) -> Foreign:
    """An HMM of hmmlearn's arrays."""
    extra = [name for name in arrays if name not in HMMLEARN]
    check_names(source, "a CategoricalHMM of hmmlearn", [*arrays], HMMLEARN, extra)
    check_shapes(source, arrays, dict(zip(HMMLEARN, ("Z", "ZZ", "ZV"), strict=True)))
    tables = (log_of_probs(source, name, arrays[name]) for name in HMMLEARN)
    return Foreign(build(source, HMMLEARN, *tables))


def dynamax_hmm(source: str, arrays: Mapping[str, Tensor]) -> Foreign:
    """An HMM of dynamax's arrays."""
    extra = [name for name in arrays if name not in DYNAMAX]
    check_names(source, "a CategoricalHMM of dynamax", [*arrays], DYNAMAX, extra)
    check_shapes(source, arrays, dict(zip(DYNAMAX, ("Z", "ZZ", "Z1V"), strict=True)))
    init, trans, emit = (log_of_probs(source, name, arrays[name]) for name in DYNAMAX)
    return Foreign(build(source, DYNAMAX, init, trans, emit[:, 0]))


def pomegranate_hmm(source: str, arrays: Mapping[str, Tensor]) -> Foreign:
    """An HMM of pomegranate's arrays, named as in its state_dict."""
    known = {"starts", "edges", "ends", *SPARSE}
    extra = [
        name
        for name in arrays
        if name not in known and not _STATE.fullmatch(name) and not _BOOKKEEPING.fullmatch(name)
    ]
    what = "an HMM of pomegranate over Categorical distributions"
    check_names(source, what, [*arrays], POMEGRANATE, extra)
    states = len(arrays["starts"])
    probs = {f"distributions.{state}.probs": "1V" for state in range(states)}
    more = [name for name in arrays if _STATE.fullmatch(name) and name not in probs]
    check_names(source, f"an HMM of {states:,} states", [*arrays], [*probs], more)
    arrays = {**arrays, "edges": _dense_edges(source, arrays, states)}
    ends = {"ends": "Z"} if "ends" in arrays else {}
    check_shapes(source, arrays, {"starts": "Z", "edges": "ZZ", **ends, **probs})
    init, trans = (log_of_logs(source, name, arrays[name]) for name in ("starts", "edges"))
    emit = torch.cat([log_of_probs(source, name, arrays[name]) for name in probs])
    names = ("starts", "edges", "distributions")
    if "ends" not in arrays or _are_apart(source, trans, as_floats(arrays["ends"])):
        return Foreign(build(source, names, init, trans, emit))
    return _ending(source, init, trans, emit, log_of_logs(source, "ends", arrays["ends"]))


def _dense_edges(source: str, arrays: Mapping[str, Tensor], states: int) -> Tensor:
    """The table of edges, of a SparseHMM too."""
    edges = arrays["edges"]
    if edges.ndim != 1 or not all(name in arrays for name in SPARSE):
        return edges
    check_shapes(source, arrays, {"edges": "E", **dict.fromkeys(SPARSE, "E")})
    table = as_floats(edges).new_full((states, states), -torch.inf)
    froms, tos = (arrays[name].long() for name in SPARSE)
    if (
        len(edges)
        and not 0
        <= min(int(froms.min()), int(tos.min()))
        <= max(int(froms.max()), int(tos.max()))
        < states
    ):
        raise InputError(
            f"{source} has edges between states {int(min(froms.min(), tos.min())):,} to "
            f"{int(max(froms.max(), tos.max())):,} but {states:,} states; save the whole model."
        )
    table[froms, tos] = as_floats(edges)
    return table


def _are_apart(source: str, log_trans: Tensor, ends: Tensor) -> bool:
    """Whether edges sum to one without the ends, which are then one number for every state."""
    alone, more = log_trans.double().exp().sum(-1), ends.double().exp()
    error = (alone - 1).abs().max()
    if error > (alone + more - 1).abs().max() or error > TOLERANCE:
        return False
    if more.max() - more.min() > 1e-6:
        raise InputError(
            f"{source}: edges sum to 1 without ends, and ends differ from {float(more.min()):.6g} "
            f"to {float(more.max()):.6g}, so that texts have no probabilities; give edges that sum "
            f"to 1 with them, or leave ends out."
        )
    return True


def _ending(source: str, init: Tensor, trans: Tensor, emit: Tensor, log_ends: Tensor) -> Foreign:
    """The HMM with one more state, which is entered when a text ends and emits one more word."""
    states, words = emit.shape
    wider = trans.new_full((states + 1, states + 1), -torch.inf)
    wider[:states, :states], wider[:states, states] = trans, log_ends
    wider[states, states] = 0.0
    more = emit.new_full((states + 1, words + 1), -torch.inf)
    more[:states, :words], more[states, words] = emit, 0.0
    start = torch.cat([init, init.new_full((1,), -torch.inf)])
    names = ("starts", "edges with ends", "distributions")
    return Foreign(build(source, names, start, wider, more), words)
