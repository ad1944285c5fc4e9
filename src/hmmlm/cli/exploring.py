"""`hmmlm explore`: a model as a page in the browser."""

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hmmlm.cli.asking import Folder
from hmmlm.cli.bars import progress_bar
from hmmlm.cli.output import Device, console, pick_device, say, warn, whole
from hmmlm.errors import InputError

NEEDS = "run pip install 'hmmlm[explore]'"

UseText = Annotated[
    Path | None,
    typer.Option(
        "--text",
        help="A text file or corpus in which use of states is counted; by default the validation "
        "text of the run, else text drawn from the model.",
        metavar="FILE",
    ),
]


def explore(
    model: Folder,
    text: UseText = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on.", metavar="HOST")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="The port; 0 takes a free one.", parser=whole(0), metavar="N")
    ] = 8642,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.")
    ] = False,
    device: Device = "cpu",
) -> None:
    """See a model in the browser: states, texts, blocks, a map, its training, constraints.

    The page is served from this machine to this machine and asks nothing of any other. Ctrl-C ends
    it.
    """
    # Threads that wait for work must not keep the processor from those that have some.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    uvicorn = _uvicorn()
    from hmmlm.explore.guarding import is_loopback
    from hmmlm.explore.preparing import Prepared
    from hmmlm.explore.server import make_app

    with _listen(host, port) as opened:
        with progress_bar(f"Loading {model}", None):
            prepared = Prepared.open(model, text=text, device=pick_device(device))
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{opened.getsockname()[1]}/"
        if not is_loopback(host):
            warn(f"everyone who can reach {host} over the network can ask this model.")
        say(f"{model} is at {url} (Ctrl-C ends it)")
        console.file.flush()
        if open_browser:
            import webbrowser

            webbrowser.open(url)
        app = make_app(prepared, host=host)
        settings = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(settings).run(sockets=[opened])
        _end()


def _end() -> None:
    """Ends the process, whatever its threads still compute: nobody waits for that any more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _uvicorn() -> Any:
    try:
        import fastapi  # noqa: F401
        import plotly  # noqa: F401
        import uvicorn
    except ModuleNotFoundError as error:
        raise InputError(f"explore needs {error.name}, which is not installed; {NEEDS}.") from None
    return uvicorn


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens, before anything is loaded: a port that is taken is told at once."""
    if port > 65535:
        raise InputError(f"--port is {port} but must lie between 0 and 65535.")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no name of a host"
        raise InputError(
            f"--host {host!r} is no address to listen on: {reason}; give one of this machine, "
            f"such as 127.0.0.1."
        ) from None
    opened = None
    try:
        opened = socket.socket(family, kind, proto)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(2048)  # who comes before the server is ready waits
    except OSError as error:
        if opened is not None:
            opened.close()
        raise InputError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}; choose another with "
            f"--port N, or --port 0 for a free one."
        ) from None
    return opened
