"""Pages of the explorer in a browser, watched: what they complain of, and whom they ask."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.parse import urlparse
from urllib.request import urlopen

import pytest
from playwright import sync_api as playwright

from commands import SOURCE

expect = playwright.expect
expect.set_options(timeout=15_000)  # on a busy machine

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NO_BROWSER = "there is no chromium; apt-get install chromium"

LINE = "the value of the expression is a string ."
PLACES = {
    "states": "#states",
    "card": "#states/7",
    "text": "#text=the+value+of+the+?+is+a+string+.",
    "blocks": "#blocks",
    "map": "#map",
    "training": "#training",
    "constrain": "#constrain&contains=value&words=4..12",
}
"""A place in every view, with something in it."""


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """`hmmlm explore` in a process of its own; where it is."""
    command = [sys.executable, "-m", "hmmlm", "explore", str(folder), "--port", "0", *options]
    server = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE, "COLUMNS": "300", "OMP_NUM_THREADS": "1"},
    )
    try:
        assert server.stdout is not None
        said = ""
        while not (found := re.search(r"http://\S+", said)):
            line = server.stdout.readline()
            assert line, f"hmmlm explore ended: {said}"
            said += line
        url = found[0].rstrip("/")
        await_answer(url)
        yield url
    finally:
        server.terminate()
        server.communicate(timeout=20)


def await_answer(url: str) -> None:
    """Returns when a server that has just said where it is answers there."""
    for _ in range(300):
        try:
            return urlopen(f"{url}/api/model", timeout=30).close()
        except URLError:
            time.sleep(0.1)
    raise AssertionError(f"{url} does not answer")


@contextmanager
def browsing() -> Iterator[playwright.Browser]:
    """Chromium without a window."""
    assert CHROMIUM is not None, NO_BROWSER
    with playwright.sync_playwright() as started:
        software = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        browser = started.chromium.launch(executable_path=CHROMIUM, args=software)
        yield browser
        browser.close()


class Watched(NamedTuple):
    """A page, what its console complained of, and whom it asked."""

    page: playwright.Page
    complaints: list[str]
    asked: list[str]


@contextmanager
def watching(browser, url: str, **look) -> Iterator[Watched]:
    context = browser.new_context(
        base_url=url, **{"viewport": {"width": 1280, "height": 800}, **look}
    )
    page = context.new_page()
    page.set_default_timeout(15_000)
    watched = Watched(page, [], [])
    page.on(
        "console",
        lambda said: (
            watched.complaints.append(said.text) if said.type in ("error", "warning") else None
        ),
    )
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on("request", lambda request: watched.asked.append(request.url))
    yield watched
    context.close()


def assert_at_home(watched: Watched, url: str) -> None:
    asked = [urlparse(one) for one in watched.asked]
    assert {one.netloc for one in asked if one.scheme not in ("data", "blob")} == {
        urlparse(url).netloc
    }


def go(page, place: str) -> None:
    """A place, anew: as if its address was opened."""
    page.goto("about:blank")
    page.goto(f"/{place}")


def await_use(page) -> None:
    unready = re.compile("counting|Reading")
    expect(page.locator("#facts")).not_to_contain_text(unready, timeout=90_000)


def number(text: str) -> float:
    """What a shown percentage stands for."""
    return float(re.sub(r"[^\d.]", "", text)) / 100


def eventually(check: Callable[[], object], seconds: float = 15.0) -> None:
    """Holds soon, if not at once: a page draws when it comes to it."""
    ends = time.monotonic() + seconds
    while True:
        try:
            check()
            return
        except AssertionError:
            if time.monotonic() > ends:
                raise
        time.sleep(0.05)


def assert_words(table, wanted: list[tuple[str, float]]) -> None:
    """A table of words with their probabilities has these first."""
    rows = table.locator("tbody tr")
    expect(rows.first.locator("th")).to_have_text(wanted[0][0])

    def check() -> None:
        shown = rows.locator("th").all_inner_texts()[: len(wanted)]
        texts = rows.locator(".number").all_inner_texts()[: len(wanted)]
        probs = [number(text) for text in texts]
        assert probs == pytest.approx([p for _, p in wanted], rel=0.06, abs=1e-4)
        # Words of the same probability may have changed places on the way.
        assert set(shown) == {word for word, _ in wanted}

    eventually(check)


def settle(page) -> None:
    page.wait_for_load_state("networkidle")
    await_use(page)
    expect(page.locator("[aria-busy=true]:visible")).to_have_count(0)


def axe_violations(page) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
        for one in found
        for node in one["nodes"]
    ]
