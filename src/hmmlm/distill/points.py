"""Points that are read a chunk at a time: the states of a teacher are too many to hold at once."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.products import full_products

CHUNK = 1 << 26
"""Numbers of a chunk of points, or of its distances to all centres, whichever is more."""


@runtime_checkable
class Points(Protocol):
    """N points of D numbers: a tensor, an array, or one on disk."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, key: Any, /) -> Any: ...


def chunks(
    points: Points, device: torch.device | str, width: int = 0
) -> Iterator[Float[Tensor, "n D"]]:
    """All points in their order, float32 on a device; `width` numbers are made of each later."""
    number, size = check_points(points)
    step = max(1, CHUNK // max(size, width))
    for start in range(0, number, step):
        part = points[start : min(start + step, number)]
        if not isinstance(part, Tensor):  # a copy: what is on disk may not be written to
            part = torch.from_numpy(np.array(part, dtype=np.float32))
        yield part.to(device, torch.float32)


def check_points(points: Points) -> tuple[int, int]:
    """(N, D), after checking that they are points."""
    if len(points.shape) != 2 or not points.shape[0]:
        raise InputError(f"Points must be (N, D) with N at least 1, not {tuple(points.shape)}.")
    return points.shape[0], points.shape[1]


class Pca(NamedTuple):
    """The directions in which points differ most, (d, D), each of length one; `mean` is theirs.

    `share` is that of the points' variance which the directions hold.
    """

    mean: Float[Tensor, " D"]
    axes: Float[Tensor, "d D"]
    share: float

    @full_products()
    def apply(self, points: Float[Tensor, "n D"]) -> Float[Tensor, "n d"]:
        """The points in these directions, seen from their mean."""
        mean, axes = self.mean.to(points), self.axes.to(points)
        return (points - mean) @ axes.T

    @full_products()
    def turn(self, vectors: Float[Tensor, "n D"]) -> Float[Tensor, "n d"]:
        """Vectors in these directions, from where they start: no mean is taken away.

        Of a point x, turn(v) . apply(x) is v . x less v . mean, which is the same for all points,
        and less what the directions leave out of x.
        """
        return vectors @ self.axes.to(vectors).T


@full_products()
def find_axes(points: Points, dim: int, *, device: torch.device | str = "cpu") -> Pca:
    """Principal components of all points. O(N D^2 + D^3) time, O(D^2) memory and a chunk."""
    number, size = check_points(points)
    if not 1 <= dim <= size:
        raise InputError(f"dim is {dim:,} but points have {size:,} numbers; use 1 to {size:,}.")
    shift = total = products = None
    for part in chunks(points, device):
        if shift is None:  # what is summed is small, so that nothing is lost between large numbers
            shift = part.mean(0)
            total = torch.zeros(size, dtype=torch.float64, device=part.device)
            products = torch.zeros(size, size, dtype=torch.float64, device=part.device)
        assert total is not None and products is not None
        part = part - shift
        total += part.sum(0, dtype=torch.float64)
        products += part.T @ part
    assert shift is not None and total is not None and products is not None
    mean = total / number
    spread = products / number - torch.outer(mean, mean)
    found, directions = torch.linalg.eigh(spread)  # in rising order
    found = found.clamp(min=0)
    axes = directions.flip(1)[:, :dim].T
    # Of two directions that differ only in sign, that whose largest number is positive.
    signs = axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
    whole = float(found.sum())
    share = float(found.flip(0)[:dim].sum()) / whole if whole > 0 else 1.0
    return Pca((shift + mean).float(), (axes * signs).float().contiguous(), share)
