"""A SentencePiece `.model` file as a `tokenizers` json with the same ids.

The file is a protobuf; the few fields needed are read from its wire format here, so that neither
protobuf nor sentencepiece is a dependency.
"""

import base64
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hmmlm.errors import InputError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_NFKC_NAMES = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")
_SPACE = "\u2581"
_APART = "\ufdd0"  # a code point that Unicode keeps out of text
# Far below any sum of log-probabilities of a real line's pieces, so that it is never chosen.
_NEVER = -1e6


class Piece(NamedTuple):
    text: str
    score: float
    type: int


def read_sentencepiece(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str | None]:
    """The `tokenizers` json (as a dict) of a SentencePiece model, and its end-of-sentence piece.

    Encoding is that of the `sentencepiece` package; what cannot be the same is refused, but for:
    unigram models may order the pieces of a run of one character differently ("----" as "-", "---"
    or "---", "-": the same score, decided there by float32 rounding) and find a byte piece in a
    text that spells it ("<0x0A>") with characters the model does not have; nfkc models compose
    marks that are out of canonical order or follow a ligature, which sentencepiece leaves alone.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    try:
        pieces, trainer, normalizer = _read_model(data)
    except (ValueError, IndexError, struct.error, TypeError, AttributeError):
        pieces, trainer, normalizer = [], None, None
    if not pieces or trainer is None or normalizer is None:
        raise InputError(
            f"{path} is not a SentencePiece model, or only part of one; give a whole .model file."
        )
    model_type = trainer.get(3, 1)
    if model_type not in (1, 2):
        raise InputError(
            f"{path} is a SentencePiece model of type "
            f"{_MODEL_TYPES.get(model_type, model_type)}; only unigram and bpe can be converted."
        )
    if trainer.get(24) or not normalizer.get(5, 1):
        raise InputError(
            f"{path} marks spaces in a way that cannot be converted "
            "(treat_whitespace_as_suffix, or escape_whitespaces off); train it without that."
        )
    dummy_prefix, squeeze = bool(normalizer.get(3, 1)), bool(normalizer.get(4, 1))
    added = []
    user_defined = [(i, p.text) for i, p in enumerate(pieces) if p.type == _USER_DEFINED]
    if user_defined and model_type == 2:
        if dummy_prefix or squeeze:
            raise InputError(
                f"{path} is a bpe model with {len(user_defined):,} user-defined pieces and "
                "add_dummy_prefix or remove_extra_whitespaces, which cannot be converted; train "
                "it without those options or without user_defined_symbols."
            )
        added = [_added_token(i, text) for i, text in user_defined]
    charsmap = normalizer.get(2, b"")
    name = normalizer.get(1, b"").decode(errors="replace")
    if charsmap and name not in _NFKC_NAMES:
        raise InputError(
            f"{path} normalises text by rules of its own ({name or 'unnamed'}), which cannot be "
            f"converted; only identity, {', '.join(_NFKC_NAMES)} can."
        )
    unk_id = next((i for i, p in enumerate(pieces) if p.type == _UNKNOWN), 0)
    model = _bpe(pieces, unk_id) if model_type == 2 else _unigram(pieces, unk_id)
    eos_id = _signed(trainer.get(42, 2))
    spec = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {
            "type": "Sequence",
            "normalizers": _normalizers(charsmap, dummy_prefix=dummy_prefix, squeeze=squeeze),
        },
        "pre_tokenizer": None,
        "decoder": _decoder(strip=dummy_prefix),
        "model": {**model, "byte_fallback": bool(trainer.get(35, 0))},
    }
    return spec, pieces[eos_id].text if 0 <= eos_id < len(pieces) else None


def _bpe(pieces: list[Piece], unk_id: int) -> dict[str, Any]:
    """SentencePiece merges the neighbours whose union scores best: the merges, best first."""
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    joinable = {p.text for p in pieces if p.type in (_NORMAL, _UNUSED)}
    merges = []
    for piece in pieces:
        if piece.type != _NORMAL:
            continue
        for cut in range(1, len(piece.text)):
            left, right = piece.text[:cut], piece.text[cut:]
            if left in joinable and right in joinable:
                merges.append((-piece.score, ids[piece.text], ids[left], ids[right], left, right))
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": pieces[unk_id].text,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "ignore_merges": False,
        "vocab": ids,
        "merges": [[left, right] for *_, left, right in sorted(merges)],
    }


def _unigram(pieces: list[Piece], unk_id: int) -> dict[str, Any]:
    best = max((p.score for p in pieces if p.type == _NORMAL), default=0.0)
    vocab = []
    for text, score, type in pieces:
        if type in (_CONTROL, _UNKNOWN, _UNUSED):
            # `tokenizers` would find the piece in a text that spells it; normalised text has
            # no spaces, so a space in the name hides it.
            text, score = " " + text, 0.0
        elif type == _USER_DEFINED:
            score = len(text.encode()) * best - 0.1  # as sentencepiece does
        elif type == _BYTE:
            score = _NEVER
        vocab.append([text, score])
    return {"type": "Unigram", "unk_id": unk_id, "vocab": vocab}


def _normalizers(charsmap: bytes, *, dummy_prefix: bool, squeeze: bool) -> list[dict[str, Any]]:
    # The prefix comes first because a line that normalises to nothing still gets one.
    steps: list[dict[str, Any]] = []
    if dummy_prefix:
        steps.append({"type": "Prepend", "prepend": _SPACE})
    if charsmap:
        # `tokenizers` looks rules up by grapheme: it misses compositions of six bytes or more and
        # drops a mark after a letter that has a rule. So NFKC composes, which all rules for
        # several characters agree with, and every mark is made a grapheme of its own. A first
        # character that a rule deletes makes it panic, so something stands before it.
        steps += [
            {"type": "NFKC"},
            {"type": "Prepend", "prepend": _APART},
            _replace(r"(?=[\n\p{M}\p{Cf}\p{Sk}])", _APART),
            {
                "type": "Precompiled",
                "precompiled_charsmap": base64.b64encode(charsmap).decode(),
            },
            _replace(_APART, ""),
        ]
    if squeeze:
        start = _SPACE if dummy_prefix else ""
        steps += [
            _replace(f"^{start} +", start),
            _replace(f"[ {_SPACE}]+$", ""),
            _replace(" {2,}", " "),
        ]
    return [*steps, {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]


def _decoder(*, strip: bool) -> dict[str, Any]:
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if strip:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": decoders}


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _added_token(id: int, text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": id, "content": text, **flags}


def _read_model(data: bytes) -> tuple[list[Piece], dict[int, Any] | None, dict[int, Any] | None]:
    """ModelProto: 1 pieces (1 piece, 2 score, 3 type), 2 trainer_spec, 3 normalizer_spec."""
    pieces, trainer, normalizer = [], None, None
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(value))
            score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
            pieces.append(Piece(piece[1].decode(), score, piece.get(3, _NORMAL)))
        elif number == 2:
            trainer = dict(_fields(value))
        elif number == 3:
            normalizer = dict(_fields(value))
    return pieces, trainer, normalizer


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of one protobuf message: an int for a varint, else its bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 2, 5):
            size = 8 if kind == 1 else 4
            if kind == 2:
                size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
            if at > len(data):
                raise ValueError("a field ends after its message")
        else:
            raise ValueError(f"unknown wire type {kind}")
        yield key >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
