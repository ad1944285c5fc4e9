"""Text to a model in one call: the same numbers as the command line's, and what is refused."""

import json
from pathlib import Path

import pytest
import torch

from commands import run_command
from hmmlm.data.shards import Corpus, write_corpus
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.fitting import Stopped, fit
from hmmlm.model import Model
from hmmlm.train.loop import Diverged
from hmmlm.train.loss import HmmLoss

LINES = [f"the {a} {b} the {c} ." for a in ("cat", "dog", "man") for b in ("saw", "bit", "met")
         for c in ("cat", "dog", "man", "sun", "moon")]  # fmt: skip
HELD = ["the sun bit the moon .", "the dog saw the sun ."]
SETTINGS = {"data": {"batch_size": 4, "length": 16}, "train": {"epochs": 2, "seed": 3}}


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "scalar", "states": 6, "blocks": 0},
        {"kind": "lowrank", "width": 4, "states": 8, "blocks": 4},
        {"kind": "lowrank", "width": 4, "states": 11, "blocks": 4, "uneven": 0.5},
        {"kind": "scalar", "states": 12, "states_per_word": 3},
    ],
)
def test_the_same_model_as_on_the_command_line(model: dict, tmp_path: Path) -> None:
    """Dense, in blocks, even and uneven, and where every word has states of its own."""
    words = Tokenizer.words(LINES)
    write_corpus(tmp_path / "corpus", words, {"train": LINES, "valid": HELD})
    changes = [
        f"{t}.{k}={v}" for t, s in {**SETTINGS, "model": model}.items() for k, v in s.items()
    ]
    sets = [f"--set={change}" for change in changes]
    answer = run_command("train", "corpus", "--out=model", "--device=cpu", *sets, cwd=tmp_path)
    assert answer.status == 0, answer.err
    wanted, steps = Model.load(tmp_path / "model"), []
    found = fit(LINES, valid=HELD, model=model, follow=steps.append, **SETTINGS)
    for a, b in zip(wanted.hmm.fields(), found.hmm.fields(), strict=True):
        assert torch.equal(a, b)
    lines = (tmp_path / "model/metrics.jsonl").read_text().splitlines()
    assert [step.val for step in steps] == [json.loads(line)["val"] for line in lines]
    again = fit(Corpus.open(tmp_path / "corpus"), model=model, **SETTINGS)
    assert torch.equal(again.hmm.log_init, found.hmm.log_init)
    found.save(tmp_path / "kept", metrics=(step._asdict() for step in steps))
    assert not any(table.requires_grad for table in found.hmm.fields())
    assert Model.load(tmp_path / "kept").config["training"]["model"]["kind"] == model["kind"]


def test_without_validation_and_sizes(tmp_path: Path) -> None:
    """Sizes suit the text, words are those of the text, and some of it may be read alone."""
    model = fit(iter(LINES), train={"epochs": 1, "optimiser": "em"}, model={"kind": "scalar"})
    assert model.hmm.num_states == 64 and model.tokenizer.id("moon") > 0
    rare = fit([*LINES * 23, "never twice"], train={"epochs": 1}, data={"tokens": 80})
    with pytest.raises(InputError, match="'twice'"):
        rare.tokenizer.id("twice")
    given = fit(LINES, tokenizer=rare.tokenizer, train={"epochs": 1}, model={"states": 4})
    assert given.tokenizer.hash == rare.tokenizer.hash


def test_facts_of_blocks_and_the_device(tmp_path: Path) -> None:
    model = {"kind": "lowrank", "width": 4, "states": 8, "blocks": 4}
    found = fit(LINES, model=model, device="auto", train={"epochs": 1})
    place = "cuda" if torch.cuda.is_available() else "cpu"
    assert found.config["training"]["device"] == place
    about = found.config["blocks"]
    assert (about["origin"], about["blocks"]) == ("exchange", 4)
    assert about["rules"][0].startswith("<eos> has block ")


def test_a_training_that_ends_without_numbers_gives_what_it_had(monkeypatch) -> None:
    """The weights that the message names are those of the error's model."""
    plain, calls = HmmLoss.__call__, []

    def breaks(self, batch, done):
        calls.append(1)
        return plain(self, batch, done) * (float("nan") if len(calls) in (1, 9) else 1.0)

    monkeypatch.setattr(HmmLoss, "__call__", breaks)
    told = {**SETTINGS, "model": {"kind": "scalar", "states": 4, "blocks": 0}}
    with pytest.raises(Diverged, match="at step 1 ") as found:  # before anything was learnt
        fit(LINES, **told)
    assert not isinstance(found.value, Stopped)
    with pytest.raises(
        Stopped, match=r"at step 8 .* rate\. The error's `model` has the weights\."
    ) as found:
        fit(LINES, **told)
    model = found.value.model
    assert model.hmm.validate().num_states == 4
    assert model.config["stopped"].startswith("Training stopped at step 8")


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no setting train.epoch. Did you mean epochs\?"):
        fit(LINES, train={"epoch": 3})
    with pytest.raises(InputError, match="start names a file, which fit does not read; use"):
        fit(LINES, model={"kind": "scalar"}, train={"start": "my.model"})
    with pytest.raises(InputError, match="text is one string but must be lines; give"):
        fit("the cat . the dog .")
    with pytest.raises(InputError, match="valid is one string but must be lines; give"):
        fit(LINES, valid="the sun bit")
    with pytest.raises(InputError, match="begin_with is head but there are no states of a teacher"):
        fit(LINES, train={"begin_with": "head", "frozen": 0.5})
    with pytest.raises(InputError, match="shown is 10 but there are no states to show; give"):
        fit(LINES, data={"shown": 10})
    with pytest.raises(
        InputError, match="device is 'gpu' but must be auto, or one that torch has here"
    ):
        fit(LINES, device="gpu")
    with pytest.raises(InputError, match="10 states cannot be shared equally among 4 blocks; use"):
        fit(LINES, model={"states": 10, "blocks": 4})
    with pytest.raises(InputError, match="early_stop needs validation text, and there is none;"):
        fit(LINES, train={"early_stop": 2})
    write_corpus(tmp_path / "corpus", Tokenizer.words(LINES), {"train": LINES})
    corpus = Corpus.open(tmp_path / "corpus")
    with pytest.raises(InputError, match="A corpus has its own valid text and tokenizer; leave"):
        fit(corpus, valid=HELD)


def test_a_training_far_beyond_the_memory():
    with pytest.raises(InputError, match=r"needs about [\d,.]+ [GT]B and .* use fewer states, or"):
        fit(["a b c"], model={"states": 10**9, "blocks": 0})
