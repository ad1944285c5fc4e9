"""What the explorer says of texts, constraints, the map and the training, by enumeration."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from enumeration import enumerate_fills, enumerate_row, full_emissions
from explorers import ids_of, toy_model, toy_prepared, without_c
from hmmlm import inference
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.explore.cards import state_card
from hmmlm.explore.constraining import make_constraint, marks, read_range, share, told
from hmmlm.explore.explorer import Explorer
from hmmlm.explore.preparing import Missing
from hmmlm.explore.projection import project
from hmmlm.hmm import HMM
from hmmlm.inference.chain import MISSING
from hmmlm.mixture import mixture
from models import make_hmm


def explore(model, **how) -> Explorer:
    return Explorer(toy_prepared(model, **how))


def filled(model, ids):
    """Texts that fill the gaps of ids and log p of each; no gap is `<eos>`."""
    return enumerate_fills(model.hmm, ids, reset_id=model.tokenizer.eos_id)


def joint_paths(model, ids):
    """log p(path, text) of every path, gaps summed over words other than `<eos>`."""
    eos, total = model.tokenizer.eos_id, {}
    for text in filled(model, ids):
        row = enumerate_row(model.hmm, list(text), reset_id=eos)
        for path, log_joint in zip(row.paths.tolist(), row.log_joint[:, -1].tolist(), strict=True):
            total[tuple(path)] = np.logaddexp(total.get(tuple(path), -math.inf), log_joint)
    return total


@pytest.mark.parametrize("text", ["a b", "c ? a", "? b"])
def test_a_text_has_the_surprisal_states_and_path_of_enumeration(model, text):
    answer = explore(model).read(text)
    ids = ids_of(model, text.replace("?", "a"))
    for at, word in enumerate(text.split()):
        ids[at] = MISSING if word == "?" else ids[at]
    paths = joint_paths(model, ids)
    log_evidence = np.logaddexp.reduce(list(paths.values()))
    assert answer["nats"] == pytest.approx(-log_evidence)
    known = sum(id != MISSING for id in ids)
    assert answer["perplexity"] == pytest.approx(math.exp(-log_evidence / known))
    best = max(paths.values())
    assert answer["path_probability"] == pytest.approx(math.exp(best - log_evidence))
    chosen = tuple(token["path"] for token in answer["tokens"])
    assert paths[chosen] == pytest.approx(best)
    for at, (token, id) in enumerate(zip(answer["tokens"], ids, strict=True)):
        marginal = np.zeros(model.hmm.num_states)
        for path, log_joint in paths.items():
            marginal[path[at]] += math.exp(log_joint - log_evidence)
        expected = {state: p for state, p in enumerate(marginal) if p > 0}
        assert dict(token["states"]) == pytest.approx(expected)
        assert token["rest"] == pytest.approx(0.0, abs=1e-9)
        assert token["gap"] == (id == MISSING)
        assert token["text"] == ("?" if id == MISSING else model.tokenizer.token(id))
        nats = _log_total(model, ids[:at]) - _log_total(model, ids[: at + 1])
        assert token["nats"] == pytest.approx(nats)
        assert token["bits"] == pytest.approx(nats / math.log(2))
    assert sum(token["nats"] for token in answer["tokens"]) == pytest.approx(answer["nats"])


def _log_total(model, ids) -> float:
    if not ids:
        return 0.0
    return float(np.logaddexp.reduce(list(filled(model, ids).values())))


@pytest.mark.parametrize("text", ["a b", "  a   ? b", r"a \? b", r"\* ? a", "?", "", "zz \\ a "])
def test_tokens_know_their_place_in_the_text(text):
    tokens = explore(toy_model()).read(text)["tokens"]
    places = [text[slice(*token["span"])] for token in tokens[:-1]]
    assert places == text.split() and tokens[-1]["span"] is None
    starts = [token["span"][0] for token in tokens[:-1]]
    assert starts == sorted(starts)


def test_states_of_a_text_are_named_by_their_words(model):
    answer = explore(model).read("a ? b")
    for token in answer["tokens"]:
        for state in (token["path"], *(state for state, _ in token["states"])):
            words = state_card(toy_prepared(model), state)["words"][:3]
            assert answer["words"][str(state)] == [word for word, _ in words]


def test_few_states_leave_a_rest(monkeypatch):
    monkeypatch.setattr("hmmlm.explore.explorer.TEXT_STATES", 1)
    explorer = explore(toy_model("dense"))
    for token in explorer.read("a b")["tokens"]:
        assert len(token["states"]) == 1
        assert token["rest"] == pytest.approx(1 - token["states"][0][1])


def test_a_mark_with_a_backslash_is_a_word_and_a_star_is_refused():
    explorer = explore(toy_model())
    token = explorer.read(r"a \?")["tokens"][1]
    assert (token["text"], token["gap"]) == ("<unk>", False)
    with pytest.raises(InputError, match=r"gaps of one word each, but this one has a \*; write \?"):
        explorer.read("a *")


def test_an_empty_text_is_its_end():
    model = toy_model()
    answer = explore(model).read("")
    assert [token["text"] for token in answer["tokens"]] == ["<eos>"]
    expected = model.hmm.log_init.exp() @ full_emissions(model.hmm).exp().T
    assert math.exp(-answer["nats"]) == pytest.approx(float(expected[model.tokenizer.eos_id]))


def test_next_words_are_those_of_enumeration_whatever_was_kept(model):
    explorer = explore(model)
    explorer.next_words.kept = 3
    emissions = full_emissions(model.hmm).exp()
    eos = model.tokenizer.eos_id
    for text in ("", "a", "a b", "a b c", "a c", "b", "a b c", "c", "a b", "", "a b\nc"):
        answer = explorer.next(text)
        ids = ids_of(model, text.replace("\n", " "))[:-1]
        if ids:
            row = enumerate_row(model.hmm, ids, reset_id=eos)
            states, nats = row.next_states(eos), -row.log_evidence
        else:
            states, nats = model.hmm.log_init.exp(), 0.0
        expected = {
            model.tokenizer.token(word): float(p)
            for word, p in enumerate(emissions @ states)
            if p > 0
        }
        assert dict(answer["next"]) == pytest.approx(expected)
        probs = [p for _, p in answer["next"]]
        assert probs == sorted(probs, reverse=True)
        assert answer["nats"] == pytest.approx(nats, abs=1e-9)
        assert dict(explorer.read(text)["next"]) == pytest.approx(expected)
        assert len(explorer.next_words._states) <= 3 >= len(explorer.next_words._answers)


@pytest.mark.parametrize("text", [r"a \?", r"\* a", r"b \?  ", "a b "])
def test_what_comes_next_is_the_same_with_the_text_and_alone(text):
    model = replace(toy_model(), tokenizer=Tokenizer.words({"?": 3, "*": 2, "a": 1}))
    explorer = explore(model, lines=["a ?"])
    answer = explorer.next(text)
    assert answer["next"] == explorer.read(text)["next"]
    ids = ids_of(model, text.replace("\\", ""))[:-1]
    row = enumerate_row(model.hmm, ids, reset_id=model.tokenizer.eos_id)
    assert answer["nats"] == pytest.approx(-row.log_evidence)


def test_nothing_comes_next_after_gaps():
    explorer = explore(toy_model())
    said = r"after words, but this text has a \? for a gap; fill it, or write \\\? for a question"
    with pytest.raises(InputError, match=said):
        explorer.next("a ? b")
    with pytest.raises(InputError, match=r"gaps of one word each, but this one has a \*; write \?"):
        explorer.next("a *")


def test_a_kept_prefix_is_read_on_from(monkeypatch):
    explorer = explore(toy_model())
    explorer.next("a b")
    read = []
    advance = inference.advance

    def spy(state, tokens):
        read.append(tokens.shape[1])
        return advance(state, tokens)

    monkeypatch.setattr(inference, "advance", spy)
    for text in ("a b c", "a b c c", "a b", "a b c c"):
        explorer.next(text)
    assert read == [1, 1]


def test_gaps_are_filled_as_enumeration_says(model):
    explorer = explore(model)
    answer = explorer.fill("a ? b ?", n=3, seed=0)
    ids = ids_of(model, "a a b a")
    ids[1] = ids[3] = MISSING
    fills = filled(model, ids)
    total = np.logaddexp.reduce(list(fills.values()))
    for gap, place in zip(answer["gaps"], (1, 3), strict=True):
        probs: dict[str, float] = {}
        for text, log_prob in fills.items():
            word = model.tokenizer.token(text[place])
            probs[word] = probs.get(word, 0.0) + math.exp(log_prob - total)
        assert gap["position"] == place
        assert dict(gap["words"]) == pytest.approx({word: p for word, p in probs.items() if p > 0})
    by_words = {
        tuple(model.tokenizer.token(text[at]) for at in (1, 3)): math.exp(log_prob - total)
        for text, log_prob in fills.items()
    }
    assert len(answer["samples"]) == 3
    for sample in answer["samples"]:
        assert sample["p"] == pytest.approx(by_words[tuple(sample["words"])])
    only = explorer.fill("a *", n=2, seed=0)
    assert only["gaps"] == [] and len(only["samples"]) == 2


def test_gaps_that_would_take_too_long_are_refused(monkeypatch):
    explorer = explore(toy_model())
    monkeypatch.setattr("hmmlm.explore.explorer.WHOLE_TABLE", 1)
    assert not explorer.wide_gaps
    for ask in (explorer.read, lambda text: explorer.fill(text, n=1, seed=0)):
        with pytest.raises(InputError, match=r"has 4 states, too many here for \* and for gaps si"):
            ask("a ? ? b")
        ask("a ? b ?")
    with pytest.raises(InputError, match=r"leave a word between two gaps, or run hmmlm fill\."):
        explorer.fill("a *", n=1, seed=0)
    monkeypatch.setattr("hmmlm.explore.explorer.CONSTRAINED_STATES", 3)
    with pytest.raises(
        InputError, match=r"4 states; constraints are looked ahead here for up to 3"
    ):
        constrain(explorer, contains=["a"])


@pytest.mark.parametrize("ask", ["read", "next", "fill"])
def test_long_texts_are_refused(ask, monkeypatch):
    explorer = explore(toy_model())
    how = {"n": 1, "seed": 0} if ask == "fill" else {}
    with pytest.raises(
        InputError, match=r"has 2,001 characters but may have 2,000; give a shorter"
    ):
        getattr(explorer, ask)("a" * 2001, **how)
    with pytest.raises(InputError, match=r"has 402 tokens but may have 400; give a shorter one\."):
        getattr(explorer, ask)("? " + "a " * 400 if ask == "fill" else "a " * 401, **how)


def test_texts_of_probability_zero_are_refused():
    explorer = explore(without_c(), lines=["a"])
    with pytest.raises(InputError, match=r"This text has probability zero under this model; give"):
        explorer.read("a c")
    with pytest.raises(
        InputError, match=r"This text has probability zero under this model, so nothin"
    ):
        explorer.next("a c")


def test_a_text_may_be_more_surprising_than_floats_can_say():
    log_emit = torch.tensor([[0.0, -1000.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    log_emit = torch.log_softmax(log_emit, 1)
    model = toy_model("dense", "dense")
    rare = model.tokenizer.token(1)
    zero = torch.zeros(1, dtype=torch.float64)
    hmm = HMM.from_tables(zero, zero[None], log_emit)
    answer = explore(replace(model, hmm=hmm), lines=[]).read(f"{rare} " * 20)
    assert answer["perplexity"] is None and answer["nats"] > 20_000


def constrain(explorer, **asked):
    given = {"contains": [], "without": [], "regex": "", "words": "", "length": 3, "n": 0}
    return explorer.constrain(**{**given, "seed": 0, **asked})


def test_the_probability_of_a_constraint_is_that_of_its_texts(model):
    explorer = explore(model)
    eos, vocab = model.tokenizer.eos_id, model.hmm.vocab_size
    texts = {}
    for size in range(3):
        for words in itertools.product((id for id in range(vocab) if id != eos), repeat=size):
            row = enumerate_row(model.hmm, [*words, eos], reset_id=eos)
            texts[tuple(map(model.tokenizer.token, words))] = math.exp(row.log_evidence)
    cases = [
        ({"contains": ["a"]}, lambda words: "a" in words),
        ({"contains": ["a"], "without": ["b"]}, lambda words: "a" in words and "b" not in words),
        ({"words": "2"}, lambda words: len(words) == 2),
        ({"regex": "(a|b) .*"}, lambda words: len(words) == 2 and words[0] in "ab"),
    ]
    for asked, meets in cases:
        expected = sum(prob for words, prob in texts.items() if meets(words))
        answer = constrain(explorer, n=4, **asked)
        assert answer["probability"] == pytest.approx(expected, rel=1e-6)
        assert answer["log10"] == pytest.approx(math.log10(expected))
        assert answer["sentence"] == told(math.log(expected), 3)
        for sample in answer["samples"]:
            assert meets(tuple(sample["text"].split()))
            for start, end in sample["marks"]:
                assert sample["text"][start:end] in asked["contains"]
            assert bool(sample["marks"]) == bool(asked.get("contains"))


def test_looking_ahead_takes_no_more_memory_than_a_page_may(monkeypatch):
    explorer = explore(toy_model())
    constrain(explorer, contains=["a"])
    monkeypatch.setattr("hmmlm.explore.explorer.LOOKING_BYTES", 100)
    said = (
        r"Looking 3 tokens ahead through 3 x 4 states takes 0\.0 GiB, over the 0\.0 that a page "
        r"may take; ask for less at once, allow fewer tokens, or run hmmlm constraint\."
    )
    with pytest.raises(InputError, match=said):
        constrain(explorer, contains=["a"])


def test_what_the_model_never_writes_has_probability_zero():
    answer = constrain(explore(without_c(), lines=["a"]), contains=["c"], n=2)
    assert (answer["probability"], answer["log10"], answer["samples"]) == (0.0, None, [])
    assert answer["sentence"] == "probability 0: this model never writes that in at most 3 tokens"
    with pytest.raises(InputError, match=r"shortest text that meets the constraint has 3 tokens"):
        constrain(explore(toy_model()), words="3..", length=3)


def test_phrases_that_are_too_long_together_are_refused():
    explorer = explore(toy_model())
    told_so = r"have 502 characters but may have 500 together; give fewer or shorter ones\."
    with pytest.raises(InputError, match=told_so):
        constrain(explorer, contains=["a" * 251], without=["b" * 251])


def test_constraints_that_are_none_are_refused():
    with pytest.raises(InputError, match=r"There is no constraint; give words that must be there "):
        make_constraint([], [], "", "")
    with pytest.raises(
        InputError, match=r"words is 'x' but must be such as 10\.\.20, 10\.\. or 12"
    ):
        read_range("x", "words")
    assert [read_range(said, "") for said in ("3", "3..", "3..5")] == [(3, 3), (3, None), (3, 5)]


def test_marks_are_whole_words():
    assert marks("rain in the train, rain", ["rain"]) == [(0, 4), (19, 23)]
    assert marks("a . b .", [".", "b ."]) == [(2, 3), (4, 7), (6, 7)]
    assert marks("don't don", ["don"]) == [(6, 9)]


def test_probabilities_are_told_by_their_power_of_ten():
    assert share(math.log(0.25)) == "25%" and share(math.log(2e-5)) == "2e-5"
    assert told(math.log(0.5), 30) == (
        "probability 50% that the model writes such a text of at most 30 tokens"
    )
    assert told(math.log(1e-4), 1).endswith(" of at most 1 token: it hardly ever does")


def test_the_map_has_the_principal_directions_of_transition_rows(transitions):
    hmm = make_hmm("dense", transitions, seed=5)
    found = project(hmm)
    table = hmm.transitions.rows(0, hmm.num_states)
    rows = table.exp().sqrt() if transitions == "dense" else table - table.mean(1, keepdim=True)
    rows = rows - rows.mean(0)
    _, sizes, directions = torch.linalg.svd(rows)
    expected = (rows @ directions.T)[:, :2]
    assert np.abs(found.points) == pytest.approx(expected.abs().numpy(), abs=1e-6)
    shares = (sizes**2 / (sizes**2).sum()).tolist()
    assert found.explained == pytest.approx(shares[:2])
    assert (found.points.max(0) >= -found.points.min(0)).all()
    again = project(hmm)
    assert (again.points == found.points).all()


def test_the_map_of_a_mixture_is_of_what_its_parts_have_learnt():
    """What keeps parts from one another says nothing of a state, and has no direction."""
    parts = [make_hmm("blocks", "factored", seed=seed) for seed in (1, 2)]
    found, alone = project(mixture(parts)), project(mixture(parts[:1]))
    assert len(np.unique(found.points.round(3), axis=0)) == 8
    assert np.abs(found.points).max() < 1e3
    assert np.abs(alone.points) == pytest.approx(np.abs(project(parts[0]).points), abs=1e-6)


def test_many_dense_states_have_the_same_map_by_iteration(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    states, width = 40, 3

    def noise(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    rows = torch.log_softmax(2 * noise(states, width) @ noise(width, states), 1)
    init, emit = torch.log_softmax(noise(states), 0), torch.log_softmax(noise(states, 4), 1)
    hmm = HMM.from_tables(init, rows, emit)
    exact = project(hmm)
    monkeypatch.setattr("hmmlm.explore.projection.EXACT", 10)
    found = project(hmm)
    assert found.explained == pytest.approx(exact.explained, rel=1e-4)
    assert found.points == pytest.approx(exact.points, abs=1e-2)


def test_a_single_state_has_a_map():
    hmm = HMM.from_tables(torch.zeros(1), torch.zeros(1, 1), torch.tensor([[0.5, 0.5]]).log())
    assert project(hmm).points.tolist() == [[0.0, 0.0]]


def test_the_map_names_block_and_use(model):
    explorer = explore(model)
    found = explorer.map()
    use = explorer.prepared.use
    assert use is not None and found["use"] == use.share.tolist()
    assert max(map(abs, found["x"] + found["y"])) == pytest.approx(1.0)
    table = explorer.prepared.table
    assert found["block"] == (None if table.block is None else table.block.tolist())
    assert set(found) == {"how", "explained", "x", "y", "block", "use", "use_state"}


def test_training_is_the_log_of_the_run(tmp_path):
    steps = [
        {"step": n, "loss": 2.0, "tokens": 10 * n, "tokens_per_second": 5.0, "learning_rate": 0.1}
        for n in range(1, 4)
    ]
    steps[1]["val"] = 7.0
    steps[2]["val"] = 8.0
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    explorer = explore(toy_model(), folder=tmp_path)
    found = explorer.training()
    assert explorer.about()["has_training"]
    curves = found["curves"]
    assert curves["each_step"]["values"] == pytest.approx([math.exp(2.0)] * 3)
    assert curves["training"]["values"] == pytest.approx([math.exp(2.0)] * 3)
    assert curves["training"]["tokens"] == [10, 20, 30]
    assert curves["validation"] == {"tokens": [20, 30], "steps": [2, 3], "values": [7.0, 8.0]}
    assert curves["learning_rate"]["values"] == [0.1] * 3
    assert found["best"] == {"step": 2, "tokens": 20, "perplexity": 7.0}
    assert (found["steps"], found["tokens"]) == (3, 30)


def test_no_log_is_no_training(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        explorer = explore(toy_model(), folder=folder)
        with pytest.raises(Missing, match=r"has no metrics.jsonl: it keeps no log of a training"):
            explorer.training()
        (tmp_path / "metrics.jsonl").touch()
        assert not explorer.about()["has_training"]


def test_about_says_what_the_model_is(model, support, transitions):
    about = explore(model).about()
    kinds = {"uneven": "blocks"}
    assert about["support"] == kinds.get(support, support)
    assert about["blocks"] == (2 if support in ("blocks", "uneven") else None)
    assert (about["states"], about["words"]) == (model.hmm.num_states, 5)
    assert about["transitions"] == transitions and about["use_from"] == "toy text"
    assert about["pieces"] is False
    assert about["parameters"] == sum(field.numel() for field in model.hmm.fields())
