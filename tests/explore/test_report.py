"""The report: one file, all of it there, nothing asked of anyone."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from explorers import LINES, toy_model, toy_prepared
from hmmlm.explore import figures
from hmmlm.explore.cards import state_card
from hmmlm.explore.figures import draw_map, inline_svg
from hmmlm.explore.projection import Projection
from hmmlm.explore.report import make_report


class Page(HTMLParser):
    """What a page has: its ids, what it links to, and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href", "srcset", "action", "data"):
                self.links.append(value)

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports") / "a <b>"
    folder.mkdir()
    step = {"loss": 2.0, "tokens_per_second": 5.0, "learning_rate": 0.1}
    lines = [{"step": n, "tokens": 10 * n, "val": 9.0 - n, **step} for n in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def prepared(folder):
    model = toy_model("uneven")
    model.config["training"] = {"model": {"kind": "lowrank", "states": 4}}
    return toy_prepared(model, folder=folder)


def test_a_report_has_cards_clusters_curves_map_and_settings(prepared):
    text = make_report(prepared, states=3)
    page = Page(text)
    said = " ".join(page.texts)
    for heading in ("The 3 most used states", "Training", "Clusters of words", "Map of the states"):
        assert heading in said
    use = prepared.use.share
    order = np.argsort(-use)[:3].tolist()
    assert [one for one in page.ids if one.startswith("state-")] == [f"state-{n}" for n in order]
    assert f"Together {100 * use[order].sum():.1f}% of the tokens" in said
    assert "7.0 at step 2" in said and "model.kind" in said and "lowrank" in said
    perplexity = prepared.model.perplexity(LINES)
    assert f"{perplexity:,.1f}" in said
    for state in order:
        card = state_card(prepared, state)
        for word, prob in card["words"]:
            assert prob < 0.0005 or f"{prob:.3f}" in said
            assert word in said
        assert f"{card['examples'][0]['posterior']:.2f}" in said
    assert page.tags.count("svg") == 2 and page.tags.count("mark") >= 3
    assert "All states" in make_report(prepared, states=9)


def test_a_report_asks_nothing_of_anyone(prepared):
    text = make_report(prepared, states=4)
    page = Page(text)
    assert all(link.startswith(("#", "data:")) for link in page.links), page.links
    assert "script" not in page.tags and "link" not in page.tags and "iframe" not in page.tags
    outside = set(re.findall(r"https?://[^\s\"'<>)]+", text))
    assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert len(page.ids) == len(set(page.ids))
    for name in re.findall(r"url\(#([^)]+)\)", text) + [link[1:] for link in page.links]:
        assert name in page.ids or name.startswith("image"), name


def test_names_and_words_are_written_as_text(prepared):
    text = make_report(prepared, states=4)
    assert "<h1>a &lt;b&gt;</h1>" in text and "<b>\n" not in text
    assert "&lt;eos&gt;" in text and "<eos>" not in text


def test_the_same_model_gives_the_same_report(prepared):
    assert make_report(prepared, states=2) == make_report(prepared, states=2)


def test_a_model_without_blocks_log_and_settings_has_a_report():
    text = make_report(toy_prepared(toy_model("dense")), states=2)
    said = " ".join(Page(text).texts)
    assert "Clusters of words" not in said and "Training" not in said
    assert "Settings of the run" not in said and "Map of the states" in said


def test_many_points_are_a_picture_and_colours_are_the_pages(monkeypatch):
    points = np.random.default_rng(0).normal(size=(50, 2))
    found = Projection(points, (0.5, 0.25), "rows")
    blocks, use = np.arange(50) % 3, np.full(50, 0.02)
    shapes = inline_svg(draw_map(found, blocks, use), "a map")
    monkeypatch.setattr(figures, "VECTORS", 10)
    picture = inline_svg(draw_map(found, blocks, use), "a map")
    assert "data:image/png" in picture and "data:image/png" not in shapes
    assert "var(--grey)" in shapes and "#666666" not in shapes
    assert shapes.startswith('<svg role="img" aria-label="a map"')
    assert "first direction (50% of variance)" in shapes  # what its letters, which are drawn, say
