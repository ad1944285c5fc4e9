"""`hmmlm distill`: from a teacher to a model, stopped and gone on with, and what it refuses."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from commands import Made, run_command, tree
from hmmlm.data.batches import Windows

RUN = """
[data]
corpus = "corpus"
layout = "windows"
length = 8
batch_size = 4
reset = false

[model]
kind = "lowrank"
states = 6
blocks = 0
width = 4

[train]
epochs = 2
dropout = 0.0

[distill]
teacher = "teacher"
tokens = 200
points = 100
"""


@pytest.fixture(scope="module")
def teacher(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taught") / "teacher"
    small = ["--set=model.width=8", "--set=model.context=4", "--epochs=1", "--batch-size=4"]
    words = ["train", made.folder / "corpus", "--model=decoder", f"--out={folder}", *small]
    assert run_command(*words, cwd=made.folder).status == 0
    return folder


@pytest.fixture
def ready(place, call, teacher):
    """A run's file and a teacher."""
    shutil.copytree(teacher, "teacher")
    Path("run.toml").write_text(RUN)
    return call


def steps(folder: str) -> list[dict]:
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    return [{**json.loads(line), "tokens_per_second": 0} for line in lines]


def test_states_are_made_once_and_learnt_from_first(ready) -> None:
    answer = ready("distill", "run.toml", "--out=new", "--json")
    assert answer.status == 0, answer.err
    said = json.loads(answer.out.splitlines()[-1])
    kept = Path(said["states"])
    assert kept.parent == Path("corpus") and kept.name.startswith("states-")
    states = np.load(kept / "states.npy")
    assert len(states) == 200 and set(states.tolist()) == set(range(6))
    config = json.loads(Path("new/config.json").read_text())
    assert config["states"]["teacher"].startswith("decoder ")
    assert config["training"]["data"]["states"] == str(kept)
    # Six batches of words and states, which are less probable than words.
    found = [step["loss"] for step in steps("new")]
    assert min(found[:6]) > max(found[7:12])
    before = (kept / "states.npy").stat().st_mtime_ns
    answer = ready("distill", "run.toml", "--out=again")
    assert "made before" in answer.err + answer.out
    assert (kept / "states.npy").stat().st_mtime_ns == before
    assert steps("again") == steps("new")
    answer = ready("train", "run.toml", "--out=plain")
    assert answer.err == "hmmlm: There is no table [distill]. Known are data, model, train.\n"
    assert ready("distill", "run.toml", "--out=other", "--set=distill.random=true").status == 0
    assert len(list(Path("corpus").glob("states-*"))) == 2


def test_states_alone(ready, place) -> None:
    answer = ready("distill", "run.toml", "--only-states", "--json")
    assert answer.status == 0 and not Path("runs").exists()
    (kept,) = Path("corpus").glob("states-*")
    assert json.loads(answer.out.splitlines()[-1]) == {"states": str(kept)}
    assert ready("distill", "run.toml", "--out=new").status == 0
    assert len(list(Path("corpus").glob("states-*"))) == 1


def test_the_first_tokens_alone(ready) -> None:
    assert ready("distill", "run.toml", "--out=whole").status == 0
    (kept,) = Path("corpus").glob("states-*")
    Path("plain.toml").write_text(RUN.partition("[distill]")[0])
    told = ["train", "plain.toml", f"--set=data.states={kept}"]
    assert ready(*told, "--out=same").status == 0
    assert steps("same") == steps("whole")
    # 4 rows of 8 tokens make a batch: 3 batches with states instead of 6, of 10 instead of all.
    assert ready(*told, "--out=part", "--set=data.shown=96", "--set=data.tokens=320").status == 0
    assert [step["steps"] for step in steps("part")[:1]] == [20]
    found = [step["loss"] for step in steps("part")]
    assert min(found[:3]) > max(found[4:10])
    assert ready(*told, "--out=few", "--set=data.tokens=64").status == 0
    assert [step["steps"] for step in steps("few")[:1]] == [4]
    # A teacher that has read less than was asked for is another one's work.
    assert ready("distill", "run.toml", "--out=less", "--set=data.tokens=64").status == 0
    sizes = {len(np.load(path / "states.npy")) for path in Path("corpus").glob("states-*")}
    assert sizes == {64, 200}
    shutil.copytree(kept, "other")
    about = json.loads(Path("other/about.json").read_text())
    Path("other/about.json").write_text(json.dumps({**about, "corpus": {"vocabulary": "no"}}))
    for change, message in (
        ("data.shown=201", "data.shown is 201 but"),
        ("data.shown=-1", "shown is -1 but must be at least 0"),
        ("data.shown=5", "shown is 5 but must be at least a window (8)"),
        ("data.states=other", "other has the states of another text; make them for this one"),
        ("data.tokens=-1", "tokens is -1 but must be at least 0"),
        ("data.tokens=10000000", "The first 10,000,000 tokens were asked for but there are"),
    ):
        answer = ready(*told, "--out=no", f"--set={change}")
        assert answer.status == 2 and message in answer.err
    answer = ready("train", "plain.toml", "--out=no", "--set=data.shown=8")
    assert answer.status == 2 and "there are no states to show; give data.states" in answer.err


def goes_on_alike(ready, monkeypatch, number: int, *options: str) -> None:
    """Stopped at a batch and gone on, a run is as the one in `whole`, which never stopped."""
    plain, read = Windows._batch, 0

    def count(self: Windows, epoch: int, index: int):
        nonlocal read
        read += 1
        if read == number:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, epoch, index)

    with monkeypatch.context() as patch:
        patch.setattr(Windows, "_batch", count)
        assert ready("distill", "run.toml", "--out=run", *options).status == 128 + signal.SIGTERM
    assert ready("train", "--resume=run").status == 0
    assert steps("run") == steps("whole")
    same = [Path(name, "model.safetensors").read_bytes() for name in ("whole", "run")]
    assert same[0] == same[1]


@pytest.mark.parametrize("number", [3, 6, 7, 20])
def test_a_training_goes_on_in_the_middle_of_either_phase(ready, number, monkeypatch) -> None:
    assert ready("distill", "run.toml", "--out=whole").status == 0
    goes_on_alike(ready, monkeypatch, number)


def test_a_run_goes_on_with_its_own_states_alone(ready, monkeypatch) -> None:
    plain = Windows._batch

    def stop(self: Windows, epoch: int, index: int):
        if index == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, epoch, index)

    with monkeypatch.context() as patch:
        patch.setattr(Windows, "_batch", stop)
        assert ready("distill", "run.toml", "--out=run").status == 128 + signal.SIGTERM
    (kept,) = Path("corpus").glob("states-*")
    kept.rename("moved")
    answer = ready("train", "--resume=run")
    assert answer.status == 2 and "--set data.states=NEW-PLACE" in answer.err
    assert ready("train", "--resume=run", "--set=data.states=moved").status == 0


def first_weights(monkeypatch) -> list[dict]:
    """What models have when they begin to learn, from here on, and what of it is held."""
    from hmmlm.train.sgd import Sgd

    seen, plain = [], Sgd.__init__

    def look(self, model, *given, **how):
        held = {name for name, p in model.named_parameters() if any(p is q for q in how["frozen"])}
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        seen[-1] |= {"held": held, "until": how["thaw"]}
        plain(self, model, *given, **how)

    monkeypatch.setattr(Sgd, "__init__", look)
    return seen


BOTH = ["--set=train.begin_with=both", "--set=train.frozen=0.3"]


@pytest.mark.parametrize("dim", [4, 0])
def test_embeddings_begin_with_the_centres_and_the_head(ready, dim, monkeypatch) -> None:
    from hmmlm.distill.labels import read_states
    from hmmlm.neural_model import load_model

    seen = first_weights(monkeypatch)
    options = [*BOTH, f"--set=distill.dim={dim}", f"--set=model.width={dim or 8}"]
    answer = ready("distill", "run.toml", "--out=new", *options)
    assert answer.status == 0, answer.err
    (kept,) = Path("corpus").glob("states-*")
    labels, _ = read_states(kept)
    if dim == 0:
        assert labels.head.equal(load_model("teacher").network.words)
    # The same under hmmlm train, with what is kept.
    Path("plain.toml").write_text(RUN.partition("[distill]")[0])
    again = [*BOTH, options[-1], f"--set=data.states={kept}"]
    assert ready("train", "plain.toml", "--out=again", *again).status == 0
    assert len(seen) == 2
    for weights in seen:
        assert weights["words"].equal(labels.head)
        tables = [value for name, value in weights.items() if name.startswith("embeddings")]
        assert len(tables) == 3 and all(table.equal(labels.centres) for table in tables)
        assert len(weights["held"]) == 4 and "words" in weights["held"] and weights["until"] == 0.3
    assert steps("again") == steps("new")


@pytest.mark.parametrize("number", [3, 60])
def test_a_training_goes_on_before_and_after_a_thaw(ready, number, monkeypatch) -> None:
    options = [*BOTH, "--set=distill.dim=4"]
    assert ready("distill", "run.toml", "--out=whole", *options).status == 0
    assert 3 < 0.3 * len(steps("whole")) < 60 < len(steps("whole"))
    goes_on_alike(ready, monkeypatch, number, *options)


def test_beginnings_that_do_not_fit(ready, refused) -> None:
    """Refused before the teacher reads anything."""
    wide = ["--set=train.begin_with=centres"]
    said = refused("distill", "run.toml", "--out=new", *wide)
    assert "has width 4 and what decoder " in said and "gives has 8 numbers; set distill.di" in said
    said = refused("distill", "run.toml", "--out=new", *wide, "--set=distill.dim=3")
    assert "gives has 3 numbers; set distill.dim=4 if the teacher has as many, or model.wi" in said
    said = refused("train", "corpus", "--out=new", *wide)
    assert "no states of a teacher to take it from; set data.states, the folder that hmm" in said


def test_an_encoder_gives_no_head(ready) -> None:
    transformers = pytest.importorskip("transformers")
    how = {"vocab_size": 99, "hidden_size": 4, "intermediate_size": 8}
    config = transformers.BertConfig(**how, num_hidden_layers=1, num_attention_heads=1)
    transformers.BertModel(config).save_pretrained("encoder")
    options = ["--set=distill.teacher=encoder", "--set=train.begin_with=head"]
    answer = ready("distill", "run.toml", "--out=new", *options)
    assert answer.status == 2 and not Path("new").exists()
    assert "the labels of encoder " in answer.err
    assert ", layer -1, float32 have no head: a causal model" in answer.err
    assert not list(Path("corpus").glob("states-*"))


def test_states_within_blocks(ready) -> None:
    options = ["--set=model.states=12", "--set=model.blocks=4", "--set=data.layout=packed"]
    assert ready("distill", "run.toml", "--out=new", *options, "--set=data.reset=true").status == 0
    (kept,) = Path("corpus").glob("states-*")
    # Another number of states, and the words are in other blocks.
    other = ["--set=model.states=16", "--set=model.blocks=4", f"--set=data.states={kept}"]
    Path("plain.toml").write_text(RUN.partition("[distill]")[0])
    answer = ready("train", "plain.toml", "--out=no", *other)
    assert answer.status == 2
    assert "tells 12 states apart but the model has 16; make states for this" in answer.err
    other[:2] = ["--set=model.states=12", "--set=model.blocks=3"]
    answer = ready("train", "plain.toml", "--out=no", *other)
    assert answer.status == 2
    assert (
        "cannot come from state" in answer.err and "with 12 states and the same blo" in answer.err
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set=distill.teacher="], "does not say who the teacher is; add a table [distill]"),
        (["--set=distill.teacher=corpus"], "The teacher corpus cannot be loaded"),
        (["--set=distill.teacher=model"], "model has no hidden states to learn from; train a te"),
        (["--set=distill.token=5"], "There is no setting distill.token. Did you mean tokens?"),
        (["--set=distill.tokens=0"], "tokens is 0 but must be at least 1"),
        (["--set=model.kind=lstm"], "is a setting of HMMs but kind is lstm"),
        (["--set=data.layout=streams"], None),
        (["--set=data.states=x"], "data.corpus be given, and data.states not"),
        (["--set=train.optimiser=em", "--set=model.kind=scalar"], None),
    ],
)
def test_what_is_refused(ready, place, options, message) -> None:
    if "--set=distill.teacher=corpus" in options:
        pytest.importorskip("transformers")
    before = tree(place)
    answer = ready("distill", "run.toml", "--out=new", *options)
    assert answer.status == 2 and answer.err.count("\n") == 1, answer.err
    assert message is None or message in answer.err
    after = {path for path in tree(place) if "states-" not in str(path)}
    assert after == set(before)


TRANSFER = ["--kind=transformer", "--states=6", "--blocks=0", "--set=model.width=8"]
TRANSFER += ["--set=model.depth=4", "--set=model.heads=4", "--set=train.start=teacher"]


def test_layers_of_a_decoder_are_where_a_transformer_of_states_begins(ready, monkeypatch) -> None:
    from hmmlm.neural_model import load_model
    from hmmlm.train.sgd import Sgd

    seen = []
    plain = Sgd.__init__

    def look(self, model, *given, **how):
        seen.append(model.networks["all"].state_dict()["blocks.3.read.weight"].clone())
        plain(self, model, *given, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Sgd, "__init__", look)
        answer = ready("train", "corpus", *TRANSFER, "--epochs=1", "--out=new")
        assert answer.status == 0, answer.err
    truth = load_model("teacher").network.body.state_dict()["blocks.3.read.weight"]
    assert seen[0].equal(truth)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set=model.depth=2"], "The model has width 8, depth 2, heads 4 but teacher has width"),
        (["--set=train.start=model"], "model is no decoder, whose layers kind transformer could"),
    ],
)
def test_layers_that_do_not_fit(ready, options, message) -> None:
    answer = ready("train", "corpus", *TRANSFER, *options, "--out=new")
    assert answer.status == 2 and message in answer.err and not Path("new").exists()
