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

    def readings(self) -> tuple[Int[Tensor, "L T"], Int[Tensor, " L"], Int[Tensor, " L"]]:
        """The line with `*` of every length: ids, their lengths, and those of `*`."""
        return readings(self.ids, self.at, length=self.length)

    def gaps(self, size: int) -> list[int]:
        """The places of all gaps where `*` has so many words."""
        moved = [place + size if place >= self.at else place for place in self.singles]
        return sorted([*moved, *range(self.at, self.at + size)])


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a piece of a line. The space before a word belongs to it where tokens have
    spaces; a tokenizer that puts one in front of every text is given none."""
    plain = tokenizer.encode(text.lstrip())
    adds_space = tokenizer.token(plain[0]).startswith(SPACE)
    return plain if adds_space or text == text.lstrip() else tokenizer.encode(text)


def read_pattern(tokenizer: Tokenizer, pattern: str, length: tuple[int, int]) -> GappedLine:
    """A line with gaps. A mark stands alone between spaces; after a backslash it is a word."""
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
    # Text and marks in turn.
    for number, part in enumerate(parts):
        if number % 2 == 0:
            text = _ESCAPED.sub(r"\1", part).rstrip()
            ids += _encode(tokenizer, text) if text.strip() else []
        elif part == "?":
            singles.append(len(ids))
            ids.append(MISSING)
        else:
            stars.append(len(ids))
    if not singles and not stars:
        raise InputError(
            f"The pattern {pattern!r} has no gap; write ? for one word or * for some, with spaces "
            f"around it."
        )
    if len(stars) > 1:
        raise InputError(
            f"The pattern {pattern!r} has {len(stars):,} gaps of unknown length; use one *, for "
            f"with more of them one line could be read in several ways."
        )
    line = torch.tensor([[*ids, tokenizer.eos_id]])
    return GappedLine(line, singles, stars[0] if stars else 0, (least, most) if stars else (0, 0))


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
