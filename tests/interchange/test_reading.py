"""What a source is, is seen from what is in it; a pickle is never read."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from foreign import CTRL_G, EMIT, ctrl_g_tables, hmmlearn_arrays, write
from hmmlm import HMM, Model, inference
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.hmm import emission_table
from hmmlm.interchange import read
from hmmlm.interchange.reading import read_source
from hmmlm.support import Support
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


@pytest.mark.parametrize("name", ["x.pkl", "X.PKL"])
def test_a_pickle_of_text_is_known_by_its_name(tmp_path, name):
    (tmp_path / name).write_bytes(pickle.dumps(Trap(), 0))
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
    (tmp_path / "folder").mkdir()  # and in it nothing else
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
    with pytest.raises(InputError, match=r"z\.npz cannot be read: Bad CRC-32 .*; save or copy it"):
        read(tmp_path / "z.npz")
    (tmp_path / "w.npz").write_bytes(whole.replace(b"PK\x01\x02", b"PK\x01\x00"))
    with pytest.raises(InputError, match=r"w\.npz cannot be read: Bad magic number for central di"):
        read(tmp_path / "w.npz")


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
    with pytest.raises(InputError, match="has a tokenizer of its own; leave --eos out"):
        read(tmp_path / "x", eos="b")


@pytest.mark.parametrize("size", ["5GB", 200])
@pytest.mark.parametrize("trans", ["dense", "factored"])
def test_an_hmm_that_transformers_saved(tmp_path, trans, size):
    hf = pytest.importorskip("hmmlm.hf")
    support = Support.from_clusters([0, 1, 0, 1, 2], states_per_block=2)
    model = Model(make_hmm(support, trans, dtype=torch.float32), words_of(5))
    hf.HmmForCausalLM.from_model(model).save_pretrained(tmp_path / "x", max_shard_size=size)
    plain = read_source(tmp_path / "x")
    assert (plain.kind, plain.eos_id) == ("transformers", 2) and isinstance(plain.model, HMM)
    hf.HmmTokenizer.of(model.tokenizer).save_pretrained(tmp_path / "x")
    found = read(tmp_path / "x")
    assert isinstance(found, Model) and found.score("a b w3") == model.score("a b w3")
    assert torch.equal(found.hmm.support.rows, support.rows)
    with pytest.raises(InputError, match=r"x was saved by transformers; hmmlm convert .*x --to hm"):
        Model.load(tmp_path / "x")


def test_a_model_of_ours_by_way_of_transformers(tmp_path):
    """Also where it came from a folder, which says more of itself than a model in memory."""
    pytest.importorskip("hmmlm.hf")
    auto = pytest.importorskip("transformers")
    model = Model(make_hmm(dtype=torch.float32), Tokenizer.words(["a b c"]))
    model.save(tmp_path / "x")
    auto.AutoModelForCausalLM.from_pretrained(tmp_path / "x").save_pretrained(tmp_path / "y")
    assert (
        read_source(tmp_path / "y", tokenizer=tmp_path / "x/tokenizer.json").kind == "transformers"
    )
    auto.AutoTokenizer.from_pretrained(tmp_path / "x").save_pretrained(tmp_path / "y")
    found = read(tmp_path / "y")
    assert isinstance(found, Model) and found.score("a b c") == model.score("a b c")


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
    words_of(4, "stop").save(tmp_path / "others.json")
    model = read(folder, tokenizer=tmp_path / "others.json")
    assert isinstance(model, Model) and model.tokenizer.token(2) == "stop"
    np.savez(tmp_path / "x.npz", **hmmlearn_arrays())
    model = read(tmp_path / "x.npz", tokenizer=tmp_path / "words.json", eos="b")
    assert isinstance(model, Model) and model.tokenizer.eos_id == 1


def test_the_end_token_is_that_of_the_checkpoint(tmp_path):
    folder = write(tmp_path / "x", ctrl_g_tables(), CTRL_G | {"eos_token_id": 1})
    path = tmp_path / "words.json"
    words_of(4).save(path)
    model = read(folder, tokenizer=path)
    assert isinstance(model, Model) and model.tokenizer.eos_id == 1
    said = r"x end with token 1 but lines of .*words\.json with 2; give the tokenizer that the"
    with pytest.raises(InputError, match=said):
        read(folder, tokenizer=path, eos="<eos>")
    folder = write(tmp_path / "y", ctrl_g_tables(), CTRL_G | {"eos_token_id": 3})
    words_of(3).save(path)
    said = r"y end with token 3 but lines of .*words\.json with 2; give the tokenizer that the"
    with pytest.raises(InputError, match=said):
        read(folder, tokenizer=path)


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


def test_ids_that_are_spare_are_so_in_every_state(tmp_path):
    emit = torch.cat([EMIT, torch.zeros(3, 2, dtype=torch.float64)], 1)
    emit[1] = torch.tensor([0.1, 0.6 - 1.2e-6, 0.0, 0.3, 6e-7, 6e-7])
    tables = {**ctrl_g_tables(), "beta": emit.log().clamp(min=-1e30)}
    folder = write(tmp_path / "x", tables, CTRL_G | {"vocab_size": 6})
    words_of(4).save(tmp_path / "words.json")
    with pytest.raises(InputError, match=r"x emits 6 words but .*words\.json has 4; give the"):
        read(folder, tokenizer=tmp_path / "words.json")


@pytest.mark.parametrize("trans", ["dense", "factored"])
def test_a_vocabulary_of_blocks_is_cut(tmp_path, trans):
    hf = pytest.importorskip("hmmlm.hf")
    support = Support.from_clusters([0, 1, 0, 1, 1], states_per_block=[1, 2])
    hmm = make_hmm(support, trans, dtype=torch.float32)
    emit = hmm.log_emit.clone()
    emit[4] = -20.0
    hmm = replace(hmm, log_emit=emission_table(emit, support))
    hf.HmmForCausalLM.from_model(Model(hmm, words_of(5))).save_pretrained(tmp_path / "x")
    words_of(4).save(tmp_path / "words.json")
    model = read(tmp_path / "x", tokenizer=tmp_path / "words.json")
    assert isinstance(model, Model) and model.hmm.vocab_size == 4
    assert torch.equal(model.hmm.support.rows, support.rows)
    assert type(model.hmm.transitions) is type(hmm.transitions)
    text = torch.tensor([[0, 3, 1, 2]])
    torch.testing.assert_close(
        inference.log_prob(hmm, text).log_evidence,
        inference.log_prob(model.hmm, text).log_evidence,
    )


@pytest.mark.parametrize("eos_id", [None, [2, 3], True])
def test_what_ends_a_text_of_transformers_may_not_be_one_token(tmp_path, eos_id):
    hf = pytest.importorskip("hmmlm.hf")
    model = Model(make_hmm(dtype=torch.float32), words_of(5))
    hf.HmmForCausalLM.from_model(model).save_pretrained(tmp_path / "x")
    config = json.loads((tmp_path / "x/config.json").read_text())
    (tmp_path / "x/config.json").write_text(json.dumps(config | {"eos_token_id": eos_id}))
    assert read_source(tmp_path / "x").eos_id is None


def test_a_training_that_is_not_over(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match=r"training is not over; hmmlm train --resume .* goes on"):
        read(tmp_path)


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


def in_shards(folder: Path) -> Path:
    """A checkpoint of Ctrl-G in three files and an index, as save_pretrained writes large ones."""
    tables = {name: table.contiguous() for name, table in ctrl_g_tables().items()}
    folder.mkdir()
    places = {name: f"model-{n:05d}-of-00003.safetensors" for n, name in enumerate(tables, 1)}
    for name, place in places.items():
        save_file({name: tables[name]}, folder / place)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(CTRL_G))
    return folder


@pytest.mark.parametrize("name", ["", "model.safetensors.index.json", "model-00002-of-00003"])
def test_a_checkpoint_in_several_files(tmp_path, name):
    folder = in_shards(tmp_path / "x")
    path = folder / name if "of" not in name else folder / f"{name}.safetensors"
    source, whole = read_source(path), read(write(tmp_path / "y", ctrl_g_tables(), CTRL_G))
    assert isinstance(whole, HMM) and (source.kind, source.eos_id) == ("ctrl-g", 2)
    for field in ("log_init", "log_emit"):
        assert torch.equal(getattr(source.hmm, field), getattr(whole, field))
    assert torch.equal(source.hmm.transitions.rows(0, 3), whole.transitions.rows(0, 3))


def test_a_file_that_is_called_as_one_of_several(tmp_path):
    folder = write(tmp_path / "x", ctrl_g_tables(), CTRL_G)
    path = folder / "model-00001-of-00001.safetensors"
    (folder / "model.safetensors").rename(path)
    assert isinstance(read(path), HMM)


def test_a_whole_file_comes_before_an_index(tmp_path):
    folder = in_shards(tmp_path / "x")
    save_file({"gamma": torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"model\.safetensors has no alpha_exp, beta; a check"):
        read(folder)


def test_shards_that_are_missing_are_named(tmp_path):
    folder = in_shards(tmp_path / "x")
    (folder / "model-00002-of-00003.safetensors").unlink()
    said = (
        r"x has no model-00002-of-00003\.safetensors, of the 3 files that "
        r"model\.safetensors\.index\.json names; copy the folder again as a whole\.$"
    )
    with pytest.raises(InputError, match=said):
        read(folder)


def test_a_shard_that_is_another_or_a_pickle(tmp_path):
    folder = in_shards(tmp_path / "x")
    second = folder / "model-00002-of-00003.safetensors"
    whole = second.read_bytes()
    save_file({"gamma": ctrl_g_tables()["gamma"]}, second)
    with pytest.raises(InputError, match=r"00002-of-00003\.safetensors has no beta, other than "):
        read(folder)
    tables = {name: table.contiguous() for name, table in ctrl_g_tables().items()}
    save_file({"beta": tables["beta"], "more": tables["gamma"]}, second)
    with pytest.raises(InputError, match=r"00002-of-00003\.safetensors has more, other than model"):
        read(folder)
    second.write_bytes(whole[:-3])
    with pytest.raises(InputError, match=r"00002-of-00003\.safetensors is neither a whole safeten"):
        read(folder)
    second.write_bytes(pickle.dumps({"beta": 1}))
    with pytest.raises(InputError, match=r"00002-of-00003\.safetensors is a pickle, which could r"):
        read(folder)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../b"}}', '{"weight_map": [1]}',
     '{"weight_map": {"a": 3}}'],
)  # fmt: skip
def test_an_index_that_is_none(tmp_path, text):
    folder = in_shards(tmp_path / "x")
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(InputError, match=r"index\.json is no index of a checkpoint: its weight_ma"):
        read(folder)


def test_tables_that_no_shard_has_are_named(tmp_path):
    folder = in_shards(tmp_path / "x")
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["beta"]
    path.write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"index\.json has no beta; a checkpoint of Ctrl-G has"):
        read(folder)
