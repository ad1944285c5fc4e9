"""A gap of unknown length: a sum over the lengths that it may have."""

from operator import index
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.errors import InputError, check_count, counted
from hmmlm.hmm import HMM, renormalise
from hmmlm.inference.chain import MISSING
from hmmlm.inference.conditioning import read_pattern, sample_fills
from hmmlm.inference.evidence import log_prob
from hmmlm.inference.paths import draw
from hmmlm.results import Belief, Fills, GapLengths


def gap_lengths(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    at: int | Int[Tensor, " B"],
    *,
    length: tuple[int, int],
    filler: int = MISSING,
    log_weights: Float[Tensor, "N V"] | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    implementation: str = "auto",
) -> GapLengths:
    """log p(length | the rest) of a gap before token `at` that has `length` = (least, most) words.

    Texts of different lengths are different texts, so lengths exclude each other and their
    evidences add up to `log_evidence`, p(some completion). The prior over lengths is the model's
    own: a length counts as much as all of its completions together. (Let the text end in the token
    that ends lines: the beginning of a text is the more probable the shorter it is.) `filler` is
    what each place of the gap is: missing, or V + n for soft evidence. Scoring, once per length.
    """
    rows, row_lengths, sizes = readings(tokens, at, length=length, filler=filler, lengths=lengths)
    text = read_pattern(hmm, rows, log_weights, row_lengths, reset_id)
    with torch.no_grad():
        evidence = log_prob(
            text.softened,
            text.tokens,
            lengths=text.lengths,
            belief=None if belief is None else _repeated(belief, len(sizes)),
            reset_id=reset_id,
            implementation=implementation,
        ).log_evidence.view(-1, len(sizes))
    total = torch.logsumexp(evidence, 1)
    return GapLengths(sizes.to(evidence.device), renormalise(evidence), total)


def sample_gap(
    hmm: HMM,
    tokens: Int[Tensor, "B T"],
    at: int | Int[Tensor, " B"],
    *,
    length: tuple[int, int],
    filler: int = MISSING,
    log_weights: Float[Tensor, "N V"] | None = None,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    belief: Belief | None = None,
    reset_id: int | None = None,
    implementation: str = "auto",
) -> Fills:
    """Draws from p(length, words of all gaps, states | the rest), as `gap_lengths` has lengths.

    `log_probs` are those of the words and the length together, `lengths` those of whole texts.
    """
    check_count("num_samples", num_samples)
    how: dict[str, Any] = {"reset_id": reset_id, "implementation": implementation}
    asked = {"length": length, "filler": filler, "lengths": lengths}
    found = gap_lengths(hmm, tokens, at, log_weights=log_weights, belief=belief, **asked, **how)
    rows, row_lengths, sizes = readings(tokens, at, **asked)
    many = found.log_probs[:, None].expand(-1, num_samples, -1)
    chosen = draw(many, generator)  # (B, N)
    batch = len(chosen)
    first = torch.arange(batch, device=chosen.device)[:, None] * len(sizes)
    place = (first + chosen).flatten().to(rows.device)
    fills = sample_fills(
        hmm,
        rows[place],
        log_weights=log_weights,
        generator=generator,
        lengths=row_lengths[place],
        belief=None if belief is None else _repeated(belief, num_samples),
        **how,
    )
    shape = (batch, num_samples)
    return Fills(
        fills.tokens.view(*shape, -1),
        fills.states.view(*shape, -1),
        fills.log_probs.view(shape) + found.log_probs.gather(1, chosen),
        fills.lengths.view(shape),
    )


def readings(
    tokens: Any,
    at: Any,
    *,
    length: tuple[int, int],
    filler: int = MISSING,
    lengths: Any = None,
) -> tuple[Int[Tensor, "B*L T"], Int[Tensor, " B*L"], Int[Tensor, " L"]]:
    """Texts with a gap of every length inserted before token `at`: (texts, their lengths, sizes).

    The texts of a row are neighbours, shortest first.
    """
    try:
        least, most = map(index, length)
    except (TypeError, ValueError):
        raise InputError(
            f"length is {length!r} but must be two whole numbers; give (least, most)."
        ) from None
    if not 0 <= least <= most:
        raise InputError(
            f"length is {least:,} to {most:,} but must be a range from 0 or more up to as much or "
            f"more; give the smallest length first."
        )
    tokens = torch.as_tensor(tokens)
    if tokens.ndim != 2 or not tokens.numel():
        raise InputError(
            f"tokens must be ids of shape (batch, time), not {tuple(tokens.shape)}; give at least "
            f"one token."
        )
    batch, steps = tokens.shape
    lengths = torch.full((batch,), steps) if lengths is None else torch.as_tensor(lengths)
    at, lengths = torch.as_tensor(at).to(tokens.device), lengths.to(tokens.device)
    for name, numbers in (("at", at), ("lengths", lengths)):
        cut = numbers.is_floating_point() or numbers.dtype == torch.bool
        if cut or (numbers.shape != (batch,) and not (name == "at" and numbers.ndim == 0)):
            one = "one number, or one" if name == "at" else "one"
            raise InputError(
                f"{name} is {numbers.dtype} of shape {tuple(numbers.shape)} but must be whole "
                f"numbers; give {one} for each of the {counted(batch, 'row')} of tokens."
            )
    if ((lengths < 0) | (lengths > steps)).any():
        row = int(((lengths < 0) | (lengths > steps)).nonzero()[0])
        raise InputError(
            f"lengths has {int(lengths[row]):,} in row {row:,} but must lie between 0 and "
            f"{steps:,}, the number of steps; count the tokens of the row."
        )
    at, lengths = at.long().expand(batch), lengths.long()
    if ((at < 0) | (at > lengths)).any():
        row = int(((at < 0) | (at > lengths)).nonzero()[0])
        raise InputError(
            f"at is {int(at[row]):,} in row {row:,} but must lie between 0 and "
            f"{int(lengths[row]):,}, the row's length, where the gap is at its end."
        )
    sizes = torch.arange(least, most + 1, device=tokens.device)
    count = len(sizes)
    size, begin = sizes.repeat(batch)[:, None], at.repeat_interleave(count)[:, None]
    place = torch.arange(steps + most, device=tokens.device)
    source = torch.where(place < begin, place, place - size).clamp(0, steps - 1)
    rows = tokens.repeat_interleave(count, 0).gather(1, source)
    inside = (place >= begin) & (place < begin + size)
    texts = torch.where(inside, filler, rows)
    return texts, lengths.repeat_interleave(count) + size[:, 0], sizes


def _repeated(belief: Belief, count: int) -> Belief:
    """The belief of each row so many times, neighbours."""
    rows = torch.arange(len(belief.fresh), device=belief.fresh.device)
    return belief.select(rows.repeat_interleave(count))
