"""What is refused as an HMM of Hugging Face's transformers, or given to one."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

from commands import SOURCE
from hmmlm.errors import InputError
from hmmlm.mixture import mixture
from hmmlm.model import Model
from models import make_hmm

transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from test_causal_lm import SUPPORTS, TEXT, make  # noqa: E402

from hmmlm.hf import HmmConfig, HmmForCausalLM  # noqa: E402
from hmmlm.hf.sources import check_folder  # noqa: E402


def test_what_is_asked_of_a_model() -> None:
    model, lm = make()
    for labels, message in (
        (TEXT + 1, "labels differ from input_ids; the loss of an HMM is that of the text it reads"),
        (TEXT[:, :5], r"labels has the shape \(2, 5\) but must have that of input_ids, \(2, 7\)"),
    ):
        with pytest.raises(InputError, match=message):
            lm(TEXT, labels=labels)
    with pytest.raises(InputError, match="Row 1 is all padding; give it at least one token"):
        lm(TEXT, attention_mask=torch.tensor([[1] * 7, [0] * 7]))
    for mask in (torch.ones(2, 5), torch.ones(1, 7), torch.ones(2, 9), torch.ones(2, 1, 7, 7)):
        said = r"attention_mask has the shape .* but must have \(2, 7\): a number for each token"
        with pytest.raises(InputError, match=said):
            lm(TEXT, attention_mask=mask)
    for ids in (TEXT[0], TEXT[:, :0], TEXT[:0]):
        said = r"input_ids has the shape .* but must have \(batch, time\), with at least one token"
        with pytest.raises(InputError, match=said):
            lm(ids)
    with pytest.raises(InputError, match=r"input_ids has -1 but ids are 0 or more; hide what is"):
        lm(TEXT - 2 * (TEXT == 1))
    with pytest.raises(
        InputError, match=r"eos_token_id is \[1, 2\] but it must be one token; give"
    ):
        HmmForCausalLM(HmmConfig(vocab_size=4, num_states=2, eos_token_id=[1, 2]))
    with pytest.raises(InputError, match="past_key_values is a list but must be what an earlier"):
        lm(TEXT, past_key_values=[])
    with pytest.raises(InputError, match="past_key_values has read 7 tokens but input_ids has 7;"):
        lm.generate(TEXT, past_key_values=lm(TEXT).past_key_values, max_new_tokens=2)
    with pytest.raises(InputError, match="An HMM has no embeddings of words to add more to; train"):
        lm.resize_token_embeddings(9)
    with pytest.raises(InputError, match="The HMM's num_states is 5 but this model's is 9; make"):
        lm.set_hmm(make("dense", "factored")[0].hmm)
    with pytest.raises(InputError, match="Labels are of whole texts; leave out past_key_values"):
        lm(TEXT, labels=TEXT, past_key_values=lm(TEXT).past_key_values)
    mixed = HmmForCausalLM.from_model(Model(mixture([model.hmm, model.hmm]), model.tokenizer))
    assert math.isfinite(float(mixed(TEXT, labels=TEXT).loss))
    other = HmmForCausalLM(mixed.config)
    other.train()(TEXT, labels=TEXT)
    other.load_state_dict(mixed.state_dict())
    for lm in (mixed, other):
        said = "is a mixture, whose parts nothing keeps apart in training; fine-tune the parts,"
        with pytest.raises(InputError, match=said):
            lm.train()(TEXT, labels=TEXT)
    impossible = make_hmm(SUPPORTS["dense"], "dense", dtype=torch.float32)
    emit = impossible.log_emit.clone()
    emit[3] = -torch.inf
    hmm = type(impossible)(
        impossible.log_init, impossible.transitions, emit.log_softmax(0), impossible.support
    )
    silent = HmmForCausalLM.from_model(Model(hmm, model.tokenizer))
    with pytest.raises(InputError, match="a token that this HMM gives probability zero"):
        silent(torch.tensor([[2, 3, 4]]))
    silent.train()
    with pytest.raises(InputError, match="a token that this HMM gives probability zero"):
        silent(torch.tensor([[2, 3, 4]]), labels=torch.tensor([[2, 3, 4]]))
    none = silent(torch.tensor([[2, 4]]), labels=torch.tensor([[-100, -100]])).loss
    assert float(none.detach()) == 0 and none.requires_grad


@pytest.fixture
def saved(tmp_path):
    """The folder of a model, and what writes its tables again, changed."""
    make()[1].save_pretrained(tmp_path / "new")
    file = tmp_path / "new/model.safetensors"
    tensors = load_file(file)

    def write(**changed: torch.Tensor | None) -> None:
        kept = {name: table for name, table in {**tensors, **changed}.items() if table is not None}
        save_file(kept, file, metadata={"format": "pt"})

    return tmp_path / "new", tensors, write


def test_tables_that_are_none(saved) -> None:
    folder, tensors, write = saved
    far, nan, rows = (tensors[name].clone() for name in ("log_emit", "log_emit", "support_rows"))
    nan[0, 0], rows[0, 0] = torch.nan, 77
    said = "new: the probabilities of its tables must sum to 1, but a sum is off by"
    for changed, message in (
        ({"log_init": None}, "lacks log_init: not the tables of this configuration; copy or save"),
        ({"more": torch.zeros(2)}, "also has more: not the tables of this"),
        ({"log_emit": far + 1}, f"{said} 1.72; copy or save the model again"),
        ({"log_emit": nan}, f"{said} nan"),
        ({"trans_log_norm": tensors["trans_log_norm"] + 1}, f"{said} 0.632"),
        ({"support_rows": rows}, "new: The support names state 77 but there are 9 states"),
    ):
        write(**changed)
        with pytest.raises(InputError, match=message):
            HmmForCausalLM.from_pretrained(folder)
    write()
    assert HmmForCausalLM.from_pretrained(folder)(TEXT).logits.shape == (2, 7, 6)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:300])
    with pytest.raises(InputError, match=r"new has no whole safetensors \(.*\); copy or save the"):
        HmmForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_states": 12}, "has other shapes of log_init, trans_left, trans_log_norm, trans_rig"),
        ({"num_states": -3}, "says num_states is -3 but it must be a whole number of at least 1;"),
        ({"num_states": "many"}, "says num_states is 'many' but it must be a whole number of"),
        ({"states_per_word": 0}, "says states_per_word is 0 but it must be a whole number of"),
        ({"factors": -1}, "says factors is -1 but it must be a whole number of at least 0;"),
        ({"support_rows": 0}, "says support_rows is 0 but it must be a whole number of at least 1"),
        ({"vocab_size": 0}, "says vocab_size is 0 but it must be a whole number of at least 1;"),
        ({"factors": 0}, "lacks log_trans: not the tables of this configuration"),
    ],
)
def test_sizes_that_are_others(saved, changed: dict, message: str) -> None:
    folder = saved[0]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(InputError, match=message):
        HmmForCausalLM.from_pretrained(folder)


def test_a_folder_that_is_not_there() -> None:
    for name in ("/nowhere/x", "./nowhere", "~/nowhere"):
        with pytest.raises(InputError, match=r"nowhere.* is no folder; give one of hmmlm train"):
            HmmForCausalLM.from_pretrained(name)


def test_no_other_architecture_and_no_pickle(tmp_path) -> None:
    _, lm = make()
    lm.save_pretrained(tmp_path / "x")
    tensors = lm.state_dict()
    (tmp_path / "x/model.safetensors").unlink()
    torch.save(tensors, tmp_path / "x/pytorch_model.bin")
    said = r"x/pytorch_model\.bin is a pickle, which could run any program, and is never read; save"
    for door in (HmmForCausalLM, transformers.AutoModelForCausalLM):
        with pytest.raises(InputError, match=said):
            door.from_pretrained(tmp_path / "x")
    config = transformers.GPT2Config(vocab_size=6, n_embd=4, n_layer=1, n_head=1)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    said = r"gpt2 has a model of the type 'gpt2' and no HMM; give a folder of hmmlm train, or dist"
    with pytest.raises(InputError, match=said):
        HmmForCausalLM.from_pretrained(tmp_path / "gpt2")
    with pytest.raises(InputError, match=said):
        HmmForCausalLM.from_pretrained(pretrained_model_name_or_path=tmp_path / "gpt2")


@pytest.mark.parametrize("name", ["x.bin", "x.pt", "x.pth"])
@pytest.mark.parametrize("config", [None, "{", "[]", "{}"])
def test_a_pickle_is_refused_whatever_is_beside_it(tmp_path, name, config) -> None:
    (tmp_path / name).write_bytes(b"")
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(InputError, match=rf"{name} is a pickle, which could run any program, and"):
        check_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    check_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    with pytest.raises(InputError, match="has a model of the type 'x' and no HMM; give a folder"):
        check_folder(tmp_path)


def test_ids_of_a_larger_tokenizer_are_refused() -> None:
    _, lm = make()
    with pytest.raises(InputError, match=r"tokens has id 99 but this vocabulary ends at 5"):
        lm(torch.tensor([[2, 99]]))


def test_texts_that_are_packed_into_a_row_are_refused() -> None:
    _, model = make()
    ids = torch.tensor([[1, 2, 3, 2], [1, 3, 2, 2]])
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    plain = model(ids, attention_mask=mask).logits
    # As generate and collators make them: those of padding are anything.
    for positions in ([[0, 1, 2, 3], [1, 1, 0, 1]], [[0, 1, 2, 3]]):
        found = model(ids, attention_mask=mask, position_ids=torch.tensor(positions)).logits
        torch.testing.assert_close(found, plain)
    packed = torch.tensor([[0, 1, 0, 1], [0, 1, 2, 3]])
    with pytest.raises(InputError, match=r"start again within row 0: texts are packed.*own \(pack"):
        model(ids, position_ids=packed)


def test_without_transformers_it_says_how_to_get_it() -> None:
    code = "import sys\nsys.modules['transformers'] = None\nimport hmmlm.hf"
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode and "not installed; run pip install 'hmmlm[hf]'." in done.stderr
