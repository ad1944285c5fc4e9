"""`hmmlm tag` beside tags and beside another model; merged states."""

import re

import numpy as np
import pytest
import tokenizers
import torch
from sklearn import metrics

from commands import last_json, made_up_lines
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.hmm import HMM
from hmmlm.model import Model

TAGS = {"the": "D", "a": "D", ".": "P", "sees": "V", "likes": "V", "red": "A", "blue": "A"}


def write_gold(lines: list[str], name: str = "gold.tsv") -> list[str]:
    """A file of words, one column of their lengths and one of their tags; the tags."""
    words = [line.split() for line in lines]
    rows = ["".join(f"{w}\t{len(w)}\t{TAGS.get(w, 'N')}\n" for w in line) for line in words]
    with open(name, "w") as file:
        file.write("\n".join(rows))
    return [TAGS.get(word, "N") for line in words for word in line]


@pytest.mark.parametrize("how", [[], ["--posterior"]])
def test_states_against_tags(place, call, how: list[str]) -> None:
    lines = made_up_lines(50, seed=1)
    tags = write_gold(lines)
    answer = call("tag", "model", "--gold", "gold.tsv", "--column", 3, "--json", *how)
    model, found = Model.load("model"), last_json(answer.out)
    tagged = model.tag(lines) if how else model.viterbi(lines)
    states = [state for line in tagged for state in line.states[:-1]]
    wanted = metrics.homogeneity_completeness_v_measure(tags, states)
    got = [found[name] for name in ("homogeneity", "completeness", "v_measure")]
    assert got == pytest.approx(wanted, abs=1e-9)
    table = metrics.cluster.contingency_matrix(states, tags)
    assert found["many_to_one"] == table.max(1).sum() / len(tags)
    assert found["tokens"] == len(tags) == 350 and found["posterior"] == bool(how)
    assert found["tags"] == 5 and found["states"] == len(set(states)) and found["unknown"] == 0
    names = sorted(set(tags))
    for state, row in zip(sorted(set(states)), table, strict=True):
        assert found["tag_of_state"][str(state)] == names[row.argmax()]
    assert sum(pair[2] for pair in found["pairs"]) == round(found["one_to_one"] * 350)
    assert f"many-to-one {found['many_to_one']:.4f}, " in answer.out
    assert last_json(call("tag", "model", "--gold", "gold.tsv", "--json").out)["tags"] == 4


def test_a_text_beside_its_tags(place, call, refused) -> None:
    lines = made_up_lines(5, seed=1)
    write_gold(lines)
    (place / "same.txt").write_text("\n".join(lines))
    asked = ["tag", "model", "same.txt", "--gold", "gold.tsv", "--column", 3, "--json"]
    alone = last_json(call("tag", "model", *asked[3:]).out)
    assert last_json(call(*asked).out) == alone
    for wrong, number, at in ((lines[:4], 5, " at line 33"), ([*lines, "a"], 6, "")):
        (place / "same.txt").write_text("\n".join(wrong))
        assert refused(*asked) == (
            f"same.txt, line {number} does not have the words of sentence {number}{at} of "
            "gold.tsv; leave the text out, for the file of tags has it."
        )


def test_unknown_words(place, call) -> None:
    write_gold(["the red dog sees a unicorn .", "a bird"])
    answer = call("tag", "model", "--gold", "gold.tsv", "--column", 3, "--json")
    assert last_json(answer.out)["unknown"] == 1 and ", 1 unknown word\n" in answer.out
    assert answer.err == ""
    write_gold(["le chien rouge ."])
    answer = call("tag", "model", "--gold", "gold.tsv")
    assert answer.status == 0
    assert answer.err == "hmmlm: 3 of 4 words are not in the model's vocabulary.\n"


def test_words_that_are_read_in_another_spelling_are_known(place, call) -> None:
    model = Model.load("model")
    ids = {model.tokenizer.token(id): id for id in range(model.hmm.vocab_size)}
    unknown = model.tokenizer.token(model.tokenizer.unk_id)
    spec = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token=unknown))
    spec.normalizer = tokenizers.normalizers.Lowercase()
    spec.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    Model(model.hmm, Tokenizer.from_json(spec.to_str(), source="lower")).save("lower")
    write_gold(["The RED dog sees a unicorn ."])
    answer = call("tag", "lower", "--gold", "gold.tsv", "--json")
    assert answer.status == 0, answer.err
    assert last_json(answer.out)["unknown"] == 1


def test_merged_states(place, call) -> None:
    lines = made_up_lines(50, seed=1)
    tags = write_gold(lines)
    (place / "same.txt").write_text("\n".join(lines))
    found = last_json(call("tag", "model", "same.txt", "--merge", 2, "--json").out)
    pairs = {
        pair
        for states, groups in zip(found["states"], found["groups"], strict=True)
        for pair in zip(states, groups, strict=True)
    }
    assert len(pairs) == len({state for state, _ in pairs})  # a group of each state
    assert {group for _, group in pairs} - {-1} == {0, 1}
    groups = [group for line in found["groups"] for group in line[:-1]]
    asked = ["tag", "model", "--gold", "gold.tsv", "--column", 3, "--merge", 2, "--json"]
    told = last_json(call(*asked).out)
    assert told["v_measure"] == pytest.approx(metrics.v_measure_score(tags, groups), abs=1e-9)
    assert told["states"] == 2 and told["merge"] == 2
    first = call("tag", "model", "same.txt", "--merge", 2).out.splitlines()[0].split()
    shown = [f"{word}/{group}" for word, group in zip(lines[0].split(), groups, strict=False)]
    assert first[:-1] == shown and first[-1].startswith("<eos>/")


def test_states_of_two_models(place, call) -> None:
    model = Model.load("model")
    order = np.random.default_rng(0).permutation(4)
    by_state = torch.from_numpy(order)
    log_trans = model.hmm.transitions.log_trans[by_state][:, by_state]
    tables = model.hmm.log_init[by_state], log_trans, model.hmm.log_emit[:, by_state].T
    Model(HMM.from_tables(*tables), model.tokenizer).save("other")
    found = last_json(call("tag", "model", "test.txt", "--against", "other", "--json").out)
    assert found["many_to_one"] == found["one_to_one"] == found["v_measure"] == 1.0
    assert found["variation_of_information"] == 0.0 and found["tokens"] == 280
    assert found["pairs"] and all(order[theirs] == ours for ours, theirs, _ in found["pairs"])
    told = call("tag", "model", "test.txt", "--against", "other").out
    assert told.startswith("many-to-one 1.0000, one-to-one 1.0000, ")
    merged = ["--against", "other", "--merge", 2, "--json"]
    assert last_json(call("tag", "model", "test.txt", *merged).out)["one_to_one"] == 1.0


def test_impossible_lines_are_counted(place, call) -> None:
    write_gold(made_up_lines(3, seed=1))
    model = Model.load("model")
    log_emit = model.hmm.log_emit.clone()
    log_emit[model.tokenizer.id(".")] = -torch.inf
    tables = model.hmm.log_init, model.hmm.transitions.log_trans, log_emit.log_softmax(0).T
    Model(HMM.from_tables(*tables), model.tokenizer).save("other")
    answer = call("tag", "other", "--gold", "gold.tsv", "--json")
    found = last_json(answer.out)
    assert (found["impossible"], found["states"]) == (21, 0) and found["v_measure"] == 0.0
    assert "21 tokens, 0 states, 4 tags, 21 tokens in impossible lines\n" in answer.out


def test_states_of_impossible_lines_are_not_merged(place, refused) -> None:
    model = Model.load("model")
    log_emit = model.hmm.log_emit.clone()
    log_emit[model.tokenizer.id(".")] = -torch.inf
    tables = model.hmm.log_init, model.hmm.transitions.log_trans, log_emit.log_softmax(0).T
    Model(HMM.from_tables(*tables), model.tokenizer).save("other")
    assert refused("tag", "other", "test.txt", "--merge", 2) == (
        "--merge 2: No line has a word and can be written by this model, so that there are no "
        "states to merge; leave it out."
    )


REFUSED = {
    "two comparisons": (
        ["--gold=gold.tsv", "--against=model"],
        "--gold and --against are two comparisons; ask for one at a time.",
    ),
    "column of nothing": (["--column=3"], "--column is of a file of tags; give it with --gold."),
    "column of words": (["--gold=gold.tsv", "--column=1"], ".*'1' is not a whole number of at .*"),
    "no such column": (["--gold=gold.tsv", "--column=9"], "gold.tsv, line 1 has 3 columns .*"),
    "no file": (["--gold=no.tsv"], "no.tsv cannot be read: No such file or directory."),
    "empty": (["--gold=empty.tsv"], "empty.tsv is empty; give at least one line of text."),
    "ragged": (["--gold=bad.tsv"], "bad.tsv, line 2 has 1 column but those before it have 2; .*"),
    "too many groups": (
        ["--gold=gold.tsv", "--merge=99"],
        r"--merge 99: There are \d states on the lines but 99 groups to make of them; ask for \d "
        "at most.",
    ),
    "too many groups of a text": (["test.txt", "--merge=99"], "--merge 99: There are .*"),
    "no group": (["test.txt", "--merge=0"], ".*'0' is not a whole number of at least 1.*"),
    "no model": (["test.txt", "--against=no"], "no does not exist; give a model's folder."),
}


@pytest.mark.parametrize(("options", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(place, refused, options: list[str], said: str) -> None:
    write_gold(made_up_lines(5, seed=1))
    (place / "empty.tsv").write_text("")
    (place / "bad.tsv").write_text("a\tX\nb\n")
    assert re.fullmatch(said, refused("tag", "model", *options))


def test_pieces_of_words_are_refused(place, refused) -> None:
    write_gold(["the dog"])
    model = Model.load("model")
    spec = tokenizers.Tokenizer(tokenizers.models.BPE())
    size = model.hmm.vocab_size - 1
    spec.add_tokens(["<eos>", *(chr(ord("a") + n) for n in range(size))])
    pieces = Tokenizer.from_json(spec.to_str(), source="pieces")
    Model(model.hmm, pieces).save("pieces")
    assert refused("tag", "pieces", "--gold", "gold.tsv") == (
        "gold.tsv has tags for words, but the tokens of pieces are pieces of words; give a model "
        "that was trained on words."
    )
    said = refused("tag", "model", "test.txt", "--against", "pieces")
    assert said.startswith("The two models split line 1 into other tokens, 7 and ")
