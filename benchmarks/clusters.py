"""python -m benchmarks.clusters: Brown and exchange clustering of synthetic Zipf text.

For each named case: the number of n log n that have to be looked up, how long these alone take on
one core (the floor, with all lookups near), and how long the clustering takes, already compiled.
No number is printed for a clustering that is wrong, and the exit status is 1.
"""

import argparse
import json
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np

from benchmarks.machine import busy_seconds, describe
from hmmlm.clusters.brown import brown
from hmmlm.clusters.clustering import Clustering
from hmmlm.clusters.counts import Bigrams, count_bigrams, mutual_information
from hmmlm.clusters.exchange import exchange
from hmmlm.data.token_array import TokenArray

METHODS = {"brown": brown, "exchange": exchange}
CASES = tuple(
    f"{method}-v{words}-m128-t{tokens}"
    for words, tokens in ((10_000, 1_000_000), (33_000, 2_000_000), (250_000, 10_000_000))
    for method in METHODS
)
SMOKE = ("brown-v200-m10-t5000", "exchange-v200-m10-t5000")
CLASSES = 50


@dataclass(frozen=True)
class Case:
    """V word types in T tokens, into M clusters."""

    name: str
    method: str
    words: int
    clusters: int
    tokens: int

    @staticmethod
    def parse(name: str) -> "Case":
        found = re.fullmatch(r"(brown|exchange)-v(\d+)-m(\d+)-t(\d+)", name)
        if found is None:
            raise SystemExit(f"No such case: {name}; write it like {CASES[0]}.")
        return Case(name, found[1], *(int(number) for number in found.groups()[1:]))


def zipf_text(words: int, tokens: int, seed: int = 0) -> TokenArray:
    """Lines of 20 tokens from a chain over 50 classes; of a class's words the r-th has p ~ 1/r."""
    draw = np.random.default_rng(seed)
    lines = -(-tokens // 20)
    onward = np.cumsum(draw.dirichlet(np.full(CLASSES, 0.1), size=CLASSES), axis=1)
    state = draw.integers(CLASSES, size=lines)
    ranks = np.arange(1, words // CLASSES + 1)
    weights = np.cumsum(1 / ranks)
    text = np.full((lines, 21), words)
    for step in range(20):
        rank = np.searchsorted(weights, draw.random(lines) * weights[-1])
        text[:, step] = rank.clip(max=len(ranks) - 1) * CLASSES + state
        state = (onward[state] < draw.random(lines)[:, None]).sum(1).clip(max=CLASSES - 1)
    return TokenArray.from_ids(text.ravel(), eos_id=words)


def neighbours(bigrams: Bigrams, made: Clustering) -> int:
    """D: the pairs of a word and a neighbouring cluster, on either side."""
    number, total = made.num_clusters, 0
    for offsets, others, _ in (bigrams.ahead, bigrams.back):
        words = np.repeat(np.arange(bigrams.vocab_size), np.diff(offsets))
        total += len(np.unique(words * number + made.cluster_of_word[others]))
    return total


@numba.njit(fastmath=False)
def _lookups(counts, table, gains, more, rounds):
    for _ in range(rounds):
        for c in range(counts.shape[0]):
            gains[c] += table[counts[c] + more] - table[counts[c]]
    return gains[0]


def lookup_ns() -> float:
    """Nanoseconds for one n log n, two of them for each candidate, as exchange needs them."""
    counts = np.random.default_rng(0).integers(1000, size=128).astype(np.int32)
    numbers = np.arange(2000.0)
    table, gains = numbers * np.log(np.maximum(numbers, 1)), np.zeros(128)
    _lookups(counts, table, gains, 1, 1)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        _lookups(counts, table, gains, 1, 20_000)
        times.append(time.perf_counter() - began)
    return min(times) / (20_000 * 128 * 2) * 1e9


def is_right(bigrams: Bigrams, made: Clustering, method: str, clusters: int) -> str | None:
    """What is wrong with a clustering, if something is."""
    if set(np.unique(made.cluster_of_word[bigrams.words > 0]).tolist()) != set(range(clusters)):
        return f"not {clusters} clusters"
    found = mutual_information(bigrams, made.cluster_of_word)
    shuffled = np.random.default_rng(0).permutation(made.cluster_of_word[bigrams.words > 0])
    other = made.cluster_of_word.copy()
    other[bigrams.words > 0] = shuffled
    if found <= mutual_information(bigrams, other):
        return "no better than the same sizes at random"
    if method == "exchange":
        start = made.cluster_of_word
        after = exchange(bigrams, clusters, start=start, passes=1).cluster_of_word
        if mutual_information(bigrams, after) < found - 1e-9:
            return "another pass lowers the mutual information"
    return None


def measure(case: Case, rounds: int, machine: dict) -> dict:
    tokens = zipf_text(case.words, case.tokens)
    began = time.perf_counter()
    bigrams = count_bigrams(tokens, case.words + 1)
    counting = time.perf_counter() - began
    looked = [0]
    run = METHODS[case.method]
    seconds, others = [], []
    for _ in range(rounds):
        looked[0] = 0

        def report(words: int) -> None:
            looked[0] += words

        before, own, began = busy_seconds(), time.process_time(), time.perf_counter()
        made = run(bigrams, case.clusters, progress=report)
        seconds.append(time.perf_counter() - began)
        used = busy_seconds() - before - (time.process_time() - own)
        others.append(max(0.0, used / seconds[-1]))
    wrong = is_right(bigrams, made, case.method, case.clusters)
    pairs = neighbours(bigrams, made)
    # Brown looks at a word's neighbours when it comes in and when it merges, exchange at each pass.
    passes = 2 if case.method == "brown" else looked[0] / bigrams.num_types
    lookups = int(2 * passes * pairs * case.clusters)
    return {
        "case": case.name,
        "what": "clustering",
        "wrong": wrong,
        "seconds": round(min(seconds), 3),
        "rounds": [round(one, 3) for one in seconds],
        "floor_seconds": round(lookups * lookup_ns() * 1e-9 / machine["threads"], 3),
        "lookups": lookups,
        "types": bigrams.num_types,
        "distinct_pairs": len(bigrams.ahead.words),
        "word_cluster_pairs": pairs,
        "passes": round(passes, 2),
        "counting_seconds": round(counting, 3),
        "mutual_information": mutual_information(bigrams, made.cluster_of_word),
        "other_load": round(max(others), 2),
        **machine,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.clusters", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, in seconds")
    parser.add_argument("--case", action="append", help="only this case (may be repeated)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the lines to this file as JSON")
    options = parser.parse_args()
    machine = describe()
    print(f"{machine['device']}, {machine['threads']} threads, commit {machine['commit']}")
    for name in SMOKE:  # compiles
        measure(Case.parse(name), 1, machine)
    lines = []
    for case in map(Case.parse, options.case or (SMOKE if options.smoke else CASES)):
        line = measure(case, options.rounds, machine)
        lines.append(line)
        if line["wrong"]:
            print(f"  {case.name:28} WRONG: {line['wrong']}", flush=True)
            continue
        print(
            f"  {case.name:28} {line['seconds']:8.2f} s  floor {line['floor_seconds']:.2f} s "
            f"({line['lookups']:,} lookups)  {line['mutual_information']:.4f} nats  "
            f"others {line['other_load']:.2f}",
            flush=True,
        )
    right = [line for line in lines if not line["wrong"]]
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("".join(json.dumps(line) + "\n" for line in right))
    wrong = [f"{line['case']}: {line['wrong']}" for line in lines if line["wrong"]]
    seconds = {line["case"]: line["seconds"] for line in right}
    print(json.dumps({"ok": not wrong, "wrong": wrong, "seconds": seconds, **machine}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
