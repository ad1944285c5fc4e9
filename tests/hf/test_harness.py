"""HMMs in lm-eval."""

import json
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers")
lm_eval = pytest.importorskip("lm_eval")

from hmmlm import inference  # noqa: E402
from hmmlm.data.tokenizer import Tokenizer  # noqa: E402
from hmmlm.errors import InputError  # noqa: E402
from hmmlm.hf.harness import HmmHarness  # noqa: E402
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


def test_whole_texts_are_those_of_the_evaluator(folder) -> None:
    model, face = Model.load(folder), HmmHarness(str(folder))
    texts = ["a b c", "d", "", "a a a a b c d"]
    found = face.loglikelihood_rolling([asked(text) for text in texts])
    for text, score in zip(texts, found, strict=True):
        (line,) = model.score([text])
        assert score == pytest.approx(sum(line.log_probs[:-1]), abs=1e-5)  # without <eos>


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


def test_bad_input(folder) -> None:
    with pytest.raises(InputError, match="batch_size is auto but must be a number from 1 up"):
        HmmHarness(str(folder), batch_size="auto")
    with pytest.raises(InputError, match="does not exist"):
        HmmHarness("nowhere")
