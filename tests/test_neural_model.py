"""Neural models in folders: what is written is read back, and damage is told."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from hmmlm import Model
from hmmlm.baselines import lstm
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.neural_model import NeuralModel, load_model
from networks import SETTINGS

LINES = ["a b c", "a c", "b b a c"]
WORDS = Tokenizer.words(LINES, min_count=1)


def make(name: str = "lstm") -> NeuralModel:
    settings = SETTINGS[name]
    network = settings.build(
        WORDS.vocab_size, start_id=WORDS.eos_id, generator=torch.Generator().manual_seed(0)
    )
    return NeuralModel(name.split(",")[0], settings, network, WORDS, {"note": "kept"})


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_saved_is_loaded(name, tmp_path):
    model = make(name)
    model.save(tmp_path / "m", metrics=[{"step": 1}])
    loaded = load_model(tmp_path / "m")
    assert isinstance(loaded, NeuralModel) and loaded.settings == model.settings
    assert loaded.kind == model.kind and loaded.config["note"] == "kept"
    assert loaded.score(LINES) == model.score(LINES)
    for mode in ("sentence", "streaming"):
        assert loaded.perplexity(LINES, mode=mode) == model.perplexity(LINES, mode=mode)
    assert (tmp_path / "m" / "metrics.jsonl").read_text() == '{"step": 1}\n'
    with pytest.raises(InputError, match="already exists and is never overwritten"):
        model.save(tmp_path / "m")


def test_a_device_that_is_not_there(tmp_path):
    make("lstm").save(tmp_path / "m")
    with pytest.raises(InputError, match="device is 'foo' but must be auto, or one that torch has"):
        load_model(tmp_path / "m", device="foo")


def test_weights_keep_their_type(tmp_path):
    model = make()
    model.network.double()
    model.save(tmp_path / "m")
    assert NeuralModel.load(tmp_path / "m").network.precision == "float64"


def test_next_and_sample_follow_the_scores():
    model = make("hmm_rnn")
    scored = model.score(["a b"])[0]
    after = dict(model.next("a", k=100))
    assert sum(after.values()) == pytest.approx(1, abs=1e-5)
    assert math.log(after["b"]) == pytest.approx(scored.log_probs[1], abs=1e-5)
    first = dict(model.next(k=2))
    assert len(first) == 2 and math.log(dict(model.next(k=9))["a"]) == pytest.approx(
        scored.log_probs[0], abs=1e-5
    )
    texts = model.sample(400, length=3, seed=1)
    assert texts == model.sample(400, length=3, seed=1) != model.sample(400, length=3, seed=2)
    share = sum(text.split()[:1] == ["a"] for text in texts) / 400
    assert share == pytest.approx(dict(model.next(k=9))["a"], abs=0.08)
    assert all(len(text.split()) <= 3 and "<eos>" not in text for text in texts)
    assert all(text.startswith("b c") for text in model.sample(5, prompt="b c", length=4))
    for count, length, seed in ((0, 1, 1), (1, 0, 1), (1, 1, -1)):
        with pytest.raises(InputError, match="must"):
            model.sample(count, length=length, seed=seed)
    with pytest.raises(InputError, match="k is 0 but must be at least 1"):
        model.next(k=0)


def test_a_line_with_its_end_inside_starts_cold_after_it():
    model = make()
    scored = model.score(["a <eos> b"])[0]
    alone = model.score(["b"])[0]
    assert scored.tokens[1] == "<eos>"
    assert scored.log_probs[2:] == pytest.approx(alone.log_probs, abs=1e-6)


def test_questions_about_states_need_an_hmm(tmp_path):
    make().save(tmp_path / "m")
    with pytest.raises(InputError, match=r"m is a model of kind lstm, which has no hidden states"):
        Model.load(tmp_path / "m")


def test_damage_is_told(tmp_path):
    folder = tmp_path / "m"
    make().save(folder)
    config = json.loads((folder / "config.json").read_text())

    def write(**changes) -> None:
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    write(kind="gru")
    with pytest.raises(InputError, match=r"has the kind 'gru' but this version knows feed_forw"):
        load_model(folder)
    write(settings={"width": 5})
    with pytest.raises(InputError, match=r"does not fit the settings in config\.json"):
        load_model(folder)
    write(settings={"depth": 5})
    with pytest.raises(InputError, match=r"does not fit the settings in config\.json"):
        load_model(folder)
    write(vocabulary_hash="0")
    with pytest.raises(InputError, match="is not the vocabulary this model was trained with"):
        load_model(folder)
    write()
    weights = load_file(folder / "model.safetensors")
    weights.pop("words")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"does not fit the settings in config\.json .*words"):
        load_model(folder)
    (folder / "model.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match="is not a whole safetensors file"):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"cannot be read: No such file .*; copy the model's fold"):
        load_model(folder)
    hmm = {key: value for key, value in config.items() if key != "kind"}
    (folder / "config.json").write_text(json.dumps(hmm))
    with pytest.raises(InputError, match=r"is an HMM, not a neural model; read it with Model\.lo"):
        NeuralModel.load(folder)


def test_a_network_of_another_vocabulary_is_refused():
    network = lstm.Settings(width=2).build(3, start_id=0, generator=torch.Generator())
    with pytest.raises(InputError, match="The network has 3 words but the tokenizer has 5"):
        NeuralModel("lstm", lstm.Settings(width=2), network, WORDS)


def test_each_word_is_drawn_after_all_that_were(monkeypatch):
    model, seen = make(), []
    plain = model.network.next_log_probs
    monkeypatch.setattr(
        model.network, "next_log_probs", lambda carry: (seen.append(carry), plain(carry))[1]
    )
    texts = (model.sample(1, prompt="a", length=4, seed=seed)[0] for seed in range(100))
    text = next(text for text in texts if len(text.split()) == 5)
    ids = torch.from_numpy(next(model.encode([text])))[None]
    for drawn, carry in enumerate(seen[-4:]):
        expected = model.network.score_tokens(ids[:, : drawn + 1]).carry
        for name, part in expected.items():
            torch.testing.assert_close(carry[name], part)


def test_a_network_says_its_sizes():
    model = make("lstm")
    assert repr(model) == f"NeuralModel(lstm, {model.network.vocab_size:,} words)"
