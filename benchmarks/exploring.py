"""python -m benchmarks.exploring: how long the explorer's page waits, with 32,768 states.

A model of random tables is written to a folder and served by `hmmlm explore` in a process of its
own; a client asks what the page does. Two bars: the first page of the table of states within a
second after the server is ready, one more typed word within 100 ms. With --browser the same two of
the page in chromium: the first row painted after navigation, the next words after a key. No number
is printed for an answer that differs from the model's own.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.explorer_page import KEYS, find_chromium, first_row_ms, key_ms
from benchmarks.machine import busy_seconds, describe, wait_for_quiet
from hmmlm import HMM, Model, Support
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.hmm import emission_table
from hmmlm.transitions import Factored

CASES = ["explore-z32768-m128-v10000-h256"]
SMOKE = ["explore-z256-m8-v200-h8"]
PAGE_BAR, WORD_BAR = 1000.0, 100.0
"""Milliseconds."""

WORDS = 40
AGREES = 1e-4


class Size(NamedTuple):
    states: int
    blocks: int
    words: int
    width: int

    @staticmethod
    def parse(name: str) -> "Size":
        found = re.fullmatch(r"explore-z(\d+)-m(\d+)-v(\d+)-h(\d+)", name)
        if found is None:
            raise SystemExit(f"{name!r} is not such as {CASES[0]}")
        return Size(*map(int, found.groups()))


def make_model(size: Size) -> Model:
    """Random factors with rows of some nats of entropy; frequencies of words as Zipf has them."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    names = [f"w{number}" for number in range(size.words - 2)]
    tokenizer = Tokenizer.words({name: 1 for name in names})
    clusters = torch.arange(size.words) % size.blocks
    support = Support.from_clusters(clusters, size.states // size.blocks)
    frequency = -torch.log(2.0 + torch.arange(size.words))[:, None]
    emit = emission_table(frequency + 2 * noise(size.words, support.width), support)
    scale = 2.5 / math.sqrt(size.width)
    left, right = noise(size.states, size.width) * scale, noise(size.states, size.width)
    transitions = Factored.normalise(left, right)
    init = torch.log_softmax(noise(size.states), 0)
    return Model(HMM(init, transitions, emit, support), tokenizer)


class Client:
    """Asks a server as the page does."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)

    def post(self, path: str, asked: dict) -> Any:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(asked).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


def measure(name: str, patience: float, wait: float, browser: bool) -> dict:
    size = Size.parse(name)
    model = make_model(size)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        model.save(folder)
        if patience:
            wait_for_quiet(patience)
        began = time.perf_counter()
        command = [sys.executable, "-m", "hmmlm", "explore", str(folder), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                url = re.search(r"http://\S+(?=/)", process.stdout.readline())
                assert url is not None, "the server printed no address"
                client = Client(url.group())
                client.get("/api/model")
                ready = time.perf_counter() - began
                line = {"ready_s": round(ready, 2), **_ask(client, model, patience, wait)}
                return line | (_browse(client.url, model) if browser else {})
            finally:
                process.terminate()
                process.wait(30)


def _ask(client: Client, model: Model, patience: float, wait: float) -> dict:
    # The first paint: what the page asks for before it shows the table.
    begin = time.perf_counter()
    client.get("/api/model")
    page = client.get("/api/states?sort=use&size=50")
    paint = time.perf_counter() - begin
    assert page["total"] == model.hmm.num_states and len(page["states"]) == 50
    line: dict[str, Any] = {"first_page_ms": round(1e3 * paint, 1)}
    line |= _type(client, model, "_while_computing", seed=0)
    while client.get("/api/model")["use"]["state"] == "computing":
        time.sleep(1.0)
        if time.perf_counter() - begin > wait:
            line["use_s"] = None
            break
    else:
        line["use_s"] = round(time.perf_counter() - begin, 1)
    time.sleep(15.0 if patience else 0.0)  # rows of transitions are checked after that
    if patience:
        wait_for_quiet(patience)
    line |= _type(client, model, "", seed=1)
    paths = [f"/api/states?sort=use&order=desc&size=50&page={number}" for number in range(20)]
    line["page_ms"] = _median(client, paths)
    states = range(0, model.hmm.num_states, max(1, model.hmm.num_states // 20))
    line["card_ms"] = _median(client, [f"/api/states/{state}" for state in states])
    return line


def _browse(url: str, model: Model) -> dict:
    ids = np.random.default_rng(2).integers(2, model.hmm.vocab_size, WORDS)
    text = " ".join(model.tokenizer.token(int(id)) for id in ids)[:KEYS]
    times, shown = key_ms(url, text)
    expected = model.next(text, k=1)[0][0]
    if shown != expected:
        raise SystemExit(f"the page shows {shown} first, but {expected} is by the model itself")
    return first_row_ms(url) | times


def _median(client: Client, paths: list[str]) -> float:
    times = []
    for path in paths:
        begin = time.perf_counter()
        client.get(path)
        times.append(time.perf_counter() - begin)
    return round(1e3 * float(np.median(times)), 1)


def _type(client: Client, model: Model, when: str, seed: int) -> dict:
    """A sentence typed word by word."""
    ids = np.random.default_rng(seed).integers(2, model.hmm.vocab_size, WORDS)
    names = [model.tokenizer.token(int(id)) for id in ids]
    times, text, answer, busy = [], "", {}, busy_seconds()
    began = time.perf_counter()
    for name in names:
        text = f"{text} {name}".strip()
        begin = time.perf_counter()
        answer = client.post("/api/next", {"text": text})
        times.append(time.perf_counter() - begin)
    load = (busy_seconds() - busy) / (time.perf_counter() - began)
    for (word, prob), (other, expected) in zip(answer["next"], model.next(text, k=5), strict=False):
        if word != other or abs(prob - expected) > AGREES * expected:
            raise SystemExit(f"{word} has {prob}, but {other} {expected} by the model itself")
    rest = times[1:]  # the first one also makes what all share
    return {
        f"word_ms{when}": round(1e3 * float(np.median(rest)), 1),
        f"word_q20{when}": round(1e3 * float(np.quantile(rest, 0.2)), 1),
        f"word_q80{when}": round(1e3 * float(np.quantile(rest, 0.8)), 1),
        f"word_best{when}": round(1e3 * min(rest), 1),
        f"first_word_ms{when}": round(1e3 * times[0], 1),
        f"busy_cores{when}": round(load, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.exploring", description=__doc__)
    parser.add_argument("--case", action="append", help=f"such as {CASES[0]} (may be repeated)")
    parser.add_argument("--smoke", action="store_true", help="a tiny model")
    parser.add_argument(
        "--patience", type=float, default=0.0, help="seconds to wait for an idle machine"
    )
    parser.add_argument(
        "--wait", type=float, default=600.0, help="seconds to wait for shares of use; then go on"
    )
    parser.add_argument(
        "--browser", action="store_true", help="the page in chromium too, by Playwright"
    )
    parser.add_argument("--out", type=Path, help="append the lines to this file as JSON")
    given = parser.parse_args()
    bars = {"first_page_ms": PAGE_BAR, "word_ms": WORD_BAR}
    if given.browser:
        find_chromium()  # before minutes are spent on the rest
        bars |= {"first_row_ms": PAGE_BAR, "key_ms": WORD_BAR}
    missed = []
    for name in given.case or (SMOKE if given.smoke else CASES):
        measured = measure(name, given.patience, given.wait, given.browser)
        line = {"case": name, **measured, **describe(), "bars": bars}
        missed += [f"{name} {key}" for key, bar in bars.items() if line[key] > bar]
        print(json.dumps(line), flush=True)
        if given.out is not None:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            with given.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    print(json.dumps({"ok": not missed, "over_the_bar": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
