"""The explorer's page in a browser: when its first row is painted, and words after a key."""

import shutil

import numpy as np

NAVIGATIONS, KEYS = 5, 30

# Times are the page's own, of when a frame with the change in it has been drawn.
PAINTED = """
const painted = (found) => requestAnimationFrame(() => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => found(performance.now());
  port2.postMessage(null);
});
"""
FIRST_ROW = (
    PAINTED
    + """
window.firstRow = new Promise((found) => {
  const look = () => {
    if (!document.querySelector("tbody tr[data-state]")) return;
    watcher.disconnect();
    painted(found);
  };
  const watcher = new MutationObserver(look);
  watcher.observe(document, { childList: true, subtree: true });
});
"""
)
NEXT_WORDS = (
    "() => {"
    + PAINTED
    + """
let pressed = 0;
window.waits = [];
const next = document.querySelector(".next");
document.addEventListener("keydown", (event) => { pressed = event.timeStamp; }, true);
new MutationObserver(() => {
  if (pressed === 0) return;
  const since = pressed;
  pressed = 0;
  painted((now) => window.waits.push(now - since));
}).observe(next, { childList: true, subtree: true });
}
"""
)


def first_row_ms(url: str) -> dict[str, float | str]:
    """From navigation to the first row of the table of states, with nothing kept of before."""
    from playwright.sync_api import sync_playwright

    times = []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=find_chromium())
        for _ in range(NAVIGATIONS):
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            page = context.new_page()
            page.add_init_script(FIRST_ROW)
            page.goto(url)
            times.append(float(page.evaluate("window.firstRow")))
            context.close()
        version = browser.version
        browser.close()
    # The first one also starts what all pages of a browser share.
    return {"first_row_ms": _round(np.median(times)), "first_row_first_ms": _round(times[0])} | {
        "browser": f"chromium {version}"
    }


def key_ms(url: str, text: str) -> tuple[dict[str, float], str]:
    """From a key to the words that come next, each pressed when all is answered; the best word."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=find_chromium())
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{url}/#text")
        page.locator(".next tbody tr").first.wait_for()
        page.locator("#line").focus()
        page.wait_for_load_state("networkidle")
        page.evaluate(NEXT_WORDS)
        for number, key in enumerate(text):
            page.keyboard.press("Space" if key == " " else key)
            page.wait_for_function(f"window.waits.length > {number}")
            page.wait_for_function("!document.querySelector('.strip.stale')")
        times = np.array(page.evaluate("window.waits"))
        best = page.locator(".next tbody th").first.inner_text()
        browser.close()
    line = {
        "key_ms": _round(np.median(times)),
        "key_q20": _round(np.quantile(times, 0.2)),
        "key_q80": _round(np.quantile(times, 0.8)),
        "key_best": _round(times.min()),
    }
    return line, best


def find_chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        raise SystemExit("there is no chromium; apt-get install chromium, or leave out --browser")
    return found


def _round(milliseconds: float | np.floating) -> float:
    return round(float(milliseconds), 1)
