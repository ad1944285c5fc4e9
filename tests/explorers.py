"""Toy models behind the explorer, with text that is read to the end."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hmmlm.data.tokenizer import Tokenizer
from hmmlm.explore.preparing import Prepared
from hmmlm.explore.texts import UseText
from hmmlm.model import Model
from models import make_hmm

LINES = ["a b", "b", "c a c", "b", "a a b"]


def toy_model(support: str = "blocks", transitions: str = "factored") -> Model:
    """Five words: a, b, c, `<eos>` and `<unk>`."""
    return Model(make_hmm(support, transitions), Tokenizer.words({"a": 3, "b": 2, "c": 1}))


def without_c() -> Model:
    """One that never writes c."""
    model = toy_model("dense", "dense")
    emit = model.hmm.log_emit.clone()
    emit[model.tokenizer.id("c")] = -torch.inf
    emit = emit - torch.logsumexp(emit, 0)
    return replace(model, hmm=replace(model.hmm, log_emit=emit).validate())


def toy_prepared(model: Model, lines: list[str] = LINES, folder: Path = Path("toy")) -> Prepared:
    """What is prepared of a model, its text read."""
    ids = list(model.encode(lines))
    text = UseText("toy text", sum(map(len, ids)), lambda: iter(ids))
    prepared = Prepared(model, folder, text)
    prepared.start()
    prepared.wait()
    assert prepared.use_state()["state"] == "ready", prepared.use_state()
    return prepared


def ids_of(model: Model, line: str) -> list[int]:
    return np.asarray(next(model.encode([line]))).tolist()
