"""`hmmlm sweep`: several trainings from one file."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from commands import BASE, SOURCE, Answer, one_child, start_sweep, tree
from hmmlm import Model
from hmmlm.cli import main, sweeping
from hmmlm.train.config import make_config
from hmmlm.train.tables import override


@pytest.fixture(autouse=True)
def source_for_trainings(monkeypatch) -> None:
    """Trainings find this source from whatever folder they start in."""
    monkeypatch.setenv("PYTHONPATH", SOURCE)


def sweep_file(table: str, base: str = BASE) -> None:
    Path("many.toml").write_text(base + table)


def last_json(answer: Answer) -> dict:
    return json.loads(answer.out.splitlines()[-1])


def finish(run: sweeping.Run) -> None:
    """Leaves what a training of a run would leave."""
    shutil.copytree("model", run.folder)
    config = json.loads((run.folder / "config.json").read_text())
    config["training"] = make_config(override({}, run.changes)).as_tables()
    (run.folder / "config.json").write_text(json.dumps(config))


@pytest.fixture
def started(monkeypatch) -> list[sweeping.Run]:
    """The runs that would be trained; each is, in no time, by a copy of the model at hand."""
    found: list[sweeping.Run] = []

    def start(run, said, at_once, device):
        found.append(run)
        finish(run)
        return subprocess.Popen(["true"])

    monkeypatch.setattr(sweeping, "_start", start)
    return found


@pytest.fixture
def trained_here(monkeypatch) -> None:
    """Trainings are real but in this process, which has all that they would import."""

    def start(run, said, at_once, device):
        changes = (f"--set={change}" for change in run.changes)
        command = ["hmmlm", "train", "--out", str(run.folder), "--device", device, *changes]
        with (
            monkeypatch.context() as patch,
            said.open("w") as errors,
            redirect_stdout(io.StringIO()),
            redirect_stderr(errors),
            pytest.raises(SystemExit) as end,
        ):
            patch.setattr(sys, "argv", command)
            main()
        return subprocess.Popen(["sh", "-c", f"exit {end.value.code or 0}"])

    monkeypatch.setattr(sweeping, "_start", start)


def names(runs: list[sweeping.Run]) -> list[str]:
    return [run.folder.name for run in runs]


def test_a_sweep_trains_skips_and_goes_on_after_a_failure(place, call, trained_here):
    lines = Path("text.txt").read_text().splitlines()
    Path("few.txt").write_text("".join(f"{line}\n" for line in lines[:10]))
    sweep_file(
        """
        [sweep]
        out = "found"
        grid = { "train.learning_rate" = [0.001, 0.5] }
        list = [{ data.corpus = "no/corpus" }, { data.corpus = "", data.text = "few.txt" }]
        """
    )
    answer = call("sweep", "many.toml", "--at-once=2", "--json")
    assert answer.status == 1 and answer.err == "", answer
    result = last_json(answer)
    assert result["folder"] == "found"
    rates = ["train.learning_rate=0.5", "train.learning_rate=0.001"]
    expected = [*rates, "data.corpus=,data.text=few.txt", "data.corpus=no_corpus"]
    assert [run["name"] for run in result["runs"]] == expected
    assert [run["state"] for run in result["runs"]] == ["trained"] * 3 + ["failed"]
    for run in result["runs"][:2]:
        lines = Path(run["folder"], "metrics.jsonl").read_text().splitlines()
        kept = [json.loads(line) for line in lines]
        best = min((step for step in kept if step["val"]), key=lambda step: step["val"])
        assert (run["val"], run["best_step"]) == (best["val"], best["step"])
        assert run["seconds"] == kept[-1]["tokens"] / kept[-1]["tokens_per_second"]
        assert run["settings"] == {"train.learning_rate": kept_rate(run["folder"])}
        Model.load(run["folder"])
    unheld, failed = result["runs"][2:]  # a text of ten lines has none held out
    assert unheld["val"] is None and unheld["best_step"] is None and unheld["seconds"] > 0
    reason = "no/corpus does not exist; give a corpus folder, made by hmmlm prepare."
    assert failed["error"] == reason and failed["val"] is None
    shown = answer.out.splitlines()
    assert shown[0] == "4 runs in found, 0 of them finished before"
    assert any(re.fullmatch(r"\d of 4  data\.corpus=no_corpus  failed: no/.*", x) for x in shown)
    table = [line.split() for line in shown[-6:-1]]
    assert table[1][:2] == [rates[0], f"{result['runs'][0]['val']:.2f}"]
    assert table[1][-1] == "trained" and shown[-2].split(maxsplit=1)[1] == f"failed: {reason}"

    before = tree(place / "found")
    again = call("sweep", "many.toml", "--json")
    assert again.status == 1
    assert again.out.splitlines()[0] == "4 runs in found, 3 of them finished before"
    assert [run["state"] for run in last_json(again)["runs"]] == ["kept"] * 3 + ["failed"]
    unchanged = {"state": None}
    for old, new in zip(result["runs"], last_json(again)["runs"], strict=True):
        assert {**old, **unchanged} == {**new, **unchanged}
    assert tree(place / "found") == before


def kept_rate(folder: str) -> float:
    config = json.loads((Path(folder) / "config.json").read_text())
    return config["training"]["train"]["learning_rate"]


def test_all_combinations_and_the_list_are_run(place, call, started):
    sweep_file(
        """
        [sweep.grid]
        train.learning_rate = [0.01, 1e-5]
        "train.seed" = [1, 2]
        [[sweep.list]]
        model.kind = "lowrank"
        model.width = 8
        [[sweep.list]]
        """
    )
    answer = call("sweep", "many.toml", "--json")
    assert answer.status == 0, answer.err
    assert names(started) == [
        "train.learning_rate=0.01,train.seed=1",
        "train.learning_rate=0.01,train.seed=2",
        "train.learning_rate=1e-05,train.seed=1",
        "train.learning_rate=1e-05,train.seed=2",
        "model.kind=lowrank,model.width=8",
        "base",
    ]
    assert last_json(answer)["folder"] == "runs/many"
    assert started[1].settings == {"train.learning_rate": 0.01, "train.seed": 2}
    assert override({}, started[4].changes)["model"] == {
        "kind": "lowrank", "states": 4, "blocks": 0, "width": 8,
    }  # fmt: skip


def test_settings_reach_the_training_as_they_are(place, call, started):
    sweep_file('[sweep]\nlist = [{ train.clip = 2, model.clusters = "a \\"b\\" é", '
               'data.reset = false, data.layout = "streams", '
               'train.learning_rate = 1e-5 }]\n')  # fmt: skip
    assert call("sweep", "many.toml", "--out=here").status == 0
    (run,) = started
    assert run.folder.parent == Path("here")
    tables = override({}, run.changes)
    assert tables["train"] == {"epochs": 1, "clip": 2, "learning_rate": 1e-5}
    assert tables["model"]["clusters"] == 'a "b" é' and tables["data"]["reset"] is False
    assert tables["data"]["corpus"] == "corpus"


def test_a_training_gets_its_share_of_the_processors(place, monkeypatch):
    seen = {}

    def popen(command, **options):
        seen.update(options["env"], command=command)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    run = sweeping.Run(Path("x"), {}, ["train.epochs=2"])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    sweeping._start(run, Path("said"), 1, "cpu")
    assert "OMP_NUM_THREADS" not in seen
    assert seen["command"][1:] == [
        "-m", "hmmlm", "train", "--out", "x", "--device", "cpu", "--set=train.epochs=2",
    ]  # fmt: skip
    sweeping._start(run, Path("said"), 5, "cpu")
    assert seen["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    sweeping._start(run, Path("said"), 5, "cpu")
    assert seen["OMP_NUM_THREADS"] == "7"


def test_no_more_are_trained_at_once_than_asked(place, call, monkeypatch):
    alive, most = [], []

    def start(run, said, at_once, device):
        finish(run)
        alive.append(subprocess.Popen(["sleep", "0.3"]))
        most.append(sum(process.poll() is None for process in alive))
        return alive[-1]

    monkeypatch.setattr(sweeping, "_start", start)
    sweep_file("[sweep.grid]\ntrain.seed = [1, 2, 3, 4, 5]\n")
    assert call("sweep", "many.toml", "--at-once=2").status == 0
    assert len(alive) == 5 and max(most) == 2


def test_a_training_that_dies_without_a_word_is_told(place, call, monkeypatch):
    def start(run, said, at_once, device):
        said.touch()
        return subprocess.Popen(["sh", "-c", "kill -9 $$"])

    monkeypatch.setattr(sweeping, "_start", start)
    sweep_file("[sweep.grid]\ntrain.seed = [1]\n")
    answer = call("sweep", "many.toml")
    assert answer.status == 1
    assert "failed: It ended with status -9 and said nothing." in answer.out


def test_names_are_short_stable_and_fit_for_a_folder():
    name = sweeping._name
    assert name({"train.seed": 1, "data.reset": True}) == "data.reset=true,train.seed=1"
    assert name({"train.seed": 1, "a.b": 2}) == name({"a.b": 2, "train.seed": 1})
    assert name({"data.corpus": "../a b/é"}) == "data.corpus=.._a_b_é"
    assert name({}) == "base"
    long = [name({f"model.setting{n}": n + m for n in range(30)}) for m in (0, 1, 0)]
    assert len(long[0]) == 120 and long[0] == long[2] != long[1]
    assert len(name({"data.corpus": "é" * 200}).encode()) <= 120


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            "",
            "many.toml has no table [sweep]; add one, such as [sweep.grid] with "
            '"train.learning_rate" = [0.01, 0.03], or use hmmlm train.',
        ),
        ("[sweep]\n", "The [sweep] of many.toml is empty; give a grid or a list of settings."),
        ("[sweep.grid]\n", "The [sweep] of many.toml is empty; give a grid or a list of settings."),
        ("[sweep]\nlist = []\n", "The [sweep] of many.toml is empty; give a grid or a list of "),
        ("[sweep]\ngird = {}\n", "There is no setting sweep.gird. Known are grid, list, out."),
        ("[sweep]\nout = 3\n", "sweep.out is 3 but must be the name of a folder."),
        ("[sweep]\ngrid = 3\n", "sweep.grid is 3 but must be a table of lists: [sweep.grid]."),
        (
            "[sweep.grid]\ntrain.seed = 1\n",
            "sweep.grid has train.seed = 1 but must have a list of values, such as [1].",
        ),
        (
            "[sweep.grid]\ntrain.seed = []\n",
            "sweep.grid has no values for train.seed; give at least one or remove it.",
        ),
        (
            "[sweep]\nlist = [1]\n",
            'sweep.list is [1] but must be a list of settings, such as [{ "train.seed" = 1 }].',
        ),
        (
            "[sweep.grid]\ntrain.seed = [1, 1]\n",
            "Two runs of many.toml are named train.seed=1; leave one of them out.",
        ),
        (
            "[sweep]\ngrid = { train.seed = [1, 2] }\nlist = [{ train.seed = 2 }]\n",
            "Two runs of many.toml are named train.seed=2; leave one of them out.",
        ),
        ("[sweep.grid]\ntrain.sed = [1]\n", "There is no setting train.sed. Did you mean seed?"),
        ("[sweep.grid]\ntrian.seed = [1]\n", "There is no table [trian]. Did you mean train?"),
        ("[sweep.grid]\nseed = [1]\n", "'seed=1' is not a setting; write table.key=value, such "),
        (
            "[sweep.grid]\ntrain.seed = [1, 'a']\n",
            "train.seed is 'a' but must be a whole number.",
        ),
        (
            "[sweep.grid]\nmodel.blocks = [2, 3]\n",
            "4 states cannot be shared equally among 3 blocks; use 3 states, say.",
        ),
        ("[sweep", "many.toml is not TOML: "),
    ],
)
def test_sweeps_that_are_refused_before_any_training(place, refused, started, table, said):
    sweep_file(table)
    assert refused("sweep", "many.toml").startswith(said)
    assert started == []


def test_other_mistakes(place, refused, started):
    assert refused("sweep", "no.toml") == "no.toml cannot be read: No such file or directory."
    sweep_file("[sweep.grid]\ntrain.seed = [1]\n")
    said = "text.txt is a file but must be a folder for the runs; choose another."
    assert refused("sweep", "many.toml", "--out=text.txt") == said
    said = "Invalid value for '--at-once': '0' is not a whole number of at least 1"
    assert refused("sweep", "many.toml", "--at-once=0").startswith(said)
    assert "--device is cuda:99 but torch finds" in refused(
        "sweep", "many.toml", "--device=cuda:99"
    )
    assert started == []


def test_a_finished_run_of_other_settings_is_not_taken_for_this_one(place, call, refused, started):
    sweep_file("[sweep.grid]\ntrain.seed = [1, 2]\n")
    assert call("sweep", "many.toml").status == 0
    sweep_file("[sweep.grid]\ntrain.seed = [1, 2, 3]\n", BASE.replace("epochs = 1", "epochs = 5"))
    assert refused("sweep", "many.toml") == (
        "runs/many/train.seed=1 was trained with train.epochs = 1 but the sweep now says 5; remove "
        "the folder or choose another with --out."
    )
    assert len(started) == 2


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("dropout_last = 0.1", "", "train.dropout_last = 0.1 but the sweep now says nothing"),
        ("", "dropout_last = 0.1", "train.dropout_last = nothing but the sweep now says 0.1"),
    ],
)
def test_settings_on_one_side_alone_are_compared_too(
    place, call, refused, started, before, after, said
):
    table = "[sweep.grid]\ntrain.seed = [1]\n"
    sweep_file(table, f"{BASE}{before}\n")
    assert call("sweep", "many.toml").status == 0
    sweep_file(table, f"{BASE}{after}\n")
    assert f"was trained with {said}; remove the folder or" in refused("sweep", "many.toml")


def test_chosen_sizes_and_other_names_of_a_text_are_no_difference(place, call, refused, started):
    table = "[sweep.grid]\ntrain.seed = [1]\n"
    sweep_file(table)
    assert call("sweep", "many.toml").status == 0
    chosen = BASE.replace("states = 4\nblocks = 0\n", "")
    sweep_file(table, chosen.replace('"corpus"', f'"{place}/corpus"'))
    assert call("sweep", "many.toml").status == 0
    assert len(started) == 1
    sweep_file(table, BASE.replace('corpus = "corpus"', 'text = "text.txt"'))
    said = "was trained with data.corpus = 'corpus' but the sweep now says nothing; remove"
    assert said in refused("sweep", "many.toml")


def test_a_run_that_diverged_stays_failed(place, call):
    sweep_file("[sweep.grid]\ntrain.learning_rate = [1e30]\n", BASE.replace("epochs = 1", ""))
    first, second = (call("sweep", "many.toml", "--json") for _ in range(2))
    assert (first.status, second.status) == (1, 1), second
    (one,), (two,) = (last_json(answer)["runs"] for answer in (first, second))
    assert (one["state"], two["state"]) == ("failed", "failed")
    assert two["error"].startswith("Training stopped at step") and one["error"] == two["error"]
    config = json.loads(Path(two["folder"], "config.json").read_text())
    assert two["error"] == f"{config['stopped']} The model was written to {two['folder']}."


def test_an_empty_folder_is_in_nobodys_way(place, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: command[3:6])
    mine = Path("runs/many/full/mine")
    mine.parent.mkdir(parents=True)
    mine.touch()
    Path("runs/many/empty").mkdir()
    for name in ("empty", "full"):
        run = sweeping.Run(Path("runs/many", name), {}, [])
        command = sweeping._start(run, Path("said"), 1, "cpu")
        assert command == ["train", "--out", f"runs/many/{name}"]
    assert not Path("runs/many/empty").exists() and mine.exists()


def test_a_folder_that_does_not_say_its_settings_is_refused(place, refused):
    sweep_file("[sweep.grid]\ntrain.seed = [1]\n")
    Path("runs/many/train.seed=1").mkdir(parents=True)
    Path("runs/many/train.seed=1/config.json").write_text("{}")
    assert refused("sweep", "many.toml") == (
        "runs/many/train.seed=1/config.json does not say how its model was trained; remove the "
        "folder or choose another with --out."
    )


in_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


@in_proc
@pytest.mark.parametrize(
    ("stop", "deaf"), [(signal.SIGINT, False), (signal.SIGTERM, True), (signal.SIGHUP, False)]
)
def test_no_training_goes_on_without_its_sweep(place, stop, deaf):
    trap = "trap '' INT; " if deaf else ""
    sweep_file("[sweep.grid]\ntrain.seed = [1]\n")
    sweep = start_sweep(f"""
import subprocess
import sys
from hmmlm.cli import main, sweeping
sweeping.SECONDS_TO_STOP = 0.5
sweeping._start = lambda *_: subprocess.Popen(
    ["sh", "-c", "{trap}for i in $(seq 500); do sleep 0.1; done"], process_group=0
)
main()
""")
    training = one_child(sweep.pid)
    time.sleep(0.3)
    sweep.send_signal(stop)
    _, err = sweep.communicate(timeout=60)
    assert (sweep.returncode, err) == (130, "hmmlm: stopped.\n")
    assert not Path(f"/proc/{training}").exists()
