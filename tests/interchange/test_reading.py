"""What a source is, is seen from what is in it; a pickle is never read."""

import json
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from foreign import CTRL_G, EMIT, ctrl_g_tables, hmmlearn_arrays, write
from hmmlm import HMM, Model, inference
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.interchange import read
from models import make_hmm

PICKLE = (
    r" is a pickle, which could run any program, and is never read; in the library that wrote it, "
    r"load it and save its arrays: save_pretrained \(safetensors\) for Ctrl-G and TRACE, "
    r"numpy\.savez for others \(docs/interchange\.md\)\."
)


class Trap:
    """Unpickled, it would end the test."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was read",)


@pytest.mark.parametrize("name", ["x.pkl", "x.pickle", "x", "x.npz", "x.joblib", "x.safetensors"])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_is_refused_whatever_its_name(tmp_path, name, protocol):
    (tmp_path / name).write_bytes(pickle.dumps(Trap(), protocol))
    with pytest.raises(InputError, match=name + PICKLE):
        read(tmp_path / name)


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
def test_a_file_of_torch_is_refused(tmp_path, name, new):
    torch.save(ctrl_g_tables(), tmp_path / name, _use_new_zipfile_serialization=new)
    with pytest.raises(InputError, match=name + PICKLE):
        read(tmp_path / name)


def test_a_folder_that_has_only_a_pickle_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CTRL_G))
    torch.save(ctrl_g_tables(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin" + PICKLE):
        read(tmp_path)


def test_objects_in_a_file_of_arrays_are_not_read(tmp_path):
    arrays = hmmlearn_arrays() | {"transmat_": np.array([Trap()], dtype=object)}
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match="transmat_ is no array of numbers; save it with numpy"):
        read(tmp_path / "x.npz")


def test_a_model_of_another_architecture_is_refused(tmp_path):
    tables = {f"h.{n}.attn.weight": torch.ones(2) for n in range(9)}
    folder = write(tmp_path / "x", tables, {"model_type": "gpt2", "vocab_size": 4})
    said = r"holds h\.0\.attn\.weight, h\.1\.attn\.weight, h\.2\.attn\.weight, \.\.\., which is no "
    said += r"HMM of Ctrl-G, TRACE, hmmlearn, pomegranate or dynamax; docs/interchange\.md has"
    with pytest.raises(InputError, match=said):
        read(folder)


def test_what_is_no_model_at_all(tmp_path):
    with pytest.raises(InputError, match="no does not exist; give a model's folder or a file of"):
        read(tmp_path / "no")
    with pytest.raises(InputError, match=r"has no model\.safetensors; give a model's folder or a"):
        read(tmp_path)
    (tmp_path / "x.txt").write_text("words")
    with pytest.raises(
        InputError, match=r"x\.txt is neither a whole safetensors file \(.*\) nor a"
    ):
        read(tmp_path / "x.txt")
    np.savez(tmp_path / "x.npz", **hmmlearn_arrays())
    whole = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "y.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        InputError, match=r"y\.npz is neither a whole safetensors file \(.*\) nor a"
    ):
        read(tmp_path / "y.npz")
    (tmp_path / "z.npz").write_bytes(whole.replace(b"\x93NUMPY", b"\x93NUMPX"))
    with pytest.raises(InputError, match=r"z\.npz"):
        read(tmp_path / "z.npz")


def words_of(count: int, eos: str = "<eos>") -> Tokenizer:
    """`count` tokens, the end token third."""
    names = ["a", "b", eos, *(f"w{n}" for n in range(3, count))]
    spec = {"model": {"type": "WordLevel", "vocab": {w: n for n, w in enumerate(names)}}}
    spec["model"]["unk_token"] = "a"
    return Tokenizer.from_json(
        json.dumps({**spec, "pre_tokenizer": {"type": "WhitespaceSplit"}}), source="x", eos=eos
    )


def test_our_own_model_and_a_file_of_it(tmp_path):
    model = Model(make_hmm(), words_of(5))
    model.save(tmp_path / "x")
    back = read(tmp_path / "x")
    assert isinstance(back, Model) and back.score("a b") == model.score("a b")
    assert isinstance(read(tmp_path / "x/model.safetensors"), Model)
    (tmp_path / "x/model.safetensors").rename(tmp_path / "y.safetensors")
    with pytest.raises(InputError, match=r"is part of a model of hmmlm; give its folder\."):
        read(tmp_path / "y.safetensors")
    with pytest.raises(InputError, match="has a tokenizer of its own; leave --tokenizer out"):
        read(tmp_path / "x", tokenizer=tmp_path / "x/tokenizer.json")


def test_a_tokenizer_makes_a_model_of_a_checkpoint(tmp_path):
    folder = write(tmp_path / "x", ctrl_g_tables(), CTRL_G)
    plain = read(folder)
    words_of(4).save(tmp_path / "words.json")
    model = read(folder, tokenizer=tmp_path / "words.json")
    assert isinstance(model, Model) and isinstance(plain, HMM)
    (scored,) = model.score("a b")
    wanted = inference.log_prob(plain, torch.tensor([[0, 1, 2]])).log_evidence
    assert sum(scored.log_probs) == pytest.approx(float(wanted), abs=1e-6)
    model.save(tmp_path / "y")
    assert Model.load(tmp_path / "y").score("a b") == model.score("a b")
    words_of(4).save(folder / "tokenizer.json")
    assert isinstance(read(folder), Model)


def test_the_end_token_is_that_of_the_checkpoint(tmp_path):
    folder = write(tmp_path / "x", ctrl_g_tables(), CTRL_G | {"eos_token_id": 1})
    path = tmp_path / "words.json"
    words_of(4).save(path)
    model = read(folder, tokenizer=path)
    assert isinstance(model, Model) and model.tokenizer.eos_id == 1
    said = r"x end with token 1 but lines of .*words\.json with 2; give the tokenizer that the"
    with pytest.raises(InputError, match=said):
        read(folder, tokenizer=path, eos="<eos>")


@pytest.mark.parametrize("size", [3, 5])
def test_a_tokenizer_of_another_size_is_refused(tmp_path, size):
    folder = write(tmp_path / "x", ctrl_g_tables(), CTRL_G)
    words_of(size).save(tmp_path / "words.json")
    said = rf"x emits 4 words but .*words\.json has {size}; give the tokenizer that the model was"
    with pytest.raises(InputError, match=said):
        read(folder, tokenizer=tmp_path / "words.json")


def test_a_vocabulary_that_was_filled_up_is_cut(tmp_path):
    emit = torch.cat([EMIT, EMIT.new_full((3, 2), 1e-8)], 1)
    tables = {**ctrl_g_tables(), "beta": emit.log().clamp(min=-1e30).float()}
    folder = write(tmp_path / "x", tables, CTRL_G | {"vocab_size": 6})
    words_of(4).save(tmp_path / "words.json")
    plain, model = read(folder), read(folder, tokenizer=tmp_path / "words.json")
    assert isinstance(model, Model) and isinstance(plain, HMM)
    assert (plain.vocab_size, model.hmm.vocab_size) == (6, 4)
    text = torch.tensor([[0, 3, 1, 2]])
    torch.testing.assert_close(
        inference.log_prob(plain, text).log_evidence,
        inference.log_prob(model.hmm, text).log_evidence,
    )


def test_half_precision_is_read_where_rows_still_sum_to_one(tmp_path):
    tables = {name: table.half() for name, table in ctrl_g_tables().items()}
    tables["beta"] = EMIT.log().clamp(min=-6e4).half()
    hmm = read(write(tmp_path / "x", tables, CTRL_G))
    assert isinstance(hmm, HMM) and hmm.dtype == torch.float32
    assert torch.equal(torch.isneginf(hmm.log_emit), EMIT.T == 0)


def test_a_file_of_a_checkpoint_is_read_with_the_config_beside_it(tmp_path):
    folder = write(tmp_path / "x", ctrl_g_tables(), CTRL_G)
    assert isinstance(read(folder / "model.safetensors"), HMM)
    save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(InputError, match=r"empty\.safetensors holds nothing, which is no HMM of"):
        read(tmp_path / "empty.safetensors")
