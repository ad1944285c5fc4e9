"""Texts drawn side by side from whatever says how probable each next token is."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.errors import InputError, counted

LOOKS = 8
"""Steps between two looks at which texts are over."""

SHARE = 0.9
"""Of the texts that are drawn side by side: where no more of them go on, the others are left."""

ROWS = {"cpu": 64, "cuda": 1 << 14}
"""Texts that are drawn side by side, at most."""


class DrawnText(NamedTuple):
    """The tokens of a text, and log p of each given those before it; NaN where it was not drawn."""

    tokens: Int[np.ndarray, " T"]
    log_probs: Float[np.ndarray, " T"]


class TextReader(Protocol):
    """What has been read of texts side by side, and what may come next."""

    def read(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """log p of each token after these, which it reads; the first time there may be none."""
        ...

    def keep(self, rows: Int[Tensor, " N"]) -> None:
        """Goes on with these rows alone."""
        ...


def check_prompts(prompts: Sequence[Sequence[int]], length: int) -> None:
    """Refuses what no text could follow."""
    longest = max(map(len, prompts), default=0)
    if not prompts or longest >= length:
        raise InputError(
            f"There are {counted(len(prompts), 'prompt')} of up to {counted(longest, 'token')} for "
            f"texts of {length:,}; give at least one (it may be empty), each shorter than the text."
        )


@torch.no_grad()
def draw_texts(
    reader: TextReader,
    prompts: Sequence[Sequence[int]],
    *,
    length: int,
    end_ids: Sequence[int],
    generator: torch.Generator,
) -> list[DrawnText] | None:
    """A text of at most `length` tokens after each prompt, prompt included; it may be empty.

    A text is over after any of `end_ids` that was drawn, if there are any. Nothing, where the
    reader gave a probability that is no number.
    """
    rows, place = len(prompts), generator.device
    check_prompts(prompts, length)
    given = torch.full((rows, length), -1)
    for row, ids in zip(given.numpy(), prompts, strict=True):
        row[: len(ids)] = ids
    is_given, tokens = (given >= 0).to(place), given.to(place)
    log_probs = torch.full((rows, length), torch.nan, device=place)
    sizes = torch.full((rows,), length, device=place)
    ends = torch.tensor(end_ids, dtype=torch.long, device=place)
    is_number = torch.ones(rows, dtype=torch.bool, device=place)
    # What all prompts have is read at once, then one token after the other.
    begun = min(map(len, prompts))
    last = tokens[:, :begun]
    open_rows = torch.arange(rows, device=place)
    for step in range(begun, length):
        known = reader.read(last)
        is_number[open_rows] &= ~known[:, 0].isnan()  # one that is none spoils its row
        # The largest of p / e, with e exponential, is drawn from p.
        noise = torch.empty_like(known).exponential_(generator=generator)
        drawn = known.exp().div_(noise).argmax(1)
        is_told = is_given[open_rows, step]
        token = torch.where(is_told, tokens[open_rows, step], drawn)
        tokens[open_rows, step] = token
        log_probs[open_rows, step] = known.gather(1, token[:, None])[:, 0].float()
        is_over = torch.isin(token, ends) & ~is_told
        mine = sizes[open_rows]
        sizes[open_rows] = torch.where(is_over, mine.clamp(max=step + 1), mine)
        last = token[:, None]
        if step % LOOKS == LOOKS - 1:
            going = (sizes[open_rows] > step + 1).nonzero()[:, 0]  # waits for the device
            if not len(going):
                break
            if len(going) <= SHARE * len(open_rows):
                open_rows, last = open_rows[going], last[going]
                reader.keep(going)
    if not bool(is_number.all()):
        return None
    log_probs[is_given] = torch.nan
    found = zip(tokens.cpu().numpy(), log_probs.cpu().numpy(), sizes.tolist(), strict=True)
    return [DrawnText(ids[:size], scores[:size]) for ids, scores, size in found]


def rows_that_fit(device: torch.device, each: int) -> int:
    """How many texts of so many bytes each to draw side by side.

    On a GPU a step takes as long for a few texts as for thousands, until its products fill it; half
    of its memory is for them.
    """
    if device.type != "cuda":
        return ROWS["cpu"]
    return largest_batch(torch.cuda.get_device_properties(device).total_memory // 2, each)


def largest_batch(memory: int, each: int) -> int:
    """The largest power of two that fits, from 1 up to what fills a GPU."""
    fits = max(1, min(ROWS["cuda"], memory // each))
    return 1 << (fits.bit_length() - 1)
