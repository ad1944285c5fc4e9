"""`hmmlm explore` as a process, and what it refuses."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request

import pytest

from commands import SOURCE


def start(
    *arguments: str, cwd, program: tuple[str, str] = ("-m", "hmmlm")
) -> tuple[subprocess.Popen[str], str]:
    """A server that is ready, and its address."""
    process = subprocess.Popen(
        [sys.executable, *program, "explore", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert process.stdout is not None
    found = re.search(r"http://\S+(?=/ \(Ctrl-C ends it\))", process.stdout.readline())
    assert found is not None, process.communicate()
    return process, found.group()


def get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def test_a_model_is_served_until_ctrl_c(made):
    process, url = start("model", "--port", "0", cwd=made.folder)
    with process:
        about = get(url + "/api/model")
        assert about["name"] == "model" and about["states"] == 4 and about["has_training"]
        assert re.fullmatch(r"validation text of corpus, [\d,]+ tokens", about["use_from"])
        taken = subprocess.run(
            [sys.executable, "-m", "hmmlm", "explore", "model", "--port", url.rpartition(":")[2]],
            cwd=made.folder,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )
        assert taken.returncode == 2 and taken.stderr.count("\n") == 1
        assert re.match(
            r"hmmlm: 127\.0\.0\.1:\d+ cannot be listened on: Address already in use; choose "
            r"another with --port N, or --port 0 for a free one\.",
            taken.stderr,
        )
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "", "")


SLOW_MAP = """
import time
from hmmlm.cli import main
from hmmlm.explore.explorer import Explorer

def draw(explorer):
    print("begun", flush=True)
    time.sleep(300)

Explorer.map = draw
main()
"""


def test_ctrl_c_ends_a_server_that_is_at_work(made):
    process, url = start("model", "--port", "0", cwd=made.folder, program=("-c", SLOW_MAP))
    address = urllib.parse.urlparse(url)
    with process:
        try:
            with socket.create_connection((address.hostname, address.port), timeout=60) as client:
                client.sendall(f"GET /api/map HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
                assert process.stdout is not None and process.stdout.readline() == "begun\n"
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=60)
                assert process.returncode == 0 and "Traceback" not in err
        finally:
            process.kill()


def test_leaving_loopback_is_warned_of_and_text_may_be_given(made):
    options = ["--host", "0.0.0.0", "--port", "0", "--text", "test.txt"]
    process, url = start("model", *options, cwd=made.folder)
    with process:
        about = get(url.replace("0.0.0.0", "127.0.0.1") + "/api/model")
        assert re.fullmatch(r"test\.txt, [\d,]+ tokens", about["use_from"])
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        said = "hmmlm: everyone who can reach 0.0.0.0 over the network can ask this model.\n"
        assert err == said


def test_what_is_no_hmm_is_refused(place, refused):
    assert refused("explore", "nowhere") == "nowhere does not exist; give a model's folder."
    assert "corpus is a corpus; a model is needed here." in refused("explore", "corpus")
    config = json.loads((place / "model/config.json").read_text())
    (place / "model/config.json").write_text(json.dumps({**config, "kind": "lstm"}))
    said = refused("explore", "model", "--port", "0")
    assert said.startswith("model is a model of kind lstm, which has no hidden states of an HMM")


def test_a_port_that_is_none_is_refused(refused):
    assert refused("explore", "model", "--port", "70000") == (
        "--port is 70000 but must lie between 0 and 65535."
    )
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        said = refused("explore", "model", "--port", held.getsockname()[1])
    assert "cannot be listened on: Address already in use" in said


def test_a_host_that_is_none_is_refused(refused):
    for host, reason in (("no-such-host.invalid", ".+"), ("..", "it is no name of a host")):
        said = refused("explore", "model", "--port", "0", "--host", host)
        assert re.fullmatch(
            rf"--host '{re.escape(host)}' is no address to listen on: {reason}; give one of this "
            r"machine, such as 127\.0\.0\.1\.",
            said,
        )


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "plotly"])
def test_an_extra_that_is_missing_is_asked_for(refused, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert refused("explore", "model") == (
        f"explore needs {package}, which is not installed; run pip install 'hmmlm[explore]'."
    )


def test_a_text_that_is_not_there_is_refused(refused):
    assert "nowhere.txt" in refused("explore", "model", "--port", "0", "--text", "nowhere.txt")
