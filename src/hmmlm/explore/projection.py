"""States as points in the plane: the two principal directions of their transition rows."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hmmlm.hmm import HMM
from hmmlm.transitions import Dense

EXACT = 512
"""States of a dense table up to which all of its principal directions are found."""

DIRECTIONS, ROUNDS = 8, 16
"""Of larger ones the first few are, by so many rounds of products with the table."""


class Projection(NamedTuple):
    """A point for each state, the share of the variance that each axis has, and what of."""

    points: Float[np.ndarray, "Z 2"]
    explained: tuple[float, float]
    how: str


def project(hmm: HMM, *, seed: int = 0) -> Projection:
    """PCA of the transition rows, without a Z x Z table where they are factored.

    Factored: of log p(. | z), each row less its mean, through the factors; O(Z H^2). Dense: of the
    roots of p(. | z), whose distances are Hellinger's; O(Z^2 DIRECTIONS ROUNDS) for many states.
    """
    table = hmm.transitions
    if isinstance(table, Dense):
        rows = table.log_trans[: hmm.num_states]
        how = "square roots of transition rows"
        if hmm.num_states <= EXACT:
            return _principal(rows.double().exp().sqrt(), how)
        return _iterated(rows, seed, how)
    # Rows less their means are left @ centred.T; distances between them are those of left under
    # the metric centred.T @ centred. What tells parts of a mixture apart would hide all else.
    right = table.right[:, : table.width].double()
    centred = right - right.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    root = vectors * values.clamp(min=0).sqrt()
    left = table.left[: hmm.num_states, : table.width].double()
    return _principal(left @ root, "logarithms of transition rows")


def _iterated(rows: Float[Tensor, "Z Z"], seed: int, how: str) -> Projection:
    """The same by subspace iteration, a stretch of rows at a time."""
    parts = rows.split(1024)
    mean = sum(part.double().exp().sqrt().sum(0) for part in parts) / len(rows)
    generator = torch.Generator(rows.device).manual_seed(seed)
    size = (len(rows), DIRECTIONS)
    basis = torch.randn(size, generator=generator, dtype=rows.dtype, device=rows.device)
    mean = torch.as_tensor(mean).to(rows)
    points = basis
    for _ in range(ROUNDS):
        basis = torch.linalg.qr(basis).Q
        points = torch.cat([(part.exp().sqrt() - mean) @ basis for part in parts])
        pairs = zip(parts, points.split(1024), strict=True)
        basis = torch.stack([(part.exp().sqrt() - mean).T @ some for part, some in pairs]).sum(0)
    # Each row of roots has length one.
    total = len(rows) * (1.0 - float(mean.double().square().sum()))
    return _principal(points.double(), how, total)


def _principal(points: Float[Tensor, "Z H"], how: str, total: float | None = None) -> Projection:
    points = points - points.mean(0)
    values, vectors = torch.linalg.eigh(points.T @ points)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)[:, :2]
    if vectors.shape[1] < 2:
        vectors = torch.nn.functional.pad(vectors, (0, 2 - vectors.shape[1]))
        values = torch.nn.functional.pad(values, (0, 2 - len(values)))
    flat = points @ vectors  # (Z, 2)
    # A direction and its opposite are as good: the farthest point is on the right, or above.
    far = flat.gather(0, flat.abs().argmax(0, keepdim=True))
    flat = flat * torch.where(far < 0, -1.0, 1.0)
    total = float(values.sum()) if total is None else total
    shares = [float(value) / total if total else 0.0 for value in values[:2]]
    return Projection(flat.cpu().numpy(), (shares[0], shares[1]), how)
