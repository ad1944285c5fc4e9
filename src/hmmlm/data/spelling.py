"""What tokens write: the bytes of each token of a vocabulary."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from hmmlm.data.tokenizer import EOS_NAMES, Tokenizer
from hmmlm.errors import InputError

CONTROLS = (*EOS_NAMES, "<s>", "<bos>", "<pad>", "<unk>", "<mask>")
"""Names of tokens that write nothing, unless tokens are words."""


@dataclass(frozen=True, eq=False)
class Spelling:
    """The bytes of each token; None where one writes no text (`<eos>`, `<s>`, a gap of the ids).

    A text is its tokens' bytes in a row, without one space at its beginning: tokens that begin a
    word have theirs in front.
    """

    tokens: tuple[bytes | None, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Spelling":
        """Of any tokenizer; one whose texts are not what its tokens write in a row is refused."""
        spec = tokenizer.spec
        names = [tokenizer.token(id) for id in range(tokenizer.vocab_size)]
        read = _reader(tokenizer, spec)
        silent = {tokenizer.eos_id}
        if not tokenizer.splits_by_words:
            added = spec.get("added_tokens") or ()
            silent |= {token["id"] for token in added if token.get("special")}
            silent |= {id for id, name in enumerate(names) if name in CONTROLS}
            silent |= set() if tokenizer.unk_id is None else {tokenizer.unk_id}
        found = [
            None if id in silent or not name else read(id, name) for id, name in enumerate(names)
        ]
        return cls(tuple(found))

    def text(self, ids: Any) -> bytes:
        """What tokens write, those without text left out."""
        written = b"".join(self.tokens[int(id)] or b"" for id in ids)
        return written.removeprefix(b" ")

    @cached_property
    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens that write something, longest first: their ids, (N, L) bytes, and lengths."""
        spelt = [(id, text) for id, text in enumerate(self.tokens) if text]
        spelt.sort(key=lambda pair: -len(pair[1]))
        longest = len(spelt[0][1]) if spelt else 0
        table = np.zeros((len(spelt), longest), np.uint8)
        for row, (_, text) in zip(table, spelt, strict=True):
            row[: len(text)] = np.frombuffer(text, np.uint8)
        ids = np.array([id for id, _ in spelt], np.int64)
        return ids, table, np.array([len(text) for _, text in spelt], np.int64)

    @cached_property
    def prefixes(self) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """What tokens write, as a tree: the node of each token of `rows`, and its levels.

        Of each node of a level: the place of its parent in the level above, which for the first one
        is the root alone, and its byte. Nodes count on from level to level.
        """
        _, spelt, lengths = self.rows
        ends, levels = np.zeros(len(spelt), np.int64), []
        inside, before = np.zeros(len(spelt), np.int64), 0
        for place in range(spelt.shape[1]):
            count = int((lengths > place).sum())
            codes, inside = np.unique(
                inside[:count] * 256 + spelt[:count, place], return_inverse=True
            )
            ends[:count] = before + inside
            levels.append(np.divmod(codes, 256))
            before += len(codes)
        return ends, levels


def _reader(tokenizer: Tokenizer, spec: Mapping[str, Any]) -> Callable[[int, str], bytes]:
    """A function from a token's id and name to its bytes."""
    decoders = _kinds(spec.get("decoder"))
    if "ByteLevel" in decoders:
        return lambda _, name: _from_byte_level(name)
    if tokenizer.splits_by_words and not decoders:
        return lambda _, name: b" " + name.encode()
    if decoders & {"Metaspace", "Replace"}:
        return lambda _, name: _from_metaspace(name)
    raise InputError(
        f"The tokenizer's decoder ({', '.join(sorted(decoders)) or 'none'}) is not one whose "
        f"tokens are known to write their own bytes; use a tokenizer of words, byte-level BPE or "
        f"SentencePiece."
    )


def _kinds(decoder: Any) -> set[str]:
    """The types of a decoder and of its parts."""
    if not isinstance(decoder, dict):
        return set()
    parts = decoder.get("decoders") or ()
    return {str(decoder.get("type"))}.union(*(_kinds(part) for part in parts)) - {"Sequence"}


def _from_metaspace(name: str) -> bytes:
    if found := re.fullmatch("<0x([0-9A-Fa-f]{2})>", name):
        return bytes([int(found[1], 16)])
    return name.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


def _from_byte_level(name: str) -> bytes:
    table = _byte_letters()
    if any(letter not in table for letter in name):
        return name.encode()  # a token that was added as plain text
    return bytes(table[letter] for letter in name)


@cache
def _byte_letters() -> dict[str, int]:
    """The letters that byte-level BPE writes bytes with: printable ones are themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }
