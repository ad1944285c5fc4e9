"""The explorer as a web server: FastAPI's routes over an `Explorer`."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hmmlm.errors import InputError
from hmmlm.explore.blocks import block_card, block_list
from hmmlm.explore.cards import state_card, states_page
from hmmlm.explore.explorer import PAGE_SIZE, Explorer
from hmmlm.explore.guarding import Guard, host_names, is_wildcard
from hmmlm.explore.preparing import Missing, Prepared, be_nice

PAGE = Path(__file__).parent / "page"
MOST_WAITING = 1000
"""Requests that may wait for their turn."""


def make_app(prepared: Prepared, *, host: str = "127.0.0.1") -> Any:
    """The application; `host` is what it will listen on."""
    from fastapi import FastAPI, Query, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import FileResponse, Response
    from pydantic import BaseModel, ConfigDict, Field
    from starlette.exceptions import HTTPException

    class Text(BaseModel):
        model_config = ConfigDict(extra="forbid")
        text: str

    class Fill(Text):
        n: int = Field(5, ge=1, le=20)
        seed: int | None = Field(None, ge=0, lt=1 << 63)

    class Constrain(BaseModel):
        model_config = ConfigDict(extra="forbid", populate_by_name=True)
        contains: list[str] = Field([], max_length=10)
        without: list[str] = Field([], max_length=10, alias="not")
        regex: str = Field("", max_length=500)
        words: str = Field("", max_length=20)
        length: int = Field(30, ge=1, le=100)
        n: int = Field(5, ge=0, le=20)
        seed: int | None = Field(None, ge=0, lt=1 << 63)

    explorer, turns = Explorer(prepared), Turns()

    @asynccontextmanager
    async def lifespan(app: Any):
        prepared.start()
        warming = asyncio.create_task(turns.quick(explorer.warm_up))
        yield
        warming.cancel()
        prepared.stop()
        turns.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, names=host_names(host), any_address=is_wildcard(host))

    @app.exception_handler(InputError)
    async def refuse(request: Request, error: InputError) -> Response:
        status = 404 if isinstance(error, Missing) else 503 if isinstance(error, Busy) else 400
        return _json({"error": str(error)}, status)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _json({"error": _told(error.errors())}, 422)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        sentence = f"{request.method} {request.url.path} is not there."
        if error.status_code != 404:
            sentence = f"{request.method} {request.url.path}: {error.detail}."
        return _json({"error": sentence}, error.status_code, error.headers)

    @app.get("/")
    async def page() -> Response:
        return _file(FileResponse, PAGE / "index.html")

    @app.get("/page/{name}")
    async def part(name: str) -> Response:
        found = {path.name: path for path in PAGE.iterdir() if path.is_file()}
        if name not in found:
            raise Missing(f"The page has no file {name!r}.")
        return _file(FileResponse, found[name])

    @app.get("/plotly.js")
    async def plotly() -> Response:
        return _file(FileResponse, plotly_file(), "public, max-age=86400")

    @app.get("/api/model")
    async def model() -> Response:
        return _json(explorer.about())

    @app.get("/api/states")
    async def states(
        sort: str = "",
        order: str = Query("", pattern="^(asc|desc|)$"),
        q: str = Query("", max_length=200),
        block: int | None = None,
        page: int = Query(0, ge=0, le=1 << 30),
        size: int = Query(50, ge=1, le=PAGE_SIZE),
    ) -> Response:
        asked = {"sort": sort, "order": order, "q": q, "block": block, "page": page, "size": size}
        return _json(await turns.quick(lambda: states_page(prepared, **asked)))

    @app.get("/api/states/{state}")
    async def state(state: int) -> Response:
        return _json(await turns.quick(lambda: state_card(prepared, state)))

    @app.post("/api/text")
    async def text(asked: Text) -> Response:
        return _json(await turns.quick(lambda: explorer.read(asked.text)))

    @app.post("/api/next")
    async def next_words(asked: Text) -> Response:
        return _json(await turns.quick(lambda: explorer.next(asked.text)))

    @app.post("/api/fill")
    async def fill(asked: Fill, request: Request) -> Response:
        work = partial(explorer.fill, asked.text, n=asked.n, seed=asked.seed)
        return _json(await turns.slow(work, _left(request)))

    @app.get("/api/blocks")
    async def blocks() -> Response:
        return _json(await turns.quick(lambda: block_list(prepared)))

    @app.get("/api/blocks/{block}")
    async def block(block: int) -> Response:
        return _json(await turns.quick(lambda: block_card(prepared, block)))

    @app.get("/api/map")
    async def map(request: Request) -> Response:
        return _json(await turns.slow(explorer.map, _left(request)))

    @app.get("/api/training")
    async def training() -> Response:
        return _json(await turns.quick(explorer.training))

    @app.post("/api/constrain")
    async def constrain(asked: Constrain, request: Request) -> Response:
        work = partial(explorer.constrain, **asked.model_dump())
        return _json(await turns.slow(work, _left(request)))

    return app


class Turns:
    """Threads that compute, few of them: what is quick does not wait for what is slow."""

    def __init__(self) -> None:
        self._quick = ThreadPoolExecutor(2, "quick")
        self._slow = ThreadPoolExecutor(1, "slow", initializer=be_nice, initargs=(10,))
        self._waiting = 0

    async def quick(self, work: Callable[[], Any]) -> Any:
        with self._waits():
            return await asyncio.wrap_future(self._quick.submit(work))

    async def slow(self, work: Callable[[], Any], left: Coroutine[Any, Any, None]) -> Any:
        """What `work` returns, which is not begun once `left` has ended: nobody waits for it."""
        leaving = asyncio.ensure_future(left)
        try:
            with self._waits():
                job = self._slow.submit(work)
                answer = asyncio.wrap_future(job)
                try:
                    await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    if not answer.done():
                        raise Left("The client has left, so that nothing is computed for it.")
                    return answer.result()
                except asyncio.CancelledError:  # of a request, only by the end of the server
                    raise Left("The server ends, so that nothing more is computed.") from None
                finally:
                    job.cancel()  # at once: through `answer` the thread could still begin it
                    answer.cancel()
        finally:
            leaving.cancel()

    @contextmanager
    def _waits(self) -> Iterator[None]:
        if self._waiting >= MOST_WAITING:
            raise Busy()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def close(self) -> None:
        for pool in (self._quick, self._slow):
            pool.shutdown(wait=False, cancel_futures=True)


class Left(InputError):
    """Nobody waits for the answer."""


class Busy(InputError):
    """More requests wait than the server will hold."""

    def __init__(self) -> None:
        super().__init__(f"{MOST_WAITING:,} requests wait already; ask again later.")


def plotly_file() -> Path:
    """Plotly's JavaScript, which comes in its Python package."""
    import importlib.util

    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise InputError("plotly is not installed; run pip install 'hmmlm[explore]'.")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


async def _left(request: Any) -> None:
    """Ends when the client of a request that has been read goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _file(response: Any, path: Path, keep: str = "no-cache") -> Any:
    if not path.is_file():
        raise Missing(f"The page has no file {path.name!r}.")
    return response(path, headers={"cache-control": keep})


def _json(value: Any, status: int = 200, headers: Any = None) -> Any:
    from fastapi.responses import Response

    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    headers = {**(headers or {}), "cache-control": "no-store"}
    return Response(text.encode(), status, headers, media_type="application/json")


def _told(errors: Any) -> str:
    """What is wrong with a request, in a sentence."""
    first = errors[0]
    where = ".".join(str(part) for part in first.get("loc", ())[1:]) or "The request"
    return f"{where}: {first.get('msg', 'it cannot be read')}."
