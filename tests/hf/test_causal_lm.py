"""HMMs as causal language models of Hugging Face's transformers."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from hmmlm import inference
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.errors import InputError
from hmmlm.evaluate import HmmLM
from hmmlm.hmm import emission_table
from hmmlm.mixture import mixture
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
        ids = torch.cat([pad[0], TEXT, pad[1]], 1)
        padded = lm(ids, attention_mask=mask).logits
        assert torch.equal(padded, lm(ids, attention_mask=2 * mask).logits)
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
    for columns in (4, 7):  # a mask of what is new, or of all
        cache, mask = lm(TEXT[:, :3]).past_key_values, torch.ones(2, columns)
        again = lm(TEXT[:, 3:], past_key_values=cache, attention_mask=mask).logits
        assert torch.equal(again, second.logits)
    cache = lm(TEXT[:, :3]).past_key_values
    cache.reorder_cache(torch.tensor([1, 0, 0]))
    swapped = lm(TEXT[[1, 0, 0], 3:], past_key_values=cache).logits
    torch.testing.assert_close(swapped, found[[1, 0, 0], 3:], rtol=0, atol=1e-5)


def test_the_loss_is_that_of_the_evaluator() -> None:
    model, lm = make()
    eos = model.tokenizer.eos_id
    scores = HmmLM(model.hmm).score_tokens(TEXT, reset_id=eos).token_log_probs
    assert lm(TEXT, labels=TEXT).loss.dtype == torch.float32
    assert lm(TEXT, labels=TEXT).loss.item() == pytest.approx(
        -float(scores[:, 1:].mean()), rel=1e-5
    )
    labels = TEXT.clone()
    labels[0, :4], labels[1, 6:] = -100, -100
    wanted = -(scores[0, 4:].sum() + scores[1, 1:6].sum()) / 8
    assert lm(TEXT, labels=labels).loss.item() == pytest.approx(float(wanted), rel=1e-5)
    given = lm(TEXT, labels=labels, num_items_in_batch=4).loss.item()
    assert given == pytest.approx(2 * float(wanted), rel=1e-5)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    alone = -(
        HmmLM(model.hmm).score_tokens(TEXT[:1, 2:], reset_id=eos).token_log_probs[0, 1:].sum()
    )
    wanted = (alone - scores[1, 1:].sum()) / 10
    assert lm(TEXT, attention_mask=mask, labels=TEXT).loss.item() == pytest.approx(
        float(wanted), rel=1e-5
    )
    assert lm(TEXT, labels=torch.full_like(TEXT, -100)).loss.item() == 0
    runs = TEXT.clone()
    runs[0, 2:4], runs[1, [2, 4]] = -100, -100  # two runs, and three
    wanted = -(scores[0, 1] + scores[0, 4:].sum() + scores[1, [1, 3, 5, 6]].sum()) / 8
    assert lm(TEXT, labels=runs).loss.item() == pytest.approx(float(wanted), rel=1e-5)


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
    before = lm(TEXT, labels=TEXT).loss.item()
    lm.train()
    descent = torch.optim.Adam(lm.parameters(), lr=0.1)
    for _ in range(20):
        descent.zero_grad()
        lm(TEXT, labels=TEXT).loss.backward()
        descent.step()
    lm.eval()
    logits, after = lm(TEXT).logits, lm(TEXT, labels=TEXT).loss.item()
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


def with_unknown_never(support: str, trans: str) -> Model:
    """No state emits word 0."""
    made = make_hmm(SUPPORTS[support], trans, dtype=torch.float32)
    log_emit = made.log_emit.clone()
    log_emit[0] = -math.inf
    return Model(replace(made, log_emit=emission_table(log_emit, made.support)), tokenizer())


@pytest.mark.parametrize(("pad", "use_cache"), [(0, True), (9, True), (9, False), (0, False)])
@pytest.mark.parametrize(("support", "trans"), [("dense", "dense"), ("blocks", "factored")])
def test_rows_end_at_different_times_and_are_filled_up_with_no_word(
    support: str, trans: str, pad: int, use_cache: bool
) -> None:
    """0: a word that no state emits; the other is beyond the vocabulary."""
    lm = HmmForCausalLM.from_model(with_unknown_never(support, trans))
    start = TEXT[:1, :3].repeat(64, 1)
    how = {"attention_mask": torch.ones_like(start), "max_new_tokens": 6, "do_sample": True}
    how |= {"use_cache": use_cache}
    torch.manual_seed(0)
    drawn = lm.generate(start, pad_token_id=pad, **how)[:, 3:]
    ends = [row.index(EOS) if EOS in row else 6 for row in drawn.tolist()]
    assert len(set(ends)) > 3 and min(ends) < 3
    for row, end in zip(drawn.tolist(), ends, strict=True):
        assert pad not in row[: end + 1] and set(row[end + 1 :]) <= {pad}
    torch.manual_seed(0)
    other = lm.generate(start, pad_token_id=EOS, **how)[:, 3:]  # <eos> is a word to it
    assert torch.equal(other, torch.where(drawn == pad, EOS, drawn))
    two = lm.generate(start, pad_token_id=pad, eos_token_id=[EOS, 4], **how)[:, 3:]
    for row in two.tolist():
        end = next((place for place, word in enumerate(row) if word in (EOS, 4)), 6)
        assert pad not in row[: end + 1] and set(row[end + 1 :]) <= {pad}
    with pytest.raises(InputError, match=r"probability zero|vocabulary ends"):
        lm.generate(torch.tensor([[2, pad, 3]]), pad_token_id=EOS, max_new_tokens=2)


def test_digits_that_were_lost_are_normalised_away() -> None:
    _, lm = make("dense", "dense")
    lm = lm.bfloat16().float()
    sums = lm(TEXT).logits.exp().sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-6)


def test_many_digits_stay() -> None:
    model = Model(make_hmm(SUPPORTS["blocks"], "factored"), tokenizer())
    lm = HmmForCausalLM.from_model(model)
    assert lm.log_init.dtype == torch.float64 and lm(TEXT).logits.dtype == torch.float64
    wanted = inference.next_log_probs(model.hmm, TEXT, reset_id=EOS)
    torch.testing.assert_close(lm(TEXT).logits[:, -1], wanted, rtol=0, atol=1e-12)


def test_a_loss_has_gradients_in_evaluation_too() -> None:
    _, lm = make()
    lm(TEXT, labels=TEXT).loss.backward()
    evaluated = lm.log_emit.grad.clone()
    lm.zero_grad()
    lm.train()(TEXT, labels=TEXT).loss.backward()
    torch.testing.assert_close(evaluated, lm.log_emit.grad)
    assert float(evaluated.abs().max()) > 0
    with torch.no_grad():
        assert not lm.eval()(TEXT, labels=TEXT).loss.requires_grad


def test_pipeline_and_trainer(tmp_path) -> None:
    pytest.importorskip("accelerate")
    model, lm = make("dense", "factored")
    words = HmmTokenizer.of(model.tokenizer)
    write = transformers.pipeline("text-generation", model=lm, tokenizer=words)
    for prompt in ("a b", "a b "):  # the new words are words of their own
        (new,) = write(prompt, max_new_tokens=4, do_sample=False, return_full_text=False)
        (found,) = write(prompt, max_new_tokens=4, do_sample=False)
        assert found["generated_text"] == f"a b {new['generated_text']}" != "a b "
    both = write(["a b", "c"], max_new_tokens=2, do_sample=False, batch_size=2)
    for prompt, (row,) in zip(("a b ", "c "), both, strict=True):
        assert row["generated_text"].startswith(prompt)
    given = words("a b", return_tensors="pt")
    assert set(given) == {"input_ids", "attention_mask"} and given.word_ids() == [0, 1]
    rows = [{"input_ids": row, "labels": row} for row in TEXT.tolist() * 20]
    told = transformers.TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=10, per_device_train_batch_size=4,
        learning_rate=0.05, logging_steps=1, report_to=[], use_cpu=True, save_strategy="no",
    )  # fmt: skip
    before = lm(TEXT, labels=TEXT).loss.item()
    trainer = transformers.Trainer(model=lm, args=told, train_dataset=rows)
    trainer.train()
    lm.eval()
    assert lm(TEXT, labels=TEXT).loss.item() < before - 0.05
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


def test_the_tables_are_those_of_now() -> None:
    """Whoever changed them, and however: what is asked next is asked of what stands there."""
    _, lm = make("dense", "dense")
    other = HmmForCausalLM(lm.config).eval()
    first = other(TEXT).logits
    other.load_state_dict(lm.state_dict())
    torch.testing.assert_close(other(TEXT).logits, lm(TEXT).logits, rtol=0, atol=1e-5)
    assert not torch.allclose(first, lm(TEXT).logits, atol=1e-2)
    with torch.no_grad():
        other.log_emit[0] += 1.0
    changed = other(TEXT).logits
    assert not torch.allclose(changed, lm(TEXT).logits, atol=1e-2)
    assert torch.allclose(changed.exp().sum(2), torch.ones(2, 7), atol=1e-5)
    assert other.double()(TEXT).logits.dtype == torch.float64


@pytest.mark.parametrize("trans", ["dense", "factored"])
def test_few_digits_are_for_keeping_only(trans: str, tmp_path) -> None:
    """Tables of 16 bits are normalised as float32, and autocast changes nothing."""
    _, lm = make("blocks", trans)
    found, loss = lm(TEXT), float(lm.train()(TEXT, labels=TEXT).loss.detach())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert float(lm(TEXT, labels=TEXT).loss.detach()) == loss
        assert torch.equal(lm.eval()(TEXT).logits, lm.eval()(TEXT).logits.float())
        torch.testing.assert_close(lm(TEXT).logits, found.logits, rtol=0, atol=1e-5)
    short = lm.to(torch.bfloat16)(TEXT).logits
    assert short.dtype == torch.float32
    torch.testing.assert_close(short, found.logits, rtol=0, atol=0.05)
    torch.testing.assert_close(short.exp().sum(2), torch.ones(2, 7), rtol=0, atol=1e-5)
    lm.save_pretrained(tmp_path / "short")
    again = HmmForCausalLM.from_pretrained(tmp_path / "short", dtype="auto")
    assert again.dtype == torch.bfloat16
    torch.testing.assert_close(again(TEXT).logits, short, rtol=0, atol=0.05)
    with pytest.raises(InputError, match=r"must sum to 1, but a sum is off by .*dtype='auto'"):
        HmmForCausalLM.from_pretrained(tmp_path / "short", dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_mixture_is_read_with_any_digits(dtype: torch.dtype, tmp_path) -> None:
    """In float16 no number is as far off as what stands between two parts."""
    parts = [make_hmm(SUPPORTS["blocks"], "factored", seed=s, dtype=torch.float32) for s in (1, 2)]
    model = Model(mixture(parts), tokenizer())
    lm = HmmForCausalLM.from_model(model)
    found = lm(TEXT).logits
    short = lm.to(dtype)(TEXT).logits
    torch.testing.assert_close(short, found, rtol=0, atol=0.05)
    torch.testing.assert_close(short.exp().sum(2), torch.ones(2, 7), rtol=0, atol=1e-5)
    lm.save_pretrained(tmp_path / "kept")
    again = HmmForCausalLM.from_pretrained(tmp_path / "kept", dtype="auto")
    assert again.dtype == dtype
    torch.testing.assert_close(again(TEXT).logits, found, rtol=0, atol=0.05)


def test_texts_from_nothing_and_from_what_was_read() -> None:
    _, lm = make("dense", "dense")
    how = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": EOS}
    from_nothing = lm.generate(**how)
    assert torch.equal(from_nothing, lm.generate(torch.tensor([[EOS]]), **how))
    cache = lm(TEXT[:, :3]).past_key_values
    going_on = lm.generate(TEXT, past_key_values=cache, **how)
    assert torch.equal(going_on, lm.generate(TEXT, **how))
    assert torch.equal(lm.generate(TEXT, use_cache=False, **how), going_on)


def test_saved_again_it_is_the_same(tmp_path) -> None:
    make()[1].save_pretrained(tmp_path / "a")
    HmmForCausalLM.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
