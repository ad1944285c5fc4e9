"""An HMM as a safetensors file. No pickle is ever loaded."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.support import Support
from hmmlm.transitions import Dense, Factored

FORMAT = "hmmlm-model-1"


def write_hmm(path: Path, hmm: HMM) -> None:
    """Writes the fields of an HMM and its support."""
    tensors = {"log_init": hmm.log_init, "log_emit": hmm.log_emit}
    if isinstance(hmm.transitions, Dense):
        tensors["log_trans"] = hmm.transitions.log_trans
    else:
        names = ("trans_left", "trans_right", "trans_log_norm")
        tensors |= dict(zip(names, hmm.transitions.fields(), strict=True))
    tensors["support_rows"] = hmm.support.rows.int()
    tensors["support_row_of_word"] = hmm.support.row_of_word.int()
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        # One embedding may be both factors; the format wants each in memory of its own.
        shared = any(_memory(other) == _memory(tensor) for other in plain.values())
        plain[name] = tensor.clone() if shared else tensor
    save_file(plain, path, metadata={"format": FORMAT})


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def read_hmm(path: Path, *, check_rows: bool = True) -> HMM:
    """The HMM of a file written by `write_hmm`, checked."""
    return hmm_from(path, read_tensors(path), check_rows=check_rows)


_SHAPES = {
    "log_init": "Z",
    "log_emit": "VK",
    "support_rows": "RK",
    "support_row_of_word": "V",
    "log_trans": "ZZ",
    "trans_left": "ZH",
    "trans_right": "ZH",
    "trans_log_norm": "Z",
}
"""The tensors of a model's file; letters that are the same are sizes that are."""


def hmm_from(path: Path, tensors: dict[str, Tensor], *, check_rows: bool = True) -> HMM:
    """The HMM of the tensors that were in a file, checked."""
    factors = {"trans_left", "trans_right", "trans_log_norm"}
    dense = set(_SHAPES) - factors
    if set(tensors) not in (dense, set(_SHAPES) - {"log_trans"}):
        raise InputError(
            f"{path} holds {', '.join(sorted(tensors)) or 'nothing'}, but a model of this library "
            f"holds {', '.join(sorted(dense))}, or factors instead of log_trans; give a folder "
            f"written by hmmlm."
        )
    _check_tensors(path, tensors)
    if "log_trans" in tensors:
        transitions = Dense(tensors["log_trans"])
    else:
        transitions = Factored.stored(
            tensors["trans_left"], tensors["trans_right"], tensors["trans_log_norm"]
        )
    support = Support(
        tensors["support_rows"].long(),
        tensors["support_row_of_word"].long(),
        tensors["log_init"].shape[0],
    )
    try:
        hmm = HMM(tensors["log_init"], transitions, tensors["log_emit"], support)
        return hmm.validate(rows=check_rows)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _check_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    sizes: dict[str, int] = {}
    dtype = tensors["log_init"].dtype
    for name, tensor in tensors.items():
        if name.startswith("support"):
            fits = tensor.dtype in (torch.int32, torch.int64)
        else:
            fits = tensor.dtype == dtype and tensor.is_floating_point()
        fits = fits and tensor.ndim == len(_SHAPES[name])
        for letter, size in zip(_SHAPES[name], tensor.shape, strict=False):
            fits = fits and sizes.setdefault(letter, size) == size
        if not fits:
            raise InputError(
                f"{path}: {name} is {str(tensor.dtype).removeprefix('torch.')} of shape "
                f"{tuple(tensor.shape)}, which does not fit the other tables; copy or train the "
                f"model again."
            )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a model's file."""
    try:
        with path.open("rb"):
            pass
        return load_file(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}; copy the model's folder again as a "
            f"whole."
        ) from None
    except SafetensorError as error:
        raise InputError(
            f"{path} is not a whole safetensors file ({error}); copy or train the model again."
        ) from error
