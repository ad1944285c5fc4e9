"""An HMM whose features a language model makes; tiny ones are made here and read from a folder."""

import logging
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers")

from hmmlm.data.batches import Batch  # noqa: E402
from hmmlm.errors import InputError  # noqa: E402
from hmmlm.params import pretrained  # noqa: E402
from hmmlm.support import Support  # noqa: E402
from hmmlm.train.loss import HmmLoss  # noqa: E402

SIZES = {"vocab_size": 12, "hidden_size": 8, "intermediate_size": 24, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 4, "max_position_embeddings": 6}

UNSEEN = ("start_bias", "heads.start.bias", "heads.destination.bias")
"""What is added to all logits of a softmax."""


@pytest.fixture
def folder(tmp_path) -> str:
    """A small Llama, whose keys and values are shared by heads."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, initializer_range=0.3)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    return str(tmp_path / "llama")


def build(folder: str, *, seed: int = 1, dtype: torch.dtype = torch.float64, **how):
    settings = pretrained.Settings(checkpoint=folder, **how)
    generator = torch.Generator().manual_seed(seed)
    return settings.build(Support.dense(7, 5), generator=generator, dtype=dtype)


def weights(model) -> dict[str, torch.Tensor]:
    return model.networks["all"].state_dict()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_features_are_heads_of_what_the_model_makes_of_the_states(folder, depth) -> None:
    hmm, made = (model := build(folder, depth=depth))(), model.embeddings["all"](None)
    llama = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64).model
    llama.layers = llama.layers[: depth or 3]
    llama.config.num_hidden_layers = depth or 3
    hidden = llama(inputs_embeds=made[None]).last_hidden_state[0]

    def role(name: str) -> torch.Tensor:
        return hidden @ model.heads[name].weight.T + model.heads[name].bias

    trans = torch.log_softmax(role("source") @ role("destination").T, 1)
    torch.testing.assert_close(hmm.transitions.rows(0, 5), trans, rtol=0, atol=1e-12)
    emit = torch.log_softmax(role("emit") @ model.words.T + model.word_bias, 1)
    torch.testing.assert_close(hmm.log_emit, emit.T, rtol=0, atol=1e-12)
    init = torch.log_softmax(role("start") @ model.start, 0)
    torch.testing.assert_close(hmm.log_init, init, rtol=0, atol=1e-12)
    assert model.heads.keys() == {"start", "source", "destination", "emit"}
    hmm.detach().validate()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_weights_are_the_checkpoint_s_without_its_words(folder, dtype) -> None:
    truth = transformers.AutoModel.from_pretrained(folder, dtype=dtype).state_dict()
    truth = {f"model.{name}": held for name, held in truth.items() if "embed" not in name}
    found = weights(build(folder, dtype=dtype))
    assert found.keys() == truth.keys()
    assert all(torch.equal(found[name], truth[name]) for name in truth)


def test_gradients_reach_all_that_is_learnt(folder) -> None:
    model, tokens = build(folder), torch.tensor([[0, 3, 2, 6, 1], [5, 2, 4, 0, 3]])
    batch = Batch(tokens, torch.tensor([5, 5]), torch.zeros(2, 5, dtype=torch.bool), 10)
    HmmLoss(model, model.support)(batch, 0.0).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.abs().max() > 1e-9) != (name in UNSEEN), name


def test_random_weights_are_those_of_the_generator(folder) -> None:
    before = torch.random.get_rng_state()
    known = build(folder)
    one, same, other = (build(folder, random=True, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    name = "model.layers.1.mlp.up_proj.weight"
    held = [weights(model)[name] for model in (known, one, same, other)]
    assert torch.equal(held[1], held[2])
    assert not torch.equal(held[1], held[3]) and not torch.equal(held[0], held[1])
    assert weights(one).keys() == weights(known).keys()


def test_nothing_is_dropped_in_training(tmp_path) -> None:
    """GPT-2 has dropout of its own, in three places."""
    how = {"n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 12, "n_positions": 6}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**how)).save_pretrained(tmp_path / "gpt2")
    model = build(str(tmp_path / "gpt2")).train()
    assert model.training and torch.equal(model().log_emit, model().log_emit)


def test_a_state_is_read_after_those_before_it(folder) -> None:
    body = build(folder).networks["all"]
    inputs = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    other = inputs.clone()
    other[3] += 1.0
    same = (body(inputs) == body(other)).all(1)
    assert same.tolist() == [True, True, True, False, False]


def test_sizes_are_known_without_the_weights(folder, tmp_path) -> None:
    (tmp_path / "llama/model.safetensors").unlink()
    settings = pretrained.Settings(checkpoint=folder, random=True, depth=2)
    model = settings.build(Support.dense(7, 5), generator=torch.Generator())
    sizes = [parameter.numel() for parameter in model.networks.parameters()]
    shape = settings.shape
    assert (shape.width, shape.depth, shape.positions) == (8, 2, 6)
    assert (shape.size, shape.largest) == (sum(sizes), max(sizes))
    with pytest.raises(InputError, match=r"The checkpoint .*llama cannot be loaded: .* Give a fol"):
        build(folder)


def test_a_folder_that_is_not_there_is_an_error(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    for random in (False, True):
        for name, said in (("empty", ""), ("none", "there is no such folder")):
            with pytest.raises(InputError, match=f"The checkpoint .*{name} cannot be .*{said}"):
                build(str(tmp_path / name), random=random)


def test_weights_that_are_missing_are_not_made_up(folder, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    path = tmp_path / "llama/model.safetensors"
    held = load_file(path)
    del held["model.layers.1.mlp.up_proj.weight"]
    save_file(held, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"no weights of layers\.1\.mlp\.up_proj\.weight \(1 are"):
        build(folder)


def test_models_that_are_no_decoders_are_refused(tmp_path) -> None:
    sizes = {**SIZES, "max_position_embeddings": 16}
    models = {
        "bert": transformers.BertModel(transformers.BertConfig(**sizes)),
        "t5": transformers.T5Model(
            transformers.T5Config(vocab_size=12, d_model=8, d_ff=8, d_kv=4, num_layers=1)
        ),
    }
    for kind, model in models.items():
        model.save_pretrained(tmp_path / kind)
        with pytest.raises(InputError, match=f"is a {kind} model, which does not read from left"):
            build(str(tmp_path / kind))
    narrow = transformers.OPTConfig(
        vocab_size=12, hidden_size=8, ffn_dim=8, num_hidden_layers=1, num_attention_heads=2,
        word_embed_proj_dim=4,
    )  # fmt: skip
    narrow.save_pretrained(tmp_path / "opt")
    with pytest.raises(InputError, match="has 4 numbers for a word but 8 in its layers"):
        build(str(tmp_path / "opt"), random=True)


def test_what_is_refused(folder) -> None:
    with pytest.raises(InputError, match=r"kind pretrained needs model\.checkpoint: a folder"):
        pretrained.Settings()
    with pytest.raises(InputError, match="depth is -1 but must be at least 0"):
        pretrained.Settings(checkpoint=folder, depth=-1)
    with pytest.raises(InputError, match=r"depth is 4 but .*llama has 3 layers; use at most so ma"):
        build(folder, depth=4)
    seven = Support.dense(7, 7)
    with pytest.raises(InputError, match=r"There are 7 states but .*llama reads 6 at most; use fe"):
        pretrained.Settings(checkpoint=folder).build(seven, generator=torch.Generator())


def test_without_transformers_the_way_to_it_is_told(folder, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        InputError, match=r"needs Hugging Face's transformers; pip install 'hmmlm\["
    ):
        build(folder)


def test_reading_says_nothing_and_leaves_nothing_changed(folder, capfd) -> None:
    from transformers.utils import logging as theirs

    before = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    build(folder, depth=1)
    assert (theirs.get_verbosity(), theirs.is_progress_bar_enabled()) == before
    assert before == (logging.WARNING, True)
    assert capfd.readouterr() == ("", "")
