"""The explorer's server: every route, every refusal, the headers."""

import asyncio
import json
import threading
import time

import pytest
from fastapi.testclient import TestClient

from explorers import toy_model, toy_prepared
from hmmlm.explore.explorer import Explorer
from hmmlm.explore.guarding import MOST_BYTES, Guard, host_of, is_loopback
from hmmlm.explore.server import Busy, Left, Turns, make_app

BASE = "http://127.0.0.1:8642"


@pytest.fixture(scope="module")
def app():
    prepared = toy_prepared(toy_model())
    prepared.start = prepared.stop = lambda: None  # it has been read
    return make_app(prepared)


@pytest.fixture(scope="module")
def client(app):
    with TestClient(app, base_url=BASE) as client:
        yield client


GETS = ["/api/model", "/api/states", "/api/states?q=a&sort=use&order=asc&block=0&page=0&size=1"]
GETS += ["/api/states/0", "/api/blocks", "/api/blocks/1", "/api/map"]
POSTS = [
    ("/api/text", {"text": "a ? b"}),
    ("/api/next", {"text": "a"}),
    ("/api/fill", {"text": "a ?", "n": 1, "seed": 3}),
    ("/api/constrain", {"contains": ["a"], "not": ["c"], "words": "1..2", "length": 5, "n": 1}),
]


@pytest.mark.parametrize("path", GETS)
def test_what_can_be_got(client, path):
    answer = client.get(path)
    assert answer.status_code == 200 and "error" not in answer.json()
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("path", "asked"), POSTS)
def test_what_can_be_asked(client, path, asked):
    answer = client.post(path, json=asked)
    assert answer.status_code == 200, answer.json()


def test_not_is_what_must_not_be_there(client):
    texts = client.post("/api/constrain", json={"not": ["a"], "length": 8, "n": 10, "seed": 0})
    assert all("a" not in one["text"].split() for one in texts.json()["samples"])
    assert texts.json()["constraint"] == "~contains('a')"


def test_the_page_and_its_parts(client):
    page = client.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert client.get("/page/index.html").text == page.text
    plotly = client.get("/plotly.js")
    assert plotly.status_code == 200 and "plotly.js v" in plotly.text[:200]


@pytest.mark.parametrize(
    "path",
    [
        "/page/..%2Fserver.py",
        "/page/%2e%2e%2fserver.py",
        "/page/../server.py",
        "/page/%2Fetc%2Fpasswd",
        "/page/",
        "/server.py",
        "/page//etc/passwd",
        "/page/..%5Cserver.py",
    ],
)
def test_nothing_outside_the_page_is_served(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "error" in answer.json()


def test_headers_forbid_other_origins(client):
    for path in ("/", "/api/model", "/nowhere", "/plotly.js"):
        headers = client.get(path).headers
        policy = dict(
            part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
        assert not any("http" in allowed or "*" in allowed for allowed in policy.values())
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
    assert client.options("/api/text", headers={"origin": BASE}).status_code == 405


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", "", "10.0.0.1"]
)
def test_other_hosts_are_refused(client, host):
    answer = client.get("/api/model", headers={"host": host})
    assert answer.status_code == 421
    assert answer.json()["error"] == (
        f"The request is for the host {host!r}, which this server is not; open the address that it "
        f"printed when it started."
    )


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:8642", "[::1]"]
)
def test_names_of_this_machine_are_its_own(client, host):
    assert client.get("/api/model", headers={"host": host}).status_code == 200


def test_a_server_on_all_addresses_may_be_called_by_any_address_but_no_name():
    prepared = toy_prepared(toy_model())
    prepared.start = prepared.stop = lambda: None
    with TestClient(make_app(prepared, host="0.0.0.0"), base_url=BASE) as client:
        assert client.get("/api/model", headers={"host": "10.0.0.1:8642"}).status_code == 200
        assert client.get("/api/model", headers={"host": "evil.example"}).status_code == 421
    with TestClient(make_app(prepared, host="lab.example"), base_url=BASE) as client:
        assert client.get("/api/model", headers={"host": "lab.example:8642"}).status_code == 200
        assert client.get("/api/model", headers={"host": "10.0.0.1"}).status_code == 421


def test_names_and_addresses():
    assert [host_of(one) for one in ("a:1", "A", "[::1]:2", "::1", "[fe80::1]")] == [
        "a", "a", "::1", "::1", "fe80::1",
    ]  # fmt: skip
    assert is_loopback("127.0.0.1") and is_loopback("localhost") and is_loopback("[::1]")
    assert not is_loopback("0.0.0.0") and not is_loopback("lab.example")


def test_pages_of_other_sites_are_refused(client):
    for origin in ("https://evil.example", "http://localhost:8642", "null"):
        answer = client.post("/api/next", json={"text": "a"}, headers={"origin": origin})
        assert answer.status_code == 403
        assert answer.json()["error"] == (
            f"The request comes from a page of {origin!r}; only this server's own page may ask it."
        )
    assert client.post("/api/next", json={"text": "a"}, headers={"origin": BASE}).status_code == 200
    plain = client.post(
        "/api/next", content='{"text": "a"}', headers={"content-type": "text/plain"}
    )
    assert plain.status_code == 415
    assert plain.json()["error"] == (
        "The request's content type is 'text/plain' but must be 'application/json'."
    )


def test_large_bodies_are_refused(client):
    answer = client.post("/api/text", json={"text": "a" * MOST_BYTES})
    assert answer.status_code == 413
    size = len(json.dumps({"text": "a" * MOST_BYTES}, separators=(",", ":")))
    assert answer.json()["error"] == (
        f"The request has {size:,} bytes but may have 1,000,000; send less."
    )
    bad = client.get("/api/model", headers={"content-length": "-5"})
    assert bad.status_code == 413
    absurd = client.get("/api/model", headers={"content-length": "9" * 5000})
    assert absurd.status_code == 413


def test_a_large_body_without_a_length_is_not_read_to_its_end():
    read, sent = [], []
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/text", "headers": headers}

    async def receive():
        read.append(1)
        return {"type": "http.request", "body": b" " * 100_000, "more_body": True}

    async def send(message):
        sent.append(message)

    async def app(scope, receive, send):
        raise AssertionError("the request should have been refused")

    asyncio.run(Guard(app, ("localhost",), False)(scope, receive, send))
    assert sent[0]["status"] == 413 and len(read) == 11
    assert json.loads(sent[1]["body"])["error"] == (
        "The request has more than 1,000,000 bytes but may have 1,000,000; send less."
    )


def test_websockets_are_closed(client):
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/"):
        pass


REFUSED = [
    ("get", "/api/states/4", None, 404, "There is no state 4; this model has 0 to 3."),
    ("get", "/api/states/x", None, 422, "state: Input should be a valid integer"),
    ("get", "/api/states?size=201", None, 422, "size: Input should be less than or equal to 200"),
    ("get", "/api/states?page=-1", None, 422, "page: Input should be greater than or equal to 0"),
    ("get", "/api/states?order=up", None, 422, "order: String should match pattern"),
    ("get", "/api/states?sort=up", None, 400, "sort is 'up' but must be one of use, entropy"),
    ("get", "/api/blocks/9", None, 404, "There is no block 9; this model has 0 to 1."),
    ("get", "/api/training", None, 404, "toy has no metrics.jsonl: it keeps no log of a training"),
    ("get", "/nowhere", None, 404, "GET /nowhere is not there."),
    ("post", "/api/model", {}, 405, "POST /api/model: Method Not Allowed."),
    ("post", "/api/text", {}, 422, "text: Field required."),
    ("post", "/api/text", {"text": 3}, 422, "text: Input should be a valid string."),
    ("post", "/api/text", {"text": "a", "x": 1}, 422, "x: Extra inputs are not permitted."),
    ("post", "/api/text", {"text": "a" * 2001}, 400, "The text has 2,001 characters but may have"),
    ("post", "/api/next", {"text": "\ud800"}, 400, "which UTF-8 cannot write"),
    ("post", "/api/fill", {"text": "a"}, 400, "The pattern 'a' has no gap; write ? for one word"),
    ("post", "/api/fill", {"text": "* *"}, 400, "has 2 gaps of unknown length; use one *"),
    ("post", "/api/fill", {"text": "?", "n": 21}, 422, "n: Input should be less than or equal to"),
    ("post", "/api/constrain", {}, 400, "There is no constraint; give words that must be there"),
    ("post", "/api/constrain", {"contains": [""]}, 400, "The text to look for is empty; give at"),
    ("post", "/api/constrain", {"contains": ["a" * 501]}, 400, "may have 500 together; give"),
    ("post", "/api/constrain", {"regex": "("}, 400, "The pattern '(' is wrong"),
    ("post", "/api/constrain", {"regex": "a" * 501}, 422, "regex: String should have at most 500"),
    ("post", "/api/constrain", {"words": "x"}, 400, "words is 'x' but must be such as 10..20"),
    (
        "post",
        "/api/constrain",
        {"contains": ["a"], "length": 101},
        422,
        "length: Input should be l",
    ),
    (
        "post",
        "/api/constrain",
        {"contains": ["zz"]},
        400,
        "cannot write a text that meets contains",
    ),
]


@pytest.mark.parametrize(("method", "path", "asked", "status", "sentence"), REFUSED)
def test_refusals_are_a_status_and_a_sentence(client, method, path, asked, status, sentence):
    how = {} if asked is None else {"content": json.dumps(asked).encode()}
    if how:
        how["headers"] = {"content-type": "application/json"}
    answer = getattr(client, method)(path, **how)
    assert answer.status_code == status, answer.text
    assert sentence in answer.json()["error"]
    assert answer.json()["error"].endswith(".")


def test_what_is_no_json_is_refused(client):
    headers = {"content-type": "application/json"}
    for body in (b"{", b"\xff", b"[1]", b""):
        answer = client.post("/api/text", content=body, headers=headers)
        assert answer.status_code in (400, 422) and answer.json()["error"].endswith(".")


def test_more_than_a_queue_of_requests_is_refused(monkeypatch):
    monkeypatch.setattr("hmmlm.explore.server.MOST_WAITING", 1)
    turns = Turns()

    async def ask():
        first = asyncio.create_task(turns.quick(lambda: 1))
        await asyncio.sleep(0)
        with pytest.raises(Busy, match=r"1 requests wait already; ask again later\."):
            await turns.quick(lambda: 2)
        return await first

    assert asyncio.run(ask()) == 1
    turns.close()


def test_what_nobody_waits_for_any_more_is_not_begun():
    turns, go_on, done = Turns(), threading.Event(), []

    async def ask():
        async def stays():
            await asyncio.Event().wait()

        async def leaves():
            await asyncio.sleep(0.01)

        def hold():
            assert go_on.wait(10)
            return 1

        first = asyncio.create_task(turns.slow(hold, stays()))
        await asyncio.sleep(0.01)
        with pytest.raises(Left, match=r"The client has left, so that nothing is computed for it"):
            await turns.slow(lambda: done.append("left"), leaves())
        go_on.set()
        time.sleep(0.1)  # the thread takes its next job before the loop has had a turn
        assert await first == 1
        await turns.slow(lambda: done.append("stayed"), stays())

    asyncio.run(ask())
    turns.close()
    assert done == ["stayed"]


def test_a_request_that_the_end_of_the_server_cuts_short_is_told_so():
    turns, begun, go_on = Turns(), threading.Event(), threading.Event()

    def hold():
        begun.set()
        go_on.wait(60)

    async def ask():
        asked = asyncio.create_task(turns.slow(hold, asyncio.Event().wait()))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(Left, match=r"The server ends, so that nothing more is computed\."):
            await asked

    try:
        asyncio.run(ask())
    finally:
        go_on.set()
        turns.close()


def test_a_client_that_goes_away_is_noticed(app, monkeypatch):
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "GET", "path": "/api/map", "headers": headers}
    scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http"}
    sent, go_on = [], threading.Event()

    async def ask(*messages):
        given = iter(messages)

        async def receive():
            return next(given, None) or await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        await app(scope, receive, send)

    asked = {"type": "http.request", "body": b"", "more_body": False}
    asyncio.run(ask(asked))
    assert sent[0]["status"] == 200
    sent.clear()
    # An answer that cannot come before the client has left.
    monkeypatch.setattr(Explorer, "map", lambda explorer: go_on.wait(60))
    try:
        asyncio.run(ask(asked, {"type": "http.disconnect"}))
    finally:
        go_on.set()
    assert json.loads(sent[1]["body"])["error"].startswith("The client has left")
