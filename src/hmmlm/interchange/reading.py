"""A file or folder of any library as a model: what it is, is seen from what is in it."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.hmm_file import FORMAT, hmm_from
from hmmlm.hugging_face import MODEL_TYPE
from hmmlm.interchange import ctrl_g, libraries
from hmmlm.interchange.files import INDEX, is_part, open_arrays, refuse_pickle
from hmmlm.interchange.tables import Foreign
from hmmlm.model import Model
from hmmlm.support import Support
from hmmlm.text_model import CONFIG, TOKENIZER, WEIGHTS

TITLES = {
    "hmmlm": "a model of hmmlm",
    "transformers": "an HMM that transformers saved",
    "ctrl-g": "a checkpoint of Ctrl-G",
    "trace": "a checkpoint of TRACE",
    "hmmlearn": "arrays of hmmlearn",
    "pomegranate": "arrays of pomegranate",
    "dynamax": "arrays of dynamax",
}
SPARE = 1e-6
"""How probable the ids after a tokenizer's last may be, of each state, to be left out."""


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
    if (path.name == WEIGHTS and (path.parent / CONFIG).exists()) or is_part(path):
        path = path.parent
    if path.is_dir() and _is_ours(path):
        for name, given in (("--tokenizer", tokenizer), ("--eos", eos)):
            if given is not None:
                raise InputError(f"{path} has a tokenizer of its own; leave {name} out.")
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
        weights = next((path / name for name in (WEIGHTS, INDEX) if (path / name).exists()), None)
        if weights is None:
            for other in sorted(path.iterdir()):
                refuse_pickle(other)
            raise InputError(f"{path} has no {WEIGHTS}; give a model's folder or a file of arrays.")
        path = weights
    with open_arrays(path) as (names, load):
        kind = _recognise(path, names)
        left_out = ctrl_g.WORD_WEIGHTS if kind == "trace" else ()
        tensors = {name: load(name) for name in names if name not in left_out}
    source = str(path)
    if kind == "transformers":
        eos_id = ctrl_g.read_config(path.parent).get("eos_token_id")
        return kind, Foreign(hmm_from(path, tensors), eos_id if type(eos_id) is int else None)
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
        beside = path.parent / CONFIG
        if beside.exists() and ctrl_g.read_config(path.parent).get("model_type") == MODEL_TYPE:
            return "transformers"
        raise InputError(f"{path} is part of a model of hmmlm; give its folder.")
    shown = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
    raise InputError(
        f"{path} holds {shown or 'nothing'}, which is no HMM of Ctrl-G, TRACE, hmmlearn, "
        f"pomegranate or dynamax; docs/interchange.md has the names of their tables."
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
    support, probs = hmm.support, hmm.log_emit[words:].double().exp()
    states = support.rows[support.row_of_word[words:]].clamp(min=0)  # p of padding is 0
    spare = probs.new_zeros(hmm.num_states).index_add_(0, states.flatten(), probs.flatten())
    if hmm.vocab_size < words or float(spare.max()) > SPARE:
        raise InputError(
            f"{path} emits {hmm.vocab_size:,} words but {tokenizer} has {words:,}; give the "
            f"tokenizer that the model was made with."
        )
    if hmm.vocab_size == words:
        return hmm
    kept = Support(support.rows, support.row_of_word[:words], hmm.num_states)
    return HMM(hmm.log_init, hmm.transitions, hmm.log_emit[:words], kept).validate(rows=False)
