"""`hmmlm topics`."""

from pathlib import Path

import pytest

from commands import last_json
from hmmlm.data.shards import Corpus
from hmmlm.model import Model
from hmmlm.topic_model import TopicModel

FEW = ("--topics=2", "--epochs=3")


def test_topics_are_learnt_and_read(place: Path, call) -> None:
    answer = call("topics", "model", "--on=corpus", "--out=made", *FEW, "--json")
    assert answer.status == 0, answer.err
    told, model = last_json(answer.out), TopicModel.load("made")
    assert "wrote made, 2 topics x 4 states" in answer.out
    assert len(told["topics"]) == 2 and told["topics"] == model.config["topics"]
    assert sum(topic["share"] for topic in told["topics"]) == pytest.approx(1, abs=1e-3)
    text = Corpus.open("corpus").split("valid")
    for mode in ("sentence", "streaming"):
        found = call("evaluate", "made", "corpus", f"--mode={mode}", "--split=valid", "--json")
        perplexity = last_json(found.out)["perplexity"]
        assert perplexity == pytest.approx(told["valid"][mode], rel=1e-5)
        assert perplexity == pytest.approx(model.evaluate(text, mode=mode).perplexity, rel=1e-5)
    before = Model.load("model").evaluate(text).perplexity
    assert before == pytest.approx(told["valid"]["sentence_without"], rel=1e-5)
    assert f"validation perplexity {before:.2f} by sentence; with topics" in answer.out
    again = call("topics", "model", "--on=corpus", "--out=again", *FEW, "--seed=0")
    assert again.status == 0
    assert (place / "made/topics.safetensors").read_bytes() == (
        place / "again/topics.safetensors"
    ).read_bytes()


def test_what_it_is_and_what_it_says(place: Path, call) -> None:
    assert call("topics", "model", "--on=corpus", "--out=made", *FEW).status == 0
    about = call("info", "made")
    told = TopicModel.load("made").config["topics"]
    for number, topic in enumerate(told):
        (line,) = [one for one in about.out.splitlines() if f"topic {number} " in one]
        assert line.endswith(f"words {' '.join(topic['words'])}"), about.out
    Path("lines.txt").write_text((place / "test.txt").read_text().splitlines()[0] + "\n")
    assert call("score", "made", "lines.txt").status == 0
    assert len(call("next", "made", "-k", 3).out.splitlines()) == 3
    assert len(call("sample", "made", "-n", 2, "--seed=1").out.splitlines()) == 2


def test_an_hmm_that_was_trained_streaming(place: Path, call) -> None:
    """Its perplexity by sentence says little, and topics gain it little."""
    options = ("--set=data.layout=streams", "--set=data.reset=false", "--batch-size=4")
    small = ("--kind=scalar", "--states=4", "--blocks=0", "--epochs=1", "--length=16")
    assert call("train", "corpus", "--out=streamed", *small, *options).status == 0
    answer = call("topics", "streamed", "--on=corpus", "--out=made", *FEW)
    assert answer.status == 0 and "was trained to be read in mode streaming" in answer.err
    assert not call("evaluate", "made", "corpus").err


def test_what_cannot_be_done_is_refused(place: Path, call, refused) -> None:
    assert "already exists" in refused("topics", "model", "--on=corpus", "--out=text.txt")
    assert "is a corpus; a model is needed" in refused("topics", "corpus", "--on=corpus", "--out=x")
    assert "'0' is not" in refused("topics", "model", "--on=corpus", "--out=x", "--topics=0")
    assert "'0' is not" in refused("topics", "model", "--on=corpus", "--out=x", "--penalty=0")
    assert call("prepare", "test.txt", "--out=other").status == 0
    assert "vocabulary" in refused("topics", "model", "--on=other", "--out=x")
    assert call("topics", "model", "--on=corpus", "--out=made", *FEW).status == 0
    for words in (
        ("topics", "made", "--on=corpus", "--out=x"),
        ("tag", "made", "text.txt"),
        ("fill", "made", "a ?"),
        ("info", "made", "--states=2"),
        ("sample", "made", "--must-contain=a"),
    ):
        assert "is an HMM with topics" in refused(*words)
