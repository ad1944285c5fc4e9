"""Comparing what a device says with what the CPU says."""

from collections.abc import Iterable
from typing import Any

import torch


def check_same(found: Iterable[Any], wanted: Iterable[Any], atol: float = 1e-9) -> None:
    for one, other in zip(numbers(list(found)), numbers(list(wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=atol)


def drawn(answer: Any, *, alike: bool = True) -> Any:
    """What was drawn; a GPU draws other numbers than a CPU, and one of pretence the same.

    Unless it has another order of drawing (`alike`): only how many there are is compared then, for
    how long a text becomes is drawn too.
    """
    if torch.version.cuda or not alike:
        return [list(part.shape[:1]) for part in numbers(answer)]
    return answer


def numbers(answer: Any) -> list[torch.Tensor]:
    """All numbers of an answer, on the CPU."""
    if isinstance(answer, torch.Tensor):
        return [answer.cpu()]
    if isinstance(answer, tuple | list):
        return [part for some in answer for part in numbers(some)]
    return [] if answer is None or isinstance(answer, str) else [torch.tensor(answer)]
