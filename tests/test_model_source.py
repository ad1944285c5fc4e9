"""Texts drawn from models of ours: as often as they are probable, and a corpus of them."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import tree
from hmmlm import Model, model_source
from hmmlm.data.shards import Corpus, write_corpus
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.distill import sampling
from hmmlm.distill.sampling import SampleSettings, read_log_probs, sample_corpus
from hmmlm.errors import InputError
from hmmlm.model_source import ModelSource
from hmmlm.neural_model import NeuralModel
from hmmlm.support import Support
from models import make_hmm
from networks import SETTINGS

LINES = ["a b c", "a c", "b b a c"]
WORDS = Tokenizer.words(LINES, min_count=1)
KINDS = ["hmm", "hmm, blocks", "lstm", "decoder", "hmm_rnn"]


def write(kind: str, folder: Path) -> None:
    if kind.startswith("hmm,") or kind == "hmm":
        dense = Support.dense(WORDS.vocab_size, 3)
        blocks = Support.from_clusters([0, 1, 1, 0, 2][: WORDS.vocab_size], 2)
        hmm = make_hmm(dense if kind == "hmm" else blocks, dtype=torch.float32)
        return Model(hmm, WORDS).save(folder)
    settings, generator = SETTINGS[kind], torch.Generator().manual_seed(0)
    network = settings.build(WORDS.vocab_size, start_id=WORDS.eos_id, generator=generator)
    with torch.no_grad():
        network.words.mul_(8)  # so that it has something to say
    NeuralModel(kind, settings, network, WORDS).save(folder)


@pytest.fixture(params=KINDS)
def source(request, tmp_path) -> ModelSource:
    write(request.param, tmp_path / "model")
    return ModelSource(tmp_path / "model")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scores(source: ModelSource, ids) -> np.ndarray:
    return next(source.model.score_ids([np.array(ids)]))[1]


def test_texts_come_as_often_as_they_are_probable(source) -> None:
    number, prompt, eos = 20_000, [WORDS.encode("b")[0]], WORDS.eos_id
    drawn = source.draw([prompt] * number, length=3, generator=generator())
    counts = Counter(tuple(text.tokens.tolist()) for text in drawn)
    every = [(*prompt, eos)]
    for first in set(range(WORDS.vocab_size)) - {eos}:
        every += [(*prompt, first, second) for second in range(WORDS.vocab_size)]
    probs = np.exp([scores(source, ids)[1:].sum() for ids in every])
    assert probs.sum() == pytest.approx(1, abs=1e-5) and set(counts) <= set(every)
    seen, expected = np.array([counts[ids] for ids in every]), number * probs
    rare = expected < 5
    seen, expected = ([*some[~rare], some[rare].sum()] for some in (seen, expected))
    known = [(x - e) ** 2 / e for x, e in zip(seen, expected, strict=True) if e]
    # Chi-square with at most 20 degrees of freedom: above 45.3 once in a thousand seeds.
    assert len(known) <= 21 and sum(known) < 45.3


def test_log_probs_are_those_of_the_model(source) -> None:
    words, eos = dict(zip("abc", WORDS.encode("a b c"), strict=True)), WORDS.eos_id
    prompts = [[], [words["a"], words["b"], words["c"]], [words["b"]], []] * 16
    prompts += [[words["a"], eos, words["c"]], [words["b"], eos]] * 4  # what is given ends no text
    drawn = source.draw(prompts, length=24, generator=generator(1))
    assert len({len(text.tokens) for text in drawn}) > 3
    for prompt, (ids, log_probs) in zip(prompts, drawn, strict=True):
        assert ids[: len(prompt)].tolist() == prompt and len(ids) <= 24
        new = ids[len(prompt) :].tolist()
        assert WORDS.eos_id not in new[:-1] and (new[-1] == WORDS.eos_id or len(ids) == 24)
        assert np.isnan(log_probs[: len(prompt)]).all()
        truth = scores(source, ids)[len(prompt) :]
        np.testing.assert_allclose(log_probs[len(prompt) :], truth, atol=1e-4)


def test_a_stream_goes_on_after_its_ends(source, tmp_path) -> None:
    source = ModelSource(source.name, goes_on=True)
    prompts = [[], WORDS.encode("a"), []] * 4
    drawn = source.draw(prompts, length=40, generator=generator(1))
    differs = False
    for prompt, (ids, log_probs) in zip(prompts, drawn, strict=True):
        assert len(ids) == 40
        tokens = torch.from_numpy(ids)[None]
        truth = source.model.lm.score_tokens(tokens).token_log_probs[0].numpy()[len(prompt) :]
        assert np.isnan(log_probs[: len(prompt)]).all()
        np.testing.assert_allclose(log_probs[len(prompt) :], truth, atol=1e-4)
        cold = scores(source, ids)[len(prompt) :]  # as if each sentence stood alone
        differs |= not np.allclose(cold, truth, atol=1e-3)
    assert differs
    settings = SampleSettings(tokens=200, valid=0, test=0, batch_size=4, length=40)
    result = sample_corpus(tmp_path / "new", source, settings)
    assert result["splits"]["train"]["sentences"] > result["marks"]["train"] > 0


def test_temperature_flattens_a_network_and_an_hmm_refuses_it(source) -> None:
    how = {"length": 1, "temperature": 2.0, "generator": generator()}
    if isinstance(source.model, Model):
        with pytest.raises(InputError, match=r"temperature is 2, but .*model is an HMM"):
            source.draw([[]], **how)
        return
    drawn = source.draw([[]] * 4000, **how)
    plain = np.array([scores(source, [id])[0] for id in range(WORDS.vocab_size)])
    flat = np.exp(plain / 2) / np.exp(plain / 2).sum()
    counts = np.bincount([text.tokens[0] for text in drawn], minlength=len(flat))
    np.testing.assert_allclose(counts / 4000, flat, atol=0.04)
    for ids, log_probs in drawn[:20]:
        assert log_probs[0] == pytest.approx(np.log(flat[ids[0]]), abs=1e-4)


def test_a_number_that_is_none_is_told(tmp_path) -> None:
    write("lstm", tmp_path / "model")
    source = ModelSource(tmp_path / "model")
    with torch.no_grad():
        source.model.lm.words.fill_(torch.nan)
    with pytest.raises(InputError, match="gave a probability that is not a number; train it again"):
        source.draw([[]], length=3, generator=generator())


def test_a_corpus_whose_optimum_is_known(source, tmp_path) -> None:
    settings = SampleSettings(tokens=300, valid=60, test=0, batch_size=8, length=12)
    result = sample_corpus(tmp_path / "new", source, settings, prompts=["a"])
    corpus = Corpus.open(tmp_path / "new")
    assert corpus.tokenizer.hash == WORDS.hash and set(corpus.splits) == {"train", "valid"}
    assert corpus.splits["train"]["tokens"] >= 300
    ids, log_probs = corpus.split("valid")[0:], read_log_probs(corpus, "valid")
    ends = np.flatnonzero(ids == WORDS.eos_id) + 1
    texts, parts = (np.split(some, ends)[:-1] for some in (ids, log_probs))
    for text, part in zip(texts, parts, strict=True):
        drawn = ~np.isnan(part)
        assert text[0] == WORDS.encode("a")[0] and not drawn[0]
        np.testing.assert_allclose(part[drawn], scores(source, text)[drawn], atol=1e-4)
    assert result["drawn"]["valid"] == np.isfinite(log_probs).sum()


@pytest.fixture
def real(tmp_path) -> Corpus:
    splits = {"train": LINES * 9, "valid": LINES, "test": ["a b"]}
    write_corpus(tmp_path / "real", WORDS, splits)
    return Corpus.open(tmp_path / "real")


BESIDE = SampleSettings(tokens=500, valid=0, test=0, batch_size=16, length=12)


def test_drawn_text_beside_real_text(source, real, tmp_path) -> None:
    result = sample_corpus(tmp_path / "new", source, BESIDE, beside=real)
    corpus = Corpus.open(tmp_path / "new")
    for name in ("valid", "test"):
        assert corpus.split(name)[0:].tolist() == real.split(name)[0:].tolist()
        assert corpus.splits[name] == real.splits[name]
        with pytest.raises(InputError, match="has no log-probabilities that a teacher gave"):
            read_log_probs(corpus, name)
    first, text = real.split("train")[0:], corpus.split("train")[0:]
    assert text[: len(first)].tolist() == first.tolist()
    new = text[len(first) :]
    assert 500 <= len(new) < 700 and new[-1] == WORDS.eos_id
    assert result["drawn"] == {"train": len(new) - result["marks"]["train"], "valid": 0, "test": 0}
    plain = sample_corpus(tmp_path / "plain", source, BESIDE)
    assert plain["splits"]["train"]["tokens"] == len(new)  # as many batches, of as many texts
    assert Corpus.open(tmp_path / "plain").split("train")[0:].tolist() == new.tolist()


class Stop(BaseException):
    pass


@pytest.mark.parametrize("saved", [1, 2, 3, 4])
def test_what_was_stopped_beside_real_text_goes_on(tmp_path, real, monkeypatch, saved) -> None:
    write("lstm", tmp_path / "model")
    source, done, said = ModelSource(tmp_path / "model"), [], []
    sample_corpus(tmp_path / "whole", source, BESIDE, beside=real)
    save = sampling._Work.save

    def stop(self) -> None:
        save(self)
        done.append(1)
        if len(done) == saved:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(sampling._Work, "save", stop)
        with pytest.raises(Stop):
            sample_corpus(tmp_path / "new", source, BESIDE, beside=real)
    sample_corpus(tmp_path / "new", source, BESIDE, beside=real, notice=said.append)
    assert said == [f"Going on with the unfinished {tmp_path / 'new'}."]
    assert tree(tmp_path / "new") == tree(tmp_path / "whole")


def test_what_is_refused_beside_real_text(tmp_path, real) -> None:
    write("lstm", tmp_path / "model")
    source = ModelSource(tmp_path / "model")
    held_out = SampleSettings(tokens=9, valid=4, test=0)
    with pytest.raises(InputError, match="valid is 4 and test 0, but held-out text is that of"):
        sample_corpus(tmp_path / "new", source, held_out, beside=real)
    write_corpus(tmp_path / "other", Tokenizer.words(["x y"], min_count=1), {"train": ["x y"]})
    with pytest.raises(InputError, match="has another vocabulary"):
        sample_corpus(tmp_path / "new", source, BESIDE, beside=Corpus.open(tmp_path / "other"))
    assert not (tmp_path / "new").exists() and not (tmp_path / ".new.unfinished").exists()


def test_another_model_is_told_from_this_one(tmp_path) -> None:
    for kind, name in (("lstm", "one"), ("lstm", "same"), ("decoder", "other")):
        write(kind, tmp_path / name)
    one, same, other = (ModelSource(tmp_path / name) for name in ("one", "same", "other"))
    assert one.signature == same.signature != other.signature
    assert json.dumps(one.signature) and one.rows_together(10) == 64
    assert ModelSource(tmp_path / "one", goes_on=True).signature != one.signature
    config = tmp_path / "other/config.json"  # the same weights, read otherwise
    config.write_text(config.read_text().replace('"context": ', '"context": 1'))
    assert ModelSource(tmp_path / "other").signature != other.signature


def test_text_beside_another_corpus_is_begun_anew(tmp_path, real, monkeypatch) -> None:
    write("lstm", tmp_path / "model")
    source, said = ModelSource(tmp_path / "model"), []
    write_corpus(tmp_path / "longer", WORDS, {"train": LINES * 10})
    with monkeypatch.context() as patch:
        patch.setattr(sampling._Work, "draw", lambda self: (_ for _ in ()).throw(Stop))
        with pytest.raises(Stop):
            sample_corpus(tmp_path / "new", source, BESIDE, beside=real)
    longer = Corpus.open(tmp_path / "longer")
    sample_corpus(tmp_path / "new", source, BESIDE, beside=longer, notice=said.append)
    assert "the text beside is another" in said[0]
    text = Corpus.open(tmp_path / "new")
    assert "test" not in text.splits and text.splits["train"]["tokens"] > 500


@pytest.mark.parametrize(("prompts", "length"), [([], 3), ([[0, 0, 0]], 3)])
def test_nothing_to_begin_with_or_too_much(source, prompts, length) -> None:
    with pytest.raises(InputError, match=r"give at least one \(it may be empty\), each shorter"):
        source.draw(prompts, length=length, generator=generator())


def test_what_a_network_carries_counts(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(model_source, "rows_that_fit", lambda _, each: each)
    for kind in ("decoder", "lstm"):
        write(kind, tmp_path / kind)
        source = ModelSource(tmp_path / kind)
        carried = sum(part.numel() for part in source.model.network.cold(1).values())
        assert source.rows_together(10) >= 4 * (carried + WORDS.vocab_size)
