"""Tables of another library as a checked HMM; messages name them as that library does."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.hmm import HMM, TOLERANCE

LOG_ZERO = -1e4
"""Logarithms below this are taken for -inf: libraries write -1e10 or -1e30 for zero."""


class Foreign(NamedTuple):
    """An HMM of another library, and the token that ends a text there, if one does."""

    hmm: HMM
    eos_id: int | None = None


def check_names(
    source: str, what: str, found: Sequence[str], needed: Sequence[str], extra: Sequence[str]
) -> None:
    """Refuses arrays of which some are missing, or of which nobody knows what they are."""
    missing = [name for name in needed if name not in found]
    if missing:
        raise InputError(
            f"{source} has no {', '.join(missing)}; {what} has {', '.join(needed)}: save all of "
            f"them."
        )
    if extra:
        more = f" and {len(extra) - 5:,} more" if len(extra) > 5 else ""
        raise InputError(
            f"{source} has {', '.join(sorted(extra)[:5])}{more}, which {what} has not; it has "
            f"{', '.join(needed)}: save these alone."
        )


def check_shapes(source: str, tables: Mapping[str, Tensor], shapes: Mapping[str, str]) -> None:
    """Refuses tables that do not fit together; letters of a shape that are the same are sizes
    that are, and 1 is one.
    """
    sizes: dict[str, tuple[int, str]] = {}
    for name, letters in shapes.items():
        given = tuple(tables[name].shape)
        if tables[name].is_complex():
            raise InputError(f"{source}: {name} has complex numbers; save real ones.")
        if len(given) != len(letters):
            form = f"({', '.join(letters)}{',' if len(letters) == 1 else ''})"
            raise InputError(f"{source}: {name} has the shape {given} but must have {form}.")
        for letter, size in zip(letters, given, strict=True):
            known, where = (1, "") if letter == "1" else sizes.setdefault(letter, (size, name))
            if size != known:
                than = f"the {known:,} of {where}" if where else "1"
                raise InputError(
                    f"{source}: {name} has the shape {given}, where {size:,} must be {than}; save "
                    f"the tables of one model."
                )


def as_floats(table: Tensor) -> Tensor:
    """float64 stays, and whole numbers become it; all other numbers become float32."""
    wide = table.dtype == torch.float64 or not table.is_floating_point()
    return table.detach().cpu().to(torch.float64 if wide else torch.float32)


def log_of_probs(source: str, name: str, probs: Tensor) -> Tensor:
    """log of a table of probabilities; one of logarithms is refused."""
    probs = as_floats(probs)
    bad = ~((probs >= 0) & (probs <= 1 + TOLERANCE))
    _refuse(source, name, probs, bad, "probabilities lie between 0 and 1")
    return probs.log()


def log_of_logs(source: str, name: str, table: Tensor) -> Tensor:
    """A table of logarithms, -inf where it says zero in its own way."""
    table = as_floats(table)
    _refuse(source, name, table, ~(table <= TOLERANCE), "logarithms of probabilities are at most 0")
    return table.masked_fill(table < LOG_ZERO, -torch.inf)


def _refuse(source: str, name: str, table: Tensor, bad: Tensor, what: str) -> None:
    if bad.any():
        where = tuple(bad.nonzero()[0].tolist())
        raise InputError(
            f"{source}: {name} has {float(table[where]):.6g} at {where} ({int(bad.sum()):,} such "
            f"cells), but {what}; save it as its library has it."
        )


def build(
    source: str,
    names: tuple[str, str, str],
    log_init: Float[Tensor, " Z"],
    log_trans: Float[Tensor, "Z Z"],
    log_emit: Float[Tensor, "Z V"],
) -> HMM:
    """The HMM, after checking that every distribution sums to one; nothing is renormalised."""
    for name, table in zip(names, (log_init[None], log_trans, log_emit), strict=True):
        totals = torch.cat([rows.double().exp().sum(-1) for rows in table.split(1024)])
        error = (totals - 1).abs()
        if (error > TOLERANCE).any():
            worst = int(error.argmax())
            which = "they" if table is not log_trans and len(table) == 1 else f"those of {worst:,}"
            raise InputError(
                f"{source}: the probabilities of {name} must sum to 1, but {which} sum to "
                f"{float(totals[worst]):.6g}; normalise them, or save them with all their digits."
            )
    wide = torch.float64 in (log_init.dtype, log_trans.dtype, log_emit.dtype)
    dtype = torch.float64 if wide else torch.float32
    return HMM.from_tables(log_init.to(dtype), log_trans.to(dtype), log_emit.to(dtype))
