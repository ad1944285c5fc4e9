"""A model with topics in a folder: what it is asked is what the sum over its topics says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.hmm import emission_table
from hmmlm.model import Model
from hmmlm.model_source import ModelSource
from hmmlm.neural_model import NeuralModel, load_model
from hmmlm.support import Support
from hmmlm.topic_model import NAMES, TOPICS, TopicModel
from topical import make_topics


@pytest.fixture
def model() -> TopicModel:
    topics = make_topics(Support.from_clusters([0, 1, 2, 0, 2], 2))
    return TopicModel(topics, Tokenizer.words({"a": 3, "b": 2, "c": 1}), {"learnt": {"of": "x"}})


def test_a_folder_has_all_of_it(model: TopicModel, tmp_path: Path) -> None:
    model.save(tmp_path / "saved")
    again = load_model(tmp_path / "saved")
    assert isinstance(again, TopicModel) and again.config["learnt"] == {"of": "x"}
    for one, two in zip(again.topics.topics(), model.topics.topics(), strict=True):
        assert torch.equal(one, two)
    assert again.score(["a b", "c"]) == model.score(["a b", "c"])
    assert repr(again) == "TopicModel(3 topics, 6 states, 5 words)"


def test_next_words_are_those_of_the_scores(model: TopicModel) -> None:
    for prompt in ("", "a", "b c"):
        found = dict(model.next(prompt, k=5))
        assert sum(found.values()) == pytest.approx(1)
        for word, prob in found.items():
            if word == "<eos>":
                scored = model.score([prompt])[0]
                assert scored.log_probs[-1] == pytest.approx(torch.tensor(prob).log().item())
            elif word != "<unk>":
                scored = model.score([f"{prompt} {word}".strip()])[0]
                assert scored.log_probs[-2] == pytest.approx(torch.tensor(prob).log().item())


def test_topics_of_a_line_are_weighed_by_what_they_make_of_it(model: TopicModel) -> None:
    line, start = "a c", model.topics.log_start.exp()
    each = [sum(model.part(topic).score([line])[0].log_probs) for topic in range(3)]
    wanted = start * torch.tensor(each, dtype=torch.float64).exp()
    assert model.topic_probs(line) == pytest.approx((wanted / wanted.sum()).tolist())
    assert isinstance(model.part(0), Model)
    after = model.next("c c <eos> a", k=5)  # which starts cold
    assert dict(after) == pytest.approx(dict(model.next("a", k=5)))
    assert dict(model.next("a <eos>", k=5)) == pytest.approx(dict(model.next("", k=5)))


def test_what_cannot_be_is_refused(model: TopicModel) -> None:
    hmm = model.topics.hmm
    emit = hmm.log_emit.clone()
    emit[2] = -torch.inf
    emit = emission_table(emit.clamp(min=-1e9), hmm.support)
    emit[2] = -torch.inf
    topics = make_topics(base=replace(hmm, log_emit=emit))
    never = TopicModel(topics, model.tokenizer)
    for ask in (never.next, never.topic_probs, lambda text: never.sample(2, prompt=text)):
        with pytest.raises(InputError, match="'a' has probability zero under this model"):
            ask("a")


def test_labels_are_those_of_the_hmm(model: TopicModel) -> None:
    labels = {"tags": ["x", "y"], "states_per_tag": 3}
    tagged = TopicModel(model.topics, model.tokenizer, {"labels": labels}).part(1)
    assert tagged.tag_names == ["x"] * 3 + ["y"] * 3


def test_lines_are_drawn_with_their_topics(model: TopicModel) -> None:
    lines = model.sample(3000, length=1, seed=0)
    again = model.sample(3000, length=1, seed=0)
    assert lines == again != model.sample(3000, length=1, seed=1)
    for word, prob in model.next("", k=5):
        shown = "" if word == "<eos>" else word
        assert lines.count(shown) / 3000 == pytest.approx(prob, abs=0.04)
    after = model.sample(3000, prompt="b", length=1, seed=0)
    assert all(line.startswith("b") for line in after)
    for word, prob in model.next("b", k=5):
        shown = "b" if word == "<eos>" else f"b {word}"
        assert after.count(shown) / 3000 == pytest.approx(prob, abs=0.04)


def test_other_readers_say_what_it_is(model: TopicModel, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    model.save(folder)
    with pytest.raises(InputError, match=r"is an HMM with topics, which has an HMM for each.*part"):
        Model.load(folder)
    with pytest.raises(InputError, match="an HMM with topics, not a neural model"):
        NeuralModel.load(folder)
    with pytest.raises(InputError, match="has topics, and texts are drawn side by side"):
        ModelSource(folder)
    model.part(1).save(tmp_path / "part")
    with pytest.raises(InputError, match="has no topics; hmmlm topics gives an HMM some"):
        TopicModel.load(tmp_path / "part")


def test_damaged_folders_are_refused(model: TopicModel, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    model.save(folder)
    tensors = load_file(folder / TOPICS)
    damages = [
        ({**tensors, "log_start": tensors["log_start"] * 2}, "log_start of the topics is not norm"),
        (
            {**tensors, "state_tilts": tensors["state_tilts"][:, 1:].contiguous()},
            "does not fit an HMM of 6",
        ),
        ({name: tensors[name] for name in NAMES[1:]}, "but topics have word_tilts, state_tilts"),
    ]
    for damaged, said in damages:
        save_file(damaged, folder / TOPICS)
        with pytest.raises(InputError, match=said):
            TopicModel.load(folder)
    (folder / TOPICS).unlink()
    with pytest.raises(InputError, match="cannot be read"):
        TopicModel.load(folder)
    with pytest.raises(InputError, match="emits 5 words but the tokenizer has 4"):
        TopicModel(model.topics, Tokenizer.words({"a": 2, "b": 1}))
    assert json.loads((folder / "config.json").read_text())["kind"] == "topics"
