"""python -m benchmarks.run cpu: the named cases, ours beside the floor and everyone else.

Every line is measured in a process of its own; the processes of a case and quantity stay alive and
are timed in turn, several rounds of each, so that what else the machine does hits all of them.
No number is printed for an implementation that disagrees with float64, and the exit status is 1.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.cases import CPU, QUANTITIES, SMOKE, Case
from benchmarks.implementations import IMPLEMENTATIONS, Implementation
from benchmarks.machine import describe, wait_for_quiet

EVIDENCE = 1e-6
"""How far, relative to its size, a total log-likelihood may be from the float64 one."""

COUNTS = 1e-4
"""How much of the counted mass may lie elsewhere than in the float64 counts."""

CONFIRMED = 1e-9
"""How close our float64 answer must be to the plain loop's, both as above."""

ROUNDS, SECONDS = 7, 0.5


def main() -> int:
    if sys.argv[1:2] == ["gpu"]:
        from benchmarks import gpu

        return gpu.main(sys.argv[2:])
    if sys.argv[1:2] == ["plot-gpu"]:
        from benchmarks.gpu import plot

        return plot.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__)
    parser.add_argument("device", choices=["cpu", "gpu", "plot-gpu"])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, in seconds")
    parser.add_argument("--case", action="append", help="only this case (may be repeated)")
    parser.add_argument("--what", choices=QUANTITIES, action="append", help="only this quantity")
    parser.add_argument("--only", action="append", choices=list(IMPLEMENTATIONS))
    parser.add_argument(
        "--patience",
        type=float,
        default=0.0,
        help="seconds to wait for an idle machine, each round",
    )
    parser.add_argument("--out", type=Path, help="write the lines to this file as JSON")
    options = parser.parse_args()
    names = options.case or (SMOKE if options.smoke else CPU)
    rounds, seconds = (2, 0.05) if options.smoke else (ROUNDS, SECONDS)
    chosen = [IMPLEMENTATIONS[name] for name in options.only or IMPLEMENTATIONS]
    for package in {one.package for one in chosen if not one.is_installed}:
        print(f"{package}: not installed (pip install 'hmmlm[bench]')")
    chosen = [one for one in chosen if one.is_installed]
    machine = describe()
    print(f"{machine['device']}, {machine['threads']} threads, commit {machine['commit']}")
    lines: list[dict] = []
    wrong: list[str] = []
    for case in map(Case.parse, names):
        for what in options.what or QUANTITIES:
            with tempfile.TemporaryDirectory() as folder:
                group = Group(case, what, Path(folder))
                lines += group.measure(chosen, rounds, seconds, options.patience, machine)
                wrong += group.wrong
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(json.dumps(summary(lines, wrong, machine)))
    return 1 if wrong else 0


class Group:
    """One quantity of one case, for everyone."""

    def __init__(self, case: Case, what: str, folder: Path) -> None:
        self.case, self.what, self.folder = case, what, folder
        self.wrong: list[str] = []

    def measure(
        self,
        chosen: list[Implementation],
        rounds: int,
        seconds: float,
        patience: float,
        machine: dict,
    ) -> list[dict]:
        case, what = self.case, self.what
        print(
            f"\n{case.name} {what}: {case.flops(what):,} FLOPs in products, "
            f"{case.bytes(what):,} bytes to touch",
            flush=True,
        )
        if not self.find_truth():
            return []
        with contextlib.ExitStack() as stack:
            floor = stack.enter_context(worker(case, what, "floor"))
            running = {}
            for one in chosen:
                reason = one.skip(case, what)
                if reason is None:
                    process = stack.enter_context(worker(case, what, one.name))
                    reason = self.check(one, process)
                    if reason is None:
                        running[one.name] = process
                        continue
                print(f"  {one.name:20} skipped: {reason}", flush=True)
            peaks = {name: ask(process, "peak")["peak_bytes"] for name, process in running.items()}
            times: dict[str, list[float]] = {name: [] for name in ("floor", *running)}
            loads: dict[str, list[float]] = {name: [] for name in times}
            for number in range(rounds):
                for name, process in {"floor": floor, **running}.items():
                    slow = times[name] and median(times[name]) > 1e3 * rounds
                    if slow and number >= 3:
                        continue
                    if patience:
                        wait_for_quiet(patience)
                    answer = ask(process, f"time {seconds}")
                    times[name] += answer["ms"]
                    loads[name].append(answer["other_load"])
        floor_ms = median(times["floor"])
        print(f"  {'floor':20} {spread(times['floor'])}")
        lines = []
        for name in running:
            one, ms = IMPLEMENTATIONS[name], median(times[name])
            q20, q80 = np.quantile(times[name], [0.2, 0.8])
            line = {
                "case": case.name,
                "what": what,
                "implementation": name,
                "dtype": one.dtype,
                "ms": round(ms, 4),
                "q20": round(float(q20), 4),
                "q80": round(float(q80), 4),
                "best_ms": round(min(times[name]), 4),
                "calls": len(times[name]),
                "floor_ms": round(floor_ms, 4),
                "tokens_per_s": round(case.tokens_per_call / ms * 1e3),
                "peak_bytes": peaks[name],
                "other_load": round(max(loads[name]), 2),
                "floor_other_load": round(max(loads["floor"]), 2),
                "flops": case.flops(what),
                "bytes": case.bytes(what),
                **machine,
            }
            lines.append(line)
            peak = "?" if peaks[name] is None else f"{peaks[name] / 2**20:,.1f} MiB"
            print(
                f"  {name:20} {spread(times[name])}  {line['tokens_per_s']:>11,} tokens/s  "
                f"{ms / floor_ms:6.2f} x floor  peak {peak}  others {max(loads[name]):.2f}",
                flush=True,
            )
        return lines

    def find_truth(self) -> bool:
        """Our float64 answer, if a plain float64 loop confirms it."""
        with worker(self.case, self.what, "truth") as process:
            answer = ask(process, f"check {self.path('truth')}")
        if "error" in answer:
            self.refuse(f"the float64 answer failed: {answer['error']}")
            return False
        distance = self.distance("truth-second")
        if max(distance) > CONFIRMED:
            self.refuse(f"two float64 answers differ by {distance}")
            return False
        return True

    def check(self, one: Implementation, process: subprocess.Popen) -> str | None:
        """Why this implementation is not measured, None if it is right."""
        answer = ask(process, f"check {self.path(one.name)}")
        if "skipped" in answer:
            return answer["skipped"]
        if "error" in answer:
            return self.refuse(f"{one.name} failed: {answer['error']}")
        evidence, counts = self.distance(one.name)
        if not (evidence <= EVIDENCE and counts <= COUNTS):
            return self.refuse(
                f"{one.name} disagrees with float64: log-likelihood by {evidence:.1e} of its size "
                f"(allowed {EVIDENCE:.0e}), counts by {counts:.1e} (allowed {COUNTS:.0e})"
            )
        return None

    def refuse(self, reason: str) -> str:
        self.wrong.append(f"{self.case.name} {self.what}: {reason}")
        print(f"  WRONG: {reason}", flush=True)
        return reason

    def path(self, name: str) -> Path:
        return self.folder / name

    def distance(self, name: str) -> tuple[float, float]:
        """From the truth: of the total log-likelihood, and the worst of the tables of counts."""
        with (
            np.load(f"{self.path('truth')}.npz") as truth,
            np.load(f"{self.path(name)}.npz") as got,
        ):
            pairs = [(truth[key], got[key]) for key in truth.files]
        sizes = [float(np.abs(g - t).sum() / np.abs(t).sum()) for t, g in pairs]
        return sizes[0], max(sizes[1:], default=0.0)


@contextlib.contextmanager
def worker(case: Case, what: str, name: str) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker", case.name, what, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def ask(process: subprocess.Popen, command: str) -> dict:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(command + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    return json.loads(answer) if answer else {"error": "the process died (out of memory?)"}


def spread(times: list[float]) -> str:
    q20, q80 = np.quantile(times, [0.2, 0.8])
    return f"{median(times):10.3f} ms (20% {q20:.3f}, 80% {q80:.3f})"


def summary(lines: list[dict], wrong: list[str], machine: dict) -> dict:
    """For every case and quantity: ours, the floor and the best peer."""
    cases: dict[str, dict] = {}
    for line in (line for line in lines if line["implementation"] == "hmmlm"):
        peers = {
            other["implementation"]: other["ms"]
            for other in lines
            if (other["case"], other["what"]) == (line["case"], line["what"])
            and IMPLEMENTATIONS[other["implementation"]].is_peer
        }
        best = min(peers, key=peers.__getitem__, default=None)
        cases.setdefault(line["case"], {})[line["what"]] = {
            "ms": line["ms"],
            "floor_ms": line["floor_ms"],
            "of_floor": round(line["floor_ms"] / line["ms"], 3),
            "best_peer": best,
            "best_peer_ms": None if best is None else peers[best],
            "faster_than_peers": best is None or line["ms"] < peers[best],
        }
    return {"ok": not wrong, "wrong": wrong, "lines": len(lines), "cases": cases, **machine}


if __name__ == "__main__":
    sys.exit(main())
