"""HMMs as causal language models of Hugging Face's transformers."""

import itertools
import json
import math

import pytest
import torch

from hmmlm import inference
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.evaluate import HmmLM
from hmmlm.model import Model
from hmmlm.support import Support
from models import make_hmm

transformers = pytest.importorskip("transformers")

from hmmlm.hf import HmmConfig, HmmForCausalLM, HmmTokenizer  # noqa: E402

EOS = 1
SUPPORTS = {
    "dense": Support.dense(6, 5),
    "blocks": Support.from_clusters([0, 1, 0, 1, 2, 2], states_per_block=3),
    "ragged": Support.ragged([[0, 1], [1, 2, 3], [4], [0, 4], [2], [3]], 5),
}
KINDS = [(name, trans) for name in SUPPORTS for trans in ("dense", "factored")]
TEXT = torch.tensor([[2, 3, 4, 1, 5, 2, 3], [5, 5, 1, 1, 2, 0, 4]])


def tokenizer() -> Tokenizer:
    return Tokenizer.words(["a b c d"])


def make(support: str = "blocks", trans: str = "factored") -> tuple[Model, HmmForCausalLM]:
    hmm = make_hmm(SUPPORTS[support], trans, dtype=torch.float32)
    words = tokenizer()
    model = Model(hmm, words)
    return model, HmmForCausalLM.from_model(model)


@pytest.mark.parametrize(("support", "trans"), KINDS)
def test_logits_are_exact_and_padding_is_not_read(support: str, trans: str) -> None:
    model, lm = make(support, trans)
    eos = model.tokenizer.eos_id
    found = lm(TEXT).logits
    for size in range(1, TEXT.shape[1] + 1):
        truth = inference.next_log_probs(model.hmm, TEXT[:, :size], reset_id=eos)
        torch.testing.assert_close(found[:, size - 1], truth, rtol=0, atol=1e-5)
        torch.testing.assert_close(lm(TEXT[:, :size]).logits[:, -1], truth, rtol=0, atol=1e-5)
    assert torch.allclose(found.exp().sum(2), torch.ones(2, 7), atol=1e-5)
    for left, right in ((3, 0), (0, 2), (1, 1)):
        pad = [torch.full((2, size), 1) for size in (left, right)]
        mask = torch.cat([torch.zeros(2, left), torch.ones_like(TEXT), torch.zeros(2, right)], 1)
        padded = lm(torch.cat([pad[0], TEXT, pad[1]], 1), attention_mask=mask).logits
        torch.testing.assert_close(padded[:, left : left + 7], found)
        assert not padded[:, :left].any() and not padded[:, left + 7 :].any()
    torch.testing.assert_close(lm(TEXT, logits_to_keep=2).logits, found[:, -2:])


@pytest.mark.parametrize(("support", "trans"), KINDS)
def test_the_cache_is_what_was_read(support: str, trans: str) -> None:
    _, lm = make(support, trans)
    found = lm(TEXT).logits
    first = lm(TEXT[:, :3])
    second = lm(TEXT[:, 3:], past_key_values=first.past_key_values)
    torch.testing.assert_close(second.logits, found[:, 3:], rtol=0, atol=1e-5)
    assert second.past_key_values.get_seq_length() == 7
    cache = lm(TEXT[:, :3]).past_key_values
    cache.reorder_cache(torch.tensor([1, 0, 0]))
    swapped = lm(TEXT[[1, 0, 0], 3:], past_key_values=cache).logits
    torch.testing.assert_close(swapped, found[[1, 0, 0], 3:], rtol=0, atol=1e-5)


def test_the_loss_is_that_of_the_evaluator() -> None:
    model, lm = make()
    eos = model.tokenizer.eos_id
    scores = HmmLM(model.hmm).score_tokens(TEXT, reset_id=eos).token_log_probs
    assert float(lm(TEXT, labels=TEXT).loss) == pytest.approx(
        -float(scores[:, 1:].mean()), rel=1e-5
    )
    labels = TEXT.clone()
    labels[0, :4], labels[1, 6:] = -100, -100
    wanted = -(scores[0, 4:].sum() + scores[1, 1:6].sum()) / 8
    assert float(lm(TEXT, labels=labels).loss) == pytest.approx(float(wanted), rel=1e-5)
    given = float(lm(TEXT, labels=labels, num_items_in_batch=4).loss)
    assert given == pytest.approx(2 * float(wanted), rel=1e-5)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    alone = -(
        HmmLM(model.hmm).score_tokens(TEXT[:1, 2:], reset_id=eos).token_log_probs[0, 1:].sum()
    )
    wanted = (alone - scores[1, 1:].sum()) / 10
    assert float(lm(TEXT, attention_mask=mask, labels=TEXT).loss) == pytest.approx(
        float(wanted), rel=1e-5
    )
    assert float(lm(TEXT, labels=torch.full_like(TEXT, -100)).loss) == 0


@pytest.mark.parametrize(("support", "trans"), KINDS)
def test_gradients_are_those_of_differences(support: str, trans: str) -> None:
    _, lm = make(support, trans)
    lm = lm.double().train()
    labels = TEXT.clone()
    labels[:, :2] = -100
    out = lm(TEXT, labels=labels)
    assert out.logits is None
    out.loss.backward()
    for name, parameter in lm.named_parameters():
        place = tuple(torch.tensor(parameter.shape) // 2)
        losses = []
        for change in (1e-5, -1e-5):
            with torch.no_grad():
                parameter[place] += change
                losses.append(_value(lm, labels))
                parameter[place] -= change
        slope = (losses[0] - losses[1]) / 2e-5
        assert float(parameter.grad[place]) == pytest.approx(slope, abs=1e-6), name


def _value(lm: HmmForCausalLM, labels: torch.Tensor) -> float:
    with torch.enable_grad():
        return float(lm(TEXT, labels=labels).loss.detach())


def test_learning_moves_what_is_saved(tmp_path) -> None:
    model, lm = make("ragged", "factored")
    before = float(lm(TEXT, labels=TEXT).loss)
    lm.train()
    descent = torch.optim.Adam(lm.parameters(), lr=0.1)
    for _ in range(20):
        descent.zero_grad()
        lm(TEXT, labels=TEXT).loss.backward()
        descent.step()
    lm.eval()
    logits, after = lm(TEXT).logits, float(lm(TEXT, labels=TEXT).loss)
    assert after < before - 0.1
    lm.save_pretrained(tmp_path / "new")
    HmmTokenizer.of(model.tokenizer).save_pretrained(tmp_path / "new")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    torch.testing.assert_close(again(TEXT).logits, logits, rtol=0, atol=1e-5)
    again.hmm.validate()
    found = again.hmm.support
    assert torch.equal(found.rows, model.hmm.support.rows)


def test_folders_of_either_kind(tmp_path) -> None:
    model, lm = make()
    model.save(tmp_path / "ours")
    lm.save_pretrained(tmp_path / "theirs", max_shard_size=200)
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    for name in ("ours", "theirs"):
        found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name)
        assert isinstance(found, HmmForCausalLM) and not found.training
        assert torch.equal(found(TEXT).logits, lm(TEXT).logits)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert words("a b c")["input_ids"] == model.tokenizer.encode("a b c")
    assert words.eos_token_id == model.tokenizer.eos_id == words.pad_token_id
    lm.save_pretrained(tmp_path / "both")
    words.save_pretrained(tmp_path / "both")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "both")("a b")["input_ids"] == [
        *model.tokenizer.encode("a b")
    ]


def test_best_tokens_beams_and_samples() -> None:
    model, lm = make("dense", "dense")
    eos = model.tokenizer.eos_id
    how = {"attention_mask": torch.ones(2, 3, dtype=torch.long), "pad_token_id": eos}
    start = TEXT[:, :3]
    greedy = lm.generate(start, max_new_tokens=4, do_sample=False, **how)
    for row in range(2):
        text = start[row].tolist()
        for token in greedy[row, 3:].tolist():
            best = inference.next_log_probs(model.hmm, torch.tensor([text]), reset_id=eos)[0]
            assert token == int(best.argmax())
            text.append(token)
            if token == eos:
                break
    beams = lm.generate(
        start, max_new_tokens=3, num_beams=216, do_sample=False, length_penalty=0.0, **how
    )
    for row in range(2):
        best = max(_endings(model, start[row].tolist(), 3), key=lambda pair: pair[1])[0]
        assert beams[row, 3 : 3 + len(best)].tolist() == list(best)
    torch.manual_seed(0)
    many = {"num_return_sequences": 4000, "max_new_tokens": 1, "do_sample": True, "top_k": 0}
    drawn = lm.generate(
        start[:1], **many, attention_mask=how["attention_mask"][:1], pad_token_id=eos
    )
    share = torch.bincount(drawn[:, 3], minlength=6) / 4000
    truth = inference.next_log_probs(model.hmm, start[:1], reset_id=eos)[0].exp()
    assert float((share - truth).abs().max()) < 4 * math.sqrt(0.25 / 4000)


def _endings(model: Model, start: list[int], size: int):
    """All texts of so many tokens more, or fewer with `<eos>` last, and log p of what is new."""
    eos = model.tokenizer.eos_id
    for number in range(1, size + 1):
        for new in itertools.product(range(6), repeat=number):
            if eos in new[:-1] or (number < size and new[-1] != eos):
                continue
            both = [
                inference.log_prob(model.hmm, torch.tensor([text]), reset_id=eos).log_evidence
                for text in ([*start, *new], start)
            ]
            yield new, float(both[0] - both[1])


def test_rows_of_a_batch_are_as_if_alone() -> None:
    model, lm = make()
    words = HmmTokenizer.of(model.tokenizer)
    words.padding_side = "left"
    texts = ["a b c d a", "c"]
    both = lm.generate(
        **words(texts, return_tensors="pt", padding=True), max_new_tokens=5, do_sample=False
    )
    for row, text in enumerate(texts):
        alone = lm.generate(**words([text], return_tensors="pt"), max_new_tokens=5, do_sample=False)
        assert words.decode(both[row], skip_special_tokens=True) == words.decode(
            alone[0], skip_special_tokens=True
        )


def test_pipeline_and_trainer(tmp_path) -> None:
    pytest.importorskip("accelerate")
    model, lm = make("dense", "factored")
    words = HmmTokenizer.of(model.tokenizer)
    write = transformers.pipeline("text-generation", model=lm, tokenizer=words)
    (found,) = write("a b", max_new_tokens=4, do_sample=False)
    assert found["generated_text"].startswith("a b")
    rows = [{"input_ids": row, "labels": row} for row in TEXT.tolist() * 20]
    told = transformers.TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=10, per_device_train_batch_size=4,
        learning_rate=0.05, logging_steps=1, report_to=[], use_cpu=True, save_strategy="no",
    )  # fmt: skip
    before = float(lm(TEXT, labels=TEXT).loss)
    trainer = transformers.Trainer(model=lm, args=told, train_dataset=rows)
    trainer.train()
    lm.eval()
    assert float(lm(TEXT, labels=TEXT).loss) < before - 0.05
    trainer.save_model(str(tmp_path / "saved"))
    again = HmmForCausalLM.from_pretrained(tmp_path / "saved")
    torch.testing.assert_close(again(TEXT).logits, lm(TEXT).logits, rtol=0, atol=1e-5)


def test_tables_that_are_drawn() -> None:
    torch.manual_seed(0)
    for sizes in ({}, {"states_per_word": 2, "support_rows": 3}, {"factors": 2}):
        config = HmmConfig(vocab_size=6, num_states=6, eos_token_id=EOS, **sizes)
        lm = transformers.AutoModelForCausalLM.from_config(config).eval()
        lm.hmm.validate()
        assert torch.allclose(lm(TEXT).logits.exp().sum(2), torch.ones(2, 7), atol=1e-5)
    lost = HmmConfig(vocab_size=6, num_states=7, states_per_word=2, support_rows=3)
    with pytest.raises(InputError, match=r"is named by no word|names the same state twice"):
        HmmForCausalLM(lost).eval()(TEXT)


def test_blocks_and_factors_stay_what_they_are(tmp_path, monkeypatch) -> None:
    """Of 4,096 states in 256 blocks; no row of the table of transitions is made."""
    support = Support.from_clusters(torch.arange(512) % 256, states_per_block=16)
    hmm = make_hmm(support, "factored", dtype=torch.float32, scale=0.3)
    lm = HmmForCausalLM.from_model(Model(hmm, Tokenizer.words([" ".join(map(str, range(510)))])))
    lm.save_pretrained(tmp_path / "large")
    truth = inference.next_log_probs(hmm, TEXT[:1], reset_id=EOS)
    monkeypatch.setattr("hmmlm.transitions.Factored.rows", None)
    found = HmmForCausalLM.from_pretrained(tmp_path / "large")
    assert found.log_emit.shape == (512, 16) and not hasattr(found, "log_trans")
    logits = found(TEXT[:1], logits_to_keep=1).logits[:, 0]
    torch.testing.assert_close(logits, truth, rtol=0, atol=1e-5)


def test_bad_input(tmp_path) -> None:
    model, lm = make()
    for labels, message in (
        (TEXT + 1, "labels differ from input_ids; the loss of an HMM is that of the text it reads"),
        (torch.where(torch.arange(7) == 3, -100, TEXT), "Labels have gaps"),
    ):
        with pytest.raises(InputError, match=message):
            lm(TEXT, labels=labels)
    with pytest.raises(InputError, match="Row 1 is all padding; give it at least one token"):
        lm(TEXT, attention_mask=torch.tensor([[1] * 7, [0] * 7]))
    with pytest.raises(InputError, match="Labels are of whole texts; leave out past_key_values"):
        lm(TEXT, labels=TEXT, past_key_values=lm(TEXT).past_key_values)
    lm.save_pretrained(tmp_path / "new")
    file = tmp_path / "new/model.safetensors"
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    for changed, message in (
        ({k: v for k, v in tensors.items() if k != "log_init"}, "lacks log_init: not the tables"),
        (tensors | {"more": torch.zeros(2)}, "also has more: not the tables of this"),
    ):
        save_file(changed, file, metadata={"format": "pt"})
        with pytest.raises(InputError, match=message):
            HmmForCausalLM.from_pretrained(tmp_path / "new")
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((tmp_path / "new/config.json").read_text())
    (tmp_path / "new/config.json").write_text(json.dumps(config | {"num_states": 12}))
    with pytest.raises(
        InputError, match="has other shapes of log_init, trans_left, trans_log_norm"
    ):
        HmmForCausalLM.from_pretrained(tmp_path / "new")
    impossible = make_hmm(SUPPORTS["dense"], "dense", dtype=torch.float32)
    emit = impossible.log_emit.clone()
    emit[3] = -torch.inf
    hmm = type(impossible)(
        impossible.log_init, impossible.transitions, emit.log_softmax(0), impossible.support
    )
    silent = HmmForCausalLM.from_model(Model(hmm, model.tokenizer))
    with pytest.raises(InputError, match="a token that this HMM gives probability zero"):
        silent(torch.tensor([[2, 3, 4]]))
