"""Every number of a state's card, against tables and the enumeration of all paths."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from enumeration import enumerate_row, full_emissions
from explorers import LINES, ids_of, toy_model, toy_prepared, without_c
from hmmlm.data.shards import write_corpus
from hmmlm.errors import InputError
from hmmlm.explore import cards, texts
from hmmlm.explore.blocks import block_card, block_list
from hmmlm.explore.cards import state_card, states_page
from hmmlm.explore.preparing import Missing, Prepared
from hmmlm.explore.texts import UseText
from hmmlm.model import Model

ASKED = {"sort": "", "order": "", "q": "", "block": None, "page": 0, "size": 50}


def page(prepared, **asked):
    return states_page(prepared, **{**ASKED, **asked})


def posteriors(model, lines=LINES):
    """(line, position) -> p(z | line), and whether another token follows in the line."""
    eos = model.tokenizer.eos_id
    for number, line in enumerate(lines):
        ids = ids_of(model, line)
        table = enumerate_row(model.hmm, ids, reset_id=eos).smoothed().exp()
        for at in range(len(ids)):
            yield number, at, table[at].numpy(), at + 1 < len(ids)


def shares(model):
    found = list(posteriors(model))
    tokens = len(found)
    use = sum(probs for _, _, probs, _ in found) / tokens
    onward = sum(probs for _, _, probs, follows in found if follows) / tokens
    return use, onward, len(LINES) / tokens


def test_words_and_entropy_are_those_of_the_table(model):
    prepared = toy_prepared(model)
    emissions = full_emissions(model.hmm).exp().T  # (Z, V)
    for row in page(prepared)["states"]:
        probs = emissions[row["id"]]
        order = probs.argsort(descending=True)[: int((probs > 0).sum())]
        expected = [(model.tokenizer.token(int(word)), float(probs[word])) for word in order]
        assert [word for word, _ in row["words"]] == [word for word, _ in expected]
        assert [p for _, p in row["words"]] == pytest.approx([p for _, p in expected])
        positive = probs[probs > 0]
        assert row["entropy"] == pytest.approx(float(-(positive * positive.log2()).sum()), abs=1e-9)
        card = state_card(prepared, row["id"])
        assert [p for _, p in card["words"]] == pytest.approx([p for _, p in expected])
        assert card["entropy"] == row["entropy"]


def test_shares_of_use_are_mean_posteriors(model):
    prepared = toy_prepared(model)
    use, _, _ = shares(model)
    for row in page(prepared)["states"]:
        assert row["use"] == pytest.approx(use[row["id"]])
        assert state_card(prepared, row["id"])["use"] == row["use"]
    assert sum(row["use"] for row in page(prepared)["states"]) == pytest.approx(1.0)


def test_where_a_state_comes_from_and_goes_to(model):
    prepared = toy_prepared(model)
    table = model.hmm.transitions.rows(0, model.hmm.num_states).exp().double().numpy()
    _, onward, starts = shares(model)
    init = model.hmm.log_init.exp().numpy()
    for state in range(model.hmm.num_states):
        card = state_card(prepared, state)
        into = {None: starts * init[state]}
        into |= dict(enumerate(onward * table[:, state]))
        total = sum(into.values())
        assert {one["id"]: pytest.approx(one["p"]) for one in card["from"]} == {
            key: value / total for key, value in into.items() if value > 0
        }
        assert [one["p"] for one in card["from"]] == sorted(
            (one["p"] for one in card["from"]), reverse=True
        )
        assert {one["id"]: one["p"] for one in card["to"]} == pytest.approx(
            dict(enumerate(table[state]))
        )
        for one in (*card["from"], *card["to"]):
            if one["id"] is not None:
                words = state_card(prepared, one["id"])["words"][:3]
                assert [word for word, _ in one["words"]] == [word for word, _ in words]
        assert card["starts"] == pytest.approx(init[state])
        eos = full_emissions(model.hmm)[model.tokenizer.eos_id, state].exp()
        assert card["ends"] == pytest.approx(float(eos))


def test_examples_are_the_lines_with_the_highest_posterior(model):
    prepared = toy_prepared(model)
    for state in range(model.hmm.num_states):
        best: dict[str, float] = {}
        for number, _, probs, _ in posteriors(model):
            line = LINES[number]
            best[line] = max(best.get(line, 0.0), probs[state])
        expected = sorted((prob for prob in best.values() if prob > 0.01), reverse=True)
        examples = state_card(prepared, state)["examples"]
        assert [one["posterior"] for one in examples] == pytest.approx(expected[:5])
        for one in examples:
            line = " ".join(one["tokens"][:-1])
            ids = ids_of(model, line)
            row = enumerate_row(model.hmm, ids, reset_id=model.tokenizer.eos_id)
            there = row.smoothed()[one["position"], state].exp()
            assert float(there) == pytest.approx(one["posterior"])
        assert len({tuple(one["tokens"]) for one in examples}) == len(examples)


def test_a_text_is_as_long_as_what_is_read_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "LINE_TOKENS", 4)
    monkeypatch.setattr(texts, "MOST_TOKENS", 11)
    model = toy_model()
    lines = ["a b c a b c a b c a b c", "a", "b c a b c a", "a b"]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    write_corpus(tmp_path / "corpus", model.tokenizer, {"valid": lines, "train": ["a"]})
    for path, name in (("text.txt", "text.txt"), ("corpus", "validation text of corpus")):
        found = texts.find_text(model, tmp_path / path)
        assert (found.name, found.tokens) == (f"{name}, 10 tokens", 10)
        read = [model.tokenizer.decode(ids) for ids in found.lines()]
        assert read == ["a b c a", "a", "b c a b"]


def test_examples_in_several_groups_are_those_of_all_lines(monkeypatch):
    model = toy_model()
    together = toy_prepared(model)
    monkeypatch.setattr("hmmlm.explore.use.SLOTS", 1)
    apart = toy_prepared(model)
    for state in range(model.hmm.num_states):
        for key in ("use", "from", "examples"):
            assert _rounded(state_card(apart, state)[key]) == _rounded(
                state_card(together, state)[key]
            )


def _rounded(value):
    if isinstance(value, float):
        return round(value, 9)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def test_lines_that_cannot_be_add_nothing():
    model = without_c()
    with_it, without = toy_prepared(model), toy_prepared(model, [x for x in LINES if "c" not in x])
    for state in range(model.hmm.num_states):
        one, other = state_card(with_it, state), state_card(without, state)
        assert one["use"] == pytest.approx(other["use"])
        assert one["from"][0]["p"] == pytest.approx(other["from"][0]["p"])


def test_a_word_finds_its_states_best_first(model):
    prepared = toy_prepared(model)
    emissions = full_emissions(model.hmm).exp()
    for word in "abc":
        found = page(prepared, q=f" {word} ")
        probs = emissions[model.tokenizer.id(word)]
        expected = sorted((float(p) for p in probs if p > 0), reverse=True)
        assert [row["p"] for row in found["states"]] == pytest.approx(expected)
        assert found["total"] == len(expected)
        for row in found["states"]:
            assert row["p"] == pytest.approx(float(probs[row["id"]]))


def test_numbers_near_words_sorts_pages_and_blocks():
    prepared = toy_prepared(toy_model("uneven"))
    assert [row["id"] for row in page(prepared, q="2")["states"]] == [2]
    assert page(prepared, q="A")["total"] == page(prepared, q="a")["total"] > 0
    none = page(prepared, q="<u")
    assert none["total"] == 0 and none["note"] == "No word of this model is '<u'; it has <unk>."
    assert page(prepared, q="99")["note"] == "No word of this model is '99'."
    for key in ("use", "entropy"):
        for order, sign in (("asc", 1), ("desc", -1)):
            rows = page(prepared, sort=key, order=order)["states"]
            assert rows == sorted(rows, key=lambda row: sign * row[key])
    by_use = page(prepared, sort="use")["states"]
    assert by_use == sorted(by_use, key=lambda row: -row["use"])
    words = [row["words"][0][0] for row in page(prepared, sort="words")["states"]]
    assert words == sorted(words)
    assert [row["id"] for row in page(prepared, sort="id", order="desc")["states"]] == [3, 2, 1, 0]
    assert [row["block"] for row in page(prepared, sort="block")["states"]] == [0, 1, 1, 1]
    assert [row["id"] for row in page(prepared, block=1)["states"]] == [1, 2, 3]
    second = page(prepared, page=1, size=3)
    assert [row["id"] for row in second["states"]] == [3] and second["total"] == 4


def test_what_there_is_not_is_refused():
    prepared = toy_prepared(toy_model("blocks"))
    with pytest.raises(Missing, match=r"There is no state 4; this model has 0 to 3\."):
        state_card(prepared, 4)
    with pytest.raises(Missing, match=r"There is no block 2; this model has 0 to 1\."):
        page(prepared, block=2)
    with pytest.raises(InputError, match=r"sort is 'x' but must be one of use, entropy, id, bl"):
        page(prepared, sort="x")
    with pytest.raises(InputError, match=r"This model has no blocks; leave out block\."):
        page(toy_prepared(toy_model("dense")), block=0)


def test_before_any_text_is_read_use_is_not_made_up():
    prepared = toy_prepared(toy_model())
    prepared.use = None
    row = page(prepared, sort="use")
    assert [one["id"] for one in row["states"]] == [0, 1, 2, 3]
    assert row["note"] == "Shares of use are being computed; until then states are in order."
    card = state_card(prepared, 0)
    assert card["use"] is card["from"] is card["examples"] is row["states"][0]["use"] is None
    assert [block["share"] for block in block_list(prepared)["blocks"]] == [None, None]


def test_whatever_ends_the_count_of_use_is_told():
    prepared = Prepared(toy_model(), Path("toy"), UseText("broken", 3, lambda: iter([None])))
    prepared.start()
    prepared.wait()
    said = prepared.use_state()
    assert said["state"] == "failed" and said["problem"]
    note = page(prepared, sort="use")["note"]
    assert note == "Shares of use could not be counted; states are in order."
    assert prepared.check_state() == {"state": "passed", "problem": None}


def test_rows_of_transitions_that_are_no_distributions_are_told_apart_from_use(tmp_path):
    model = toy_model("blocks", "factored")
    table = model.hmm.transitions
    off = table.with_fields(table.left, table.right, table.log_norm - 0.5)
    Model(replace(model.hmm, transitions=off), model.tokenizer).save(tmp_path / "off")
    (tmp_path / "text.txt").write_text("a b\n")
    prepared = Prepared.open(tmp_path / "off", text=tmp_path / "text.txt")
    assert prepared.check_state() == {"state": "waiting", "problem": None}
    prepared.start()
    prepared.wait()
    assert prepared.use_state()["state"] == "ready"
    said = prepared.check_state()
    assert said["state"] == "failed" and "log_trans" in said["problem"]


def test_blocks_have_the_words_and_the_use_of_their_states(transitions):
    model = toy_model("uneven", transitions)
    prepared = toy_prepared(model)
    use, _, _ = shares(model)
    emissions = full_emissions(model.hmm).exp().numpy()  # (V, Z)
    for block, states in ((0, [0]), (1, [1, 2, 3])):
        weights = emissions[:, states] @ use[states]
        expected = {
            model.tokenizer.token(word): weights[word] / weights.sum()
            for word in np.flatnonzero(weights)
        }
        listed = block_list(prepared)["blocks"][block]
        card = block_card(prepared, block)
        assert dict(listed["top"]) == pytest.approx(expected)
        assert dict(card["words"]) == pytest.approx(expected)
        probs = [p for _, p in card["words"]]
        assert probs == sorted(probs, reverse=True)
        assert listed["share"] == pytest.approx(use[states].sum()) == pytest.approx(card["share"])
        assert (listed["states"], listed["words"]) == (len(states), len(expected))
    assert block_list(toy_prepared(toy_model("dense")))["note"] == "This model has no blocks."


def test_few_neighbours_are_the_best_ones(monkeypatch):
    prepared = toy_prepared(toy_model())
    all_of_them = state_card(prepared, 1)
    monkeypatch.setattr(cards, "NEIGHBOURS", 2)
    few = state_card(prepared, 1)
    assert few["from"] == all_of_them["from"][:2] and few["to"] == all_of_them["to"][:2]
