"""`hmmlm train --model lstm` and its like: trained, kept, asked and refused as HMMs are."""

import json
from pathlib import Path

import pytest

from commands import last_json
from hmmlm.cli import fitting
from hmmlm.neural_model import load_model

SMALL = {
    "feed_forward": ["--set=model.width=8", "--learning-rate=0.03"],
    "lstm": ["--set=model.width=8", "--learning-rate=0.03"],
    "awd_lstm": ["--set=model.width=8", "--set=model.embedding=8"],
    "decoder": ["--set=model.width=8", "--set=model.context=8", "--learning-rate=0.03"],
    "hmm_rnn": [
        "--states=6",
        "--set=model.width=8",
        "--set=model.embedding=8",
        "--learning-rate=0.03",
    ],
}
FEW = ["--epochs=3", "--batch-size=4", "--length=16"]


@pytest.mark.parametrize("kind", SMALL)
def test_every_kind_trains_and_answers(place, call, kind):
    answer = call("train", "corpus", "--model", kind, *SMALL[kind], *FEW, "--out=new", "--json")
    assert answer.status == 0, answer.err
    assert f"{kind}; " in answer.out and " parameters" in answer.out
    trained = last_json(answer.out)
    assert 1 < trained["val"] < 16  # the vocabulary has 17
    kept = json.loads(Path("new/config.json").read_text())
    assert kept["kind"] == kept["training"]["model"]["kind"] == kind
    assert kept["training"]["data"]["layout"] == "streams"
    assert not {"states_per_word", "cluster_by", "blocks"} & kept["training"]["model"].keys()
    assert not {"dropout", "pseudocount", "start"} & kept["training"]["train"].keys()
    assert {path.name for path in Path("new").iterdir()} >= {"metrics.jsonl", "tokenizer.json"}
    found = last_json(
        call("evaluate", "new", "corpus", "--split=valid", "--mode=streaming", "--json").out
    )
    assert found["perplexity"] == pytest.approx(trained["val"], rel=1e-4)
    assert found["max_row_error"] < 1e-4
    scored = last_json(call("score", "new", "test.txt", "--json").out)
    answer = call("evaluate", "new", "test.txt", "--json")
    sentence = last_json(answer.out)
    assert answer.err == (
        "hmmlm: new was validated in mode streaming and is read here by sentence, which gives "
        "another number; --mode streaming reads as in its training.\n"
    )
    assert call("evaluate", "new", "test.txt", "--mode=sentence").err == ""
    assert scored["nats"] == pytest.approx(sentence["nats"], rel=1e-5)
    assert call("next", "new", "the").out.count("\n") == 10
    assert call("sample", "new", "-n", "3", "--seed=1", "--length=5").out.count("\n") == 3
    info = call("info", "new").out
    assert kind in info and "numbers" in info


def test_settings_come_from_a_file_too(place, call):
    Path("run.toml").write_text(
        '[data]\ncorpus = "corpus"\nlength = 16\nbatch_size = 4\nlayout = "packed"\nreset = true\n'
        '[model]\nkind = "lstm"\nwidth = 4\nlayers = 1\n[train]\nepochs = 1\noptimiser = "sgd"\n'
        "learning_rate = 1.0\n"
    )
    answer = call("train", "run.toml", "--out=new", "--set=data.validation=window 8")
    assert answer.status == 0, answer.err
    loaded = load_model("new")
    assert loaded.settings.width == 4 and loaded.settings.layers == 1
    assert loaded.config["training"]["data"]["validation"] == "window 8"
    assert "; --mode 'window 8' reads as in" in call("evaluate", "new", "test.txt").err
    assert loaded.config["training"]["train"]["optimiser"] == "sgd"


@pytest.mark.parametrize("kind", ["lstm", "awd_lstm"])
def test_a_training_that_was_stopped_goes_on_to_the_same_model(place, call, monkeypatch, kind):
    options = ["corpus", "--model", kind, *SMALL[kind], *FEW]
    if kind == "awd_lstm":
        options += ["--set=train.average_after=1", "--set=train.checks=4"]
    assert call("train", *options, "--out=whole").status == 0
    follow = fitting._follow

    def stop(training, run, interrupts, ranks):
        training.between = None
        steps = iter(training)
        for _ in range(12):
            run.add_metrics(next(steps))
        run.checkpoints.write(training.state())
        steps.close()
        return True

    monkeypatch.setattr(fitting, "_follow", stop)
    assert call("train", *options, "--out=new").status == 128 + 15
    monkeypatch.setattr(fitting, "_follow", follow)
    answer = call("train", "--resume=new")
    assert answer.status == 0 and "going on after step 12 of" in answer.out, answer
    ends = [(Path(name) / "model.safetensors").read_bytes() for name in ("whole", "new")]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--states=8"], "model.states is a setting of HMMs but kind is lstm; leave it out."),
        (["--blocks=4"], "model.blocks is a setting of HMMs but kind is lstm; leave it out."),
        (
            ["--dropout=0.3"],
            "train.dropout is a setting of HMMs but kind is lstm; leave it out; its own are "
            "model.dropout.",
        ),
        (["--set=train.start=model"], "train.start is a setting of HMMs but kind is lstm; leave it "
         "out."),
        (["--labels=text.txt"], "data.labels is a setting of HMMs but kind is lstm; leave it out."),
        (["--optimiser=em"], "optimiser is 'em' but kind lstm is trained by adamw or sgd."),
        (["--set=model.wide=3"], "There is no setting model.wide. Did you mean width?"),
        (["--set=model.dropout=1"], "dropout is 1.0 but must be at least 0 and less than 1."),
        (
            ["--set=data.vary_length=true", "--set=data.layout=windows"],
            "vary_length cuts streams anew but layout is windows; use layout streams, or leave "
            "vary_length out.",
        ),
        (
            ["--set=data.shuffle=true", "--set=data.layout=windows"],
            "shuffle reorders the sentences of streams but layout is windows, whose rows are drawn "
            "anew each epoch anyway; leave it out.",
        ),
        (
            ["--set=data.validation=often"],
            "The evaluation mode is 'often' but must be 'sentence', 'streaming' or 'window n' with "
            "a positive number of tokens, as in 'window 32'.",
        ),
    ],
)  # fmt: skip
def test_settings_of_hmms_are_refused(refused, arguments, message):
    assert refused("train", "corpus", "--model=lstm", "--out=new", *arguments) == message


def test_an_unknown_kind_is_refused_with_the_nearest(refused):
    assert refused("train", "corpus", "--model=lstn", "--out=new") == (
        "kind is 'lstn' but must be one of scalar, lowrank, mlp, transformer, pretrained, "
        "feed_forward, lstm, awd_lstm, hmm_rnn, decoder. Did you mean lstm?"
    )


def test_averaging_after_checks_needs_checks(place, refused, call):
    call("prepare", "text.txt", "--out=alone")
    assert refused("train", "alone", "--model=awd_lstm", "--out=new") == (
        "average_after needs validation text, and there is none; prepare the corpus with --valid, "
        "or set it to 0."
    )


def test_questions_about_states_need_an_hmm(place, call, refused):
    assert call("train", "corpus", "--model=lstm", *SMALL["lstm"], *FEW, "--out=new").status == 0
    wanted = (
        "new is a model of kind lstm, which has no hidden states of an HMM to ask for; hmmlm "
        "evaluate, score, next, sample and info new work, or train an HMM."
    )
    assert refused("tag", "new", "test.txt") == wanted
    assert refused("info", "new", "--states=3") == wanted
    options = ["--kind=scalar", "--optimiser=em", "--set=train.start=new", "--out=other"]
    assert refused("train", "corpus", *options) == wanted


def test_several_ranks_are_refused(place, monkeypatch):
    from hmmlm.baselines.kinds import NEURAL
    from hmmlm.cli.building import build_other
    from hmmlm.data.shards import Corpus
    from hmmlm.errors import InputError
    from hmmlm.train.config import make_config
    from hmmlm.train.distributed import Ranks

    config = make_config({"model": {"kind": "lstm"}}, NEURAL)
    with pytest.raises(InputError, match="kind lstm is trained by one process and there are 2; st"):
        build_other(Corpus.open("corpus"), config, Ranks(0, 2), 0)


def test_sweeps_take_them(place, call):
    Path("many.toml").write_text(
        '[data]\ncorpus = "corpus"\nbatch_size = 4\nlength = 16\n[model]\nkind = "lstm"\n'
        '[train]\nepochs = 1\n[sweep.grid]\n"model.width" = [4]\n'
    )
    assert call("sweep", "many.toml", "--out=runs").status == 0
    answer = call("sweep", "many.toml", "--out=runs")
    assert answer.status == 0 and "1 of them finished before" in answer.out
