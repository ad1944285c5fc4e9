"""200 clients of `hmmlm explore` at once for 30 s: no error, and memory does not grow."""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import SOURCE
from load import make_load

CLIENTS, SECONDS, GROWTH = 200, 30, 64 << 20
PATIENCE = 300
"""Seconds within which every answer comes, on a busy machine too."""
CONSTRAINED = 0.02
"""Few, for each holds up what else is slow."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


def memory(process: int) -> int:
    text = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text).group(1)) * 1024


def request(port: int, path: str, asked: dict | None) -> bytes:
    head = f"{'GET' if asked is None else 'POST'} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    body = b"" if asked is None else json.dumps(asked).encode()
    if asked is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


async def ask(reader, writer, port, path, asked) -> int:
    writer.write(request(port, path, asked))
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(re.search(rb"(?i)content-length: (\d+)", head).group(1))
    json.loads(await reader.readexactly(length))
    return int(head.split(b" ", 2)[1])


def some_request(draw: random.Random) -> tuple[str, dict | None]:
    words = " ".join(f"w{draw.randrange(1900)}" for _ in range(draw.randrange(1, 12)))
    if draw.random() < CONSTRAINED:
        return "/api/constrain", {"contains": [f"w{draw.randrange(1900)}"], "length": 8, "n": 1}
    return draw.choice(
        [
            ("/api/model", None),
            (f"/api/states?sort=use&size=50&page={draw.randrange(10)}", None),
            (f"/api/states?q=w{draw.randrange(1900)}", None),
            (f"/api/states/{draw.randrange(512)}", None),
            ("/api/next", {"text": words}),
            ("/api/next", {"text": words}),
            ("/api/text", {"text": words}),
            ("/api/fill", {"text": f"{words} ? w1", "n": 1}),
            ("/api/blocks", None),
            ("/api/map", None),
            ("/api/training", None),
        ]
    )


async def client(port: int, seed: int, until: float, statuses: list[int]) -> None:
    draw = random.Random(seed)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < until:
        asked = ask(reader, writer, port, *some_request(draw))
        statuses.append(await asyncio.wait_for(asked, PATIENCE))
    writer.close()
    await writer.wait_closed()


async def burst(port: int, seconds: float) -> list[int]:
    statuses: list[int] = []
    until = time.monotonic() + seconds
    await asyncio.gather(*(client(port, seed, until, statuses) for seed in range(CLIENTS)))
    return statuses


def test_two_hundred_clients(tmp_path):
    make_load(tmp_path, 25)
    text = "".join(f"w{n} w{n + 1} w{n + 2}\n" for n in range(300))
    (tmp_path / "text.txt").write_text(text)
    step = {"step": 1, "loss": 2.0, "tokens": 10, "tokens_per_second": 5.0, "learning_rate": 0.1}
    log = "".join(json.dumps({**step, "step": n, "tokens": 10 * n}) + "\n" for n in range(1, 500))
    (tmp_path / "model" / "metrics.jsonl").write_text(log)
    command = [sys.executable, "-m", "hmmlm", "explore", "model", "--port=0", "--text=text.txt"]
    with (
        open(tmp_path / "errors.txt", "w") as errors,
        subprocess.Popen(
            command,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE},
        ) as process,
    ):
        try:
            port = int(re.search(r":(\d+)/", process.stdout.readline()).group(1))
            # What is kept of texts is full, and allocators have what they need, after a while.
            warm = asyncio.run(burst(port, SECONDS / 3))
            before = memory(process.pid)
            statuses = asyncio.run(burst(port, SECONDS))
            after = memory(process.pid)
        finally:
            process.terminate()
        process.communicate(timeout=30)
    err = (tmp_path / "errors.txt").read_text()
    print(f"{len(statuses):,} requests, {before / 1e6:.0f} MB before, {after / 1e6:.0f} MB after")
    assert set(warm + statuses) == {200} and err == ""
    assert len(statuses) > CLIENTS
    assert after - before < GROWTH
