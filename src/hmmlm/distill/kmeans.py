"""k-means: points in groups, each around its mean. All points are used, a chunk at a time."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmmlm.distill.points import Points, check_points, chunks
from hmmlm.errors import InputError, check_count
from hmmlm.products import full_products, torch_tf32

STARTS = ("k-means++", "sample")
DRAWN = 64
"""Points for each centre that k-means++ draws from: it goes over them once for every centre."""


class Clusters(NamedTuple):
    """Centres (K, D), how many points are nearest to each, and their squared distances summed."""

    centres: Float[Tensor, "K D"]
    sizes: Int[Tensor, " K"]
    inertia: float
    iterations: int


def k_means(
    points: Points,
    number: int,
    *,
    iterations: int = 50,
    start: str | Float[Tensor, "K D"] = "k-means++",
    tolerance: float = 1e-4,
    precision: str = "float32",
    device: torch.device | str = "cpu",
    generator: torch.Generator,
) -> Clusters:
    """Lloyd's algorithm: centres are moved to the mean of the points that are nearest to them.

    `start` are centres, or how to draw them from the points: "sample" takes any, "k-means++"
    (Arthur & Vassilvitskii 2007) those far from each other, of up to 64 points a centre that it
    looks at. A centre without points moves to the point farthest from its own. It ends after so
    many iterations, or when the squares of all moves sum to less than `tolerance` times the mean
    variance of a number. With `precision` "tf32" the nearest centre is found in tf32, as fast as a
    GPU can; means and inertia are float32. O(iterations N K D).
    """
    count, _ = check_points(points)
    if not 1 <= number <= count:
        raise InputError(
            f"There are {count:,} points, which can be in 1 to {count:,} clusters, not {number:,}."
        )
    check_count("iterations", iterations)
    if precision not in ("float32", "tf32"):
        raise InputError(f"precision is {precision!r} but must be one of float32, tf32.")
    centres = _start(points, number, start, device, generator)
    least = tolerance * _variance(points, device)
    done = 0
    with torch_tf32() if precision == "tf32" else full_products():
        for done in range(1, iterations + 1):  # noqa: B007
            moved = _move(points, centres, device)
            shift = float((moved - centres).double().pow(2).sum())
            centres = moved
            if shift <= least:
                break
    sizes = torch.zeros(number, dtype=torch.long, device=centres.device)
    inertia = 0.0
    for part in chunks(points, device, number):
        labels = nearest(part, centres)
        sizes += torch.bincount(labels, minlength=number)
        inertia += float((part - centres[labels]).pow(2).sum(dtype=torch.float64))
    return Clusters(centres, sizes, inertia, done)


@full_products()
def nearest(points: Float[Tensor, "n D"], centres: Float[Tensor, "K D"]) -> Int[Tensor, " n"]:
    """The centre nearest to each point. O(n K D) time, O(n K) memory."""
    return _closeness(points, centres).argmax(1)


def _closeness(points: Tensor, centres: Tensor) -> Float[Tensor, "n K"]:
    """p . c - c . c / 2: half of what a squared distance lacks to that of the point from zero."""
    return torch.addmm(-0.5 * centres.pow(2).sum(1), points, centres.T)


def _move(points: Points, centres: Tensor, device: torch.device | str) -> Tensor:
    """The mean of the points nearest to each centre."""
    number, size = centres.shape
    sums = torch.zeros(number, size, dtype=torch.float64, device=centres.device)
    sizes = torch.zeros(number, dtype=torch.long, device=centres.device)
    for part in chunks(points, device, number):
        labels = _closeness(part, centres).argmax(1)
        sizes += torch.bincount(labels, minlength=number)
        sums += torch.zeros_like(centres).index_add_(0, labels, part)
    moved = torch.where(sizes[:, None] > 0, sums / sizes[:, None].clamp(min=1), centres).float()
    empty = (sizes == 0).nonzero().flatten()
    if len(empty):
        moved[empty] = _farthest(points, moved, len(empty), device)
    return moved


def _farthest(
    points: Points, centres: Tensor, number: int, device: torch.device | str
) -> Float[Tensor, "n D"]:
    """So many points that are farthest from the centre nearest to them."""
    found, distances = centres[:0], centres[:0, 0]
    for part in chunks(points, device, len(centres)):
        far = (part - centres[nearest(part, centres)]).pow(2).sum(1)
        found, distances = torch.cat([found, part]), torch.cat([distances, far])
        best = distances.topk(min(number, len(distances))).indices
        found, distances = found[best], distances[best]
    return found


def _variance(points: Points, device: torch.device | str) -> float:
    """The mean over the D numbers of their variance."""
    count, size = check_points(points)
    total = torch.zeros(size, dtype=torch.float64, device=device)
    squares, shift = torch.zeros_like(total), None
    for part in chunks(points, device):
        shift = part.mean(0) if shift is None else shift
        part = (part - shift).double()
        total += part.sum(0)
        squares += part.pow(2).sum(0)
    return float((squares / count - (total / count).pow(2)).clamp(min=0).mean())


def _start(
    points: Points,
    number: int,
    start: str | Tensor,
    device: torch.device | str,
    generator: torch.Generator,
) -> Float[Tensor, "K D"]:
    count, size = check_points(points)
    if isinstance(start, Tensor):
        if start.shape != (number, size):
            raise InputError(
                f"start has the shape {tuple(start.shape)} but {number:,} centres of points of "
                f"{size:,} numbers are ({number}, {size})."
            )
        return start.to(device, torch.float32, copy=True)
    if start not in STARTS:
        raise InputError(
            f"start is {start!r} but must be one of {', '.join(STARTS)}, or the centres."
        )
    wanted = number if start == "sample" else min(count, DRAWN * number)
    drawn = torch.randperm(count, generator=generator, device=generator.device)[:wanted].cpu()
    some = _take(points, drawn.sort().values, device)
    if start == "sample":
        return some
    how: dict[str, Any] = {"generator": generator, "device": generator.device}
    chosen = [torch.randint(len(some), (1,), **how).to(some.device)]
    draws = torch.rand(number - 1, 1, dtype=torch.float64, **how).to(some.device)
    left = (some - some[chosen[0]]).pow(2).sum(1)
    for draw in draws:  # nothing waits for the device
        # What has no distance is there already; where all are, any will do.
        weights = torch.where((left > 0).any(), left, 1.0)
        sums = weights.double().cumsum(0)
        place = torch.searchsorted(sums, draw * sums[-1], right=True)
        chosen.append(place.clamp(max=len(some) - 1))
        left = torch.minimum(left, (some - some[chosen[-1]]).pow(2).sum(1))
    return some[torch.cat(chosen)]


def _take(
    points: Points, places: Int[Tensor, " n"], device: torch.device | str
) -> Float[Tensor, "n D"]:
    """Points by their places, which are in rising order."""
    found, before = [], 0
    for part in chunks(points, device):
        low, high = torch.searchsorted(places, torch.tensor([before, before + len(part)])).tolist()
        found.append(part[(places[low:high] - before).to(part.device)])
        before += len(part)
    return torch.cat(found)
