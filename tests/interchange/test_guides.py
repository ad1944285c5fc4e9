"""Checkpoints of Ctrl-G and TRACE: what they mean, and that what is written means the same."""

import itertools
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from enumeration import enumerate_row
from foreign import (
    CTRL_G,
    EMIT,
    EOS,
    INIT,
    TRACE,
    TRANS,
    ctrl_g_tables,
    sum_over_paths,
    trace_tables,
    write,
)
from hmmlm import HMM, Model, inference
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.interchange import ctrl_g, read, write_ctrl_g
from hmmlm.support import Support
from models import SUPPORTS, TRANSITIONS, make_hmm, with_holes

TEXTS = [list(words) for n in (1, 2, 3) for words in itertools.product(range(4), repeat=n)]


@pytest.mark.parametrize(
    ("tables", "config"),
    [(ctrl_g_tables(), CTRL_G), (trace_tables(), TRACE)],
    ids=["ctrl-g", "trace"],
)
def test_a_checkpoint_gives_the_probabilities_of_its_tables(tmp_path, tables, config):
    hmm = read(write(tmp_path / "x", tables, config))
    assert isinstance(hmm, HMM)
    for words in TEXTS:
        by_hand = sum_over_paths(INIT, TRANS, EMIT, words)
        assert enumerate_row(hmm.to(dtype=torch.float64), words).log_evidence == pytest.approx(
            float(torch.tensor(by_hand).log()), abs=1e-6
        )
        found = float(inference.log_prob(hmm, torch.tensor([words])).log_evidence)
        assert found == pytest.approx(float(torch.tensor(by_hand).log()), abs=1e-6)


def test_texts_of_a_checkpoint_go_on_with_eos_for_ever(tmp_path):
    hmm = read(write(tmp_path / "x", ctrl_g_tables(), CTRL_G))
    assert isinstance(hmm, HMM)
    once = inference.log_prob(hmm, torch.tensor([[0, 1, EOS]])).log_evidence
    padded = inference.log_prob(hmm, torch.tensor([[0, 1, EOS, EOS, EOS]])).log_evidence
    torch.testing.assert_close(once, padded)
    again = inference.log_prob(hmm, torch.tensor([[0, EOS, 1]])).log_evidence
    assert torch.isneginf(again).all()


def test_zero_is_zero_whatever_it_was_written_as(tmp_path):
    hmm = read(write(tmp_path / "x", trace_tables(), TRACE))
    assert isinstance(hmm, HMM)
    assert torch.equal(torch.isneginf(hmm.log_emit), EMIT.T == 0)


def test_a_state_in_which_no_text_begins_stays_one(tmp_path):
    tables = ([1.0, 0.0], [[0.5, 0.5], [0.5, 0.5]], [[0.0, 0.0, 1.0, 0.0], [0.0, 0.5, 0.0, 0.5]])
    hmm = HMM.from_tables(*(torch.tensor(table).log() for table in tables))
    model = Model(hmm, Tokenizer.words(["a b"]))
    write_ctrl_g(model, tmp_path / "x")
    assert load_file(tmp_path / "x/model.safetensors")["gamma"].min() == -1e30
    back = read(tmp_path / "x")
    assert isinstance(back, Model)
    assert back.hmm.log_init.tolist() == [0.0, -torch.inf, -torch.inf]  # the last one ends texts
    (found,), (wanted,) = back.score("b"), model.score("b")
    assert found.log_probs[0] == wanted.log_probs[0] == -torch.inf


def test_what_is_added_to_all_of_gamma_cancels(tmp_path):
    tables = ctrl_g_tables()
    plain = read(write(tmp_path / "x", tables, CTRL_G))
    moved = read(write(tmp_path / "y", {**tables, "gamma": tables["gamma"] - 16384}, CTRL_G))
    assert isinstance(plain, HMM) and isinstance(moved, HMM)
    torch.testing.assert_close(moved.log_init, plain.log_init, rtol=0, atol=2e-3)


def test_weights_of_words_are_not_part_of_the_hmm(tmp_path):
    weights = {"weights_tensor": torch.ones(4), "weighted_beta": torch.full((3, 4), 7.0)}
    plain = read(write(tmp_path / "x", trace_tables(), TRACE))
    other = read(write(tmp_path / "y", {**trace_tables(), **weights}, TRACE))
    assert isinstance(plain, HMM) and isinstance(other, HMM)
    for a, b in zip(plain.fields(), other.fields(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def log_p_as_ctrl_g(tables: dict[str, torch.Tensor], words: list[int]) -> torch.Tensor:
    """Ctrl-G's formula: from the last word back, p(z1) the softmax of gamma."""
    after = torch.zeros(len(tables["gamma"]))
    for place, word in reversed(list(enumerate(words))):
        here = tables["beta"][:, word] + after
        most = here.max()
        if place:
            after = (tables["alpha_exp"] @ (here - most).exp()).log() + most
        else:
            return (torch.softmax(tables["gamma"], 0) @ (here - most).exp()).log() + most
    raise AssertionError


@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("support", SUPPORTS)
def test_what_is_written_gives_the_same_probability_to_every_text(tmp_path, support, transitions):
    hmm, eos = make_hmm(support, transitions), 1
    write_ctrl_g(hmm, tmp_path / "x", eos_id=eos)
    tables = load_file(tmp_path / "x/model.safetensors")
    config = json.loads((tmp_path / "x/config.json").read_text())
    states = len(tables["gamma"])
    assert config == {"eos_token_id": eos, "hidden_states": states, "vocab_size": 5}
    assert {table.dtype for table in tables.values()} == {torch.float32}
    assert all(torch.isfinite(table).all() for table in tables.values())
    back = read(tmp_path / "x")
    assert isinstance(back, HMM)
    others = [word for word in range(5) if word != eos]
    for n in range(4):
        for words in itertools.product(others, repeat=n):
            text = [*words, eos]
            wanted = enumerate_row(hmm, text).log_evidence
            again = inference.log_prob(back, torch.tensor([text])).log_evidence
            assert float(again) == pytest.approx(wanted, abs=1e-6)
            for more in range(3):  # Ctrl-G fills texts up with the end token
                found = log_p_as_ctrl_g(tables, [*text, *[eos] * more])
                assert float(found) == pytest.approx(wanted, abs=1e-5)


def test_a_state_that_only_ends_texts_is_the_last_one(tmp_path):
    hmm = make_hmm(Support.from_clusters([0, 1, 2, 0, 2], [2, 3, 1]))
    write_ctrl_g(hmm, tmp_path / "x", eos_id=1)  # the one word of the second block
    tables = load_file(tmp_path / "x/model.safetensors")
    assert len(tables["gamma"]) == 6 - 3 + 1
    assert float(tables["alpha_exp"][-1, -1]) == 1 and float(tables["beta"][-1, 1]) == 0
    assert (tables["beta"][:-1, 1] == ctrl_g.WRITTEN_ZERO).all()


@pytest.mark.parametrize("end_state", [True, False])
def test_no_zero_is_written_as_infinity(tmp_path, end_state):
    hmm = with_holes(make_hmm())
    write_ctrl_g(hmm, tmp_path / "x", eos_id=1, end_state=end_state)
    tables = load_file(tmp_path / "x/model.safetensors")
    assert all(torch.isfinite(table).all() for table in tables.values())
    wanted = enumerate_row(hmm, [0, 4, 1]).log_evidence
    assert float(log_p_as_ctrl_g(tables, [0, 4, 1])) == pytest.approx(wanted, abs=1e-5)


def test_states_that_are_kept_are_the_same(tmp_path):
    folder = write(tmp_path / "x", ctrl_g_tables(), CTRL_G)
    hmm = read(folder)
    assert isinstance(hmm, HMM)
    write_ctrl_g(hmm, tmp_path / "y", eos_id=EOS, end_state=False)
    for name, table in load_file(tmp_path / "y/model.safetensors").items():
        wanted = ctrl_g_tables()[name]
        wanted = torch.log_softmax(wanted, 0) if name == "gamma" else wanted
        torch.testing.assert_close(table, wanted, atol=1e-6, rtol=1e-6)


def test_a_model_keeps_its_tokenizer_and_its_scores(tmp_path):
    words = Tokenizer.words(["a b c"])
    model = Model(make_hmm("blocks", "factored", dtype=torch.float32), words)
    write_ctrl_g(model, tmp_path / "x")
    back = read(tmp_path / "x")
    assert isinstance(back, Model) and back.config["converted_from"] == "ctrl-g"
    lines = ["a b", "c", "", "b a <eos> c a"]
    for before, after in zip(model.score(lines), back.score(lines), strict=True):
        assert before.tokens == after.tokens
        assert after.log_probs == pytest.approx(before.log_probs, abs=1e-5)
        assert sum(after.log_probs) == pytest.approx(sum(before.log_probs), rel=1e-6)


def test_ctrl_g_itself_reads_what_is_written(tmp_path):
    hub = pytest.importorskip("huggingface_hub")

    class HMM(torch.nn.Module, hub.PyTorchModelHubMixin):  # its tables and how it is built
        def __init__(self, hidden_states: int, vocab_size: int, eos_token_id: int):
            super().__init__()
            self.alpha_exp = torch.nn.Parameter(torch.zeros(hidden_states, hidden_states))
            self.beta = torch.nn.Parameter(torch.zeros(hidden_states, vocab_size))
            self.gamma = torch.nn.Parameter(torch.zeros(hidden_states))
            self.eos_token_id = eos_token_id

    hmm = make_hmm()
    write_ctrl_g(hmm, tmp_path / "x", eos_id=4)
    loaded = HMM.from_pretrained(tmp_path / "x", strict=True)
    assert loaded.eos_token_id == 4 and len(loaded.gamma) == 4
    wanted = enumerate_row(hmm, [3, 0, 4]).log_evidence
    found = log_p_as_ctrl_g(dict(loaded.named_parameters()), [3, 0, 4])
    assert float(found.detach()) == pytest.approx(wanted, abs=1e-5)
    loaded.save_pretrained(tmp_path / "y")
    back = read(tmp_path / "y")
    found = inference.log_prob(back, torch.tensor([[3, 0, 4]])).log_evidence
    assert float(found) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    {
        "missing": (
            lambda t: t.pop("gamma"),
            "has no gamma; a checkpoint of Ctrl-G has alpha_exp, beta, gamma: save all of them.",
        ),
        "extra": (
            lambda t: t.update(bias=torch.ones(3)),
            "has bias, which a checkpoint of Ctrl-G has not; it has alpha_exp, beta, gamma: save "
            "these alone.",
        ),
        "many": (
            lambda t: t.update({f"layer.{n}": torch.ones(1) for n in range(7)}),
            "has layer.0, layer.1, layer.2, layer.3, layer.4 and 2 more, which",
        ),
        "flat": (
            lambda t: t.update(alpha_exp=torch.ones(9)),
            ": alpha_exp has the shape (9,) but must have (Z, Z).",
        ),
        "narrow": (
            lambda t: t.update(alpha_exp=torch.ones(3, 2)),
            ": alpha_exp has the shape (3, 2), where 2 must be the 3 of gamma; save the tables of "
            "one model.",
        ),
        "turned": (
            lambda t: t.update(beta=t["beta"].T),
            ": beta has the shape (4, 3), where 4 must be the 3 of gamma; save the tables of one "
            "model.",
        ),
        "rows": (
            lambda t: t["alpha_exp"][1].mul_(0.9),
            ": the probabilities of alpha_exp must sum to 1, but those of 1 sum to 0.9; normalise "
            "them, or save them with all their digits.",
        ),
        "words": (
            lambda t: t["beta"][0].sub_(1.0),
            ": the probabilities of beta must sum to 1, but those of 0 sum to 0.367879;",
        ),
        "logs for probabilities": (
            lambda t: t.update(alpha_exp=t["alpha_exp"].log()),
            ": alpha_exp has -0.510826 at (0, 0) (8 such cells), but probabilities lie between 0 "
            "and 1; save it as its library has it.",
        ),
        "probabilities for logs": (
            lambda t: t.update(beta=t["beta"].exp()),
            ": beta has 0.5 at (0, 0) (7 such cells), but logarithms of probabilities are at most "
            "0; save it as its library has it.",
        ),
        "complex numbers": (
            lambda t: t.update(alpha_exp=t["alpha_exp"].to(torch.complex64)),
            ": alpha_exp has complex numbers; save real ones.",
        ),
        "five": (
            lambda t: t.update({f"layer.{n}": torch.ones(1) for n in range(5)}),
            "has layer.0, layer.1, layer.2, layer.3, layer.4, which a checkpoint of Ctrl-G has not",
        ),
        "a row of starts": (
            lambda t: t.update(gamma=t["gamma"][None]),
            ": gamma has the shape (1, 3) but must have (Z,).",
        ),
        "no probability": (
            lambda t: t["alpha_exp"][1, 2].fill_(torch.nan),
            ": alpha_exp has nan at (1, 2) (1 such cells), but probabilities lie between 0 and 1;",
        ),
        "more than one": (
            lambda t: t["alpha_exp"][1, 2].fill_(1.5),
            ": alpha_exp has 1.5 at (1, 2) (1 such cells), but probabilities lie between 0 and 1;",
        ),
        "no logarithm": (
            lambda t: t["beta"][1, 2].fill_(torch.nan),
            ": beta has nan at (1, 2) (1 such cells), but logarithms of probabilities are at most",
        ),
        "no start": (
            lambda t: t["gamma"].fill_(torch.nan),
            ": gamma has NaN, inf or no number above -inf, so its softmax is no distribution; save "
            "a whole checkpoint.",
        ),
    }.values(),
)
def test_tables_that_are_refused(tmp_path, change, said):
    tables = ctrl_g_tables()
    change(tables)
    folder = write(tmp_path / "x", tables, CTRL_G)
    with pytest.raises(InputError) as refusal:
        read(folder)
    assert (
        str(refusal.value).removeprefix(str(folder / "model.safetensors")).lstrip().startswith(said)
    )


def test_a_checkpoint_of_trace_has_no_other_tables(tmp_path):
    said = "has bias, which a checkpoint of TRACE has not; it has alpha_exp, beta, gamma_exp: save"
    with pytest.raises(InputError, match=said):
        read(write(tmp_path / "x", {**trace_tables(), "bias": torch.ones(3)}, TRACE))


def test_a_checkpoint_of_trace_must_have_one_row_of_starts(tmp_path):
    tables = {**trace_tables(), "gamma_exp": INIT.expand(2, 3).float()}
    with pytest.raises(InputError, match=r"gamma_exp has the shape \(2, 3\), where 2 must be 1;"):
        read(write(tmp_path / "x", tables, TRACE))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {**CTRL_G, "hidden_states": 5},
            r"beta has the shape \(3, 4\) but config.json says hidden_states is 5; copy the folder",
        ),
        ({**CTRL_G, "vocab_size": None}, "but config.json says vocab_size is None; copy"),
        (
            {**CTRL_G, "eos_token_id": 4},
            "config.json says eos_token_id is 4, but it must be one of 0 to 3; correct it.",
        ),
        ({**CTRL_G, "eos_token_id": -1}, "config.json says eos_token_id is -1, but it must be one"),
        ({**CTRL_G, "eos_token_id": True}, "config.json says eos_token_id is True, but it must"),
        ([], "config.json is json but no object; copy the folder again as a whole."),
    ],
)
def test_a_config_that_is_refused(tmp_path, config, said):
    with pytest.raises(InputError, match=said):
        read(write(tmp_path / "x", ctrl_g_tables(), config))


def test_a_config_that_cannot_be_read(tmp_path):
    folder = write(tmp_path / "x", ctrl_g_tables(), CTRL_G)
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json is not json; copy the folder again as a"):
        read(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"x has no config\.json, which says what ends a text;"):
        read(folder)


@pytest.mark.parametrize("end_state", [True, False])
@pytest.mark.parametrize(("support", "transitions"), [("blocks", "dense"), ("dense", "factored")])
def test_blocks_and_factors_over_the_limit_are_refused(
    tmp_path, monkeypatch, support, transitions, end_state
):
    hmm = make_hmm(support, transitions)
    states = hmm.num_states + end_state
    monkeypatch.setattr(ctrl_g, "MOST_CELLS", states * (states + 5) - 1)
    said = rf"as dense tables the {states} states and 5 words of this model have "
    said += rf"{states * (states + 5)} cells \(0.0 GB\), more than {ctrl_g.MOST_CELLS}; train one"
    with pytest.raises(InputError, match=said):
        write_ctrl_g(hmm, tmp_path / "x", eos_id=1, end_state=end_state)
    assert not (tmp_path / "x").exists()
    monkeypatch.setattr(ctrl_g, "MOST_CELLS", states * (states + 5))
    write_ctrl_g(hmm, tmp_path / "x", eos_id=1, end_state=end_state)


def test_a_dense_model_has_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(ctrl_g, "MOST_CELLS", 1)
    write_ctrl_g(make_hmm(), tmp_path / "x", eos_id=1)


def test_what_cannot_be_written(tmp_path):
    hmm = make_hmm()
    with pytest.raises(InputError, match="says which token ends a text, and an HMM alone does not"):
        write_ctrl_g(hmm, tmp_path / "x")
    with pytest.raises(InputError, match="eos_id is 5 but must be one of 0 to 4, the words of"):
        write_ctrl_g(hmm, tmp_path / "x", eos_id=5)
    with pytest.raises(InputError, match="eos_id is -1 but must be one of 0 to 4, the words of"):
        write_ctrl_g(hmm, tmp_path / "x", eos_id=-1)
    with pytest.raises(InputError, match="has 2 states of a larger one, or soft evidence, and can"):
        write_ctrl_g(hmm.restrict(torch.tensor([0, 2])), tmp_path / "x", eos_id=1)
    for whole, number in ((make_hmm("blocks"), 4), (hmm, 3)):
        soft = inference.soften(whole, torch.zeros(1, 5, dtype=torch.float64))
        with pytest.raises(InputError, match=f"has {number} states of a larger one, or soft evid"):
            write_ctrl_g(soft, tmp_path / "x", eos_id=1)
    twice = replace(hmm, log_emit=hmm.log_emit + math.log(2))
    with pytest.raises(InputError, match="log_emit is not normalised: those of state 0 sum to 2"):
        write_ctrl_g(twice, tmp_path / "x", eos_id=1)
    model = Model(hmm, Tokenizer.words(["a b c"]))
    with pytest.raises(InputError, match="eos_id is 3 but the model's tokenizer ends lines with 1"):
        write_ctrl_g(model, tmp_path / "x", eos_id=3)


def test_before_tables_are_made_it_is_seen_that_they_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(ctrl_g, "_tables", None)
    space = SimpleNamespace(free=4 * 4 * (4 + 5) - 1)
    monkeypatch.setattr("shutil.disk_usage", lambda path: space)
    with pytest.raises(InputError, match="x needs about 144 bytes but its disk has 143 left; free"):
        write_ctrl_g(make_hmm(), tmp_path / "x", eos_id=1)
    (tmp_path / "x").mkdir()
    with pytest.raises(InputError, match="already exists and is never overwritten"):
        write_ctrl_g(make_hmm(), tmp_path / "x", eos_id=1)


@pytest.mark.parametrize("end_state", [True, False])
def test_transitions_are_written_some_rows_at_a_time(tmp_path, monkeypatch, end_state):
    hmm = make_hmm(Support.from_clusters([0, 1, 2, 0, 2], [2, 3, 1]))  # three states only end texts
    for name, cells in (("whole", ctrl_g._GROUP), ("rows", 2 * hmm.num_states)):
        monkeypatch.setattr(ctrl_g, "_GROUP", cells)
        write_ctrl_g(hmm, tmp_path / name, eos_id=1, end_state=end_state)
    whole, rows = (load_file(tmp_path / f"{name}/model.safetensors") for name in ("whole", "rows"))
    torch.testing.assert_close(rows, whole, rtol=0, atol=0)


def test_a_header_that_begins_like_a_pickle_is_none(tmp_path):
    folder = write(tmp_path / "x", ctrl_g_tables(), CTRL_G)
    path = folder / "model.safetensors"
    for extra in range(1000):
        save_file(ctrl_g_tables(), path, metadata={"note": "x" * extra})
        if path.read_bytes()[:2] == b"\x80\x02":
            break
    else:
        raise AssertionError
    read(folder)
