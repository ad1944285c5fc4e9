"""A corpus on disk: token ids in shards, with checksums and the vocabulary."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from hmmlm.data.places import no_corpus
from hmmlm.data.token_array import Shard, TokenArray
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError, check_count
from hmmlm.storage import new_folder

FORMAT = "hmmlm-corpus-1"
_COUNTS = ("tokens", "sentences", "unknown")
SHARD_TOKENS = 1 << 26
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Corpus:
    """A folder written by `write_corpus`; `splits` says how many tokens and sentences each has."""

    folder: Path
    tokenizer: Tokenizer
    splits: dict[str, dict[str, int]]
    _arrays: dict[str, TokenArray]

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, verify: bool = True) -> "Corpus":
        """Opens the shards. `verify` reads all of them once: checksums, and ids in the vocabulary.

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
                parts.append(_open_shard(path, shard["tokens"], dtype))
                if verify:
                    _verify(path, dtype, shard["sha256"], tokenizer.vocab_size)
            arrays[name] = TokenArray(parts, eos_id=tokenizer.eos_id)
            splits[name] = {key: split[key] for key in _COUNTS}
        return cls(folder, tokenizer, splits, arrays)

    def identity(self) -> dict[str, Any]:
        """What tells this corpus from others: its vocabulary, and the checksums of its splits."""
        index = _read_index(self.folder)
        sums = {}
        for name, split in index["splits"].items():
            all_shards = "".join(shard["sha256"] for shard in split["shards"])
            sums[name] = hashlib.sha256(all_shards.encode()).hexdigest()[:16]
        return {"vocabulary": self.tokenizer.hash[:16], "splits": sums}

    def head(self, number: int) -> "Corpus":
        """The same with only the first tokens of the training text, so many."""
        arrays = {**self._arrays, "train": self.split("train").head(number)}
        return replace(self, splits={**self.splits, "train": {"tokens": number}}, _arrays=arrays)

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
    shard_tokens: int = SHARD_TOKENS,
) -> dict[str, Any]:
    """Encode the lines of each split into a new folder; nothing is left there after an error.

    Returns {"splits": {name: {"tokens", "sentences", "unknown"}}, "vocab"}. Memory: under 200
    megabytes, whatever the size of the text.
    """
    check_count("shard_tokens", shard_tokens)
    with new_folder(folder) as temporary:
        tokenizer.save(temporary / "tokenizer.json")
        written = {}
        for name, lines in splits.items():
            with ShardWriter(temporary, name, tokenizer, shard_tokens=shard_tokens) as shards:
                for ids in tokenizer.encode_stretches(lines):
                    shards.add(ids)
            if not shards.written["tokens"]:
                raise InputError(f"The split {name!r} has no text; give it at least one line.")
            written[name] = shards.written
        return write_index(temporary, tokenizer, written)


def write_index(folder: Path, tokenizer: Tokenizer, splits: dict[str, Any]) -> dict[str, Any]:
    """The corpus.json of splits that a `ShardWriter` wrote; returns what `write_corpus` does."""
    index = {
        "format": FORMAT,
        "dtype": token_type(tokenizer),
        "eos_id": tokenizer.eos_id,
        "vocab_size": tokenizer.vocab_size,
        "vocabulary_hash": tokenizer.hash,
        "splits": splits,
    }
    (folder / "corpus.json").write_text(json.dumps(index, indent=1) + "\n")
    counts = {name: {key: split[key] for key in _COUNTS} for name, split in splits.items()}
    return {"splits": counts, "vocab": tokenizer.vocab_size}


def token_type(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"


class ShardWriter:
    """Appends token ids to the shards of one split, all but the last of `shard_tokens`.

    `written` says what is there: {"tokens", "sentences", "unknown", "shards"}. Given it again, the
    writer goes on from there, and forgets what the files have beyond it.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        tokenizer: Tokenizer,
        *,
        written: dict[str, Any] | None = None,
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        self.written: dict[str, Any] = written or {**dict.fromkeys(_COUNTS, 0), "shards": []}
        self._folder, self._name, self._tokenizer = folder, name, tokenizer
        self._dtype = np.dtype(token_type(tokenizer)).newbyteorder("<")
        self._shard_tokens = shard_tokens
        self._file: IO[bytes] | None = None
        self._checksum = hashlib.sha256()
        if self.written["shards"]:
            last = self.written["shards"][-1]
            size = last["tokens"] * self._dtype.itemsize
            self._checksum = hash_file(folder / last["file"], size)
            file = (folder / last["file"]).open("r+b")
            file.truncate(size)
            file.seek(size)
            self._file = file

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, ids: np.ndarray) -> None:
        """Writes the ids, out of this process at once, and counts them."""
        counts, shards = self.written, self.written["shards"]
        counts["sentences"] += int(np.count_nonzero(ids == self._tokenizer.eos_id))
        if self._tokenizer.unk_id is not None:
            counts["unknown"] += int(np.count_nonzero(ids == self._tokenizer.unk_id))
        counts["tokens"] += len(ids)
        while len(ids):
            file = self._file
            if file is None or shards[-1]["tokens"] == self._shard_tokens:
                self.__exit__()
                shards.append({"file": f"{self._name}-{len(shards):05d}.bin", "tokens": 0})
                self._file = file = (self._folder / shards[-1]["file"]).open("wb")
                self._checksum = hashlib.sha256()
            size = min(len(ids), self._shard_tokens - shards[-1]["tokens"])
            data = ids[:size].astype(self._dtype).tobytes()
            file.write(data)
            file.flush()
            self._checksum.update(data)
            shards[-1]["tokens"] += size
            shards[-1]["sha256"] = self._checksum.hexdigest()
            ids = ids[size:]


def hash_file(path: Path, size: int) -> "hashlib._Hash":
    """SHA-256 of the first bytes of a file."""
    checksum = hashlib.sha256()
    with path.open("rb") as file:
        while size and (data := file.read(min(size, _CHUNK))):
            checksum.update(data)
            size -= len(data)
    return checksum


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


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / "corpus.json"
    try:
        index = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise no_corpus(folder) from None
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


def _open_shard(path: Path, tokens: int, dtype: np.dtype) -> Shard:
    expected = tokens * dtype.itemsize
    try:
        size = path.stat().st_size
        if size != expected:
            raise InputError(
                f"{path} has {size:,} bytes but corpus.json says {expected:,}; copy it again or "
                "prepare the text again."
            )
        return Shard(path, tokens, dtype)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}; prepare the text again."
        ) from None


def _verify(path: Path, dtype: np.dtype, sha256: str, vocab_size: int) -> None:
    checksum = hashlib.sha256()
    largest = 0
    with path.open("rb") as file:
        while data := file.read(_CHUNK * dtype.itemsize):
            checksum.update(data)
            largest = max(largest, int(np.frombuffer(data, dtype).max()))
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
