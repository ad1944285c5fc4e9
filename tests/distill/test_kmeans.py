"""Clusters of points, beside scikit-learn's, and the directions in which points differ."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from torch import Tensor

from hmmlm.distill import points as points_module
from hmmlm.distill.kmeans import k_means, nearest
from hmmlm.distill.points import chunks, find_axes
from hmmlm.errors import InputError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def groups(number: int = 400, size: int = 5, kinds: int = 6, wide: float = 0.5) -> Tensor:
    """Points around a few places, far from zero."""
    places = 4 * torch.randn(kinds, size, generator=generator(1)) + 100
    noise = wide * torch.randn(number, size, generator=generator(2))
    return places[torch.arange(number) % kinds] + noise


@pytest.fixture(params=[1 << 26, 60])
def small_chunks(request, monkeypatch) -> int:
    monkeypatch.setattr(points_module, "CHUNK", request.param)
    return request.param


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_it_is_what_scikit_learn_finds_from_the_same_start(precision: str, small_chunks) -> None:
    points = groups(wide=3.0)
    start = points[:9].clone()
    theirs = KMeans(9, init=start.numpy(), n_init=1, max_iter=30, tol=1e-4).fit(points.numpy())
    ours = k_means(
        points, 9, iterations=30, start=start, precision=precision, generator=generator()
    )
    assert ours.inertia == pytest.approx(theirs.inertia_, rel=1e-3)
    assert ours.iterations == theirs.n_iter_
    torch.testing.assert_close(ours.centres, torch.from_numpy(theirs.cluster_centers_))
    assert nearest(points, ours.centres).tolist() == theirs.labels_.tolist()
    assert torch.equal(start, points[:9])  # what is given stays as it is


@pytest.mark.parametrize("start", ["k-means++", "sample"])
def test_groups_are_found_and_every_point_counts(start: str, small_chunks) -> None:
    points = groups()
    tries = [k_means(points, 6, start=start, generator=generator(n)) for n in range(8)]
    best = min(tries, key=lambda found: found.inertia)
    assert best.sizes.tolist() == [67, 67, 67, 67, 66, 66] or sorted(best.sizes.tolist()) == [
        66, 66, 67, 67, 67, 67,
    ]  # fmt: skip
    assert all(int(found.sizes.sum()) == 400 for found in tries)
    assert best.inertia == pytest.approx(400 * 5 * 0.25, rel=0.15)


def test_spread_starts_are_better_than_any() -> None:
    points = groups(kinds=20, size=3)
    found = {
        start: sum(
            k_means(points, 20, start=start, iterations=5, generator=generator(n)).inertia
            for n in range(10)
        )
        for start in ("k-means++", "sample")
    }
    assert found["k-means++"] < 0.8 * found["sample"]


def test_a_centre_without_points_moves_to_the_farthest(small_chunks) -> None:
    points = torch.tensor([[0.0], [0.1], [0.2], [5.0], [9.0]])
    start = torch.tensor([[0.0], [50.0], [60.0]])
    found = k_means(points, 3, start=start, iterations=10, generator=generator())
    assert sorted(found.sizes.tolist()) == [1, 1, 3]
    assert sorted(found.centres.flatten().tolist()) == pytest.approx([0.1, 5.0, 9.0])


def test_points_that_are_all_the_same() -> None:
    for start in ("k-means++", "sample"):
        found = k_means(torch.ones(5, 2), 3, start=start, generator=generator())
        assert found.inertia == 0 and int(found.sizes.sum()) == 5
        assert torch.equal(found.centres, torch.ones(3, 2))


def test_points_on_disk(tmp_path, small_chunks) -> None:
    points = groups()
    np.save(tmp_path / "points.npy", points.half().numpy())
    stored = np.load(tmp_path / "points.npy", mmap_mode="r")
    ours = k_means(stored, 6, generator=generator())
    held = k_means(points.half().float(), 6, generator=generator())
    torch.testing.assert_close(ours.centres, held.centres)
    assert ours.inertia == pytest.approx(held.inertia, rel=1e-5)
    assert sum(len(part) for part in chunks(stored, "cpu")) == 400


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"number": 0}, "There are 4 points, which can be in 1 to 4 clusters, not 0"),
        ({"number": 5}, "1 to 4 clusters, not 5"),
        ({"iterations": 0}, "iterations is 0 but must be at least 1"),
        ({"precision": "bf16"}, "precision is 'bf16' but must be one of float32, tf32"),
        ({"start": "any"}, "start is 'any' but must be one of k-means\\+\\+, sample, or the"),
        (
            {"start": torch.zeros(2, 2)},
            "start has the shape \\(2, 2\\) but 2 centres .* \\(2, 3\\)",
        ),
        ({"points": torch.zeros(4)}, "Points must be \\(N, D\\) with N at least 1, not \\(4,\\)"),
        ({"points": torch.zeros(0, 3)}, "N at least 1, not \\(0, 3\\)"),
    ],
)
def test_what_is_refused(change: dict, message: str) -> None:
    given = {"points": torch.zeros(4, 3), "number": 2, **change}
    with pytest.raises(InputError, match=message):
        k_means(given.pop("points"), given.pop("number"), **given, generator=generator())


@pytest.mark.parametrize("dim", [1, 3, 5])
def test_directions_are_those_of_scikit_learn(dim: int, small_chunks) -> None:
    points = groups() @ torch.randn(5, 5, generator=generator(4))
    theirs = PCA(dim, svd_solver="full").fit(points.double().numpy())
    ours = find_axes(points, dim)
    torch.testing.assert_close(ours.mean, torch.from_numpy(theirs.mean_).float())
    assert ours.share == pytest.approx(theirs.explained_variance_ratio_.sum(), abs=1e-5)
    axes = torch.from_numpy(theirs.components_).float()
    signs = (axes * ours.axes).sum(1).sign()[:, None]
    torch.testing.assert_close(ours.axes, axes * signs, rtol=0, atol=2e-4)
    seen = ours.apply(points)
    wanted = torch.from_numpy(theirs.transform(points.double().numpy())).float() * signs.T
    torch.testing.assert_close(seen, wanted, rtol=0, atol=5e-3)


def test_directions_of_points_that_are_all_the_same() -> None:
    found = find_axes(torch.ones(4, 3), 2)
    assert found.share == 1 and torch.equal(found.apply(torch.ones(1, 3)), torch.zeros(1, 2))


def test_too_many_directions_are_refused() -> None:
    with pytest.raises(InputError, match="dim is 6 but points have 5 numbers; use 1 to 5"):
        find_axes(groups(), 6)
