"""`hmmlm sample` under constraints, `hmmlm constraint` and `hmmlm guide`."""

import json
import logging.handlers
import math
import re
from itertools import product
from pathlib import Path

import pytest
import torch

from commands import last_json
from hmmlm import Model
from hmmlm.errors import InputError
from hmmlm.generate import contains, words


def words_of(folder: str = "model") -> list[str]:
    tokenizer = Model.load(folder).tokenizer
    names = [tokenizer.token(id) for id in range(2, tokenizer.vocab_size)]
    return [name for name in names if name.isalpha()]


def test_every_text_is_what_it_must_be(place, call):
    one, other = words_of()[:2]
    options = [f"--must-contain={one}", f"--must-not={other}", "--words=2..4", "--length=8"]
    answer = call("sample", "model", "-n", 20, *options, "--seed=1", "--json")
    assert answer.status == 0, answer.err
    said = last_json(answer.out)
    assert len(said["texts"]) == 20
    for text in said["texts"]:
        assert one in text.split() and other not in text.split() and 2 <= len(text.split()) <= 4
    assert said["constraint"] == f"((contains('{one}') & ~contains('{other}')) & words(2..4))"
    plain = call("sample", "model", "-n", 20, *options, "--seed=1")
    assert re.match(
        r"probability \S+ that the model writes such a text of at most 8 tokens", plain.err
    )
    assert plain.out.splitlines() == said["texts"]


def test_the_probability_is_that_of_all_such_texts(place, call):
    model, (one, other, *_) = Model.load("model"), words_of()
    wanted = contains(one) & words(1, 2)
    total = 0.0
    for size in (1, 2):
        for text in product([model.tokenizer.token(id) for id in range(model.hmm.vocab_size)
                             if id != model.tokenizer.eos_id], repeat=size):  # fmt: skip
            if one in text:
                (scored,) = model.score([" ".join(text)])
                total += math.exp(sum(scored.log_probs))
    assert model.probability(wanted, length=5) == pytest.approx(total, rel=1e-4)
    answer = call("constraint", "model", f"--must-contain={one}", "--words=1..2", "--length=5",
                  "--svg=a.svg", "--json")  # fmt: skip
    said = last_json(answer.out)
    assert (
        math.exp(said["log_probability"]) == pytest.approx(total, rel=1e-4)
        and said["shortest"] == 1
    )
    drawn = Path("a.svg").read_text()
    assert drawn.startswith("<svg") and drawn.count("<circle") > said["states"] - 2
    assert f"{one}</text>" in drawn or f">{one}," in drawn
    after = model.probability(wanted, prompt=f"{other} {one}", length=5)
    assert 0 < after < 1 and after != pytest.approx(total, rel=1e-3)


def test_texts_go_on_after_a_prompt(place, call):
    one, other, *_ = words_of()
    options = [f"--prompt={one} {other}", f"--ends-with={one}", "--length=9", "--seed=3", "-n", 4]
    texts = last_json(call("sample", "model", *options, "--json").out)["texts"]
    assert all(text.startswith(f"{one} {other} ") and text.endswith(one) for text in texts)


def test_all_options_together(place, call):
    one, other, third, *_ = words_of()
    options = [
        f"--any-of={one}|{other}", f"--starts-with={third}", f"--ends-with={one}", "--tokens=3..5",
        "--sentences=0", f"--regex={third} .*", "--length=10",
    ]  # fmt: skip
    for text in last_json(call("sample", "model", "-n", 5, *options, "--json").out)["texts"]:
        parts = text.split()
        assert parts[0] == third and parts[-1] == one and 3 <= len(parts) <= 5


@pytest.fixture
def llm(place) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    spec = json.loads(Path("corpus/tokenizer.json").read_text())
    config = transformers.LlamaConfig(
        vocab_size=len(spec["model"]["vocab"]) + 2, hidden_size=8, intermediate_size=16,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, bos_token_id=0,
        eos_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained("llm")
    Path("llm/tokenizer.json").write_text(json.dumps(spec))


def test_a_language_model_is_guided(llm, call):
    one, other, third, *_ = words_of()
    options = ["--llm=llm", f"--must-contain={one}", f"--must-contain={other}", "--length=6"]
    for more in (["--seed=1", "-n", 6], ["--temperature=0"], ["--strength=0.5", "--seed=2"]):
        answer = call("guide", "model", *options, f"--prompt={third}", *more, "--json")
        assert answer.status == 0, answer.err
        for text in last_json(answer.out)["texts"]:
            new = text.split()[1:]
            assert {one, other} <= set(new) and len(new) <= 5
    assert "probability" in call("guide", "model", *options, "--seed=1").err


def test_bad_input(llm, refused):
    one = words_of()[0]
    for options, message in (
        (["sample", "model", "--words=9..2"], "words is 9..2 but must be from 0 or more up to"),
        (["sample", "model", "--words=many"], "--words is 'many' but must be such as 10..20"),
        (["sample", "model", "--regex=a(b"], "'a(b' is wrong at 1: missing ), unterminated"),
        (["sample", "model", "--must-contain=zebra"], "of this vocabulary cannot write a text"),
        (["sample", "model", f"--must-contain={one}", f"--must-not={one}"], "No text meets both"),
        (
            ["sample", "model", "--words=5", "--length=5"],
            "has 5 tokens and <eos> but",
        ),
        (["sample", "model", "--starts-with="], "The text to look for is empty"),
        (["constraint", "model"], "There is no constraint; give --must-contain TEXT"),
        (["guide", "model", "--llm=llm"], "There is nothing to guide to; give --must-contain"),
    ):
        assert message in refused(*options)


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["guide", "model", "--llm=nosuch", "--words=2"], "language model"),
        (["sample-corpus", "nosuch", "--tokens=10", "--out=new"], "teacher"),
    ],
)
def test_a_name_is_asked_of_the_hub_and_its_retries_are_not_told(
    llm, call, monkeypatch, command, what
):
    transformers = pytest.importorskip("transformers")

    def fail(*_, **__):
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        raise OSError("We couldn't connect.\nMore of it.")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", fail)
    hub, told = logging.getLogger("huggingface_hub"), logging.handlers.BufferingHandler(100)
    before = hub.level
    hub.addHandler(told)
    try:
        answer = call(*command)
    finally:
        hub.removeHandler(told)
    assert told.buffer == [] and hub.level == before
    assert answer.status == 2 and answer.err == (
        "hmmlm: nosuch is no folder here; asking Hugging Face's hub.\n"
        f"hmmlm: The {what} nosuch cannot be loaded: We couldn't connect. Give a folder that "
        "transformers reads, or a name on the hub.\n"
    )


def test_a_folder_that_is_written_as_one_is_not_asked_of_the_hub(llm, refused):
    said = "The language model ./nosuch cannot be loaded: there is no such folder."
    assert refused("guide", "model", "--llm=./nosuch", "--words=2").startswith(said)


def test_a_guide_of_another_vocabulary(llm, refused):
    path = Path("llm/tokenizer.json")
    spec = json.loads(path.read_text())
    names = list(spec["model"]["vocab"])
    names[2], names[3] = names[3], names[2]
    spec["model"]["vocab"] = {name: id for id, name in enumerate(names)}
    path.write_text(json.dumps(spec))
    said = refused("guide", "model", "--llm=llm", f"--must-contain={names[3]}")
    assert f"Token 2 is '{names[2]}' to the language model and '{names[3]}' to the HMM" in said


def test_only_hmms_know(place, call):
    train = ["train", "corpus", "--out=net", "--model=feed_forward", "--epochs=1"]
    assert call(*train, "--set=model.width=4").status == 0
    answer = call("sample", "net", "--words=2")
    assert answer.status == 2 and "net is a model of kind feed_forward, which has no" in answer.err


def test_a_picture_does_not_replace_a_file(place, refused):
    Path("keep.svg").write_text("mine")
    said = "keep.svg already exists and is never overwritten; choose another name or remove it"
    assert said in refused("constraint", "model", "--words=2", "--svg=keep.svg")


def test_a_picture_of_too_many_states(place, refused):
    assert "states, and a picture at most 60" in refused(
        "constraint", "model", "--words=70..90", "--svg=a.svg"
    )


def test_weights_of_tokens(place):
    model, word = Model.load("model"), words_of()[0]
    look = model.look_ahead(words(1, 3), length=5, weights={word: 2.0})
    assert float(look.log_weights.exp().sum()) == pytest.approx(model.hmm.vocab_size + 1)
    with pytest.raises(InputError, match="Words have weights here, so that this is no probab"):
        model.probability(look, length=5)
    with pytest.raises(InputError, match="length is 6 but this was made to look 5 tokens ahead"):
        model.sample(1, constraint=look, length=6)
    with pytest.raises(InputError, match="This looks ahead with another HMM; make it with this"):
        Model.load("model").sample(1, constraint=look, length=5)
    with pytest.raises(InputError, match="This has been made; give weights with the constraint"):
        model.look_ahead(look, length=5, weights={word: 2.0})
    with pytest.raises(InputError, match=r"The weight of .* is 0.0 but must be over 0"):
        model.look_ahead(words(1, 3), length=5, weights={word: 0.0})


def test_probabilities_in_words():
    from hmmlm.cli.generating import _told

    for log_prob, told in (
        (0.0, "100%"), (math.log(0.999), "99.9%"), (math.log(0.02), "2%"), (math.log(2e-5), "2e-5"),
        (-999.25, "1e-434"), (math.log(9.6e-5), "1e-4"), (math.log(9.4e-5), "9e-5"),
    ):  # fmt: skip
        assert _told(log_prob, 9).startswith(f"probability {told} that"), _told(log_prob, 9)
    assert _told(-math.inf, 9) == "probability 0: this model never writes that in at most 9 tokens"
