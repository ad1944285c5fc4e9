"""Lines with gaps: `the ? sat on *`, where `?` is one word and `*` any number of them."""

import re
from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from hmmlm import inference
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError, counted
from hmmlm.hmm import HMM
from hmmlm.inference.chain import MISSING
from hmmlm.inference.gaps import readings
from hmmlm.text_model import check_utf8

_BEFORE, _AFTER = r"(?:^|(?<=\s))", r"(?=\s|$)"
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What SentencePiece writes for a space."""

_MARK = re.compile(rf"{_BEFORE}([?*]){_AFTER}")
_ESCAPED = re.compile(rf"{_BEFORE}\\(\\*[?*]){_AFTER}")


class FilledLine(NamedTuple):
    """A line with words in its gaps: the line, these words, and p(these words | the rest)."""

    text: str
    words: list[str]
    prob: float


class GappedLine(NamedTuple):
    """The ids of a line, `<eos>` last, -1 for each `?`; where a `*` stands, and its lengths."""

    ids: Int[Tensor, "1 T"]
    singles: list[int]  # the places of `?`
    at: int  # the token before which `*` stands
    length: tuple[int, int]  # (0, 0) where there is none
    has_star: bool
    spans: list[tuple[int, int] | None]  # the characters of each token; None for `<eos>`

    def readings(self) -> tuple[Int[Tensor, "L T"], Int[Tensor, " L"], Int[Tensor, " L"]]:
        """The line with `*` of every length: ids, their lengths, and those of `*`."""
        return readings(self.ids, self.at, length=self.length)

    def gaps(self, size: int) -> list[int]:
        """The places of all gaps where `*` has so many words."""
        moved = [place + size if place >= self.at else place for place in self.singles]
        return sorted([*moved, *range(self.at, self.at + size)])


def _encode(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """The tokens of a piece of a line, and where they stand in it. The space before a word belongs
    to it where tokens have spaces; a tokenizer that puts one in front of every text is given none.
    """
    bare = text.lstrip()
    ids, spans = tokenizer.encode_spans(bare)
    if tokenizer.token(ids[0]).startswith(SPACE) or text == bare:
        before = len(text) - len(bare)
        return ids, [(start + before, end + before) for start, end in spans]
    return tokenizer.encode_spans(text)


def _unescape(part: str) -> tuple[str, list[int]]:
    """A piece of a pattern without the backslashes of its marks, and where each letter stood."""
    gone = {found.start() for found in _ESCAPED.finditer(part)}
    kept = [place for place in range(len(part)) if place not in gone]
    return "".join(part[place] for place in kept), kept


def read_pattern(tokenizer: Tokenizer, pattern: str, length: tuple[int, int]) -> GappedLine:
    """A line with at least one gap."""
    line = read_gaps(tokenizer, pattern, length)
    if not line.singles and not line.has_star:
        raise InputError(
            f"The pattern {pattern!r} has no gap; write ? for one word or * for some, with spaces "
            f"around it."
        )
    return line


def read_gaps(tokenizer: Tokenizer, pattern: str, length: tuple[int, int]) -> GappedLine:
    """A line that may have gaps: marks alone between spaces; with a backslash they are words."""
    least, most = length
    if not 0 <= least <= most:
        raise InputError(
            f"length is {least:,} to {most:,} but must be a range from 0 or more up to as much or "
            f"more, such as (0, 5)."
        )
    parts = _MARK.split(check_utf8(pattern))
    ids: list[int] = []
    singles: list[int] = []
    stars: list[int] = []
    spans: list[tuple[int, int] | None] = []
    begin = 0
    # Text and marks in turn.
    for number, part in enumerate(parts):
        if number % 2 == 0:
            text, places = _unescape(part)
            if text.strip():
                found, at = _encode(tokenizer, text.rstrip())
                ids += found
                spans += [_place(part, places, begin, *span) for span in at]
        elif part == "?":
            singles.append(len(ids))
            ids.append(MISSING)
            spans.append((begin, begin + 1))
        else:
            stars.append(len(ids))
        begin += len(part)
    if len(stars) > 1:
        raise InputError(
            f"The pattern {pattern!r} has {len(stars):,} gaps of unknown length; use one *, for "
            f"with more of them one line could be read in several ways."
        )
    line = torch.tensor([[*ids, tokenizer.eos_id]])
    length = (least, most) if stars else (0, 0)
    at = stars[0] if stars else 0
    return GappedLine(line, singles, at, length, bool(stars), [*spans, None])


def _place(part: str, places: list[int], begin: int, start: int, end: int) -> tuple[int, int]:
    """Where a token stands in the whole pattern, with its backslash if it has one."""
    first, last = places[min(start, len(places) - 1)], places[min(end, len(places)) - 1] + 1
    escaped = first > 0 and first - 1 not in places and part[first - 1] == "\\"
    return begin + first - escaped, begin + max(last, first)


def fill(
    hmm: HMM,
    tokenizer: Tokenizer,
    pattern: str,
    count: int,
    length: tuple[int, int],
    generator: torch.Generator,
) -> list[FilledLine]:
    """Draws of a line with words in its gaps, from p(words | the rest)."""
    line = read_pattern(tokenizer, pattern, length)
    _posterior(hmm, tokenizer, line, pattern)
    drawn = inference.sample_gap(
        hmm,
        line.ids,
        line.at,
        length=line.length,
        num_samples=count,
        generator=generator,
        reset_id=tokenizer.eos_id,
    )
    found = []
    rows = (part[0].tolist() for part in (drawn.tokens, drawn.lengths, drawn.log_probs.exp()))
    for ids, size, prob in zip(*rows, strict=True):
        places = line.gaps(size - line.ids.shape[1])
        words = [tokenizer.token(ids[place]) for place in places]
        found.append(FilledLine(tokenizer.decode(ids[:size]), words, prob))
    return found


def gap_words(
    hmm: HMM, tokenizer: Tokenizer, pattern: str, k: int, length: tuple[int, int]
) -> list[list[tuple[str, float]]]:
    """The most probable words of each `?`, given the rest; the lengths of `*` are summed over."""
    line = read_pattern(tokenizer, pattern, length)
    if not line.singles:
        raise InputError(f"The pattern {pattern!r} has no ?, whose words could be told.")
    log_lengths = _posterior(hmm, tokenizer, line, pattern)
    rows, lengths, sizes = line.readings()
    found = inference.word_log_probs(hmm, rows, lengths=lengths, reset_id=tokenizer.eos_id)
    order = found.gaps.flatten().cumsum(0).view(found.gaps.shape) - 1
    places = torch.tensor(line.singles, device=order.device)
    places = places + torch.where(places >= line.at, sizes.to(order.device)[:, None], 0)  # (L, Q)
    table = found.log_probs[order.gather(1, places)]  # (L, Q, V)
    words = torch.logsumexp(table + log_lengths.to(table.dtype)[:, None, None], 0)
    best = words.topk(min(k, words.shape[1]), 1)
    return [
        [(tokenizer.token(word), prob) for word, prob in zip(*row, strict=True)]
        for row in zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
    ]


def span(
    hmm: HMM,
    tokenizer: Tokenizer,
    pattern: str,
    words: str | Iterable[str],
    length: tuple[int, int],
) -> float:
    """p(the gaps are these words | the rest)."""
    line = read_pattern(tokenizer, pattern, length)
    texts = [words] if isinstance(words, str) else list(words)
    ids = [id for text in texts for id in tokenizer.encode(check_utf8(text))]
    size, (least, most) = len(ids) - len(line.singles), line.length
    if not least <= size <= most:
        wanted = counted(len(line.singles), "word")
        if most > 0:
            wanted = f"{least + len(line.singles):,} to {most + len(line.singles):,} words"
        raise InputError(
            f"The pattern {pattern!r} has gaps for {wanted} but {counted(len(ids), 'was', 'were')} "
            f"given; give one for each ?, and for * as many as its length allows."
        )
    log_lengths = _posterior(hmm, tokenizer, line, pattern)
    rows, lengths, _ = line.readings()
    which = slice(size - least, size - least + 1)
    filled = rows[which].clone()
    filled[0, line.gaps(size)] = torch.tensor(ids, dtype=torch.long)
    found = inference.fill_log_prob(
        hmm, rows[which], filled, lengths=lengths[which], reset_id=tokenizer.eos_id
    )
    return float((found[0] + log_lengths[size - least]).exp())


def _posterior(hmm: HMM, tokenizer: Tokenizer, line: GappedLine, pattern: str) -> Tensor:
    """log p(length of `*` | the rest); a line that cannot be is refused."""
    found = inference.gap_lengths(
        hmm, line.ids, line.at, length=line.length, reset_id=tokenizer.eos_id
    )
    if not bool(torch.isfinite(found.log_evidence).all()):
        raise InputError(
            f"The pattern {pattern!r} has probability zero under this model, whatever is in its "
            f"gaps; give another."
        )
    return found.log_probs[0]
