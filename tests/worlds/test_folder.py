"""A world on disk: what other commands and other people's programs read of it."""

import json

import numpy as np
import pytest
import torch

from commands import tree
from hmmlm import Model, worlds
from hmmlm.data.corpus import SPLITS
from hmmlm.data.shards import Corpus
from hmmlm.distill.gap import measure_gap
from hmmlm.distill.sampling import log_probs_file
from hmmlm.errors import InputError
from hmmlm.evaluate import token_log_probs
from hmmlm.hmm import HMM
from hmmlm.inference import counts
from hmmlm.text_model import pad
from hmmlm.worlds import WorldSettings, write_world

TINY = {"concepts": 2, "entities": 2, "properties": 3, "words": 5, "length": 6}
FEW = WorldSettings(documents=30, valid=10, test=12, jsonl=True, prompts=4, examples=(0, 2))


def read_jsonl(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_documents_in_json_are_those_of_the_corpus_with_the_numbers_of_evaluate(tmp_path) -> None:
    world = worlds.ginc(**TINY)
    heard = []
    about = write_world(tmp_path / "world", world, FEW, progress=heard.append)
    assert sum(heard) == 52 and about == json.loads((tmp_path / "world/world.json").read_text())
    corpus, model = Corpus.open(tmp_path / "world/corpus"), Model.load(tmp_path / "world/model")
    for name in SPLITS:
        text = corpus.split(name)
        documents = read_jsonl(tmp_path / f"world/{name}.jsonl")
        assert len(documents) == corpus.splits[name]["sentences"] == FEW.sizes[name]
        joined = {
            key: np.concatenate([document[key] for document in documents])
            for key in ("tokens", "states", "log_probs")
        }
        assert np.array_equal(joined["tokens"], text[0 : len(text)])
        assert len(joined["states"]) == len(text)
        concepts = world.concepts[torch.from_numpy(joined["states"])].tolist()
        starts = text.sentence_offsets().tolist()
        assert [concepts[at] for at in starts] == [document["concept"] for document in documents]
        scores = token_log_probs(model.lm, text, eos_id=text.eos_id)
        np.testing.assert_allclose(joined["log_probs"], scores, rtol=1e-6)
        read = model.evaluate(text, mode="sentence")
        best = about["optimum"][name]
        assert -joined["log_probs"].sum() == pytest.approx(read.nats, abs=1e-9)
        assert best["nats"] == pytest.approx(read.nats, abs=1e-9)
        assert best["perplexity"] == pytest.approx(read.perplexity)
        assert (best["documents"], best["tokens"]) == (len(documents), len(text))
    nats = sum(about["optimum"][name]["nats"] for name in SPLITS)
    tokens = sum(about["optimum"][name]["tokens"] for name in SPLITS)
    assert about["entropy_rate"]["value"] == pytest.approx(nats / tokens)
    assert about["entropy_rate"]["samples"] == 52


def test_a_world_has_no_gap_to_itself(tmp_path) -> None:
    write_world(tmp_path / "world", worlds.ginc(**TINY), FEW)
    corpus, model = Corpus.open(tmp_path / "world/corpus"), Model.load(tmp_path / "world/model")
    for name in ("valid", "test"):
        assert abs(measure_gap(model.lm, corpus, split=name).whole.gap) < 1e-6
    assert not log_probs_file(tmp_path / "world/corpus", "train").exists()


def test_prompts_are_written_with_what_the_best_reader_answers(tmp_path) -> None:
    about = write_world(tmp_path / "world", worlds.ginc(**TINY), FEW)
    prompts = read_jsonl(tmp_path / "world/prompts.jsonl")
    assert [prompt["examples"] for prompt in prompts] == [0] * 4 + [2] * 4
    assert [len(prompt["tokens"]) for prompt in prompts] == [4] * 4 + [16] * 4
    right = [prompt["answer"] == prompt["label"] for prompt in prompts]
    said = [line["accuracy"] for line in about["prompts"]]
    assert said == [sum(right[:4]) / 4, sum(right[4:]) / 4]
    assert set(prompts[0]) >= {"concept", "label_log_prob", "answer_log_prob", "concept_log_probs"}


def test_a_seed_gives_the_same_bytes(tmp_path) -> None:
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        settings = WorldSettings(20, 0, 20, seed, jsonl=True, prompts=9, examples=(2,))
        write_world(tmp_path / name, worlds.ginc(**TINY), settings)
    one, same, other = (tree(tmp_path / name) for name in ("one", "same", "other"))
    assert one == same and set(one) == set(other)
    assert one["test.jsonl"] != other["test.jsonl"] and one["train.jsonl"] != one["test.jsonl"]
    assert one["prompts.jsonl"] != other["prompts.jsonl"]
    assert "valid.jsonl" not in one


def test_what_is_left_out_is_not_there(tmp_path) -> None:
    about = write_world(tmp_path / "world", worlds.random_hmm(length=3), WorldSettings(1, 0, 0))
    assert {path.name for path in (tmp_path / "world").iterdir()} == {
        "model",
        "corpus",
        "world.json",
    }
    assert "entropy_rate" not in about and set(about["optimum"]) == {"train"}


def test_nothing_is_left_after_an_error(tmp_path) -> None:
    settings, heard = WorldSettings(3, 0, 0, prompts=1), []
    with pytest.raises(InputError, match="Prompts need the entities and properties"):
        write_world(
            tmp_path / "new/world", worlds.random_hmm(length=3), settings, progress=heard.append
        )
    assert list(tmp_path.iterdir()) == [] and heard == []  # no document was drawn


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"documents": 0}, r"documents is 0 but must be at least 1\."),
        ({"prompts": -1}, r"prompts is -1 but must be at least 0\."),
        ({"valid": -1}, r"valid is -1 but must be at least 0\."),
        ({"example_length": 1}, r"example_length is 1 but must be at least 2\."),
    ],
)
def test_settings_that_cannot_be(given, message) -> None:
    with pytest.raises(InputError, match=message):
        WorldSettings(**given)


def test_a_model_that_learns_comes_near_the_optimum() -> None:
    """Baum-Welch from random tables, on a world of three states; the optimum is never beaten."""
    world = worlds.random_hmm(states=3, words=6, length=20, concentration=0.3, seed=2)
    generator = torch.Generator().manual_seed(0)
    train, test = (world.draw(count, generator=generator) for count in (600, 2000))
    tokens, lengths = pad([document.tokens for document in train])
    start = torch.rand(4 + 16 + 4 * 8, generator=generator, dtype=torch.float64)
    init, trans, emit = start.split([4, 16, 32])
    learner = HMM.from_tables(
        init.log_softmax(0), trans.view(4, 4).log_softmax(1), (4 * emit.view(4, 8)).log_softmax(1)
    )
    held, sizes = pad([document.tokens for document in test])
    best = -world.optimum(held, lengths=sizes).sum() / sizes.sum()

    def behind(hmm: HMM) -> float:
        nats = -Model(hmm, world.tokenizer).evaluate(document.tokens for document in test).nats
        return float(-nats / sizes.sum() - best)

    before = behind(learner)
    for _ in range(80):
        found = counts(learner, tokens, lengths=lengths)
        assert isinstance(found.trans, torch.Tensor)
        rows = (found.init, found.trans, found.emit.T)
        learner = HMM.from_tables(*(_shares(row + 1e-3).log() for row in rows))
    assert before > 0.3 and 0 < behind(learner) < 0.02


def _shares(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.sum(-1, keepdim=True)
