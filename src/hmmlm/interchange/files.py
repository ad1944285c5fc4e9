"""Files of arrays: .npz, safetensors, and several of these with an index. No pickle is read."""

import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hmmlm.errors import InputError

INDEX = "model.safetensors.index.json"
"""Which file has which table, where a checkpoint is in several."""

Arrays = tuple[list[str], Callable[[str], Tensor]]

_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".bin", ".ckpt", ".jpc")


def is_part(path: Path) -> bool:
    """Whether a file is the index of a checkpoint in several files, or one of these beside it."""
    is_shard = bool(_SHARD.fullmatch(path.name)) and (path.parent / INDEX).exists()
    return path.name == INDEX or is_shard


@contextmanager
def open_arrays(path: Path) -> Iterator[Arrays]:
    """The names of a file's arrays, or of those that an index names, and what reads one."""
    if path.name == INDEX:
        with ExitStack() as stack:
            yield _open_shards(path, stack)
        return
    refuse_pickle(path)
    try:
        if zipfile.is_zipfile(path):
            with path.open("rb") as data, np.load(data, allow_pickle=False) as file:
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


def _open_shards(index: Path, stack: ExitStack) -> Arrays:
    """All arrays of the files that an index names, each in the file that it says."""
    loads: dict[str, Callable[[str], Tensor]] = {}
    places = _read_index(index)
    files = sorted(set(places.values()))
    missing = [name for name in files if not (index.parent / name).is_file()]
    if missing:
        raise InputError(
            f"{index.parent} has no {', '.join(missing)}, of the {len(files):,} files that "
            f"{INDEX} names; copy the folder again as a whole."
        )
    for file in files:
        names, load = stack.enter_context(open_arrays(index.parent / file))
        promised = {name for name, place in places.items() if place == file}
        if promised != set(names):
            lacks, more = sorted(promised - set(names)), sorted(set(names) - promised)
            found = f"has no {', '.join(lacks)}" if lacks else f"has {', '.join(more)}"
            raise InputError(
                f"{index.parent / file} {found}, other than {INDEX} says; copy the folder again "
                f"as a whole."
            )
        loads |= dict.fromkeys(names, load)
    return list(loads), lambda name: loads[name](name)


def _read_index(index: Path) -> dict[str, str]:
    try:
        places = json.loads(index.read_bytes())["weight_map"]
        # Names alone: nothing outside of the folder is part of the checkpoint.
        is_one = all(Path(place).name == place for place in places.values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        is_one = False
    if not is_one or not places:
        raise InputError(
            f"{index} is no index of a checkpoint: its weight_map must name the file in the folder "
            f"of each table; copy the folder again as a whole."
        )
    return places


def _numbers(path: Path, name: str, file: Mapping[str, np.ndarray]) -> Tensor:
    try:
        return torch.from_numpy(file[name])
    except (TypeError, ValueError):  # objects, which are pickles, and text
        raise InputError(
            f"{path}: {name} is no array of numbers; save it with numpy.asarray(..., float)."
        ) from None


def refuse_pickle(path: Path) -> None:
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
