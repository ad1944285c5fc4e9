"""`hmmlm convert`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import last_json, run_command
from foreign import CTRL_G, TRACE, ctrl_g_tables, hmmlearn_arrays, trace_tables, write
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.model import Model

LINES = ["the red dog sees a cat .", "the cat", ""]


def save_words() -> None:
    """words.json: four tokens, of which the third ends a line."""
    vocab = {"a": 0, "b": 1, "<eos>": 2, "c": 3}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "a"}
    spec = {"model": model, "pre_tokenizer": {"type": "WhitespaceSplit"}}
    Tokenizer.from_json(json.dumps(spec), source="x").save("words.json")


def test_to_ctrl_g_and_back(place, call):
    there = run_command("convert", "model", "--to=ctrl-g", "--out=made/guide", "--json", cwd=place)
    assert there.status == 0, there.err
    assert there.out.startswith("model is a model of hmmlm: 4 states, 13 words\n")
    assert "\nwrote made/guide, a checkpoint of Ctrl-G: 5 states\n" in there.out
    assert last_json(there.out) == {
        "source": "model",
        "from": "hmmlm",
        "to": "ctrl-g",
        "folder": "made/guide",
        "states": 5,
        "words": 13,
        "eos_id": 1,
    }
    back = call("convert", "made/guide", "--to=hmmlm", "--out=back")
    assert back.status == 0, back.err
    first = "made/guide is a checkpoint of Ctrl-G: 5 states, 13 words\n"
    assert back.out == first + "wrote back, a model of hmmlm: 5 states\n"
    before, after = (Model.load(name) for name in ("model", "back"))
    for a, b in zip(before.score(LINES), after.score(LINES), strict=True):
        assert sum(b.log_probs) == pytest.approx(sum(a.log_probs), rel=1e-6)
    for command in (["info"], ["sample", "-n1"], ["next"]):
        answer = call(command[0], "back", *command[1:])
        assert answer.status == 0, answer.err


def test_states_may_be_kept(place, call):
    answer = call("convert", "model", "--to=ctrl-g", "--out=guide", "--keep-states")
    assert answer.status == 0, answer.err
    assert json.loads(Path("guide/config.json").read_text())["hidden_states"] == 4


def test_trace_becomes_ctrl_g(place, call):
    write(Path("x"), trace_tables(), TRACE)
    answer = call("convert", "x", "--to=ctrl-g", "--out=guide", "--json")
    assert answer.status == 0, answer.err
    assert last_json(answer.out)["from"] == "trace"
    assert json.loads(Path("guide/config.json").read_text()) == CTRL_G


def test_arrays_with_a_tokenizer_become_a_model(place, call):
    save_words()
    np.savez("x.npz", **hmmlearn_arrays())
    answer = call("convert", "x.npz", "--to=hmmlm", "--out=new", "--tokenizer=words.json")
    assert answer.status == 0, answer.err
    assert answer.out.startswith("x.npz is arrays of hmmlearn: 3 states, 4 words\n")
    assert Model.load("new").tokenizer.eos_id == 2
    answer = call(
        "convert", "x.npz", "--to=hmmlm", "--out=other", "--tokenizer=words.json", "--eos=c"
    )
    assert answer.status == 0, answer.err
    assert Model.load("other").tokenizer.eos_id == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["x", "--to=hmmlm", "--out=new"],
            "x does not say which words its 4 tokens are; pass --tokenizer FILE, a tokenizer.json "
            "or SentencePiece .model with as many.",
        ),
        (
            ["x.npz", "--to=ctrl-g", "--out=new"],
            "x.npz does not say which words its 4 tokens are; pass --tokenizer FILE, a "
            "tokenizer.json or SentencePiece .model with as many.",
        ),
        (["model", "--to=hmmlm", "--out=new"], "model is a model of hmmlm already; copy it."),
        (["x", "--to=ctrl-g", "--out=new"], "x is a checkpoint of Ctrl-G already; copy it."),
        (
            ["x", "--to=hmmlm", "--out=new", "--keep-states"],
            "--keep-states is for --to ctrl-g; leave it out.",
        ),
        (
            ["x", "--to=hmmlm", "--out=new", "--tokenizer=corpus/tokenizer.json"],
            "x emits 4 words but corpus/tokenizer.json has 13; give the tokenizer that the model "
            "was made with.",
        ),
        (
            ["x", "--to=hmmlm", "--out=model"],
            "model already exists and is never overwritten; choose another name or remove it "
            "first.",
        ),
        (
            ["x", "--to=onnx", "--out=new"],
            "Invalid value for '--to': 'onnx' is not one of hmmlm, ctrl-g; see hmmlm convert "
            "--help.",
        ),
        (
            ["old.pt", "--to=hmmlm", "--out=new"],
            "old.pt is a pickle, which could run any program, and is never read; in the library "
            "that wrote it, load it and save its arrays: save_pretrained (safetensors) for Ctrl-G "
            "and TRACE, numpy.savez for others (docs/interchange.md).",
        ),
    ],
)
def test_what_convert_refuses(place, refused, arguments, said):
    write(Path("x"), ctrl_g_tables(), CTRL_G)
    np.savez("x.npz", **hmmlearn_arrays())
    torch.save(ctrl_g_tables(), "old.pt")
    assert refused("convert", *arguments) == said
