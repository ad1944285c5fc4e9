"""Clusters that a corpus' folder keeps, so that they are made once."""

from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from hmmlm.errors import InputError
from hmmlm.storage import new_file


def kept_clusters(folder: Path) -> list[str]:
    """How the clusters were made that a folder keeps."""
    found = sorted(path.stem for path in folder.glob("clusters-*.npy"))
    return [name.removeprefix("clusters-") for name in found]


def write_kept(folder: Path, how: str, cluster_of_word: Int[np.ndarray, " V"]) -> None:
    """Keeps clusters; where the folder cannot be written they are made again next time."""
    with (
        suppress(InputError, OSError),
        new_file(_path(folder, how)) as temporary,
        temporary.open("wb") as file,
    ):
        np.save(file, cluster_of_word)


def read_kept(
    folder: Path, how: str, occurs: Bool[np.ndarray, " V"], clusters: int
) -> Int[np.ndarray, " V"] | None:
    """Clusters of the words that occur; None if none are kept, or not whole or not of these."""
    try:
        found = np.load(_path(folder, how), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if found.shape != occurs.shape or found.dtype != np.int32:
        return None
    numbers = np.unique(found[occurs])
    whole = len(numbers) == clusters and numbers[0] == 0 and numbers[-1] == clusters - 1
    return found if whole and (found[~occurs] == -1).all() else None


def _path(folder: Path, how: str) -> Path:
    return folder / f"clusters-{how}.npy"
