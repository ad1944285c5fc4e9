"""Checkpoints of Ctrl-G and TRACE: a folder with model.safetensors and config.json.

Both have p(z' | z) as probabilities (`alpha_exp`) and log p(x | z) (`beta`). p(z1) is the softmax
of `gamma` in Ctrl-G and the one row of `gamma_exp` in TRACE. After the end of a text both repeat
the end token: a state of its own, the last one, emits nothing else.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.hmm import HMM, emission_rows
from hmmlm.interchange.tables import (
    Foreign,
    as_floats,
    build,
    check_names,
    check_shapes,
    log_of_logs,
    log_of_probs,
)
from hmmlm.model import Model
from hmmlm.storage import check_space, new_folder, refuse_existing
from hmmlm.text_model import CONFIG, TOKENIZER, WEIGHTS
from hmmlm.transitions import Dense

CTRL_G = ("alpha_exp", "beta", "gamma")
TRACE = ("alpha_exp", "beta", "gamma_exp")
WORD_WEIGHTS = ("weights_tensor", "exp_weights", "weighted_beta")
"""What TRACE may keep beside the HMM, the weights of words for one attribute; not to be read."""

MOST_CELLS = 1 << 31
"""Cells of dense tables (8.6 GB) into which blocks or factors are spread, at most."""

WRITTEN_ZERO = -1e30
"""log 0 as Ctrl-G writes it: of -inf its products make NaN."""

_GROUP = 1 << 24
"""Cells of transitions that are made at a time."""


def ctrl_g_hmm(source: str, tensors: Mapping[str, Tensor], config: dict[str, Any]) -> Foreign:
    """The HMM of a checkpoint of Ctrl-G's."""
    extra = [name for name in tensors if name not in CTRL_G]
    check_names(source, "a checkpoint of Ctrl-G", [*tensors], CTRL_G, extra)
    check_shapes(source, tensors, {"gamma": "Z", "alpha_exp": "ZZ", "beta": "ZV"})
    gamma = as_floats(tensors["gamma"])
    if not torch.isfinite(torch.logsumexp(gamma, 0)):
        raise InputError(
            f"{source}: gamma has NaN, inf or no number above -inf, so its softmax is no "
            f"distribution; save a whole checkpoint."
        )
    # Ctrl-G's guide takes gamma as it is, but what is added to all of it cancels there.
    log_init = log_of_logs(source, "gamma", torch.log_softmax(gamma, 0))
    return _checked(source, tensors, log_init, "gamma", "hidden_states", config)


def trace_hmm(source: str, tensors: Mapping[str, Tensor], config: dict[str, Any]) -> Foreign:
    """The HMM of a checkpoint of TRACE's, without the weights of words."""
    extra = [name for name in tensors if name not in TRACE]
    check_names(source, "a checkpoint of TRACE", [*tensors], TRACE, extra)
    check_shapes(source, tensors, {"gamma_exp": "1Z", "alpha_exp": "ZZ", "beta": "ZV"})
    log_init = log_of_probs(source, "gamma_exp", tensors["gamma_exp"])[0]
    return _checked(source, tensors, log_init, "gamma_exp", "hidden_size", config)


def _checked(
    source: str,
    tensors: Mapping[str, Tensor],
    log_init: Tensor,
    name: str,
    size: str,
    config: dict[str, Any],
) -> Foreign:
    log_trans = log_of_probs(source, "alpha_exp", tensors["alpha_exp"])
    log_emit = log_of_logs(source, "beta", tensors["beta"])
    for key, number in zip((size, "vocab_size"), log_emit.shape, strict=True):
        if config.get(key) != number:
            raise InputError(
                f"{source}: beta has the shape {tuple(log_emit.shape)} but {CONFIG} says {key} is "
                f"{config.get(key)!r}; copy the folder again as a whole."
            )
    eos_id = config.get("eos_token_id")
    if type(eos_id) is not int or not 0 <= eos_id < log_emit.shape[1]:
        raise InputError(
            f"{source}: {CONFIG} says eos_token_id is {eos_id!r}, but it must be one of 0 to "
            f"{log_emit.shape[1] - 1:,}; correct it."
        )
    hmm = build(source, (name, "alpha_exp", "beta"), log_init, log_trans, log_emit)
    return Foreign(hmm, eos_id)


def write_ctrl_g(
    model: Model | HMM,
    folder: str | os.PathLike[str],
    *,
    eos_id: int | None = None,
    end_state: bool = True,
) -> int:
    """Writes a checkpoint that Ctrl-G reads, in float32, whole or not at all; its states' number.

    With `end_state` texts end as Ctrl-G's do: the last state emits `<eos>` for ever and no other
    state emits it. p(text, `<eos>`) stays as it was, however often `<eos>` is repeated; a state
    that emits nothing else is left out. Without, the states are written as they are.
    """
    hmm, words = (model.hmm, model.tokenizer) if isinstance(model, Model) else (model, None)
    eos_id = _check_eos(hmm, words.eos_id if words is not None else None, eos_id)
    if hmm.state_ids is not None or hmm.num_soft:
        raise InputError(
            f"This HMM has {hmm.num_states:,} states of a larger one, or soft evidence, and cannot "
            f"be written as a checkpoint; give the whole one."
        )
    refuse_existing(folder)
    hmm.validate(rows=False)
    states = hmm.num_states + int(end_state)
    cells = states * (states + hmm.vocab_size)
    is_dense = hmm.support.is_dense and isinstance(hmm.transitions, Dense)
    if cells > MOST_CELLS and not is_dense:
        raise InputError(
            f"Ctrl-G has no blocks or factors, and as dense tables the {states:,} states and "
            f"{hmm.vocab_size:,} words of this model have {cells:,} cells ({4 * cells / 1e9:.1f} "
            f"GB), more than {MOST_CELLS:,}; train one of fewer states."
        )
    check_space(folder, 4 * cells)
    tables = _tables(hmm, eos_id if end_state else None)
    config = {
        "eos_token_id": eos_id,
        "hidden_states": len(tables["gamma"]),
        "vocab_size": hmm.vocab_size,
    }
    with new_folder(folder) as temporary:
        save_file(tables, temporary / WEIGHTS, metadata={"format": "pt"})
        text = json.dumps(config, indent=2) + "\n"
        (temporary / CONFIG).write_text(text, encoding="utf-8")
        if words is not None:
            (temporary / TOKENIZER).write_text(words.as_json(), encoding="utf-8")
    return config["hidden_states"]


def _check_eos(hmm: HMM, own: int | None, given: int | None) -> int:
    """The id of the end token: the tokenizer's, or the one that is given."""
    if own is not None and given not in (None, own):
        raise InputError(
            f"eos_id is {given:,} but the model's tokenizer ends lines with {own:,}; leave eos_id "
            f"out."
        )
    eos_id = given if own is None else own
    if eos_id is None:
        raise InputError(
            "A checkpoint of Ctrl-G says which token ends a text, and an HMM alone does not; pass "
            "eos_id, or a model with its tokenizer."
        )
    if not 0 <= eos_id < hmm.vocab_size:
        raise InputError(
            f"eos_id is {eos_id:,} but must be one of 0 to {hmm.vocab_size - 1:,}, the words of "
            f"this HMM."
        )
    return eos_id


def _tables(hmm: HMM, eos_id: int | None) -> dict[str, Tensor]:
    """Ctrl-G's tables; with `eos_id` a last state takes the ends of all others over."""
    hmm = hmm.detach().to("cpu")
    log_emit = emission_rows(hmm)
    init, states = hmm.log_init.double().exp(), torch.arange(hmm.num_states)
    goes_on, ends = torch.ones_like(init), None
    if eos_id is not None:
        # Whether a state's word is <eos> is decided on the way into it.
        ends = log_emit[:, eos_id].double().exp()
        log_emit[:, eos_id] = -torch.inf
        parts = log_emit.split(1024)
        log_rest = torch.cat([torch.logsumexp(part.double(), -1) for part in parts])
        states = torch.isfinite(log_rest).nonzero().flatten()
        goes_on = log_rest.exp()
        log_emit = log_emit[states] - log_rest[states, None].to(log_emit.dtype)
        last = log_emit.new_full((1, hmm.vocab_size), -torch.inf)
        last[0, eos_id] = 0.0
        log_emit = torch.cat([log_emit, last])
    size = len(states) + (ends is not None)
    trans = torch.zeros(size, size)
    step = max(1, _GROUP // hmm.num_states)
    for start in range(0, hmm.num_states, step):
        rows = hmm.transitions.rows(start, min(start + step, hmm.num_states)).double().exp()
        chosen = (states >= start) & (states < start + step)
        rows, places = rows[states[chosen] - start], chosen.nonzero().flatten()
        trans[places, : len(states)] = (rows[:, states] * goes_on[states]).float()
        if ends is not None:
            trans[places, -1] = (rows @ ends).float()
    log_init = (init * goes_on)[states].log()
    if ends is not None:
        trans[-1, -1] = 1.0
        log_init = torch.cat([log_init, (init @ ends).log()[None]])
    return {
        "alpha_exp": trans,
        "beta": log_emit.float().clamp(min=WRITTEN_ZERO).contiguous(),
        "gamma": log_init.float().clamp(min=WRITTEN_ZERO),
    }


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json beside a checkpoint."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(
            f"{folder} has no {CONFIG}, which says what ends a text; copy the folder as a whole."
        ) from None
    except ValueError:
        raise InputError(f"{path} is not json; copy the folder again as a whole.") from None
    if not isinstance(config, dict):
        raise InputError(f"{path} is json but no object; copy the folder again as a whole.")
    return config
