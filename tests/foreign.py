"""Checkpoints of other libraries, made by hand from known tables."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

INIT = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
TRANS = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]], dtype=torch.float64)
EMIT = torch.tensor(
    [[0.5, 0.25, 0.0, 0.25], [0.1, 0.6, 0.0, 0.3], [0.0, 0.0, 1.0, 0.0]], dtype=torch.float64
)
"""Three states and four words; the last state emits word 2 for ever, as both guides have it."""
EOS = 2


def sum_over_paths(init: Tensor, trans: Tensor, emit: Tensor, words: list[int]) -> float:
    """p(words), path by path."""
    total = 0.0
    for path in torch.cartesian_prod(*[torch.arange(len(init))] * len(words)).tolist():
        states = path if isinstance(path, list) else [path]
        p = float(init[states[0]] * emit[states[0], words[0]])
        for before, state, word in zip(states, states[1:], words[1:], strict=False):
            p *= float(trans[before, state] * emit[state, word])
        total += p
    return total


def ctrl_g_tables() -> dict[str, Tensor]:
    """As Ctrl-G keeps them: gamma is not normalised, and zero is a very small number."""
    return {
        "alpha_exp": TRANS.float(),
        "beta": EMIT.log().clamp(min=-1e30).float(),
        "gamma": INIT.log().float() + 1.5,
    }


def trace_tables() -> dict[str, Tensor]:
    """As TRACE keeps them: one row of gamma_exp."""
    return {
        "alpha_exp": TRANS.float(),
        "beta": EMIT.log().clamp(min=-1e10).float(),
        "gamma_exp": INIT[None].float(),
    }


CTRL_G = {"hidden_states": 3, "vocab_size": 4, "eos_token_id": EOS}
TRACE = {"hidden_size": 3, "vocab_size": 4, "eos_token_id": EOS, "sep_token_id": None}


def write(folder: Path, tables: dict[str, Tensor], config: object) -> Path:
    folder.mkdir(parents=True)
    plain = {name: table.contiguous() for name, table in tables.items()}
    save_file(plain, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def hmmlearn_arrays() -> dict[str, np.ndarray]:
    return {
        "startprob_": INIT.numpy(),
        "transmat_": TRANS.numpy(),
        "emissionprob_": EMIT.numpy(),
    }


def dynamax_arrays() -> dict[str, np.ndarray]:
    return {
        "initial.probs": INIT.float().numpy(),
        "transitions.transition_matrix": TRANS.float().numpy(),
        "emissions.probs": EMIT[:, None].float().numpy(),
    }


def pomegranate_arrays() -> dict[str, np.ndarray]:
    """What its state_dict has, as numpy arrays, bookkeeping too; no ends were given."""
    arrays = {
        "_device": np.zeros(1, np.float32),
        "starts": INIT.log().float().numpy(),
        "edges": TRANS.log().float().numpy(),
        "inertia": np.float32(0),
        "start.frozen": np.bool_(False),
        "_xw_sum": np.zeros((3, 3), np.float32),
    }
    for state in range(3):
        arrays[f"distributions.{state}.probs"] = EMIT[state : state + 1].float().numpy()
        arrays[f"distributions.{state}._log_probs"] = EMIT[state : state + 1].log().numpy()
    return arrays
