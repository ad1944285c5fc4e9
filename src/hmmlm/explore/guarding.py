"""What a request must be before it is answered: from here, small, and of this page."""

import ipaddress
import json
from collections.abc import Sequence
from typing import Any

MOST_BYTES = 1_000_000
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    # Plotly makes functions of strings for its WebGL, and sets style attributes.
    "content-security-policy": (
        "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; font-src 'self' data:; worker-src blob:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


def host_names(host: str) -> tuple[str, ...]:
    """The names by which a server that listens on a host may be called."""
    return (*LOOPBACK, host.strip("[]").lower())


def is_wildcard(host: str) -> bool:
    return host in ("0.0.0.0", "::", "")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_of(header: str) -> str:
    """The name in a Host header, without its port."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


class Guard:
    """Refuses requests that call the server by another name, come from another page, or are large.

    A page of another site can make a browser send requests here, by a name that it lets point to
    this machine (then `Host` is that name) or across sites (then `Origin` is). A server on all
    addresses may be called by any address, for which no name can stand.
    """

    def __init__(self, app: Any, names: Sequence[str], any_address: bool) -> None:
        self.app, self.names, self.any_address = app, set(names), any_address

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {}
        for name, value in scope["headers"]:
            headers[name.decode("latin-1").lower()] = value.decode("latin-1")

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        refusal = self._refusal(scope["method"], headers)
        if refusal is None:
            body, refusal = await _read_body(receive)
        if refusal is not None:
            await _refuse(guarded, *refusal)
            return
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Any:
            return next(given, None) or await receive()

        await self.app(scope, replay, guarded)

    def _refusal(self, method: str, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._is_known(host):
            return 421, (
                f"The request is for the host {host[:100]!r}, which this server is not; open the "
                f"address that it printed when it started."
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return 403, (
                f"The request comes from a page of {origin[:100]!r}; only this server's own page "
                f"may ask it."
            )
        size = headers.get("content-length", "0")
        if not size.isdecimal() or len(size) > 20 or int(size) > MOST_BYTES:
            return 413, _too_large(size[:20])
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            return 415, (
                f"The request's content type is {kind[:100]!r} but must be 'application/json'."
            )
        return None

    def _is_known(self, header: str) -> bool:
        host = host_of(header)
        if host in self.names:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return self.any_address


async def _read_body(receive: Any) -> tuple[bytes, tuple[int, str] | None]:
    """The body of a request, of which no more is read than is allowed."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"", None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BYTES:
            return b"", (413, _too_large(f"more than {MOST_BYTES:,}"))
        if not message.get("more_body"):
            return b"".join(parts), None


def _too_large(size: str) -> str:
    said = f"{int(size):,}" if size.isdecimal() else size
    return f"The request has {said} bytes but may have {MOST_BYTES:,}; send less."


async def _refuse(send: Any, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 413:  # the rest of the body is not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
