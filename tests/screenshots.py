"""python tests/screenshots.py MODEL: the pictures of the explorer in docs/img, of a model's folder.

Look at each before it is committed: nothing else does.
"""

import json
import sys
from pathlib import Path
from urllib.request import urlopen

from PIL import Image

from browsing import LINE, PLACES, browsing, expect, go, serving, settle, watching

IMAGES = Path(__file__).parents[1] / "docs" / "img"
MOST_BYTES = 250_000


def main(folder: Path) -> None:
    IMAGES.mkdir(exist_ok=True)
    wide, phone = {"width": 1180, "height": 740}, {"width": 375, "height": 760}
    line = "#text=the+value+of+the+?+is+a+string+."
    shots = {
        "states": ("#states&q=value", "light", wide),
        "card": ("#states/{state}&q=value", "light", wide),
        "text": (f"#text={LINE.replace(' ', '+')}", "light", wide),
        "gap": (line, "light", wide),
        "blocks": ("#blocks", "light", wide),
        "map": ("#map", "light", wide),
        "training": ("#training", "light", wide),
        "constrain": (PLACES["constrain"], "light", wide),
        "dark": (line, "dark", wide),
        "phone": ("#states&q=value", "light", phone),
    }
    with serving(folder) as url, browsing() as browser:
        with urlopen(f"{url}/api/states?q=value") as answer:
            state = json.load(answer)["states"][0]["id"]  # that emits it most probably
        for name, (place, theme, viewport) in shots.items():
            look = {"color_scheme": theme, "viewport": viewport, "device_scale_factor": 2}
            with watching(browser, url, **look) as watched:
                page = watched.page
                go(page, place.format(state=state))
                settle(page)
                if name == "map":
                    page.locator(".map").focus()
                    for key in ("ArrowRight", "ArrowRight", "ArrowUp"):
                        page.keyboard.press(key)
                    expect(page.locator(".side h2")).to_be_visible()
                if name == "constrain":
                    page.get_by_role("button", name="Draw samples").click()
                    expect(page.locator(".drawn li")).to_have_count(8)
                if name in ("text", "gap", "dark"):
                    page.locator(".strip li").nth(4).hover()
                page.wait_for_timeout(600)
                path = IMAGES / f"explore-{name}.png"
                page.screenshot(path=path)
            # A picture of few colours, so that it is small.
            Image.open(path).convert("RGB").quantize(160).save(path, optimize=True)
            assert path.stat().st_size < MOST_BYTES, path


if __name__ == "__main__":
    main(Path(sys.argv[1]))
