"""python -m benchmarks.kmeans: k-means of points around places, beside its products and others.

`speed-n2000000-d576-k4096` times 50 iterations of Lloyd's algorithm from some of the points. Its
floor are the products of all points with all centres, at the rate that a large product reaches in
the same run. `inertia-n200000-d576-k512` compares with scikit-learn's KMeans from the same start.
"""

import argparse
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.machine import describe
from hmmlm.distill.kmeans import k_means
from hmmlm.products import torch_tf32

CASES = ("speed-n2000000-d576-k4096", "inertia-n200000-d576-k512")
SMOKE = ("speed-n2000-d8-k16", "inertia-n2000-d8-k16")
ITERATIONS, AGREES = 50, 0.01


def make_points(number: int, size: int, device: str) -> Tensor:
    """Points around a thousand places, each coordinate's spread falling, as hidden states' does."""
    generator = torch.Generator(device).manual_seed(0)
    scale = 1 / torch.arange(1, size + 1, device=device).sqrt()
    places = torch.randn(1000, size, device=device, generator=generator) * scale
    of = torch.randint(1000, (number,), device=device, generator=generator)
    noise = torch.randn(number, size, device=device, generator=generator) * scale
    return places[of] + 0.5 * noise


def seconds(run: Callable[[], object], device: str) -> float:
    began = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(name: str, device: str) -> dict:
    found = re.fullmatch(r"(speed|inertia)-n(\d+)-d(\d+)-k(\d+)", name)
    if found is None:
        raise SystemExit(f"No such case: {name}; write it like {CASES[0]}.")
    number, size, clusters = (int(part) for part in found.groups()[1:])
    points = make_points(number, size, device)
    start = points[:: number // clusters][:clusters].clone()
    generator = torch.Generator().manual_seed(0)
    precision = "tf32" if device == "cuda" else "float32"

    def run(iterations: int) -> object:
        return k_means(
            points,
            clusters,
            iterations=iterations,
            start=start,
            tolerance=0.0,
            precision=precision,
            device=device,
            generator=generator,
        )

    run(1)
    if found[1] == "speed":
        taken = seconds(lambda: run(ITERATIONS), device)
        flops = 2 * number * size * clusters * ITERATIONS
        floor = flops / _rate(device)
        return {"seconds": round(taken, 4), "floor_s": round(floor, 4), "iterations": ITERATIONS}
    from sklearn.cluster import KMeans

    ours = k_means(points, clusters, start=start, precision=precision, device=device,
                   generator=generator)  # fmt: skip
    theirs = KMeans(clusters, init=start.cpu().numpy(), n_init=1, max_iter=50, tol=1e-4)
    theirs.fit(points.cpu().numpy())
    line = {"inertia": ours.inertia, "scikit_learn": float(theirs.inertia_)}
    return line | {"ratio": round(ours.inertia / theirs.inertia_, 5)}


def _rate(device: str) -> float:
    """Operations a second of a large product, in tf32 on a GPU."""
    side = 8192 if device == "cuda" else 1024
    left = torch.randn(side, side, device=device)
    with torch_tf32():
        seconds(lambda: left @ left, device)
        return 2 * side**3 * 4 / seconds(lambda: [left @ left for _ in range(4)], device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", help=f"such as {CASES[0]} (repeatable)")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    parser.add_argument("--commit", help="what to write where git does not know it")
    parser.add_argument("--out", type=Path, help="append the lines to this file as JSON")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    about = describe()
    place = torch.cuda.get_device_name() if device == "cuda" else about["device"]
    wrong = []
    for name in given.case or (SMOKE if given.smoke else CASES):
        line = {"case": name, **measure(name, device), "device": place}
        line |= {"torch": torch.__version__, "commit": given.commit or about["commit"]}
        if abs(line.get("ratio", 1.0) - 1) > AGREES:
            wrong.append(name)
        print(json.dumps(line), flush=True)
        if given.out:
            with given.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    print(json.dumps({"ok": not wrong, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
