"""A file or folder of any library as a model: what it is, is seen from what is in it."""

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.hmm_file import FORMAT
from hmmlm.interchange import ctrl_g, libraries
from hmmlm.interchange.tables import Foreign
from hmmlm.model import Model
from hmmlm.text_model import CONFIG, TOKENIZER, WEIGHTS

TITLES = {
    "hmmlm": "a model of hmmlm",
    "ctrl-g": "a checkpoint of Ctrl-G",
    "trace": "a checkpoint of TRACE",
    "hmmlearn": "arrays of hmmlearn",
    "pomegranate": "arrays of pomegranate",
    "dynamax": "arrays of dynamax",
}
SPARE = 1e-6
"""How probable the ids after a tokenizer's last may be, of each state, to be left out."""

_PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".bin", ".ckpt", ".jpc")


class Source(NamedTuple):
    """What was read: its kind, the model or its HMM alone, and the token that ends a text."""

    kind: str
    model: Model | HMM
    eos_id: int | None

    @property
    def hmm(self) -> HMM:
        return self.model.hmm if isinstance(self.model, Model) else self.model


def read(
    path: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    eos: str | None = None,
) -> Model | HMM:
    """The model of a folder or file of any library; without a tokenizer, its HMM alone.

    A tokenizer.json in the folder is taken unless another one is given. `eos` is its token that
    ends a line; by default it is what ends texts in the source.
    """
    return read_source(path, tokenizer=tokenizer, eos=eos).model


def read_source(
    path: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    eos: str | None = None,
) -> Source:
    """The same, with what it was."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist; give a model's folder or a file of arrays.")
    if path.name == WEIGHTS and (path.parent / CONFIG).exists():
        path = path.parent
    if path.is_dir() and _is_ours(path):
        if tokenizer is not None:
            raise InputError(f"{path} has a tokenizer of its own; leave --tokenizer out.")
        model = Model.load(path)
        return Source("hmmlm", model, model.tokenizer.eos_id)
    kind, foreign = _read_foreign(path)
    beside = path / TOKENIZER
    if tokenizer is None and beside.exists():
        tokenizer = beside
    if tokenizer is None:
        return Source(kind, foreign.hmm, foreign.eos_id)
    model = _with_tokenizer(path, kind, foreign, Path(tokenizer), eos)
    return Source(kind, model, model.tokenizer.eos_id)


def _is_ours(folder: Path) -> bool:
    if not (folder / CONFIG).exists():
        return (folder / "run.json").exists()  # a training that is not over, of which Model tells
    return str(ctrl_g.read_config(folder).get("format", "")).startswith(FORMAT.split("-")[0])


def _read_foreign(path: Path) -> tuple[str, Foreign]:
    if path.is_dir():
        weights = path / WEIGHTS
        if not weights.exists():
            for other in sorted(path.iterdir()):
                _refuse_pickle(other)
            raise InputError(f"{path} has no {WEIGHTS}; give a model's folder or a file of arrays.")
        path = weights
    _refuse_pickle(path)
    with _arrays(path) as (names, load):
        kind = _recognise(path, names)
        left_out = ctrl_g.WORD_WEIGHTS if kind == "trace" else ()
        tensors = {name: load(name) for name in names if name not in left_out}
    source = str(path)
    if kind in ("ctrl-g", "trace"):
        config = ctrl_g.read_config(path.parent)
        make = ctrl_g.ctrl_g_hmm if kind == "ctrl-g" else ctrl_g.trace_hmm
        return kind, make(source, tensors, config)
    return kind, _LIBRARIES[kind](source, tensors)


_LIBRARIES: dict[str, Callable[[str, Mapping[str, Tensor]], Foreign]] = {
    "hmmlearn": libraries.hmmlearn_hmm,
    "pomegranate": libraries.pomegranate_hmm,
    "dynamax": libraries.dynamax_hmm,
}


def _recognise(path: Path, names: list[str]) -> str:
    """Which library's these arrays are: one name of its own is enough, the rest is checked."""
    signs = {
        "trace": {"gamma_exp"},
        "ctrl-g": set(ctrl_g.CTRL_G),
        "hmmlearn": set(libraries.HMMLEARN),
        "dynamax": set(libraries.DYNAMAX),
        "pomegranate": set(libraries.POMEGRANATE),
    }
    for kind, own in signs.items():
        if own & set(names):
            return kind
    if "log_init" in names:
        raise InputError(f"{path} is part of a model of hmmlm; give its folder.")
    shown = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
    raise InputError(
        f"{path} holds {shown or 'nothing'}, which is no HMM of Ctrl-G, TRACE, hmmlearn, "
        f"pomegranate or dynamax; docs/interchange.md has the names of their tables."
    )


@contextmanager
def _arrays(path: Path) -> Iterator[tuple[list[str], Callable[[str], Tensor]]]:
    """The names of a file's arrays, and what reads one; nothing else is read."""
    try:
        if zipfile.is_zipfile(path):
            with np.load(path, allow_pickle=False) as file:
                yield list(file.files), lambda name: _numbers(path, name, file)
        else:
            with safe_open(path, framework="pt") as file:
                yield list(file.keys()), file.get_tensor
    except SafetensorError as error:
        raise InputError(
            f"{path} is neither a whole safetensors file ({error}) nor a whole .npz; save or copy "
            f"it again."
        ) from error
    except (OSError, zipfile.BadZipFile) as error:
        said = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read: {said}; save or copy it again.") from None


def _numbers(path: Path, name: str, file: Mapping[str, np.ndarray]) -> Tensor:
    try:
        return torch.from_numpy(file[name])
    except (TypeError, ValueError):  # objects, which are pickles, and text
        raise InputError(
            f"{path}: {name} is no array of numbers; save it with numpy.asarray(..., float)."
        ) from None


def _refuse_pickle(path: Path) -> None:
    """Refuses what only a pickle's reader could read: that runs whatever program is in it."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(9)
    # The length of a safetensors header may begin with the same byte; the header itself does not.
    is_pickle = start[:1] == b"\x80" and start[8:] != b"{"
    is_pickle |= path.suffix.lower() in _PICKLES
    if zipfile.is_zipfile(path):
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as inside:
            is_pickle |= any(name.endswith("data.pkl") for name in inside.namelist())
    if not is_pickle:
        return
    raise InputError(
        f"{path} is a pickle, which could run any program, and is never read; in the library that "
        f"wrote it, load it and save its arrays: save_pretrained (safetensors) for Ctrl-G and "
        f"TRACE, numpy.savez for others (docs/interchange.md)."
    )


def _with_tokenizer(
    path: Path, kind: str, foreign: Foreign, tokenizer: Path, eos: str | None
) -> Model:
    words = Tokenizer.load(tokenizer, eos)
    if foreign.eos_id is not None and words.eos_id != foreign.eos_id:
        name = words.token(foreign.eos_id) if foreign.eos_id < words.vocab_size else ""
        if eos is not None or not name:
            raise InputError(
                f"Texts of {path} end with token {foreign.eos_id:,} but lines of {tokenizer} with "
                f"{words.eos_id:,}; give the tokenizer that the model was made with, and no --eos."
            )
        words = Tokenizer.load(tokenizer, name)
    hmm = _without_spare_ids(path, foreign.hmm, tokenizer, words.vocab_size)
    return Model(hmm, words, {"converted_from": kind})


def _without_spare_ids(path: Path, hmm: HMM, tokenizer: Path, words: int) -> HMM:
    """The HMM without the ids that a vocabulary was filled up with; p of all texts stays."""
    spare = hmm.log_emit[words:].double().exp().sum(0)
    if hmm.vocab_size < words or (len(hmm.log_emit) > words and float(spare.max()) > SPARE):
        raise InputError(
            f"{path} emits {hmm.vocab_size:,} words but {tokenizer} has {words:,}; give the "
            f"tokenizer that the model was made with."
        )
    if hmm.vocab_size == words:
        return hmm
    log_trans = hmm.transitions.rows(0, hmm.num_states)
    return HMM.from_tables(hmm.log_init, log_trans, hmm.log_emit[:words].T)
