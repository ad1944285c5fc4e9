"""A corpus in the making, kept on disk as it grows; what was stopped goes on where it was."""

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hmmlm.data.shards import hash_file, token_type
from hmmlm.data.tokenizer import Tokenizer


class KeptFile(NamedTuple):
    """A file in the work's folder whose first bytes have a SHA-256."""

    name: str
    bytes: int
    sha256: str


class Unfinished(ABC):
    """What was done so far, in `folder`; `state` says it, on disk too once it is saved.

    `recipe` is all that the result depends on, by what to say where it has changed: work of another
    recipe is not gone on with. `state` is JSON, and so is the recipe in it.
    """

    def __init__(self, folder: Path, recipe: dict[str, Any], state: dict[str, Any]) -> None:
        self.folder, self.corpus = folder, folder / "corpus"
        self.state: dict[str, Any] = {"recipe": recipe, **state}

    @abstractmethod
    def files(self, state: dict[str, Any]) -> Iterable[KeptFile]:
        """The files that a state counts on; an error if they cannot be what it says."""

    def resume(self) -> str:
        """Takes up what is there, or removes it; returns what to say about that."""
        reason = ""
        if (self.folder / "state.json").exists():
            reason = "its files are damaged"
            with suppress(OSError, ValueError, LookupError, TypeError):
                found = json.loads((self.folder / "state.json").read_bytes())
                changed = _difference(found["recipe"], self.state["recipe"])
                if changed is None and all(map(self._has, self.files(found))):
                    self.state = found
                    return "Going on with the unfinished {}."
                reason = changed or reason
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
        self.corpus.mkdir()
        return reason and f"There is an unfinished {{}}, but {reason}; starting afresh."

    def save(self) -> None:
        """Writes the state, whole or not at all."""
        new = self.folder / "state.json.new"
        new.write_text(json.dumps(self.state))
        os.replace(new, self.folder / "state.json")

    def _has(self, file: KeptFile) -> bool:
        return hash_file(self.folder / file.name, file.bytes).hexdigest() == file.sha256


def shard_files(written: dict[str, Any], tokenizer: Tokenizer) -> list[KeptFile]:
    """The files of what a `ShardWriter` has written."""
    size = np.dtype(token_type(tokenizer)).itemsize
    return [
        KeptFile(f"corpus/{shard['file']}", shard["tokens"] * size, shard["sha256"])
        for shard in written["shards"]
    ]


def _difference(found: dict[str, Any], recipe: dict[str, Any]) -> str | None:
    return next((why for why in recipe if found.get(why) != recipe[why]), None)
