"""HMMs in lm-eval."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers")
lm_eval = pytest.importorskip("lm_eval")

from hmmlm import inference  # noqa: E402
from hmmlm.data.tokenizer import Tokenizer  # noqa: E402
from hmmlm.errors import InputError  # noqa: E402
from hmmlm.hf.harness import HmmHarness, main  # noqa: E402
from hmmlm.model import Model  # noqa: E402
from hmmlm.support import Support  # noqa: E402
from models import make_hmm  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    support = Support.from_clusters([0, 1, 0, 1, 2, 2], states_per_block=2)
    hmm = make_hmm(support, "factored", dtype=torch.float32)
    folder = tmp_path_factory.mktemp("harness") / "model"
    Model(hmm, Tokenizer.words(["a b c d"])).save(folder)
    return folder


def asked(*args) -> SimpleNamespace:
    return SimpleNamespace(args=args)


def test_log_likelihoods_are_ours(folder) -> None:
    model, face = Model.load(folder), HmmHarness(str(folder), batch_size=2)
    pairs = [("a b", " c d"), ("a b ", "c"), ("", "b a"), ("d d d", " a"), ("a", "")]
    found = face.loglikelihood([asked(*pair) for pair in pairs])
    for (context, continuation), (score, is_best) in zip(pairs, found, strict=True):
        before, whole = (model.tokenizer.encode(text) for text in (context, context + continuation))
        sums = [
            float(inference.log_prob(model.hmm, torch.tensor([ids])).log_evidence) if ids else 0.0
            for ids in (whole, before)
        ]
        assert score == pytest.approx(sums[0] - sums[1], abs=1e-5)
        best = True
        for place in range(len(before), len(whole)):
            state = inference.start(model.hmm)
            if place:
                state = inference.advance(state, torch.tensor([whole[:place]]))
            best &= int(inference.next_log_probs(state).argmax()) == whole[place]
        assert is_best == best
    assert face.loglikelihood([asked("", "")]) == [(0.0, True)]


def test_spaces_that_end_a_context_belong_to_what_follows(tmp_path) -> None:
    """A tokenizer whose words begin with their space, as those of bytes do: "a b " is one more."""
    pieces = {"<unk>": 0, "<eos>": 1, "a": 2, "\u2581b": 3, "\u2581c": 4, "\u2581": 5}
    model = {"type": "WordLevel", "vocab": pieces, "unk_token": "<unk>"}
    cut = {"type": "Split", "pattern": {"Regex": " ?[a-z]| "}, "behavior": "Isolated"}
    cut = {"type": "Sequence", "pretokenizers": [{**cut, "invert": False}]}
    spec = {"model": model, "pre_tokenizer": cut}
    spec["normalizer"] = None
    spec["model"]["vocab"] = {key.replace("\u2581", " "): value for key, value in pieces.items()}
    words = Tokenizer.from_json(json.dumps(spec), source="x")
    assert words.encode("a b ") == [2, 3, 5] and words.encode("a b c") == [2, 3, 4]
    Model(make_hmm(Support.dense(6, 3), "dense", dtype=torch.float32), words).save(tmp_path / "m")
    face = HmmHarness(str(tmp_path / "m"))
    spaced, plain = face.loglikelihood([asked("a b ", "c"), asked("a b", " c")])
    assert spaced == plain and spaced[0] < 0


def test_whole_texts_are_those_of_the_evaluator(folder) -> None:
    model, face = Model.load(folder), HmmHarness(str(folder))
    texts = ["a b c", "d", "", "a a a a b c d"]
    found = face.loglikelihood_rolling([asked(text) for text in texts])
    for text, score in zip(texts, found, strict=True):
        (line,) = model.score([text])
        assert score == pytest.approx(sum(line.log_probs[:-1]), abs=1e-5)  # without <eos>
    two = "a b <eos> c d"  # the second begins anew, as it does where it follows a context
    (whole,), ((score, _),) = (
        face.loglikelihood_rolling([asked(two)]),
        face.loglikelihood([asked("", two)]),
    )
    assert whole == pytest.approx(score, abs=1e-5)


def test_answers_end_where_they_must(folder) -> None:
    model, face = Model.load(folder), HmmHarness(str(folder))
    contexts = ["a", "b", "c", "d", "a b", "c d"]
    answers = face.generate_until([asked(one, {"max_gen_toks": 8}) for one in contexts])
    context, whole = max(zip(contexts, answers, strict=True), key=lambda pair: len(pair[1]))
    words = whole.split()
    assert 0 < len(words) <= 8
    ids = model.tokenizer.encode(context)
    for word in words:
        state = inference.advance(inference.start(model.hmm, reset_id=1), torch.tensor([ids]))
        best = int(inference.next_log_probs(state).argmax())
        assert model.tokenizer.token(best) == word
        ids.append(best)
    told = {"until": [words[-1]], "max_gen_toks": 8}
    (cut,) = face.generate_until([asked(context, told)])
    assert words[-1] not in cut and whole.startswith(cut)
    (drawn,) = face.generate_until([asked("", {"do_sample": True, "max_gen_toks": 3})])
    assert len(drawn.split()) <= 3


@pytest.mark.parametrize(
    ("until", "wanted"),
    [
        (None, "b c d b"),
        ("c d", "b "),
        (["d", "c"], "b "),
        (["", "x"], "b c d b"),
        (["b"], ""),
    ],
)
def test_an_answer_is_cut_at_the_first_end(folder, until, wanted) -> None:
    face, how = HmmHarness(str(folder)), {"until": until}
    face.lm.generate = lambda *given, **told: torch.tensor([[2, 3, 4, 5, 3, 1, 2]])
    assert face.generate_until([asked("a", how)]) == [wanted]
    assert how == {"until": until}


def test_an_answer_to_nothing_begins_a_text(folder) -> None:
    face, starts = HmmHarness(str(folder)), []
    face.lm.generate = lambda start, **told: starts.append(start.tolist()) or start
    face.generate_until([asked("", {}), asked("a b", {})])
    assert starts == [[[face.eos]], [[2, 3]]]


def test_texts_of_other_lengths_beside_one_do_not_matter(tmp_path) -> None:
    """Not even where what fills it up, <eos>, is impossible."""
    hmm = make_hmm(Support.dense(6, 3), "dense", dtype=torch.float32)
    emit = hmm.log_emit.clone()
    emit[1] = -torch.inf
    hmm = replace(hmm, log_emit=emit.log_softmax(0))
    Model(hmm, Tokenizer.words(["a b c d"])).save(tmp_path / "m")
    face, texts = HmmHarness(str(tmp_path / "m")), [asked("", "a b c"), asked("", "a")]
    together = [score for score, _ in face.loglikelihood(texts)]
    assert together == pytest.approx([face.loglikelihood([text])[0][0] for text in texts])


def test_what_cannot_be_is_the_least_probable(tmp_path) -> None:
    """And leaves the others of its batch alone."""
    hmm = make_hmm(Support.dense(6, 3), "dense", dtype=torch.float32)
    emit = hmm.log_emit.clone()
    emit[0] = -torch.inf  # <unk>
    hmm = replace(hmm, log_emit=emit.log_softmax(0))
    Model(hmm, Tokenizer.words(["a b c d"])).save(tmp_path / "m")
    face = HmmHarness(str(tmp_path / "m"))
    pairs = [("a b", " zebra"), ("a b", " c d"), ("a", " zebra c"), ("zebra", " a")]
    found = face.loglikelihood([asked(*pair) for pair in pairs])
    assert [score for score, _ in found[:1] + found[2:]] == [-torch.inf] * 3
    assert not any(is_best for _, is_best in found[:1] + found[2:])
    assert found[1] == face.loglikelihood([asked("a b", " c d")])[0]
    assert face.loglikelihood_rolling([asked("a zebra")]) == [-torch.inf]


def test_a_local_task(folder, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = [
        {"text": "a b", "choices": ["c", "d"], "label": 0},
        {"text": "d d", "choices": ["a", "b"], "label": 1},
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/letters.yaml").write_text(
        f"""task: letters
dataset_path: json
dataset_kwargs:
  data_files:
    test: {tmp_path / "data.jsonl"}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
metric_list:
  - metric: acc
"""
    )
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False)
    told = lm_eval.simple_evaluate(
        model="hmm", model_args=f"pretrained={folder}", tasks=["letters"], task_manager=manager,
        bootstrap_iters=0,
    )  # fmt: skip
    model, right = Model.load(folder), 0
    for row in rows:
        scores = [
            float(
                inference.log_prob(
                    model.hmm, torch.tensor([model.tokenizer.encode(f"{row['text']} {choice}")])
                ).log_evidence
            )
            for choice in row["choices"]
        ]
        right += scores.index(max(scores)) == row["label"]
    assert told["results"]["letters"]["acc,none"] == pytest.approx(right / 2)


def test_what_a_task_says_of_drawing_is_done(folder) -> None:
    face, told = HmmHarness(str(folder)), []
    generate = face.lm.generate
    face.lm.generate = lambda *given, **how: told.append(how) or generate(*given, **how)
    for how in (
        {"max_gen_toks": 2, "top_p": 0.9, "top_k": 5, "temperature": 0.0},
        {"max_gen_toks": 2, "temperature": 0.5, "top_p": 0.9},
        {"max_gen_toks": 2, "do_sample": True},
        {"max_gen_toks": 2, "num_beams": 3, "until": "d"},
        {"max_new_tokens": 3, "do_sample": True, "temperature": 0.0, "top_p": 0.9},
        {"max_tokens": 4, "temperature": None},
    ):
        face.generate_until([asked("a b", how)])
    names = ("do_sample", "temperature", "top_p", "top_k", "num_beams", "max_new_tokens")
    assert [tuple(how.get(name) for name in names) for how in told] == [
        (False, None, None, None, None, 2),
        (True, 0.5, 0.9, 0, None, 2),
        (True, 1.0, None, 0, None, 2),
        (False, None, None, None, 3, 2),
        (False, None, None, None, None, 3),
        (False, None, None, None, None, 4),
    ]


def test_a_mistake_on_the_command_line_is_one_line(monkeypatch, capsys) -> None:
    told = ["run", "--model", "hmm", "--model_args", "pretrained=nowhere", "--tasks", "x"]
    monkeypatch.setattr("sys.argv", ["harness", *told])
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: HmmHarness("nowhere"))
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == "hmmlm: nowhere does not exist; give a model's folder.\n"


def test_bad_input(folder) -> None:
    with pytest.raises(InputError, match="model_args has dtype, but an HMM takes pretrained, dev"):
        HmmHarness(str(folder), dtype="float32")
    with pytest.raises(InputError, match="batch_size is auto but must be a number from 1 up"):
        HmmHarness(str(folder), batch_size="auto")
    with pytest.raises(InputError, match="batch_size is 0 but must be a number from 1 up"):
        HmmHarness(str(folder), batch_size=0)
    if not torch.cuda.is_available():
        with pytest.raises(
            InputError, match=r"device is cuda:7 but torch finds 0 GPUs here; use device cpu"
        ):
            HmmHarness(str(folder), device="cuda:7")
    with pytest.raises(InputError, match="does not exist"):
        HmmHarness("nowhere")
