"""A corpus on disk: token ids in memory-mapped shards, with checksums and the vocabulary."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.storage import new_folder

FORMAT = "hmmlm-corpus-1"
_COUNTS = ("tokens", "sentences", "unknown")
_CHUNK = 1 << 22


class TokenArray:
    """A read-only sequence of token ids over one or more arrays, usually memory-mapped.

    `len()`; `[a:b]` copies that stretch as int64, `[i]` is one id. Memory: what is asked for.
    """

    def __init__(self, parts: Sequence[np.ndarray], *, eos_id: int) -> None:
        self._parts = list(parts)
        self._ends = np.cumsum([len(part) for part in self._parts], dtype=np.int64)
        self.eos_id = eos_id

    @classmethod
    def from_ids(cls, ids: Sequence[int] | np.ndarray, *, eos_id: int) -> "TokenArray":
        """The same over ids in memory."""
        array = np.asarray(ids)
        if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
            raise InputError(
                f"ids must be one row of whole numbers, not shape {array.shape} of {array.dtype}."
            )
        if len(array) and array.min() < 0:
            raise InputError(f"ids has {array.min():,} but every token id is 0 or more.")
        return cls([array], eos_id=eos_id)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, key: int | slice) -> Any:
        if not isinstance(key, slice):
            index = key + len(self) if key < 0 else key
            if not 0 <= index < len(self):
                raise IndexError(f"index {key:,} is outside {len(self):,} tokens")
            return int(self[index : index + 1][0])
        start, stop, step = key.indices(len(self))
        if step != 1:
            raise InputError(f"A slice of tokens has step 1, not {step}.")
        found = [np.empty(0, dtype=np.int64)]
        part = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            begin = int(self._ends[part]) - len(self._parts[part])
            end = min(stop, int(self._ends[part]))
            found.append(self._parts[part][start - begin : end - begin])
            start, part = end, part + 1
        return np.concatenate(found, dtype=np.int64)

    def sentence_offsets(self) -> np.ndarray:
        """Where each sentence starts: 0 and behind every `<eos>` but a last one, int64.

        Cost: one pass; memory of the result and a few megabytes.
        """
        if not len(self):
            return np.empty(0, dtype=np.int64)
        found = [np.zeros(1, dtype=np.int64)]
        for start in range(0, len(self), _CHUNK):
            found.append(np.flatnonzero(self[start : start + _CHUNK] == self.eos_id) + start + 1)
        offsets = np.concatenate(found)
        return offsets[:-1] if offsets[-1] == len(self) else offsets


@dataclass(frozen=True)
class Corpus:
    """A folder written by `write_corpus`; `splits` says how many tokens and sentences each has."""

    folder: Path
    tokenizer: Tokenizer
    splits: dict[str, dict[str, int]]
    _arrays: dict[str, TokenArray]

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, verify: bool = True) -> "Corpus":
        """Map the shards. `verify` reads all of them once: checksums, and ids in the vocabulary.

        Sizes and the vocabulary's hash are checked always.
        """
        folder = Path(folder)
        index = _read_index(folder)
        try:
            return cls._from_index(folder, index, verify=verify)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{folder / 'corpus.json'} lacks what this version needs ({error}); prepare the "
                "text again."
            ) from error

    @classmethod
    def _from_index(cls, folder: Path, index: dict[str, Any], *, verify: bool) -> "Corpus":
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        if tokenizer.hash != index["vocabulary_hash"]:
            raise InputError(
                f"{folder / 'tokenizer.json'} is not the vocabulary this corpus was written with "
                f"(hash {tokenizer.hash[:12]}, not {index['vocabulary_hash'][:12]}); prepare the "
                "text again."
            )
        dtype = np.dtype(index["dtype"]).newbyteorder("<")
        arrays, splits = {}, {}
        for name, split in index["splits"].items():
            parts = []
            for shard in split["shards"]:
                path = folder / shard["file"]
                parts.append(_map_shard(path, shard["tokens"], dtype))
                if verify:
                    _verify(path, parts[-1], shard["sha256"], tokenizer.vocab_size)
            arrays[name] = TokenArray(parts, eos_id=tokenizer.eos_id)
            splits[name] = {key: split[key] for key in _COUNTS}
        return cls(folder, tokenizer, splits, arrays)

    @property
    def checksum(self) -> str:
        """A hash of all there is: that of the index, which has those of its shards and words."""
        return hashlib.sha256((self.folder / "corpus.json").read_bytes()).hexdigest()

    def split(self, name: str) -> TokenArray:
        """The tokens of one split."""
        if name not in self._arrays:
            raise InputError(
                f"{self.folder} has no split {name!r}, only {', '.join(self._arrays)}; prepare it "
                "again with that text."
            )
        return self._arrays[name]


def write_corpus(
    folder: str | os.PathLike[str],
    tokenizer: Tokenizer,
    splits: Mapping[str, Iterable[str]],
    *,
    shard_tokens: int = 1 << 26,
    progress: Callable[[str, int], None] | None = None,
) -> dict[str, Any]:
    """Encode the lines of each split into a new folder; nothing is left there after an error.

    `progress(split, tokens so far)` is called after each stretch written. Returns
    {"splits": {name: {"tokens", "sentences", "unknown"}}, "vocab"}. Memory: under 200
    megabytes, whatever the size of the text.
    """
    if shard_tokens < 1:
        raise InputError(f"shard_tokens is {shard_tokens:,} but must be at least 1.")
    index: dict[str, Any] = {
        "format": FORMAT,
        "dtype": "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32",
        "eos_id": tokenizer.eos_id,
        "vocab_size": tokenizer.vocab_size,
        "vocabulary_hash": tokenizer.hash,
        "splits": {},
    }
    with new_folder(folder) as temporary:
        tokenizer.save(temporary / "tokenizer.json")
        for name, lines in splits.items():
            index["splits"][name] = _write_split(
                temporary, name, tokenizer, lines, index["dtype"], shard_tokens, progress
            )
        (temporary / "corpus.json").write_text(json.dumps(index, indent=1) + "\n")
    counts = {name: {key: split[key] for key in _COUNTS} for name, split in index["splits"].items()}
    return {"splits": counts, "vocab": tokenizer.vocab_size}


def check_vocabulary(corpus: Corpus | str, tokenizer: Tokenizer) -> None:
    """Refuse a corpus (or the vocabulary hash of one) that the tokenizer did not make."""
    name = "the corpus" if isinstance(corpus, str) else f"the corpus {corpus.folder}"
    given = corpus if isinstance(corpus, str) else corpus.tokenizer.hash
    if given != tokenizer.hash:
        size = "" if isinstance(corpus, str) else f"{corpus.tokenizer.vocab_size:,} tokens, "
        raise InputError(
            f"{name} has another vocabulary ({size}hash {given[:12]}) than the model "
            f"({tokenizer.vocab_size:,} tokens, hash {tokenizer.hash[:12]}); prepare the text "
            "again with the model's tokenizer.json."
        )


def _write_split(
    folder: Path,
    name: str,
    tokenizer: Tokenizer,
    lines: Iterable[str],
    dtype: str,
    shard_tokens: int,
    progress: Callable[[str, int], None] | None,
) -> dict[str, Any]:
    shards: list[dict[str, Any]] = []
    sentences = unknown = tokens = 0
    with ExitStack() as stack:
        file, checksum = None, hashlib.sha256()
        for ids in _stretches(tokenizer.encode_lines(lines)):
            sentences += int(np.count_nonzero(ids == tokenizer.eos_id))
            if tokenizer.unk_id is not None:
                unknown += int(np.count_nonzero(ids == tokenizer.unk_id))
            at = 0
            while at < len(ids):
                if file is None or shards[-1]["tokens"] == shard_tokens:
                    stack.close()
                    shards.append({"file": f"{name}-{len(shards):05d}.bin", "tokens": 0})
                    file = stack.enter_context((folder / shards[-1]["file"]).open("wb"))
                    checksum = hashlib.sha256()
                size = min(len(ids) - at, shard_tokens - shards[-1]["tokens"])
                data = ids[at : at + size].astype(np.dtype(dtype).newbyteorder("<")).tobytes()
                file.write(data)
                checksum.update(data)
                shards[-1]["tokens"] += size
                shards[-1]["sha256"] = checksum.hexdigest()
                at += size
            tokens += len(ids)
            if progress is not None:
                progress(name, tokens)
    if not tokens:
        raise InputError(f"The split {name!r} has no text; give it at least one line.")
    return {"tokens": tokens, "sentences": sentences, "unknown": unknown, "shards": shards}


def _stretches(arrays: Iterable[np.ndarray]) -> Iterable[np.ndarray]:
    """The same ids joined into stretches of about a megabyte, so that writes are few."""
    held, size = [], 0
    for ids in arrays:
        held.append(ids)
        size += len(ids)
        if size >= 1 << 17:
            yield np.concatenate(held)
            held, size = [], 0
    if held:
        yield np.concatenate(held)


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / "corpus.json"
    try:
        index = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(
            f"{folder} is not a prepared corpus: it has no corpus.json; make one with "
            "hmmlm prepare."
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise InputError(
            f"{path} is not json, or only part of a file; prepare the text again."
        ) from None
    found = index.get("format") if isinstance(index, dict) else None
    if found != FORMAT:
        raise InputError(
            f"{path} has the format {found!r} but this version reads {FORMAT!r}; prepare the text "
            "again."
        )
    return index


def _map_shard(path: Path, tokens: int, dtype: np.dtype) -> np.ndarray:
    expected = tokens * dtype.itemsize
    try:
        size = path.stat().st_size
        if size != expected:
            raise InputError(
                f"{path} has {size:,} bytes but corpus.json says {expected:,}; copy it again or "
                "prepare the text again."
            )
        return np.memmap(path, dtype=dtype, mode="r")
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}; prepare the text again."
        ) from None


def _verify(path: Path, part: np.ndarray, sha256: str, vocab_size: int) -> None:
    checksum = hashlib.sha256()
    largest = 0
    for start in range(0, len(part), _CHUNK):
        chunk = part[start : start + _CHUNK]
        checksum.update(chunk.data)
        largest = max(largest, int(chunk.max()))
    if checksum.hexdigest() != sha256:
        raise InputError(
            f"{path} has changed since it was written (sha256 {checksum.hexdigest()[:12]}, not "
            f"{sha256[:12]}); copy it again or prepare the text again."
        )
    if largest >= vocab_size:
        raise InputError(
            f"{path} has id {largest:,} but this vocabulary ends at {vocab_size - 1:,}; re-encode "
            "the corpus with this vocabulary."
        )
