"""Text to token ids and back: every tokenizer is one `tokenizer.json`."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from hmmlm.data.sentencepiece_model import read_sentencepiece
from hmmlm.errors import InputError, check_count
from hmmlm.storage import new_file

EOS_NAMES = ("<eos>", "</s>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>")
_BATCH_CHARACTERS = 1 << 18


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A Hugging Face `tokenizers` tokenizer that knows which token ends a line.

    The saved json says so in its post-processor, the template "$A <eos>": a plain
    `tokenizers.Tokenizer.from_file(...).encode(line)` gives the same ids as `encode_lines`.
    """

    vocab_size: int
    eos_id: int
    unk_id: int | None
    hash: str
    _spec: dict[str, Any] = field(repr=False)
    _backend: tokenizers.Tokenizer = field(repr=False)

    @classmethod
    def words(
        cls,
        counts_or_lines: Mapping[str, int] | Iterable[str],
        *,
        min_count: int = 1,
        max_size: int | None = None,
    ) -> "Tokenizer":
        """Whitespace-separated words: `<unk>` is 0, `<eos>` is 1, then by falling count.

        Words with the same count are in alphabetical order. `max_size` counts the two
        specials; `<unk>` and `<eos>` written in the text are those tokens. The split is exactly
        Python's `str.split()`.
        """
        check_count("min_count", min_count)
        if max_size is not None and max_size < 3:
            raise InputError(
                f"max_size is {max_size:,} but must be at least 3: <unk>, <eos> and one word."
            )
        if isinstance(counts_or_lines, Mapping):
            counts = counts_or_lines
        else:
            counts = Counter[str]()
            for line in counts_or_lines:
                counts.update(line.split())
        kept = [(-n, w) for w, n in counts.items() if n >= min_count and w not in _WORD_SPECIALS]
        if not kept:
            raise InputError(
                f"No word of the text occurs {min_count:,} times or more, so the vocabulary "
                "would be empty; give more text or a lower min_count."
            )
        words = [*_WORD_SPECIALS, *(word for _, word in sorted(kept))][:max_size]
        spec = {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": _SPLIT_LIKE_PYTHON,
            "decoder": None,
            "model": {
                "type": "WordLevel",
                "vocab": {word: id for id, word in enumerate(words)},
                "unk_token": "<unk>",
            },
        }
        return cls._from_spec(spec, "the word vocabulary", eos="<eos>")

    @classmethod
    def from_sentencepiece(
        cls, path: str | os.PathLike[str], eos: str | None = None
    ) -> "Tokenizer":
        """A SentencePiece `.model` (unigram or BPE) as a tokenizer with the same ids.

        `eos` names the piece that ends a line; without it, the model's own is taken.
        """
        spec, model_eos = read_sentencepiece(path)
        return cls._from_spec(spec, str(path), eos=model_eos if eos is None else eos)

    @classmethod
    def load(cls, path: str | os.PathLike[str], eos: str | None = None) -> "Tokenizer":
        """Any `tokenizers` json, or a SentencePiece file when the name ends in `.model`.

        `eos` names the token that ends a line. Without it, it is the one that the file's own
        post-processor puts after a line, else the first of `EOS_NAMES` that it knows.
        """
        path = Path(path)
        if path.suffix == ".model":
            return cls.from_sentencepiece(path, eos)
        try:
            text = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from None
        return cls.from_json(text, source=str(path), eos=eos)

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str, eos: str | None = None) -> "Tokenizer":
        """The same from what is in a json; messages call it `source`."""
        try:
            spec = json.loads(text)
        except ValueError:  # bad json and bad UTF-8 both
            raise InputError(
                f"{source} is not json, or only part of a file; give a tokenizer.json written by "
                "hmmlm or the tokenizers library, or a SentencePiece .model."
            ) from None
        return cls._from_spec(spec, source, eos)

    @classmethod
    def _from_spec(cls, spec: Any, source: str, eos: str | None) -> "Tokenizer":
        if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
            raise InputError(
                f'{source} is json but not a tokenizer: it has no "model"; give a '
                "tokenizer.json written by hmmlm or the tokenizers library."
            )
        if eos is None:
            eos = _template_eos(spec.get("post_processor"))
        # Truncation would silently drop text, padding would add to it.
        spec = {**spec, "truncation": None, "padding": None, "post_processor": None}
        ids = _build(spec, source).get_vocab(with_added_tokens=True)
        if eos is None:
            eos = next((name for name in EOS_NAMES if _find(ids, spec, name) is not None), None)
        if eos is None:
            raise InputError(
                f"{source} has none of {', '.join(EOS_NAMES)}, so what ends a line is not known; "
                "pass --eos TOKEN with one of its tokens."
            )
        eos_id = _find(ids, spec, eos)
        if eos_id is None:
            raise InputError(
                f"{source} has no token {eos!r} to end a line with; pass --eos TOKEN with one of "
                f"its {len(ids):,} tokens."
            )
        spec["post_processor"] = _eos_template(eos, eos_id)
        model = spec["model"]
        unk = model.get("unk_token")
        return cls(
            vocab_size=max(ids.values()) + 1,
            eos_id=eos_id,
            unk_id=model.get("unk_id") if unk is None else ids.get(unk),
            hash=hashlib.sha256(_canonical(spec).encode()).hexdigest(),
            _spec=spec,
            _backend=_build(spec, source),
        )

    @property
    def spec(self) -> Mapping[str, Any]:
        """What `save` writes."""
        return self._spec

    @property
    def splits_by_words(self) -> bool:
        """Whether a token is a word, and not a piece of one."""
        return self._spec["model"].get("type") == "WordLevel"

    def encode(self, line: str) -> list[int]:
        """The ids of one line, without `<eos>` and with nothing else added."""
        return self._encode([line], add_special_tokens=False)[0].ids

    def encode_spans(self, line: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The same, and which characters of the line each id stands for, without spaces."""
        try:
            found = self._backend.encode(line, add_special_tokens=False)
        except Exception as error:  # tokenizers raises bare Exception
            raise InputError(f"The tokenizer cannot encode this text: {error}.") from error
        spans = []
        for start, end in found.offsets:
            bare = line[start:end].strip()
            start += len(line[start:end]) - len(line[start:end].lstrip()) if bare else 0
            spans.append((start, start + len(bare) if bare else end))
        return found.ids, spans

    def unknown(self, line: str) -> list[str]:
        """The words, or pieces of words, that are read as `<unk>` and were not written so."""
        if self.unk_id is None:
            return []
        if self._word_ids is not None:
            return [word for word in line.split() if word not in self._word_ids]
        ids, spans = self.encode_spans(line)
        pairs = zip(ids, spans, strict=True)
        parts = [line[start:end] for id, (start, end) in pairs if id == self.unk_id]
        return [part for part in parts if part != self.token(self.unk_id)]

    def encode_lines(self, lines: Iterable[str]) -> Iterator[np.ndarray]:
        """Each line's ids, int64, ending in `eos_id`; a quarter of a megabyte of text at a time."""
        for group in _groups(lines):
            for encoding in self._encode(group, add_special_tokens=True):
                yield np.array(encoding.ids, dtype=np.int64)

    def encode_stretches(self, lines: Iterable[str]) -> Iterator[np.ndarray]:
        """The same ids joined, those of a quarter of a megabyte of text at a time."""
        for group in _groups(lines):
            if self._word_ids is None:
                encoded = self._encode(group, add_special_tokens=True)
                yield np.concatenate([np.array(line.ids, dtype=np.int64) for line in encoded])
            else:
                words = "".join(f"{line} <eos> " for line in group).split()
                ids = map(self._word_ids.get, words, repeat(self.unk_id))
                yield np.fromiter(ids, np.int64, len(words))

    @cached_property
    def _word_ids(self) -> dict[str, int] | None:
        """The vocabulary, where encoding is no more than looking up what `str.split()` gives."""
        spec, model = self._spec, self._spec["model"]
        plain = (
            model.get("type") == "WordLevel"
            and spec.get("pre_tokenizer") == _SPLIT_LIKE_PYTHON
            and not spec.get("normalizer")
            and not spec.get("added_tokens")
            and model["vocab"].get("<eos>") == self.eos_id
            and self.unk_id is not None
        )
        return model["vocab"] if plain else None

    def _encode(self, lines: list[str], *, add_special_tokens: bool) -> list[tokenizers.Encoding]:
        try:
            return self._backend.encode_batch_fast(lines, add_special_tokens=add_special_tokens)
        except Exception as error:  # tokenizers raises bare Exception
            raise InputError(f"The tokenizer cannot encode this text: {error}.") from error

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of `ids`: each `<eos>` ends a line, the last one adds nothing.

        So `decode` of the joined `encode_lines(lines)` is the lines joined by newlines, as far
        as the tokenizer keeps their spacing.
        """
        lines: list[list[int]] = [[]]
        for id in ids:
            self._check(int(id))
            if id == self.eos_id:
                lines.append([])
            else:
                lines[-1].append(int(id))
        if len(lines) > 1 and not lines[-1]:
            lines.pop()
        texts = self._backend.decode_batch(lines, skip_special_tokens=False)
        return "\n".join(texts)

    def token(self, id: int) -> str:
        """The token with this id, as the vocabulary spells it; "" for an id in a gap of it."""
        self._check(id)
        token = self._backend.id_to_token(id) or ""
        return token.removeprefix(" ") if self._spec["model"].get("type") == "Unigram" else token

    def id(self, token: str) -> int:
        """The id of a token as the vocabulary spells it."""
        found = _find(self._backend.get_vocab(with_added_tokens=True), self._spec, token)
        if found is None:
            raise InputError(
                f"{token!r} is not one of the {self.vocab_size:,} tokens of this vocabulary."
            )
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the json; it is replaced as a whole or not at all."""
        with new_file(path) as temporary:
            temporary.write_text(self.as_json(), encoding="utf-8")

    def as_json(self) -> str:
        """What `save` writes."""
        return json.dumps(self._spec, ensure_ascii=False, indent=1) + "\n"

    def _check(self, id: int) -> None:
        if not 0 <= id < self.vocab_size:
            raise InputError(
                f"The id {id:,} is outside this vocabulary, which ends at "
                f"{self.vocab_size - 1:,}; use the tokenizer that the ids were made with."
            )


_WORD_SPECIALS = ("<unk>", "<eos>")

# WhitespaceSplit leaves out the four separators that Python also splits at.
_SPLIT_LIKE_PYTHON = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "WhitespaceSplit"},
        {
            "type": "Split",
            "pattern": {"Regex": r"[\x1c-\x1f]"},
            "behavior": "Removed",
            "invert": False,
        },
    ],
}


def _build(spec: dict[str, Any], source: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(_canonical(spec))
    except Exception as error:  # tokenizers raises bare Exception
        raise InputError(
            f"{source} is not a tokenizer that tokenizers {tokenizers.__version__} can read: "
            f"{error}."
        ) from None


def _canonical(spec: dict[str, Any]) -> str:
    # Hashing the file's own fields, not the library's rewriting of them, keeps the hash the same
    # from one version of the library to the next.
    return json.dumps(spec, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _find(ids: dict[str, int], spec: dict[str, Any], token: str) -> int | None:
    # A unigram SentencePiece model's control pieces carry a space (see sentencepiece_model).
    found = ids.get(token)
    if found is None and spec["model"].get("type") == "Unigram":
        found = ids.get(" " + token)
    return found


def _eos_template(eos: str, eos_id: int) -> dict[str, Any]:
    def line(name: str) -> list[dict[str, Any]]:
        return [
            {"Sequence": {"id": name, "type_id": 0}},
            {"SpecialToken": {"id": eos, "type_id": 0}},
        ]

    return {
        "type": "TemplateProcessing",
        "single": line("A"),
        "pair": line("A") + line("B"),
        "special_tokens": {eos: {"id": eos, "ids": [eos_id], "tokens": [eos]}},
    }


def _template_eos(post_processor: Any) -> str | None:
    match post_processor:
        case {
            "type": "TemplateProcessing",
            "single": [{"Sequence": _}, {"SpecialToken": {"id": str(eos)}}],
        }:
            return eos
    return None


def _groups(lines: Iterable[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for line in lines:
        group.append(line)
        size += len(line) + 1
        if size >= _BATCH_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group
