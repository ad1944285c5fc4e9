"""The rows of a batch as transformers gives them: without padding, and what is scored of them."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from hmmlm import inference
from hmmlm.errors import InputError
from hmmlm.hmm import HMM

NO_LABEL = -100
IMPOSSIBLE = (
    "A text has a token that this HMM gives probability zero, so that nothing can follow; leave it "
    "out, or use a model that has seen it."
)


class Rows(NamedTuple):
    """Rows without their padding, and where each token stood."""

    tokens: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]
    places: Int[Tensor, "B T"]  # in `tokens`, of each column that was given; -1 of padding


def without_padding(input_ids: Tensor, mask: Tensor | None, seen: int = 0) -> Rows:
    """The columns that a mask shows; it may also have those that were `seen` before."""
    if input_ids.ndim != 2 or not input_ids.numel():
        raise InputError(
            f"input_ids has the shape {tuple(input_ids.shape)} but must have (batch, time), with "
            f"at least one token in each row; <eos> begins a text that has none."
        )
    rows, size = input_ids.shape
    if mask is None:
        mask = torch.ones_like(input_ids)
    if tuple(mask.shape) not in ((rows, size), (rows, seen + size)):
        raise InputError(
            f"attention_mask has the shape {tuple(mask.shape)} but must have {(rows, seen + size)}"
            f": a number for each token, 0 of padding."
        )
    mask = mask[:, -size:] != 0
    lengths = mask.sum(1)
    if not bool((lengths > 0).all()):
        row = int((lengths == 0).nonzero()[0])
        raise InputError(f"Row {row:,} is all padding; give it at least one token.")
    if bool(((input_ids < 0) & mask).any()):
        raise InputError(
            f"input_ids has {int(input_ids.min()):,} but ids are 0 or more; hide what is no token "
            f"by attention_mask."
        )
    order = torch.argsort((~mask).int(), dim=1, stable=True)
    places = torch.where(mask, mask.cumsum(1) - 1, -1)
    return Rows(input_ids.gather(1, order), lengths, places)


def check_positions(position_ids: Tensor, rows: Rows) -> None:
    """Refuses positions that start again within a row: texts that are packed there."""
    is_read = rows.places >= 0
    order = torch.argsort((~is_read).int(), dim=1, stable=True)
    steps = position_ids.expand_as(rows.places).gather(1, order).diff(dim=1)
    inside = torch.arange(1, is_read.shape[1], device=is_read.device) < rows.lengths[:, None]
    again = ((steps <= 0) & inside).any(1)
    if bool(again.any()):
        raise InputError(
            f"position_ids start again within row {int(again.nonzero()[0]):,}: texts are packed "
            f"there, and would be read as one; give each a row of its own (packing=False)."
        )


def loss_of(hmm: HMM, rows: Rows, labels: Tensor, reset: int | None, number: Any) -> Tensor:
    """-log p of the labelled tokens, over their `number`, if that is not given.

    Of each run of them it is log p of the text up to its end, less that of the text before it.
    """
    if labels.shape != rows.places.shape:
        raise InputError(
            f"labels has the shape {tuple(labels.shape)} but must have that of input_ids, "
            f"{tuple(rows.places.shape)}."
        )
    is_scored = (labels != NO_LABEL) & (rows.places > 0)
    own = rows.tokens.gather(1, rows.places.clamp(min=0))
    if bool(((labels != own) & is_scored).any()):
        raise InputError(
            "labels differ from input_ids; the loss of an HMM is that of the text it reads, so "
            "give the tokens, or -100 where none is to be scored."
        )
    if not bool(is_scored.any()):
        return hmm.log_init[:0].sum()
    row, column = is_scored.nonzero(as_tuple=True)
    padded = is_scored.new_zeros(len(labels), labels.shape[1] + 2)
    padded[row, rows.places[row, column] + 1] = True
    row, begin = (padded[:, 1:] & ~padded[:, :-1]).nonzero(as_tuple=True)
    end = (padded[:, :-1] & ~padded[:, 1:]).nonzero(as_tuple=True)[1]
    log_evidence = []
    for size in (end, begin):
        tokens = rows.tokens[row, : int(size.max())]
        read = inference.log_prob(hmm, tokens, lengths=size, reset_id=reset)
        log_evidence.append(read.log_evidence)
    if bool(torch.isneginf(log_evidence[0]).any()):
        raise InputError(IMPOSSIBLE)
    total = (log_evidence[1] - log_evidence[0]).sum()
    return (total / (is_scored.sum() if number is None else number)).to(hmm.dtype)
