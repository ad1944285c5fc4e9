"""The explorer's page in a browser: every view against the model's own numbers, in both themes."""

import io
import json
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlparse
from urllib.request import urlopen

import pytest
import torch
from PIL import Image

from commands import run_command
from hmmlm import HMM, Model
from hmmlm.data.builtin import builtin_sentences
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.generate import contains, words

# Where changes are judged, a browser that is missing is a failure.
if not os.environ.get("CI"):
    pytest.importorskip("playwright")
from browsing import (
    CHROMIUM,
    LINE,
    NO_BROWSER,
    PLACES,
    assert_at_home,
    assert_words,
    await_use,
    axe_violations,
    browsing,
    eventually,
    expect,
    go,
    number,
    serving,
    settle,
    watching,
)

if CHROMIUM is None and not os.environ.get("CI"):
    pytest.skip(NO_BROWSER, allow_module_level=True)


class Site(NamedTuple):
    url: str
    model: Model
    folder: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    """A small model of 256 states in 16 blocks, with the log of its training, and its page."""
    folder = tmp_path_factory.mktemp("explore")
    texts = builtin_sentences()
    (folder / "topics.txt").write_text("\n".join(texts["train"][:800]) + "\n", encoding="utf-8")
    (folder / "valid.txt").write_text("\n".join(texts["valid"][:60]) + "\n", encoding="utf-8")
    prepare = "prepare topics.txt --valid valid.txt --min-count 2 --out topics.corpus"
    train = "train topics.corpus --states 256 --blocks 16 --epochs 3 --out topics.model"
    for command in (prepare, train):
        answer = run_command(*command.split(), cwd=folder)
        assert answer.status == 0, answer.err
    with serving(folder / "topics.model", "--text", str(folder / "valid.txt")) as url:
        yield Site(url, Model.load(folder / "topics.model"), folder / "topics.model")


@pytest.fixture(scope="module")
def browser():
    with browsing() as started:
        yield started


@pytest.fixture
def page(browser, site):
    """A page of which nothing may complain, and which may ask nobody but its own server."""
    with watching(browser, site.url) as watched:
        yield watched.page
        assert watched.complaints == []
        assert_at_home(watched, site.url)


# States.


def test_the_table_of_states_is_what_the_model_says(page, site):
    go(page, "#states")
    await_use(page)
    grid = page.get_by_role("grid")
    expect(grid).to_have_attribute("aria-rowcount", "257")
    first = page.locator("tbody tr[data-index='0']")
    expect(first.locator(".of-use")).to_contain_text("%")
    state = int(first.get_attribute("data-state"))
    for place, (word, p) in enumerate(site.model.top_words(state, k=4)):
        shown = first.locator(".word").nth(place)
        expect(shown.locator(".name")).to_have_text(word)
        assert number(shown.locator(".number").inner_text()) == pytest.approx(p, rel=0.06, abs=1e-4)
    uses = [number(cell) for cell in page.locator("tbody .of-use").all_inner_texts()]
    assert uses == sorted(uses, reverse=True)
    expect(page.get_by_role("columnheader", name="Use")).to_have_attribute(
        "aria-sort", "descending"
    )


def test_states_are_sorted_by_a_click_on_the_column(page, site):
    go(page, "#states")
    page.get_by_role("button", name="Entropy").click()
    header = page.get_by_role("columnheader", name="Entropy")
    expect(header).to_have_attribute("aria-sort", "ascending")
    page.get_by_role("button", name="Entropy").click()
    expect(header).to_have_attribute("aria-sort", "descending")
    first = page.locator("tbody tr[data-index='0'][data-state]")
    best = max(entropy_of(site.model, state) for state in range(256))
    expect(first.locator(".of-entropy")).to_contain_text(f"{best:.1f}")
    assert entropy_of(site.model, int(first.get_attribute("data-state"))) == pytest.approx(best)


def test_an_address_may_leave_out_the_order(page):
    for key, order in (("Entropy", "ascending"), ("Use", "descending")):
        go(page, f"#states&sort={key.lower()}")
        header = page.get_by_role("columnheader", name=key)
        expect(header).to_have_attribute("aria-sort", order)


def entropy_of(model: Model, state: int) -> float:
    return -sum(p * math.log2(p) for _, p in model.top_words(state, k=10_000) if p > 0)


def test_states_are_found_by_a_word_best_first(page, site):
    go(page, "#states")
    page.get_by_label("Find").fill("value")
    chances = {
        state: dict(site.model.top_words(state, k=10_000)).get("value") for state in range(256)
    }
    emitting = {state: p for state, p in chances.items() if p}
    expect(page.locator(".found")).to_have_text(f"{len(emitting)} states that may emit “value”")
    best = max(emitting, key=lambda state: emitting[state])
    expect(page.locator("tbody tr[data-index='0']")).to_have_attribute("data-state", str(best))
    expect(page.locator("tbody tr")).to_have_count(len(emitting))
    page.get_by_label("Find").fill("nosuchwordatall")
    expect(page.locator("tbody tr.none")).to_contain_text("nosuchwordatall")
    page.get_by_label("Find").fill("12")
    expect(page.locator("tbody tr[data-index='0']")).to_have_attribute("data-state", "12")


def test_only_rows_in_sight_exist_and_the_last_one_can_be_reached(page, site):
    go(page, "#states&sort=id&order=asc")
    expect(page.locator("tbody tr[data-index='0'][data-state]")).to_have_count(1)
    assert page.locator("tbody tr").count() < 40
    page.locator(".scroller").evaluate("box => box.scrollTop = box.scrollHeight")
    last = page.locator("tbody tr[data-index='255']")
    expect(last).to_have_attribute("data-state", "255")
    expect(last).to_have_attribute("aria-rowindex", "257")
    eventually(lambda: assert_at_the_end(page, last))
    expect(page.locator("tbody tr[data-index='5']")).to_have_count(0)


def test_the_last_of_very_many_states_can_be_reached(page, site):
    many = 1_000_000
    with urlopen(f"{site.url}/api/model") as answer:
        about = {**json.load(answer), "states": many}
    page.route("**/api/model", lambda route: route.fulfill(json=about))

    def answer_page(route):
        asked = dict(parse_qsl(urlparse(route.request.url).query))
        first, size = int(asked["page"]) * int(asked["size"]), int(asked["size"])
        row = {"block": 0, "use": 0.1, "entropy": 1.0, "words": [["a", 0.5]]}
        states = [{"id": id, **row} for id in range(first, min(first + size, many))]
        route.fulfill(json={"total": many, "states": states, "note": None})

    page.route("**/api/states?*", answer_page)
    go(page, "#states&sort=id&order=asc")
    expect(page.locator("tbody tr[data-state='0']")).to_be_visible()
    scroller = page.locator(".scroller")
    scroller.evaluate("box => box.scrollTop = box.scrollHeight")
    assert_last_in_sight(page, many - 1)
    scroller.evaluate("box => box.scrollTop = 0")
    first = page.locator("tbody tr[data-state='0']")
    expect(first).to_be_in_viewport(ratio=1)
    first.focus()
    for key, state in [("End", many - 1), ("ArrowUp", many - 2), ("Home", 0), ("End", many - 1)]:
        page.keyboard.press(key)
        row = page.locator("tbody tr:focus")
        expect(row).to_have_attribute("data-state", str(state))
        expect(row).to_be_in_viewport(ratio=1)
    assert_last_in_sight(page, many - 1)
    # Rows stand below each other, wherever one is.
    scroller.evaluate("box => box.scrollTop = box.scrollHeight / 3")

    def check() -> None:
        assert page.locator("tbody tr[aria-busy]").count() == 0
        tops = page.locator("tbody tr:not(:focus)").evaluate_all(
            "rows => rows.map(row => [Number(row.dataset.index), row.getBoundingClientRect().top])"
        )
        assert len(tops) > 20 and abs(tops[0][0] - many / 3) < 1000
        assert {(index - tops[0][0]) * 58 - (top - tops[0][1]) for index, top in tops} == {0}

    eventually(check)


def assert_equal(one: object, other: object) -> None:
    assert one == other


def assert_last_in_sight(page, state: int) -> None:
    last = page.locator(f"tbody tr[data-state='{state}']")
    expect(last).to_be_in_viewport(ratio=1)
    eventually(lambda: assert_at_the_end(page, last))


def assert_at_the_end(page, last) -> None:
    box, inside = page.locator(".scroller").bounding_box(), last.bounding_box()
    assert inside is not None
    assert abs(inside["y"] + inside["height"] - box["y"] - box["height"]) <= 1


def test_the_head_of_the_table_goes_on_beside_the_scroll_bar(page):
    go(page, "#states")
    settle(page)
    box = page.locator(".scroller").bounding_box()
    clip = {"x": box["x"] + box["width"] - 40, "y": box["y"] + 3, "width": 40, "height": 10}
    picture = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")
    assert len(picture.getcolors()) == 1


def test_the_grid_is_walked_by_keys_and_a_card_opened_and_closed(page):
    go(page, "#states&sort=id&order=asc")
    expect(page.locator("tbody tr[data-state='0']")).to_have_count(1)
    page.locator("tbody tr[data-state='0']").focus()
    for key, state in [("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("End", 255)]:
        page.keyboard.press(key)
        expect(page.locator("tbody tr:focus")).to_have_attribute("data-state", str(state))
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="State 255")
    expect(dialog).to_be_visible()
    assert "#states/255" in page.url
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page).not_to_have_url(re.compile("/255"))
    expect(page.locator("tbody tr:focus")).to_have_attribute("data-state", "255")
    page.keyboard.press("Home")
    expect(page.locator("tbody tr:focus")).to_have_attribute("data-state", "0")
    eventually(lambda: assert_equal(page.locator(".scroller").evaluate("box => box.scrollTop"), 0))


def test_a_card_says_what_the_model_says(page, site):
    go(page, "#states/40")
    await_use(page)
    dialog = page.get_by_role("dialog", name="State 40")
    words_of = dialog.get_by_role("table", name="Most probable words")
    assert_words(words_of, site.model.top_words(40, k=6))
    every = torch.arange(256)[None]
    row = site.model.hmm.transitions.tile(torch.tensor([[40]]), every)[0, 0].exp()
    best = int(row.argmax())
    goes = dialog.get_by_role("table", name="Goes to").locator("tbody tr").first
    expect(goes.locator("a")).to_have_text(str(best))
    shown = number(goes.locator(".number").inner_text())
    assert shown == pytest.approx(float(row[best]), rel=0.06, abs=1e-4)
    expect(dialog.get_by_role("table", name="Comes from")).to_be_visible()
    goes.locator("a").click()
    expect(page.get_by_role("dialog", name=f"State {best}")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("dialog", name="State 40")).to_be_visible()


# Text.


def type_line(page, line: str) -> None:
    go(page, "#text")
    page.get_by_role("textbox", name="Your text").press_sequentially(line)
    expect(page.locator(".strip li")).to_have_count(len(line.split()) + 1)


def test_every_word_has_its_surprisal_states_and_place_on_the_best_path(page, site):
    type_line(page, LINE)
    scored, path = site.model.score(LINE)[0], site.model.viterbi(LINE)[0]
    items = page.locator(".strip li")
    assert items.locator(".token").all_inner_texts() == scored.tokens
    shown = [float(text) for text in items.locator(".bits").all_inner_texts()]
    assert shown == pytest.approx([-p / math.log(2) for p in scored.log_probs], abs=0.051)
    assert [int(text) for text in items.locator("a.state").all_inner_texts()] == path.states
    bits = -sum(scored.log_probs) / math.log(2)
    expect(page.locator("#panel-text .summary")).to_contain_text(f"Surprisal {bits:.1f} bits")
    assert_words(page.locator(".next table"), site.model.next(LINE, k=5))


def test_the_posterior_at_a_word_is_the_models(page, site):
    type_line(page, LINE)
    found = site.model.posterior(LINE)
    page.locator(".strip li").nth(1).hover()
    behind = page.locator(".behind tbody tr")
    states, probs = found.states[0, 1], found.log_probs[0, 1].exp()
    best = int(probs.argmax())
    expect(behind.first.locator("a")).to_have_text(str(int(states[best])))
    shown = number(behind.first.locator(".number").inner_text())
    assert shown == pytest.approx(float(probs[best]), rel=0.06)
    first = ", ".join(word for word, _ in site.model.top_words(int(states[best]), k=3))
    expect(behind.first.locator(".names")).to_have_text(first)
    total = sum(number(text) for text in behind.locator(".number").all_inner_texts())
    assert total == pytest.approx(1, abs=0.03)
    heights = page.locator(".strip li").nth(1).locator(".stack i")
    tall = heights.first.evaluate("box => box.getBoundingClientRect().height")
    whole = heights.first.evaluate("box => box.parentNode.getBoundingClientRect().height")
    assert tall / whole == pytest.approx(float(probs[best]), abs=0.03)


def test_an_answer_that_was_overtaken_is_dropped(page, site):
    go(page, "#text")
    expect(page.get_by_role("table", name="How texts begin")).to_be_visible()
    held = []
    page.route("**/api/next", lambda route: held.append(route), times=1)
    page.get_by_role("textbox", name="Your text").press_sequentially("the")
    page.get_by_role("textbox", name="Your text").press_sequentially(" value of")
    expect(page.locator(".strip li")).to_have_count(4)
    assert len(held) == 1
    held[0].fulfill(json={"next": [["stale", 0.9]], "nats": 1.0})
    page.wait_for_timeout(100)
    assert_words(page.locator(".next table"), site.model.next("the value of", k=3))
    assert "stale" not in page.locator(".next").inner_text()


def test_a_click_right_after_a_key_is_not_overtaken_by_it(page):
    go(page, "#text=the+value+of")
    expect(page.locator(".strip li")).to_have_count(4)
    page.route("**/api/text", lambda route: (time.sleep(0.4), route.continue_()))
    page.evaluate(
        """() => { const box = document.getElementById("line"); box.value += " the";
        box.dispatchEvent(new Event("input"));
        document.querySelector(".strip li:nth-child(2) button").click(); }"""
    )
    expect(page.get_by_role("textbox", name="Your text")).to_have_value("the ? of the")
    expect(page.locator(".strip li")).to_have_count(5)
    expect(page.locator(".strip.stale")).to_have_count(0)


def test_a_click_on_a_word_of_an_older_text_does_nothing(page):
    go(page, "#text=the+value+?")
    expect(page.locator(".strip li")).to_have_count(4)
    expect(page.locator(".next .pick").first).to_be_visible()
    page.route("**/api/text", lambda route: None)  # no answer to what is typed now
    page.route("**/api/next", lambda route: None)
    box = page.get_by_role("textbox", name="Your text")
    for typed in ("of that other thing", "the values ?"):
        box.fill(typed)
        for place in (".strip li:nth-child(2) button", ".strip li:nth-child(3) button", ".pick"):
            page.locator(place).first.evaluate("button => button.click()")
            expect(box).to_have_value(typed)


def test_a_refused_text_has_no_reading(browser, site):
    with watching(browser, site.url) as watched:
        page = watched.page
        go(page, "#text=the+value+?")
        expect(page.locator(".strip li")).to_have_count(4)
        expect(page.locator(".fills li")).to_have_count(5)
        page.get_by_role("textbox", name="Your text").fill("a " * 450)
        expect(page.get_by_role("alert")).to_contain_text("has 451 tokens but may have 400")
        for part in (".strip", ".fills", ".behind", ".next", "#panel-text .summary"):
            expect(page.locator(part)).to_be_empty()
        page.get_by_role("textbox", name="Your text").fill("the value")
        expect(page.locator(".strip li")).to_have_count(3)
        expect(page.get_by_role("alert")).to_have_count(0)


def test_a_word_whose_gap_was_refused_is_not_remembered(browser, site):
    with watching(browser, site.url) as watched:
        page = watched.page
        go(page, "#text=the+?+of")
        expect(page.locator(".strip li")).to_have_count(4)
        refusal = {"status": 400, "json": {"error": "No gaps side by side."}}
        page.route("**/api/text", lambda route: route.fulfill(**refusal))
        page.get_by_role("button", name="the, ").click()
        expect(page.get_by_role("alert")).to_contain_text("No gaps side by side.")
        box = page.get_by_role("textbox", name="Your text")
        expect(box).to_have_value("? ? of")
        page.unroute("**/api/text")
        box.fill("of ? value ?")
        expect(page.get_by_role("button", name="gap", exact=True)).to_have_count(2)


def test_a_word_becomes_a_gap_and_itself_again(page, site):
    type_line(page, LINE)
    word = page.locator(".strip li").nth(4).locator("button")
    expect(word).to_have_attribute("aria-pressed", "false")
    word.focus()
    page.keyboard.press("Enter")
    box = page.get_by_role("textbox", name="Your text")
    gapped = "the value of the ? is a string ."
    expect(box).to_have_value(gapped)
    table = page.get_by_role("table", name="Words for the gap (was “expression”)")
    assert_words(table, site.model.gap_words(gapped, 5)[0])
    expect(word).to_have_attribute("aria-pressed", "true")
    expect(word).to_be_focused()
    assert len(page.locator(".samples li").all()) == 5
    page.keyboard.press("Enter")
    expect(box).to_have_value(LINE)
    expect(page.locator(".fills")).to_be_empty()
    assert_words(page.locator(".next table"), site.model.next(LINE, k=3))


def test_a_word_is_put_into_a_gap_and_one_that_comes_next_at_the_end(page, site):
    go(page, "#text=the+?+of")
    best = site.model.gap_words("the ? of", 1)[0][0][0]
    page.get_by_role("button", name=best, exact=True).first.click()
    box = page.get_by_role("textbox", name="Your text")
    expect(box).to_have_value(f"the {best} of")
    follows = site.model.next(f"the {best} of", k=1)[0][0]
    page.locator(".next .pick").first.click()
    expect(box).to_have_value(f"the {best} of {follows} ")
    expect(box).to_be_focused()
    assert "#text=the+" in page.url


def test_pieces_of_words_are_not_put_into_a_text(page, site):
    with urlopen(f"{site.url}/api/model") as answer:
        about = {**json.load(answer), "pieces": True}
    page.route("**/api/model", lambda route: route.fulfill(json=about))
    go(page, "#text=the+value")
    expect(page.locator(".next tbody tr").first).to_be_visible()
    expect(page.locator(".pick")).to_have_count(0)


def test_pieces_of_words_stand_where_the_server_says(page):
    pieces = {"\u2581the": [0, 3], "\u2581val": [4, 7], "ue": [7, 9], "<eos>": None}
    said = {"nats": 1.4, "bits": 2.0, "gap": False, "states": [[3, 1.0]], "rest": 0.0, "path": 3}
    answer = {"nats": 5.6, "perplexity": 4.0, "next": [["of", 1.0]], "path_probability": 1.0}
    answer["tokens"] = [{"text": piece, "span": at, **said} for piece, at in pieces.items()]
    answer["words"] = {"3": ["value"]}
    page.route("**/api/text", lambda route: route.fulfill(json=answer))
    go(page, "#text=The+value")
    expect(page.get_by_role("button", name="val, 2.0 bits")).to_be_visible()
    page.unroute("**/api/text")
    page.get_by_role("button", name="val, 2.0 bits").click()
    box = page.get_by_role("textbox", name="Your text")
    expect(box).to_have_value("The ? ue")
    page.get_by_role("button", name="gap, was val").click()
    expect(box).to_have_value("The value")


def test_some_words_are_filled_in_for_a_star(page):
    go(page, "#text=the+value+*+string+.")
    expect(page.locator(".samples li")).to_have_count(5)
    for text in page.locator(".samples li").all_inner_texts():
        assert text.startswith("the value") and "string ." in text
    expect(page.locator(".strip li")).to_have_count(0)


# Blocks, the map, training, constraints.


def test_blocks_have_their_words_and_sizes(page, site):
    go(page, "#blocks")
    await_use(page)
    boxes = page.locator("details.block")
    expect(boxes).to_have_count(16)
    support = site.model.hmm.support
    block = int(support.row_of_word[site.model.tokenizer.id("value")])
    members = [
        site.model.tokenizer.token(word)
        for word in range(site.model.hmm.vocab_size)
        if int(support.row_of_word[word]) == block
    ]
    box = page.locator(f"#block-{block}")
    expect(box.locator(".block-head")).to_contain_text(f"{len(members)} words · 16 states")
    box.locator("summary").click()
    expect(box.locator(".all-words p:not(.notice)")).to_be_visible()
    assert set(box.locator(".all-words").inner_text().split()) == set(members)
    box.get_by_role("link").click()
    expect(page.locator(".found").first).to_have_text(f"16 states in block {block}")


def test_blocks_are_searched_after_the_address_named_one(page, site):
    block = int(site.model.hmm.support.row_of_word[site.model.tokenizer.id("value")])
    go(page, f"#blocks/{block}")
    expect(page.locator(f"#block-{block} summary")).to_be_focused()
    find = page.get_by_role("tabpanel").get_by_label("Find")
    find.click()
    page.keyboard.type(str(block), delay=30)
    page.keyboard.press("Backspace")
    expect(find).to_be_focused()
    expect(find).to_have_value(str(block)[:-1])


def test_the_map_has_every_state_and_shows_its_card(page, site):
    go(page, "#map")
    await_use(page)
    plot = page.locator(".map")
    expect(plot.locator(".main-svg").first).to_be_visible()
    points = "box => box.data[0].x.length"
    eventually(lambda: assert_equal(plot.evaluate(points), 256))
    plot.focus()
    page.keyboard.press("ArrowRight")
    side = page.locator(".side")
    expect(side.locator("h2")).to_have_text(re.compile(r"State \d+"))
    first = side.locator("h2").inner_text()
    page.keyboard.press("ArrowRight")
    expect(side.locator("h2")).not_to_have_text(first)
    state = int(side.locator("h2").inner_text().split()[1])
    assert_words(side.locator("table"), site.model.top_words(state, k=4))
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name=f"State {state}")).to_be_visible()
    assert f"#map&state={state}" in page.url
    page.keyboard.press("Escape")
    page.get_by_label("use").check()
    expect(plot.locator(".colorbar")).to_be_visible()
    page.get_by_label("Find").last.fill("value")
    expect(page.locator("#panel-map .found")).to_have_text(re.compile(r"^\d+ states?$"))
    hits = int(page.locator("#panel-map .found").inner_text().split()[0])
    eventually(lambda: assert_equal(plot.evaluate("box => box.data[1]?.x.length"), hits))


def test_pointing_at_the_map_shows_the_card(page, site):
    go(page, "#map")
    expect(page.locator(".map .main-svg").first).to_be_visible()
    at = page.locator(".map").evaluate(
        """box => { const {xaxis, yaxis, _size} = box._fullLayout; const {x, y} = box.data[0];
        const far = x.reduce((best, value, id) => (value > x[best] ? id : best), 0);
        const edge = box.getBoundingClientRect();
        const [left, top] = [edge.left + _size.l, edge.top + _size.t];
        return [far, left + xaxis.d2p(x[far]), top + yaxis.d2p(y[far])]; }"""
    )
    page.mouse.move(at[1] - 3, at[2])
    page.mouse.move(at[1], at[2])
    expect(page.locator(".side h2")).to_have_text(f"State {at[0]}")


def test_a_map_of_many_states_is_drawn_by_the_graphics_card(page):
    many = {
        "how": "transition rows",
        "explained": [0.2, 0.1],
        "x": [math.cos(n) * n / 5000 for n in range(5000)],
        "y": [math.sin(n) * n / 5000 for n in range(5000)],
        "block": [n % 16 for n in range(5000)],
        "use": None,
    }
    page.route("**/api/map", lambda route: route.fulfill(json=many))
    go(page, "#map")
    expect(page.locator(".map canvas").first).to_be_visible()
    assert page.locator(".map").evaluate("box => box.data[0].type") == "scattergl"
    expect(page.locator(".map")).not_to_contain_text("WebGL")
    expect(page.get_by_label("use")).to_be_disabled()
    page.locator(".map").focus()
    for _ in range(10):  # each draws anew, and the browser complains of too many contexts
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")
    expect(page.locator(".side h2")).to_have_text(re.compile(r"State \d+|That did not work"))


def test_the_curves_are_those_of_the_log(page, site):
    go(page, "#training")
    expect(page.locator(".curve .main-svg").first).to_be_visible()
    log = [json.loads(line) for line in (site.folder / "metrics.jsonl").read_text().splitlines()]
    checks = [step["val"] for step in log if step.get("val") is not None]
    assert page.locator(".curve").evaluate("box => box.data[2].y.length") == len(checks)
    expect(page.locator("#panel-training .summary")).to_contain_text(
        f"Best validation perplexity {min(checks):.3g}"
    )
    page.locator("#panel-training summary").click()
    expect(page.locator("#panel-training tbody tr")).to_have_count(len(checks))


def test_a_constraint_has_its_probability_before_anything_is_drawn(page, site):
    go(page, "#constrain")
    page.get_by_label("Must contain").fill("value")
    page.get_by_label("Must not contain").fill("string")
    page.get_by_label("Number of words").fill("4..12")
    wanted = contains("value") & ~contains("string") & words(4, 12)
    p = site.model.probability(wanted, length=30)
    expect(page.locator(".big strong")).to_have_text(f"{float(f'{100 * p:.3g}'):g}%")
    expect(page.locator(".drawn")).to_have_count(0)
    page.get_by_role("button", name="Draw samples").click()
    samples = page.locator(".drawn li")
    expect(samples).to_have_count(8)
    for sample in samples.all():
        assert set(sample.locator("mark").all_inner_texts()) == {"value"}
        assert 4 <= len(sample.inner_text().split()) <= 12
        assert "string" not in sample.inner_text().split()
    address = re.compile(re.escape("#constrain&contains=value&not=string&words=4..12"))
    expect(page).to_have_url(address)
    page.get_by_role("tab", name="Blocks").click()
    page.get_by_role("tab", name="Constrain").click()
    page.wait_for_timeout(500)
    expect(samples).to_have_count(8)
    page.get_by_label("Number of words").fill("4..13")
    expect(samples).to_have_count(0)  # those were of another constraint


def test_a_constraint_has_the_length_that_is_asked_for(page, site):
    go(page, "#constrain&contains=value&length=12")
    expect(page.get_by_label("Most tokens")).to_have_value("12")
    for length in (12, 30):
        page.get_by_label("Most tokens").fill(str(length))
        p = site.model.probability(contains("value"), length=length)
        expect(page.locator(".big strong")).to_have_text(f"{float(f'{100 * p:.3g}'):g}%")
        said = f"that the model writes such a text of at most {length} tokens"
        expect(page.locator(".big")).to_contain_text(said)
        suffix = "" if length == 30 else f"&length={length}"
        expect(page).to_have_url(re.compile(f"#constrain&contains=value{suffix}$"))


def test_a_probability_of_an_older_constraint_is_marked_as_old(page):
    go(page, "#constrain&contains=value")
    verdict = page.locator(".verdict")
    expect(verdict.locator(".big")).to_be_visible()
    held = []
    page.route("**/api/constrain", lambda route: held.append(route))
    page.get_by_label("Number of words").fill("4..12")
    expect(verdict).to_have_attribute("aria-busy", "true")
    expect(verdict).to_have_class(re.compile("stale"))
    page.wait_for_timeout(500)
    expect(verdict).to_have_attribute("aria-busy", "true")
    held.pop().continue_()
    expect(verdict).not_to_have_attribute("aria-busy", "true")
    expect(verdict).not_to_have_class(re.compile("stale"))


def test_an_address_names_its_view_once(page):
    go(page, "#text=the&panel=nowhere&about=nothing")
    expect(page.get_by_role("textbox", name="Your text")).to_have_value("the")


# What goes wrong is said, in the server's words.


def test_what_the_server_refuses_is_shown(browser, site):
    with watching(browser, site.url) as watched:
        page = watched.page
        go(page, "#constrain")
        page.get_by_label("Must match").fill("(the")
        expect(page.get_by_role("alert")).to_contain_text("(the")
        page.get_by_label("Must match").fill("the .*")
        expect(page.locator(".big strong")).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
        go(page, "#states/999")
        expect(page.get_by_role("alert")).to_contain_text("999")
        page.keyboard.press("Escape")
        page.route("**/api/text", lambda route: route.abort())
        page.route("**/api/next", lambda route: route.abort())
        page.get_by_role("tab", name="Text").click()
        expect(page.get_by_role("alert")).to_contain_text("hmmlm explore still running")
        # The browser's own lines on the refused requests, and no other.
        assert {text.split(":")[0] for text in watched.complaints} == {"Failed to load resource"}


def test_a_view_that_does_not_come_says_so_and_may_come_later(browser, site):
    with watching(browser, site.url) as watched:
        page = watched.page
        go(page, "#states")
        settle(page)
        page.route("**/page/blocks.js", lambda route: route.abort())
        page.get_by_role("tab", name="Blocks").click()
        expect(page.get_by_role("alert")).to_contain_text("The server did not send this view.")
        page.unroute("**/page/blocks.js")
        page.get_by_role("button", name="Try again").click()
        expect(page.locator("details.block")).to_have_count(16)


def test_what_is_counted_already_is_asked_for_once(browser, site):
    with watching(browser, site.url) as watched:
        go(watched.page, "#states")
        settle(watched.page)
        watched.asked.clear()
        go(watched.page, "#states/3")
        settle(watched.page)
        expect(watched.page.get_by_role("dialog", name="State 3")).to_contain_text("Share of use")
        asked = [urlparse(one).path for one in watched.asked]
        assert asked.count("/api/states") == asked.count("/api/states/3") == 1


def test_a_card_says_that_use_was_not_counted(page, site):
    with urlopen(f"{site.url}/api/states/3") as answer:
        card = json.load(answer)
    card |= {"use": None, "from": None, "examples": None}
    card["use_state"] = {"state": "failed", "progress": 0.0, "tokens": 0, "problem": "No text."}
    page.route("**/api/states/3", lambda route: route.fulfill(json=card))
    go(page, "#states/3")
    dialog = page.get_by_role("dialog", name="State 3")
    expect(dialog.get_by_text("not counted", exact=True)).to_be_visible()
    expect(dialog).not_to_contain_text("being counted")
    expect(dialog.get_by_text("No text.")).to_have_count(2)


def test_a_model_that_fails_its_check_is_told_to_those_who_look_at_it(page, site):
    with urlopen(f"{site.url}/api/model") as answer:
        about = json.load(answer)
    known: list[bool] = []
    waiting = {"state": "waiting", "problem": None}
    bad = {"state": "failed", "problem": "Row 3 of log_trans sums to 1.6."}

    def answer_model(route):
        check = bad if known else waiting
        use = {**about["use"], "state": "ready"}
        route.fulfill(json={**about, "use": use, "check": check})

    page.route("**/api/model", answer_model)
    go(page, "#states")
    expect(page.locator("tbody tr[data-state]").first).to_be_visible()
    expect(page.locator("#facts")).not_to_contain_text("not sound")
    known.append(True)
    said = "this model is not sound: Row 3 of log_trans sums to 1.6."
    expect(page.locator("#facts")).to_contain_text(said)
    expect(page.get_by_role("status")).to_have_text(said)


def test_views_of_a_model_without_blocks_or_a_log_say_so(browser, site, tmp_path):
    vocabulary = site.model.hmm.vocab_size
    generator = torch.Generator().manual_seed(0)

    def table(*size: int) -> torch.Tensor:
        return torch.log_softmax(torch.randn(*size, generator=generator), -1)

    hmm = HMM.from_tables(log_init=table(6), log_trans=table(6, 6), log_emit=table(6, vocabulary))
    Model(hmm, site.model.tokenizer).save(tmp_path / "plain")
    (tmp_path / "few.txt").write_text(f"{LINE}\n" * 3)
    use = ("--text", str(tmp_path / "few.txt"))
    with serving(tmp_path / "plain", *use) as url, watching(browser, url) as watched:
        page = watched.page
        go(page, "#states")
        await_use(page)
        expect(page.locator("tbody tr[data-state]")).to_have_count(6)
        expect(page.get_by_role("columnheader", name="Block")).to_have_count(0)
        go(page, "#blocks")
        expect(page.locator("#panel-blocks")).to_contain_text("no blocks")
        go(page, "#training")
        expect(page.locator("#panel-training")).to_contain_text("no log of a training")
        go(page, "#map")
        expect(page.locator(".map .colorbar")).to_be_visible()
        assert watched.complaints == []


def test_words_of_a_model_are_text_and_nothing_else(browser, tmp_path):
    word = "<svg/onload=document.title='owned'>"
    tokenizer = Tokenizer.words({word: 3, "<b>of</b>": 2})
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, tokenizer.vocab_size, generator=generator)
    table = torch.full((3, 3), 1 / 3).log()
    hmm = HMM.from_tables(table[0], table, torch.log_softmax(logits, 1))
    Model(hmm, tokenizer).save(tmp_path / "hostile")
    (tmp_path / "few.txt").write_text(f"{word} <b>of</b>\n" * 3)
    use = ("--text", str(tmp_path / "few.txt"))
    with serving(tmp_path / "hostile", *use) as url, watching(browser, url) as watched:
        page = watched.page
        line = f"#text={quote(word)}+?+of"
        for place in ("#states", "#states/0", line, "#map", f"#constrain&contains={quote(word)}"):
            go(page, place)
            await_use(page)
            settle(page)
            if place.startswith("#constrain"):
                page.get_by_role("button", name="Draw samples").click()
                expect(page.locator(".drawn mark").first).to_have_text(word)
            elif place != "#map":
                expect(page.get_by_text(word).first).to_be_attached()
            assert page.locator("[onload], main b:not(.stack b)").count() == 0
            assert "owned" not in page.title()
        assert watched.complaints == []


# For everybody.


def test_tabs_by_keys(page):
    go(page, "")
    page.keyboard.press("Tab")
    expect(page.locator("#skip")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.get_by_role("tab", name="States")).to_be_focused()
    for key, name in [("ArrowRight", "Text"), ("End", "Constrain"), ("ArrowRight", "States")]:
        page.keyboard.press(key)
        tab = page.get_by_role("tab", name=name)
        expect(tab).to_be_focused()
        expect(tab).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("tabpanel", name=name)).to_be_visible()
        assert tab.evaluate("tab => getComputedStyle(tab).outlineStyle") == "solid"
    page.keyboard.press("Tab")
    expect(page.get_by_label("Find").first).to_be_focused()


@pytest.mark.parametrize("place", PLACES)
def test_no_view_is_wider_than_a_phone_and_axe_finds_nothing_there(browser, site, place):
    with watching(browser, site.url, viewport={"width": 375, "height": 700}) as watched:
        go(watched.page, PLACES[place])
        settle(watched.page)
        assert watched.page.evaluate("document.documentElement.scrollWidth") == 375
        assert axe_violations(watched.page) == []
        assert watched.complaints == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_any_view(browser, site, theme):
    with watching(browser, site.url, color_scheme=theme) as watched:
        page = watched.page
        for place, address in PLACES.items():
            go(page, address)
            settle(page)
            if place == "constrain":
                page.get_by_role("button", name="Draw samples").click()
                expect(page.locator(".drawn li")).to_have_count(8)
            assert axe_violations(page) == [], place
        assert watched.complaints == []
        assert_at_home(watched, site.url)


def lightness(page) -> float:
    red, green, blue = map(
        int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
    )
    return (red + green + blue) / 765


def test_the_theme_is_the_systems_until_another_is_chosen(browser, site):
    with watching(browser, site.url, color_scheme="dark") as watched:
        page = watched.page
        go(page, "")
        assert lightness(page) < 0.2
        page.get_by_role("button", name="Theme: auto").click()
        expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
        assert lightness(page) > 0.9
        page.reload()
        assert lightness(page) > 0.9
        page.get_by_role("button", name="Theme: light").click()
        page.get_by_role("button", name="Theme: dark").click()
        assert lightness(page) < 0.2


def test_nothing_moves_where_motion_is_not_wanted(browser, site):
    for wish, seconds in (("reduce", "0s"), ("no-preference", "0.12s")):
        with watching(browser, site.url, reduced_motion=wish) as watched:
            go(watched.page, "#text")
            bar = watched.page.locator(".next .bar").first
            # The bars are drawn again when the whole answer is there: one may be gone by now.
            expect(bar).to_have_css("transition-duration", seconds)
