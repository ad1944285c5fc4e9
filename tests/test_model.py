"""A model's folder, and the answers of a model in words."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from commands import SOURCE
from enumeration import Row, enumerate_row
from hmmlm import HMM, Model, Support
from hmmlm.data.shards import TokenArray
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.evaluate import HmmLM, evaluate
from hmmlm.transitions import Dense, Factored
from models import make_hmm

WORDS = ["<unk>", "<eos>", "a", "b", "c"]
EOS = 1


def make_model(support: str = "dense", transitions: str = "dense", **options) -> Model:
    """A model over the five tokens of WORDS, in this order."""
    tokenizer = Tokenizer.words({"a": 3, "b": 2, "c": 1})
    assert [tokenizer.token(i) for i in range(5)] == WORDS
    return Model(make_hmm(support, transitions, **options), tokenizer, {"training": {"seed": 3}})


def row(model: Model, line: str) -> Row:
    """All paths of a line; `<eos>` inside it starts anew."""
    ids = [WORDS.index(word) if word in WORDS else 0 for word in line.split()]
    return enumerate_row(model.hmm, [*ids, EOS], reset_id=EOS)


KINDS = [(s, t) for s in ("dense", "blocks", "ragged") for t in ("dense", "factored")]
LINES = ["a b c", "b", "", "c c a unheard a", "a <eos> b"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("support", "transitions"), KINDS)
def test_a_folder_gives_back_the_same_model(tmp_path, support, transitions, dtype):
    model = make_model(support, transitions, dtype=dtype)
    model.save(tmp_path / "m", metrics=[{"step": 1, "val": math.inf}, {"step": 2, "val": 2.5}])
    loaded = Model.load(tmp_path / "m")
    for before, after in zip(model.hmm.fields(), loaded.hmm.fields(), strict=True):
        assert before.dtype == after.dtype and torch.equal(before, after)
    assert type(loaded.hmm.transitions) is type(model.hmm.transitions)
    assert torch.equal(loaded.hmm.support.rows, model.hmm.support.rows)
    assert torch.equal(loaded.hmm.support.row_of_word, model.hmm.support.row_of_word)
    assert loaded.score(LINES) == model.score(LINES)
    assert loaded.tokenizer.hash == model.tokenizer.hash
    assert loaded.config["training"] == {"seed": 3}
    lines = (tmp_path / "m/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, "val": None},
        {"step": 2, "val": 2.5},
    ]


def test_a_factored_model_keeps_its_factors(tmp_path):
    make_model(transitions="factored").save(tmp_path / "m")
    names = set(load_file(tmp_path / "m/model.safetensors"))
    assert {"trans_left", "trans_right", "trans_log_norm"} < names and "log_trans" not in names


def test_factors_that_are_one_table_are_saved_twice(tmp_path):
    model = make_model(transitions="factored")
    one = model.hmm.transitions.left
    tables = (model.hmm.log_init, Factored.normalise(one, one), model.hmm.log_emit)
    Model(HMM(*tables, model.hmm.support), model.tokenizer).save(tmp_path / "m")
    read = Model.load(tmp_path / "m").hmm.transitions
    assert isinstance(read, Factored) and torch.equal(read.left, read.right)


def test_the_config_says_what_is_true_of_the_model_that_is_saved(tmp_path):
    make_model("dense").save(tmp_path / "m")
    loaded = Model.load(tmp_path / "m")
    other = Model(make_hmm("ragged"), loaded.tokenizer, loaded.config)
    other.save(tmp_path / "other")
    assert Model.load(tmp_path / "other").config["num_states"] == 4


def test_a_device_that_is_not_there(tmp_path):
    make_model().save(tmp_path / "m")
    has_gpu = torch.cuda.is_available()
    loaded = Model.load(tmp_path / "m", device="auto")
    assert loaded.device.type == ("cuda" if has_gpu else "cpu")
    for bad in ("foo", "cuda:x", "xpu:99", None):
        words = rf"device is {bad!r} but must be auto, or one that torch has here, such as cpu"
        with pytest.raises(InputError, match=words):
            Model.load(tmp_path / "m", device=bad)
    for bad in ("cuda:99", torch.device("cuda:99"), *([] if has_gpu else ["cuda"])):
        words = rf"device is {bad} but torch finds \d+ GPUs? here; use device cpu\."
        with pytest.raises(InputError, match=words):
            Model.load(tmp_path / "m", device=bad)


def test_saving_never_overwrites(tmp_path):
    make_model().save(tmp_path / "m")
    before = (tmp_path / "m/model.safetensors").read_bytes()
    with pytest.raises(InputError, match="m already exists and is never overwritten; choose "):
        make_model(seed=1).save(tmp_path / "m")
    assert (tmp_path / "m/model.safetensors").read_bytes() == before


def test_an_error_while_saving_leaves_nothing(tmp_path):
    def metrics():
        yield {"step": 1}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_model().save(tmp_path / "a/b/m", metrics=metrics())
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_a_model_is_not_saved(tmp_path):
    model = make_model()
    part = Model(model.hmm.restrict(torch.tensor([0, 2])), model.tokenizer)
    with pytest.raises(InputError, match="has 2 states of a larger one and cannot be saved as a m"):
        part.save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_of_another_size_is_refused():
    tokenizer = Tokenizer.words({"a": 1})
    with pytest.raises(InputError, match="The HMM emits 5 words but the tokenizer has 3; use the"):
        Model(make_hmm(), tokenizer)


def test_loading_on_a_device_moves_all_tables(tmp_path):
    make_model("blocks", "factored").save(tmp_path / "m")
    hmm = Model.load(tmp_path / "m", device="meta").hmm
    tensors = (*hmm.fields(), hmm.support.rows, hmm.support.row_of_word)
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize(("support", "transitions"), KINDS)
def test_score_is_the_sum_over_all_paths(support, transitions):
    model = make_model(support, transitions)
    for line, scored in zip(LINES, model.score(LINES), strict=True):
        expected = row(model, line).token_log_probs
        torch.testing.assert_close(torch.tensor(scored.log_probs).double(), expected)
        known = [word if word in WORDS else "<unk>" for word in line.split()]
        assert scored.tokens == [*known, "<eos>"]


def test_lines_are_scored_the_same_alone_and_together():
    model = make_model()
    lines = ["a b"] * 3 + ["c " * 20_000] + ["b"] * 20_000 + ["a"]
    together = model.score(lines)
    assert [len(line.tokens) for line in together[:5]] == [3, 3, 3, 20_001, 2]
    for place in (0, 3, 4, len(lines) - 1):
        alone = model.score([lines[place]])[0]
        assert alone.log_probs == pytest.approx(together[place].log_probs)


@pytest.mark.parametrize("text", ["a b\nc\n", "a b\r\nc", "a b\nc"])
def test_a_text_is_cut_into_lines_as_a_file_is(tmp_path, text):
    model = make_model()
    assert [line.tokens[:-1] for line in model.score(text)] == [["a", "b"], ["c"]]
    assert model.score(["a b", "c"]) == model.score(text)


def test_only_newlines_end_a_line():
    model = make_model()
    assert [line.tokens for line in model.score("a\u2028b\x0cc")] == [["a", "b", "c", "<eos>"]]
    assert model.score("") == []
    assert [line.tokens for line in model.score("\n")] == [["<eos>"]]
    assert [line.tokens for line in model.score("a\n\n")] == [["a", "<eos>"], ["<eos>"]]


def test_text_that_utf_8_cannot_write_is_refused():
    with pytest.raises(InputError, match=r"'a \\udcff' has '\\udcff' at 2, which UTF-8 cannot"):
        make_model().score(["a \udcff"])


@pytest.mark.parametrize("given", ["text", "list", "generator"])
def test_perplexity_of_lines(given):
    model = make_model()
    lines = ["a b c", "b", "c c a unheard a"]
    given_lines = {"text": "\n".join(lines), "list": lines, "generator": (x for x in lines)}[given]
    nats = -sum(float(row(model, line).token_log_probs.sum()) for line in lines)
    assert model.perplexity(given_lines) == pytest.approx(math.exp(nats / (4 + 2 + 6)))


@pytest.mark.parametrize("mode", ["sentence", "streaming", "window 3"])
def test_perplexity_is_the_evaluators(mode):
    model = make_model("ragged")
    lines = ["a b c", "b a", "a <eos> b"]
    ids = [2, 3, 4, 1, 3, 2, 1, 2, 1, 3, 1]
    tokens = TokenArray.from_ids(ids, eos_id=EOS)
    expected = evaluate(HmmLM(model.hmm), tokens, mode=mode, eos_id=EOS)
    assert model.perplexity(lines, mode=mode) == expected.perplexity
    assert model.evaluate(tokens, mode=mode) == expected


def test_score_and_perplexity_agree_on_eos_inside_a_line():
    model = make_model()
    total = sum(sum(line.log_probs) for line in model.score(LINES))
    tokens = sum(len(line.tokens) for line in model.score(LINES))
    assert model.perplexity(LINES) == pytest.approx(math.exp(-total / tokens))


def test_perplexity_of_nothing_is_refused():
    with pytest.raises(InputError, match="There are no tokens to evaluate; the text is empty"):
        make_model().perplexity([])


@pytest.mark.parametrize(("support", "transitions"), KINDS)
@pytest.mark.parametrize("line", LINES)
def test_posterior_and_paths_of_a_line(support, transitions, line):
    model = make_model(support, transitions)
    oracle = row(model, line)
    smoothed = oracle.smoothed()
    found = model.posterior(line).dense(model.hmm.num_states)[0]
    torch.testing.assert_close(found.exp(), smoothed.exp())
    (tagged,) = model.tag([line])
    best = smoothed.gather(1, torch.tensor(tagged.states)[:, None])[:, 0]
    torch.testing.assert_close(best, smoothed.max(1).values)
    (path,) = model.viterbi([line])
    assert path.states in oracle.best()[1].tolist()
    assert path.tokens == tagged.tokens == model.score([line])[0].tokens


def test_an_impossible_line_has_no_states():
    model = make_model()
    emit = model.hmm.log_emit.exp()
    emit[4] = 0
    hmm = HMM(
        model.hmm.log_init, model.hmm.transitions, (emit / emit.sum(0)).log(), model.hmm.support
    )
    model = Model(hmm.validate(), model.tokenizer)
    for tagger in (model.tag, model.viterbi):
        states = [line.states for line in tagger(["a b", "a c b", "b"])]
        assert states[1] == [-1] * 4 and min(states[0] + states[2]) >= 0
    with pytest.raises(InputError, match="The prompt 'a c' has probability zero under this model,"):
        model.next("a c")
    with pytest.raises(InputError, match="Row 0 of tokens has probability zero, so nothing can"):
        model.sample(prompt="a c")


def test_samples_follow_the_seed():
    model = make_model()
    texts = model.sample(5, seed=1)
    assert texts == model.sample(5, seed=1) != model.sample(5, seed=2)
    assert model.sample(5) != model.sample(5)
    assert all(set(text.split()) <= set(WORDS) - {"<eos>"} for text in texts)


def test_samples_have_the_probabilities_of_next():
    model = make_model()
    texts = model.sample(4000, prompt="a b", length=1, seed=0)
    assert all(text.startswith("a b") for text in texts)
    drawn = [text.split()[2] if len(text.split()) > 2 else "<eos>" for text in texts]
    for word, prob in model.next("a b", k=5):
        error = math.sqrt(prob * (1 - prob) / 4000)
        assert abs(drawn.count(word) / 4000 - prob) < 4 * error + 1e-3


@pytest.mark.parametrize("prompt", ["", "a b", "a b <eos>", "unheard"])
def test_next_gives_the_most_probable_first(prompt):
    model = make_model("ragged")
    found = model.next(prompt, k=5)
    probs = [prob for _, prob in found]
    assert probs == sorted(probs, reverse=True) and sum(probs) == pytest.approx(1)
    ids = [WORDS.index(word) if word in WORDS else 0 for word in prompt.split()]
    states = model.hmm.log_init.exp()
    if ids:
        states = enumerate_row(model.hmm, ids, reset_id=EOS).next_states(EOS)
    emit = enumerate_row(model.hmm, [0]).log_emit.exp()  # (V, Z)
    for word, prob in found:
        assert prob == pytest.approx(float(emit[WORDS.index(word)] @ states))
    assert model.next(prompt, k=2) == found[:2]
    assert model.next(prompt, k=100) == found


@pytest.mark.parametrize("kind", ["ragged", "dense"])
def test_top_words_of_a_state(kind):
    model = make_model(kind)
    emit = enumerate_row(model.hmm, [0]).log_emit.exp()  # (V, Z)
    for state in range(model.hmm.num_states):
        found = model.top_words(state)
        assert sum(prob for _, prob in found) == pytest.approx(1)
        for word, prob in found:
            assert prob == pytest.approx(float(emit[WORDS.index(word), state]))
        assert model.top_words(state, k=1) == found[:1] == [max(found, key=lambda pair: pair[1])]
    # Of dense states the inverse map would have V times Z cells, to be sorted.
    assert ("state_words" in vars(model.hmm.support)) == (kind == "ragged")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda m: m.next(k=0), "k is 0 but must be at least 1"),
        (lambda m: m.top_words(0, k=0), "k is 0 but must be at least 1"),
        (lambda m: m.top_words(3), "There is no state 3; this model has states 0 to 2"),
        (lambda m: m.top_words(-1), "There is no state -1; this model has states 0 to 2"),
        (lambda m: m.sample(0), "count is 0 but must be at least 1"),
        (lambda m: m.sample(length=0), "length is 0 but must be at least 1"),
        (lambda m: m.sample(seed=-1), r"seed is -1 but must lie between 0 and 2\^63 - 1"),
        (
            lambda m: m.perplexity("a", mode="x"),
            "The evaluation mode is 'x' but must be 'sen",
        ),
    ],
)
def test_questions_that_cannot_be_answered(ask, said):
    with pytest.raises(InputError, match=said):
        ask(make_model())


def test_a_state_that_no_word_names_is_refused():
    with pytest.raises(InputError, match=r"State 3 is named by no word \(1 such states of 4\), so"):
        Support.ragged([[0, 1], [2], [0, 2]], 4)
    support = Support(torch.tensor([[0, 1]]), torch.tensor([0, 0]), 3)
    tables = (torch.zeros(3).log_softmax(0), Dense(torch.zeros(3, 3).log_softmax(1)))
    with pytest.raises(InputError, match="State 2 is named by no word"):
        HMM(*tables, torch.zeros(2, 2).log_softmax(0), support).validate()


@pytest.mark.parametrize("lengths", [[0, 2], [2, 0]])
def test_lengths_of_zero_are_refused(lengths):
    with pytest.raises(InputError, match="lengths has 0 but every length must lie between 1 and 2"):
        HmmLM(make_hmm()).score_tokens(
            torch.tensor([[2, 3], [2, 3]]), lengths=torch.tensor(lengths)
        )


def labelled(tags: object, size: object) -> Model:
    model = make_model("blocks")  # of 4 states
    return Model(model.hmm, model.tokenizer, {"labels": {"tags": tags, "states_per_tag": size}})


@pytest.mark.parametrize("posterior", [False, True])
def test_states_are_named_by_the_labels_that_own_them(tmp_path, posterior):
    labelled(["N", "V"], 2).save(tmp_path / "m")
    model = Model.load(tmp_path / "m")
    assert model.tag_names == ["N", "N", "V", "V"]
    for line in model.tag_lines(LINES, posterior=posterior):
        assert line.tags == ["NNVV"[state] for state in line.states]
    assert all(line.tags is None for line in make_model("blocks").viterbi(LINES))


def test_an_impossible_token_has_no_label():
    model = make_model("blocks")
    model.hmm.log_emit[WORDS.index("b")] = -torch.inf
    (line,) = Model(model.hmm, model.tokenizer, labelled(["N", "V"], 2).config).tag("b")
    assert (line.states[0], line.tags and line.tags[0]) == (-1, "_")


@pytest.mark.parametrize(
    ("tags", "size"), [(["N"], 2), (["N", "V"], 1 << 60), (["N", 3], 2), ("NV", 2), (None, None)]
)
def test_labels_that_do_not_fit_are_refused(tmp_path, tags, size):
    labelled(tags, size).save(tmp_path / "m")
    wanted = r"config\.json has labels that cannot be shared equally by 4 states; copy the folder"
    with pytest.raises(InputError, match=wanted):
        Model.load(tmp_path / "m")


def test_a_model_says_its_sizes():
    assert repr(make_model()) == "Model(3 states, 5 words)"
    assert repr(make_model().hmm) == "HMM(3 states, 5 words)"


NO_STRING = (
    "The prompt is a list but must be one string; join words with spaces, and ask for several "
    "texts one by one."
)
MISTAKES = {
    'm.next(["a", "b"])': NO_STRING,
    'm.sample(prompt=["a"])': NO_STRING,
    'm.sample("x")': "count is 'x' but must be a number; a text to go on after is given as "
    "prompt='x'.",
    "m.sample(1.5)": "count is 1.5 but must be a whole number.",
    'm.next("a", k="3")': "k is '3' but must be a whole number.",
}


def test_what_is_no_text_and_no_number_is_told(tmp_path):
    # In a process of its own: here the types are checked before the functions see them.
    make_model().save(tmp_path / "m")
    code = "import sys\nfrom hmmlm import Model\nfrom hmmlm.errors import InputError\n"
    code += "m = Model.load(sys.argv[1])\nfor said in sys.argv[2:]:\n"
    code += "    try:\n        eval(said)\n    except InputError as error:\n        print(error)\n"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m"), *MISTAKES],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert done.stdout.splitlines() == list(MISTAKES.values()), done.stderr
