"""`hmmlm sample-corpus` and `hmmlm gap`: from a teacher to a model of it, and how far it is."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from commands import SOURCE, tree
from hmmlm.data.shards import Corpus

transformers = pytest.importorskip("transformers")

DRAW = ["sample-corpus", "teacher", "--tokens=400", "--valid=100", "--length=12", "--batch-size=8"]


BESIDE = ["sample-corpus", "model", "--tokens=300", "--length=12", "--beside=corpus", "--out=new"]


@pytest.fixture
def teacher(place) -> None:
    """A tiny causal model that knows the ids of `corpus`, in the current folder."""
    torch.manual_seed(0)
    spec = json.loads(Path("corpus/tokenizer.json").read_text())
    config = transformers.LlamaConfig(
        vocab_size=len(spec["model"]["vocab"]),
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = transformers.LlamaForCausalLM(config)
    model.lm_head.weight.data.normal_(0, 0.4)
    model.save_pretrained("teacher")
    Path("teacher/tokenizer.json").write_text(json.dumps(spec))


def test_the_whole_way(teacher, call) -> None:
    answer = call(*DRAW, "--out=new", "--json")
    assert answer.status == 0, answer.err
    said = json.loads(answer.out.splitlines()[-1])
    assert said["splits"]["train"]["tokens"] >= 400 and said["tokens_per_second"] > 0
    assert said["splits"]["test"]["tokens"] >= 20  # a twentieth of the training text
    assert (
        f"{said['splits']['valid']['tokens']} tokens" in answer.out and "of them cut" in answer.out
    )
    distil = (
        '[data]\ncorpus = "new"\nlength = 16\nbatch_size = 4\n[train]\nepochs = 1\ndropout = 0\n'
    )
    distil += '[model]\nkind = "lowrank"\nstates = 6\nblocks = 0\nwidth = 4\n'
    distil += '[distill]\nteacher = "teacher"\ntokens = 200\npoints = 100\n'
    Path("run.toml").write_text(distil)
    answer = call("distill", "run.toml", "--out=first")
    assert answer.status == 0, answer.err
    em = ["--kind=scalar", "--states=6", "--blocks=0", "--optimiser=em", "--epochs=3"]
    answer = call("train", "new", *em, "--set=train.start=first", "--out=second")
    assert answer.status == 0, answer.err
    answer = call("gap", "second", "new", "--split=valid", "--json")
    assert answer.status == 0, answer.err
    found = json.loads(answer.out.splitlines()[-1])
    whole = found["whole"]
    assert whole["gap"] == pytest.approx(whole["model"] - whole["teacher"])
    assert whole["teacher"] > 1 and 0 < whole["error"] < 1 and math.isfinite(whole["gap"])
    assert [band["name"] for band in found["by_position"]] == ["1", "2-3", "4-7", "8-15"]
    assert sum(band["tokens"] for band in found["by_frequency"]) == whole["tokens"]
    lines = answer.out.splitlines()
    assert "by position" in lines and "by frequency" in lines
    assert f"{whole['gap']:.4f} nats per token (standard error {whole['error']:.4f})" in lines[-2]
    # A text is what it was: `evaluate` reads the marks too.
    answer = call("evaluate", "second", "new", "--split=valid", "--json")
    assert json.loads(answer.out.splitlines()[-1])["tokens"] == said["splits"]["valid"]["tokens"]


def test_prompts_and_held_out_text(teacher, call) -> None:
    Path("prompts.txt").write_text("the\\nred\n\na\n")  # a new line within, which is a space here
    answer = call(*DRAW, "--out=new", "--test=0", "--prompts=prompts.txt", "--temperature=0.7")
    assert answer.status == 0, answer.err
    corpus = Corpus.open("new")
    assert set(corpus.splits) == {"train", "valid"}
    lines = corpus.tokenizer.decode(corpus.split("train")[0:400]).splitlines()
    assert all(line.startswith(("the red", "a")[n % 2]) for n, line in enumerate(lines))


def test_text_of_a_model_of_ours_beside_the_text_it_learnt(place, call) -> None:
    answer = call(*BESIDE, "--json")
    assert answer.status == 0, answer.err
    said = json.loads(answer.out.splitlines()[-1])
    new, old = Corpus.open("new"), Corpus.open("corpus")
    assert said["drawn"]["train"] + said["marks"]["train"] >= 300 and not said["drawn"]["test"]
    first = old.split("train")[0:]
    assert new.split("train")[0 : len(first)].tolist() == first.tolist()
    assert len(new.split("train")) >= len(first) + 300
    assert new.splits["test"] == old.splits["test"]
    how = ["--kind=scalar", "--states=4", "--blocks=0", "--dropout=0", "--epochs=1"]
    assert call("train", "new", "--out=student", *how, "--batch-size=4").status == 0
    answer = call("evaluate", "student", "corpus")
    assert answer.status == 0, answer.err


def test_streams_of_a_model_that_was_trained_on_streams(place, call) -> None:
    stream = [*BESIDE[:-1], "--out=streams", "--go-on", "--length=30"]
    answer = call(*stream)
    assert answer.status == 2 and "model was trained to start afresh after <eos>" in answer.err
    how = ["--model=lstm", "--set=model.width=4", "--epochs=1", "--batch-size=4"]
    assert call("train", "corpus", "--out=network", *how).status == 0
    stream[1] = "network"
    answer = call(*stream)
    assert answer.status == 0, answer.err
    ids = Corpus.open("streams").split("train")[len(Corpus.open("corpus").split("train")) :]
    texts = ids[: len(ids) // 31 * 31].reshape(-1, 31)  # 30 tokens and a mark
    assert len(texts) > 5 and (texts[:, -1] == 1).all() and (texts[:, :-1] == 1).any()
    alone = [word for word in stream if "beside" not in word]
    answer = call(*(word.replace("streams", "alone") for word in alone))
    assert answer.status == 2 and "draw no held-out text (valid and test 0), or" in answer.err


def test_a_network_without_hidden_states_is_no_teacher(place, call) -> None:
    """It is refused before any text is drawn."""
    answer = call("distill", "--llm=model", "--states=6", "--tokens=400", "--out=guide")
    assert answer.status == 2 and "model has no hidden states to learn from" in answer.err
    assert not Path("guide.corpus").exists() and not Path(".guide.corpus.unfinished").exists()


def test_a_training_that_is_not_over_is_ours(place, call) -> None:
    Path("begun").mkdir()
    Path("begun/run.json").write_text("{}")
    answer = call("sample-corpus", "begun", "--tokens=300", "--out=new")
    assert answer.status == 2 and "hmmlm train --resume" in answer.err, answer.err


LEARN = ["distill", "--llm=teacher", "--states=6", "--tokens=400", "--length=12"]
SMALL = ["--set=distill.points=100", "--set=data.batch_size=4", "--set=model.width=4"]


def test_from_a_language_model_to_its_guide_in_one_command(teacher, call) -> None:
    Path("prompts.txt").write_text("the red\n")
    more = ["--prompts=prompts.txt", "--dtype=bfloat16"]
    answer = call(*LEARN, "--out=guide", *SMALL, *more, "--json")
    assert answer.status == 0, answer.err
    drawn = Corpus.open("guide.corpus")
    lines = drawn.tokenizer.decode(drawn.split("train")[0:200]).splitlines()
    assert all(line.startswith("the red") for line in lines)
    said = json.loads(answer.out.splitlines()[-1])
    assert said["texts"] > 1 and said["whole"]["tokens"] > 10
    assert "nats per token" in answer.out and "by frequency" in answer.out
    assert Corpus.open("guide.corpus").splits["train"]["tokens"] >= 400
    again = call(*LEARN, "--out=guide", *SMALL)
    assert again.status == 2 and "guide" in again.err and "exists" in again.err
    other = call(*LEARN, "--only-states", "--out=other", *SMALL)
    assert other.status == 0 and not Path("other").exists(), other.err
    word = Corpus.open("guide.corpus").tokenizer.token(4)
    guided = call(
        "guide", "guide", "--llm=teacher", f"--must-contain={word}", "--length=5", "-n", 3
    )
    assert guided.status == 0, guided.err
    assert len(guided.out.splitlines()) == 3
    assert all(word in line.split() for line in guided.out.splitlines())


def test_what_to_distill_from_is_one_thing(teacher, refused) -> None:
    one = "Say what to learn from: a run.toml with a table distill, or --llm FOLDER, one of them."
    assert one in refused("distill") and one in refused("distill", "run.toml", "--llm=teacher")
    assert "--out FOLDER" in refused("distill", "--llm=teacher")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_killed_in_the_middle_it_goes_on(teacher, call, sent) -> None:
    slow = (
        "import time, hmmlm.distill.causal as c; from hmmlm.cli import main\n"
        "plain = c.CausalTeacher.draw\n"
        "def draw(*a, **k): time.sleep(0.3); return plain(*a, **k)\n"
        "c.CausalTeacher.draw = draw\nmain()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", slow, *DRAW, "--out=new"],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ends = time.monotonic() + 120
    while not Path(".new.unfinished/state.json").exists() and time.monotonic() < ends:
        time.sleep(0.01)
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if sent == signal.SIGINT else -sent), err
    assert ("the same command goes on from there" in err) == (sent == signal.SIGINT)
    answer = call(*DRAW, "--out=new")
    assert answer.status == 0 and "Going on with the unfinished new." in answer.out
    assert call(*DRAW, "--out=whole").status == 0
    assert tree(Path("new")) == tree(Path("whole"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*DRAW, "--out=corpus"], "corpus already exists and is never overwritten; choose another"),
        ([*DRAW, "--out=new", "--tokens=0"], "'0' is not a whole number of at least 1"),
        ([*DRAW, "--out=new", "--temperature=0"], "'0' is not a number above 0"),
        ([*DRAW, "--out=new", "--dtype=int8"], "'int8' is not one of float32, bfloat16, float16"),
        ([*DRAW, "--out=new", "--prompts=none.txt"], "none.txt cannot be read: No such file"),
        (
            ["sample-corpus", "model", "--out=new", "--tokens=9", "--dtype=bfloat16"],
            "model is a model of ours, drawn from as it is; leave --dtype and --gguf-file out",
        ),
        (
            ["sample-corpus", "model", "--out=new", "--tokens=9", "--temperature=0.5"],
            "temperature is 0.5, but model is an HMM, whose texts are drawn as it is; hmmlm temper",
        ),
        (
            [*DRAW, "--out=new", "--go-on"],
            "teacher is no model of ours, of which --go-on",
        ),
        ([*BESIDE, "--valid=9"], "Held-out text is that of corpus; leave --valid and --test out"),
        (
            [*BESIDE, "--beside=text.txt"],
            "text.txt is not a prepared corpus: it has no corpus.json; make one with hmmlm prepare",
        ),
        (
            ["gap", "model", "corpus"],
            "corpus has no log-probabilities that a teacher gave its test",
        ),
        (["gap", "model", "corpus", "--split=other"], "corpus has no split 'other'; choose one"),
        (["gap", "model", "text.txt"], "text.txt"),
    ],
)
def test_what_is_refused(teacher, refused, arguments, message) -> None:
    assert message in refused(*arguments)
