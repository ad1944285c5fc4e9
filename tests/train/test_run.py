"""Runs and their checkpoints: whole, for one at a time, and refused where they are of another."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import hmmlm.train.checkpoint
from hmmlm.errors import InputError
from hmmlm.support import Support
from hmmlm.train.checkpoint import Checkpoints, Saving, describe_difference
from hmmlm.train.loop import Progress, State
from hmmlm.train.run import Interrupts, open_run, read_run, read_support, settle

ABOUT = {"config": {"train": {"epochs": 3}}, "support": "1f"}


def state(step: int, best: int = 0, val: float = math.inf) -> State:
    numbers = {"step": step, "tokens": 10 * step, "seconds": 1.5, "position": {"epoch": 1}}
    numbers["best"] = {
        "kept": best,
        "step": best,
        "val": val,
        "waited": 2,
        "divisor": 4.0,
        "bad": 1,
    }
    tensors = {"model.a": torch.arange(6.0).view(2, 3).T * step, "learner.n": torch.tensor(step)}
    return State(tensors, numbers)


def checkpoints(folder: Path, about: dict = ABOUT, **saving) -> Checkpoints:
    return Checkpoints(folder / "checkpoints", about, Saving(**saving))


def steps(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in sorted((folder / "checkpoints").iterdir())]


@pytest.mark.parametrize("val", [math.inf, 3.25])
def test_a_checkpoint_gives_back_what_was_written(tmp_path, val):
    written = state(7, best=5, val=val)
    checkpoints(tmp_path).write(written)
    read = checkpoints(tmp_path).read()
    assert read is not None and read.numbers == written.numbers
    assert read.tensors.keys() == written.tensors.keys()
    assert all(torch.equal(read.tensors[name], written.tensors[name]) for name in read.tensors)


def test_the_newest_stay_and_that_of_the_best_step(tmp_path):
    held = checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 4, 5, 6):
        held.write(state(step, best=2 if step > 1 else 1))
    assert steps(tmp_path) == [2, 5, 6]
    held.write(state(7, best=7))
    assert steps(tmp_path) == [6, 7]
    assert held.newest() == 7 and checkpoints(tmp_path / "none").newest() is None
    assert checkpoints(tmp_path / "none").read() is None


def test_what_a_killed_process_left_is_swept_up(tmp_path):
    checkpoints(tmp_path).write(state(1))
    (tmp_path / "checkpoints/.step-000000002.abc").mkdir()
    (tmp_path / "checkpoints/.step-000000002.abc/state.safetensors").write_bytes(b"half")
    assert checkpoints(tmp_path).read().numbers["step"] == 1
    checkpoints(tmp_path).sweep()
    assert steps(tmp_path) == [1]


def test_a_checkpoint_is_due_by_steps_and_by_time(tmp_path, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(hmmlm.train.checkpoint.time, "monotonic", lambda: clock[0])
    held = checkpoints(tmp_path, save_steps=3, save_minutes=2.0)
    assert [held.due(step) for step in (1, 2, 3, 4, 6)] == [False, False, True, False, True]
    clock[0] += 121
    assert held.due(7)
    held.write(state(7))
    assert not held.due(8)
    assert not checkpoints(tmp_path).due(3)


@pytest.mark.parametrize("name", ["state.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_an_error_with_a_way_out(tmp_path, name):
    held = checkpoints(tmp_path)
    held.write(state(1))
    file = tmp_path / "checkpoints/step-000000001" / name
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(
        InputError,
        match=r"step-000000001 is damaged \(.*\); remove that folder to go"
        r" on from the start: there is no other\.",
    ):
        held.read()
    held.write(state(2))
    assert held.read().numbers["step"] == 2
    (tmp_path / "checkpoints/step-000000002" / name).unlink()
    with pytest.raises(InputError, match=r"damaged .* remove that folder to go on from step 1\."):
        held.read()


@pytest.mark.parametrize(
    "path, value, why",
    [
        (["best"], None, "'NoneType' object is not subscriptable"),
        (["step"], 10**9, "step is 1000000000 but the folder's 1"),
        (["step"], "a", "step is 'a' but the folder's 1"),
        (["tokens"], "many", "tokens is 'many'"),
        (["seconds"], -1, "seconds is -1"),
        (["seconds"], True, "seconds is True"),
        (["position"], 3, "position is 3"),
        (["position"], {"epoch": 0, "batch": 1.5}, r"position is {'epoch': 0, 'batch': 1\.5}"),
        (["best", "val"], "low", "val is 'low'"),
        (["best", "divisor"], 0, "divisor is 0"),
        (["best", "waited"], None, "waited is None"),
    ],
)
def test_numbers_of_a_checkpoint_that_cannot_be(tmp_path, path, value, why):
    held = checkpoints(tmp_path)
    held.write(state(1))
    file = tmp_path / "checkpoints/step-000000001/state.json"
    content = json.loads(file.read_text())
    place = content["numbers"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=rf"step-000000001 is damaged \({why}\); remove that"):
        held.read()
    del place[path[-1]]
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=rf"is damaged \('{path[-1]}'\); remove that folder"):
        held.read()
    file.write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"is damaged \(.*recursion.*\); remove that folder"):
        held.read()


def test_tensors_of_a_checkpoint_are_all_there_in_their_shapes(tmp_path):
    held = checkpoints(tmp_path)
    held.write(state(1))
    file = tmp_path / "checkpoints/step-000000001/state.safetensors"
    tensors = load_file(file)
    for wrong in ({"model.a": tensors["model.a"]}, {**tensors, "model.a": torch.zeros(3, 3)}):
        save_file(wrong, file)
        with pytest.raises(
            InputError, match=r"is damaged \((model\.a|learner\.n) is not as it was written\); rem"
        ):
            held.read()


def test_a_folder_that_names_no_step(tmp_path):
    held = checkpoints(tmp_path, keep=1)
    held.write(state(1))
    for name in ("step-foo", "step-1_0", "step-²"):
        folder = tmp_path / "checkpoints" / name
        folder.mkdir()
        wanted = rf"{name} is damaged \(its name has no step\); remove that folder .* step 1\."
        with pytest.raises(InputError, match=wanted):
            held.read()
        assert held.newest() == 1
        folder.rmdir()
    (tmp_path / "checkpoints/step-foo").mkdir()
    held.write(state(2))
    assert held.newest() == 2


def test_a_checkpoint_of_another_run_or_version_is_refused(tmp_path, monkeypatch):
    checkpoints(tmp_path).write(state(1))
    other = {"config": {"train": {"epochs": 4}}, "support": "1f"}
    wanted = r"is of another run: config\.train\.epochs was 3 and is 4\. Go on with what"
    with pytest.raises(InputError, match=wanted):
        checkpoints(tmp_path, other).read()
    monkeypatch.setattr(hmmlm.train.checkpoint, "__version__", "9.9")
    with pytest.raises(InputError, match=r"hmmlm_version was '.*' and is '9\.9'"):
        checkpoints(tmp_path).read()
    path = tmp_path / "checkpoints/step-000000001/state.json"
    path.write_text(path.read_text().replace("hmmlm-checkpoint-1", "hmmlm-checkpoint-7"))
    with pytest.raises(InputError, match=r"format 'hmmlm-checkpoint-7' but this version reads"):
        checkpoints(tmp_path).read()


def test_differences_are_named_with_both_values():
    a, b = {"x": {"p": 1, "q": 2}, "y": 3}, {"x": {"p": 1, "q": 5}, "z": 4}
    said = "x.q was 2 and is 5; y was 3 and is None; z was None and is 4"
    assert describe_difference(a, b) == said
    assert describe_difference(dict.fromkeys("abcde", 1), {}).endswith("; and 2 more")


@pytest.mark.parametrize("name, value", [("save_steps", -1), ("save_minutes", -0.5), ("keep", 0)])
def test_settings_out_of_range(name, value):
    with pytest.raises(InputError, match=rf"{name} is {value} but must be at least"):
        Saving(**{name: value})


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    held = checkpoints(tmp_path)
    held.write(state(1))

    def fail(tensors, path):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hmmlm.train.checkpoint, "save_file", fail)
    with pytest.raises(InputError, match=r"The disk is full while writing .*step-000000002"):
        held.write(state(2))
    assert steps(tmp_path) == [1] and held.read().numbers["step"] == 1


def progress(step: int) -> Progress:
    return Progress(step, 9, 1, 2.0, math.exp(2.0), 10 * step, 5.0, 0.1, None)


def open_new(folder: Path, **options):
    return open_run(folder, ABOUT, Saving(), source={"corpus": "/text"}, **options)


def test_a_run_can_be_gone_on_with_and_ends_as_a_folder_without_leftovers(tmp_path):
    folder = tmp_path / "a/run"
    with open_new(folder) as run:
        for step in (1, 2, 3):
            run.add_metrics(progress(step))
        run.checkpoints.write(state(2))
    assert read_run(folder) == (ABOUT, {"corpus": "/text"})
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 4, "lo')
    with open_new(folder, resume=True) as run:
        assert run.checkpoints.read().numbers["step"] == 2
        run.cut_metrics(2)
        run.add_metrics(progress(3))
        run.finish()
    assert [path.name for path in folder.iterdir()] == ["metrics.jsonl"]
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
    with pytest.raises(InputError, match=r"has no run\.json, so there is nothing to resume"):
        read_run(folder)


def test_a_line_of_metrics_is_whole_or_not_there(tmp_path):
    """A real limit of the size of files, which a process of its own has."""
    code = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_run import open_new, progress
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open_new(Path(sys.argv[1])) as run:
    run.add_metrics(progress(1))
    size = (run.folder / "metrics.jsonl").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))
    try:
        run.add_metrics(progress(2))
    except OSError as error:
        print(error.strerror)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10 * size, resource.RLIM_INFINITY))
    run.add_metrics(progress(3))
"""
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run"), here], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "File too large\n"
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 3]


def test_a_disk_without_locks_says_so(tmp_path, monkeypatch):
    def no(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    with open_new(tmp_path / "one") as run:
        assert run.unlocked == ""
    monkeypatch.setattr("hmmlm.train.run.fcntl.flock", no)
    with open_new(tmp_path / "two") as run:
        assert run.unlocked == "Function not implemented"


@pytest.mark.parametrize("left", [["run.json", "run.lock"], ["checkpoints", "run.lock"], []])
def test_what_a_kill_at_the_end_left_is_removed(tmp_path, left):
    folder, ours = tmp_path / "run", ["config.json", "metrics.jsonl", "model.safetensors"]
    folder.mkdir()
    for name in [*ours, *left]:
        if name == "checkpoints":
            (folder / "checkpoints/step-000000003").mkdir(parents=True)
        else:
            (folder / name).write_text("{}")
    if left:
        (folder / ".model.safetensors.x1f").write_bytes(b"half")
    assert settle(folder) == bool(left)
    assert sorted(path.name for path in folder.iterdir()) == ours
    assert not settle(folder)


def test_files_half_written_are_removed_when_a_run_goes_on(tmp_path):
    with open_new(tmp_path / "run") as run:
        run.add_metrics(progress(1))
    (tmp_path / "run/.config.json.x1f").write_bytes(b"half")
    (tmp_path / "run/.mine").write_bytes(b"whole")
    with open_new(tmp_path / "run", resume=True):
        names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"run.json", "run.lock", "metrics.jsonl", ".mine"}


def test_the_support_of_a_start_is_kept(tmp_path):
    support = Support.from_clusters([0, 1, 1], 2)
    with open_new(tmp_path / "run") as run:
        run.keep_support(support, torch.float64)
        assert read_support(run.folder) is None  # there is no checkpoint that has the weights
        run.checkpoints.write(state(1))
        found = read_support(run.folder)
        assert found is not None and found[1] == torch.float64
        read = found[0]
        assert read.num_states == 4
        assert torch.equal(read.rows, support.rows)
        assert torch.equal(read.row_of_word, support.row_of_word)
        (run.folder / "support.safetensors").write_bytes(b"half")
        with pytest.raises(InputError, match=r"support\.safetensors is damaged .*; train anew"):
            read_support(run.folder)
        run.finish()
    assert list((tmp_path / "run").iterdir()) == []


def test_odd_lines_of_metrics_are_dropped(tmp_path):
    odd = [b"3", b"{}", b"\xff", b'{"step":"a"}', b"", b"[" * 100_000, b'{"step":true}', b"null"]
    with open_new(tmp_path / "run") as run:
        for step in (1, 2, 3):
            run.add_metrics(progress(step))
        path = tmp_path / "run/metrics.jsonl"
        good = path.read_bytes().splitlines()
        path.write_bytes(b"\n".join([good[0], *odd, *good[1:]]))
        run.cut_metrics(3)
        assert path.read_bytes().splitlines() == good
        run.cut_metrics(2)
        run.add_metrics(progress(3))
    assert path.read_bytes().splitlines() == good


def test_an_error_before_the_first_step_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), open_new(tmp_path / "a/b/run"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_an_error_later_leaves_what_there_is(tmp_path):
    with pytest.raises(RuntimeError), open_new(tmp_path / "run") as run:
        run.add_metrics(progress(1))
        raise RuntimeError
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"run.json", "metrics.jsonl"}


def test_a_run_is_for_one_process_at_a_time(tmp_path):
    with open_new(tmp_path / "run") as run:
        run.add_metrics(progress(1))
        wanted = rf"run is being trained by another process \(number {os.getpid()}\); wait for it"
        with pytest.raises(InputError, match=wanted), open_new(tmp_path / "run", resume=True):
            raise AssertionError
    with open_new(tmp_path / "run", resume=True):
        pass


def test_a_run_is_gone_on_with_as_it_was_begun(tmp_path):
    with open_new(tmp_path / "run") as run:
        run.add_metrics(progress(1))
    other = {**ABOUT, "support": "2e"}
    with (
        pytest.raises(InputError, match=r"is another one: support was '1f' and is '2e'\. Go on"),
        open_run(tmp_path / "run", other, Saving(), source={}, resume=True),
    ):
        raise AssertionError
    with pytest.raises(InputError, match="already exists"), open_new(tmp_path / "run"):
        raise AssertionError


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("{", r"run\.json is damaged; train anew in another folder\."),
        ('{"format": "hmmlm-run-1"}', r"run\.json is damaged"),
        ("[" * 100_000, r"run\.json is damaged"),
        ('{"format": "hmmlm-run-1", "about": [], "source": {}}', r"run\.json is damaged"),
        ('{"format": "hmmlm-run-1", "about": {}, "source": {}}', r"run\.json is damaged"),
        ('{"format": "hmmlm-run-1", "about": {"config": 3}, "source": {}}', "is damaged"),
        ('{"format": "hmmlm-run-1", "about": {"config": {"a": 3}}, "source": {}}', "is damaged"),
        ('{"format": "hmmlm-run-1", "about": {"config": {}}, "source": []}', "is damaged"),
        ('{"format": "hmmlm-run-1", "about": {"config": {}}, "source": {"text": 3}}', "is damage"),
        ('{"format": "x", "about": {}, "source": {}}', r"format 'x' but this version reads"),
    ],
)
def test_a_description_that_cannot_be_read(tmp_path, text, wanted):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=wanted):
        read_run(tmp_path)


def test_the_first_signal_asks_and_a_second_ctrl_c_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        assert interrupts.asked is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.asked == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_checkpoint_on_a_disk_with_a_limit(tmp_path):
    """A real limit of the size of files, which a process of its own has."""
    code = """
import resource, signal, sys
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[2])
from test_run import checkpoints, state
from hmmlm.errors import InputError
held = checkpoints(Path(sys.argv[1]))
held.write(state(1))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
large = state(2)
large.tensors["model.a"] = torch.zeros(10_000)
try:
    held.write(large)
except InputError as error:
    print(error)
print(held.read().numbers["step"])
"""
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), here], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    said, step = done.stdout.splitlines()
    assert said.startswith("The disk is full while writing") and "File too large" in said
    assert step == "1" and steps(tmp_path) == [1]
