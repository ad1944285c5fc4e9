"""A disk that is full, and one that may not be written to: real ones, mounted for one process."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from safetensors import SafetensorError

import hmmlm.hmm_file
import hmmlm.storage
from commands import SOURCE, tree
from hmmlm.errors import InputError
from hmmlm.model import Model

FILES = ["corpus.json", "tokenizer.json", "train-00000.bin"]

# Runs in a mount namespace of its own: small disks that vanish with the process, for anybody who
# may have one. `go` runs a command and tells what it said and what is left on the disk.
SCRIPT = """
import contextlib, io, json, os, shutil, subprocess, sys
from pathlib import Path
import hmmlm.data.preparation
from hmmlm.cli import main
from hmmlm.model import Model

def mount(name, options):
    Path(name).mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(Path(name).absolute())]
    subprocess.run(command, check=True)

def go(case, *argv, disk="small"):
    err, out, status = io.StringIO(), io.StringIO(), None
    sys.argv = ["hmmlm", *argv]
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        try:
            main()
        except SystemExit as end:
            status = end.code
    found[case] = [status, err.getvalue(), sorted(str(p) for p in Path(disk).rglob("*"))]

found = {}
SCALAR = ["--kind=scalar", "--blocks=0", "--dropout=0"]
mount("readonly", "size=64k,ro")
for case in (["prepare", "text.txt"], ["train", "corpus"], ["demo"]):
    go(f"read-only {case[0]}", *case, "--out=readonly/a/new", disk="readonly")

hmmlm.data.preparation._BLOCK = 10_000
go("prepare", "prepare", "many.txt", "--out=many")
mount("growing", "size=64k")
go("full prepare", "prepare", "many.txt", "--out=growing/a/new", disk="growing")
go("full prepare again", "prepare", "many.txt", "--out=growing/a/new", disk="growing")
subprocess.run(["mount", "-o", "remount,size=1m", str(Path("growing").absolute())], check=True)
go("prepare with room", "prepare", "many.txt", "--out=growing/a/new", disk="growing")
found["same"] = [p.read_bytes() == Path("growing/a/new", p.name).read_bytes()
                 for p in sorted(Path("many").iterdir())]

mount("small", "size=64k")
go("small train", "train", "corpus", "--out=small/a/new", "--states=500", *SCALAR)

# Three pages are left for what a run is, its lock and its metrics; its model finds the disk full.
filler = open("small/filler", "wb")
free = os.statvfs("small").f_bavail * os.statvfs("small").f_frsize
filler.write(bytes(free - 3 * 4096))
filler.close()
go("full train", "train", "corpus", "--out=small/a/new", "--states=4", "--epochs=1", *SCALAR)
os.truncate("small/filler", 0)
go("resumed", "train", "--resume=small/a/new")
shutil.rmtree("small/a")
with open("small/filler", "wb") as filler:  # one is left, which the first file takes
    filler.write(bytes(free - 4096))
try:
    Model.load("model").save("small/new")
except Exception as error:
    left = sorted(str(p) for p in Path("small").rglob("*"))
    found["full save"] = [type(error).__name__, str(error), left]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def answers(made, tmp_path_factory) -> dict[str, list]:
    private = ["unshare", "--user", "--map-root-user", "--mount"]
    if os.geteuid() == 0:
        private = ["unshare", "--mount"]
    try:
        subprocess.run([*private, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine does not give a process disks of its own (unshare --mount)")
    folder = tmp_path_factory.mktemp("disks")
    for name in ("text.txt", "corpus", "model"):
        source = made.folder / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    (folder / "many.txt").write_text("a b c d e f g h\n" * 10_000)
    done = subprocess.run(
        [*private, sys.executable, "-c", textwrap.dedent(SCRIPT)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert done.returncode == 0, done.stderr
    assert tree(folder / "small") == tree(folder / "readonly") == {}
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", ["prepare", "train", "demo"])
def test_a_disk_that_may_not_be_written_to(answers, command):
    status, said, left = answers[f"read-only {command}"]
    assert status == 2
    assert said == (
        "hmmlm: readonly/a/new cannot be written: Read-only file system; choose another place or "
        "ask for permission.\n"
    )
    assert left == []


def test_a_corpus_on_a_full_disk(answers):
    # The second time it has less room than what is done takes: nothing of that is lost.
    for case in ("full prepare", "full prepare again"):
        status, said, left = answers[case]
        assert status == 2
        assert said == (
            "hmmlm: The disk is full while writing growing/a/new (No space left on device); what "
            "was done is kept: free some space, and the same command goes on from there.\n"
        )
        assert left[:2] == ["growing/a", "growing/a/.new.unfinished"]
        assert "growing/a/.new.unfinished/corpus/train-00000.bin" in left
    status, said, left = answers["prepare with room"]
    assert (status, said) == (0, "")
    assert left == ["growing/a", "growing/a/new", *(f"growing/a/new/{name}" for name in FILES)]
    assert answers["same"] == [True] * 3


def test_training_asks_for_space_before_it_starts(answers):
    status, said, left = answers["small train"]
    assert status == 2 and left == []
    assert said == (
        "hmmlm: small/a/new needs about 1,028,000 bytes but its disk has 65,536 left; free some "
        "space or choose another disk.\n"
    )


def test_a_disk_that_fills_during_training_costs_only_time(answers):
    status, said, left = answers["full train"]
    assert status == 2 and "small/a/new/run.json" in left
    assert "small/a/new/config.json" not in left
    assert said.startswith("hmmlm: Training is over but the model is not written: The disk is full")
    assert said.endswith("--resume small/a/new, which goes on after step 0.\n")
    status, said, left = answers["resumed"]
    assert status == 0 and said == ""
    names = ("config.json", "metrics.jsonl", "model.safetensors", "tokenizer.json")
    left = [path for path in left if "tensorboard" not in path]
    assert left == ["small/a", "small/a/new", *(f"small/a/new/{n}" for n in names), "small/filler"]


def test_saving_a_model_on_a_full_disk(answers):
    kind, said, left = answers["full save"]
    assert kind == "InputError" and said.startswith("The disk is full while writing small/new (")
    assert left == ["small/filler"]


def test_weights_that_do_not_fit_the_disk(place, monkeypatch):
    def fail(tensors, path, **_):
        Path(path).write_bytes(b"half")
        raise SafetensorError("Error: IoError(Os { code: 28, message: 'No space left on device' })")

    monkeypatch.setattr(hmmlm.hmm_file, "save_file", fail)
    before = tree(place)
    with pytest.raises(InputError, match=r"The disk is full while writing a/b/new \(No space left"):
        Model.load("model").save("a/b/new")
    assert tree(place) == before


def test_words_that_do_not_fit_the_disk(place, call, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hmmlm.data.preparation._RUN_BLOCKS", 1)
    with monkeypatch.context() as patch:
        patch.setattr("hmmlm.data.preparation._write_run", fail)
        answer = call("prepare", "text.txt", "--out=a/new")
    assert answer.status == 2 and "The disk is full while writing a/new (No space" in answer.err
    assert (place / "a/.new.unfinished").is_dir()
    assert call("prepare", "text.txt", "--out=a/new").status == 0
    assert tree(place / "a").keys() == {"new", *(f"new/{name}" for name in FILES)}
