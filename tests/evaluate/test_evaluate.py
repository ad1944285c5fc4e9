import math

import numpy as np
import pytest
import torch

from hmmlm.baselines.ngram import KneserNeyBigram
from hmmlm.data.shards import TokenArray
from hmmlm.errors import InputError
from hmmlm.evaluate import HmmLM, evaluate, parse_mode
from hmmlm.hmm import HMM
from hmmlm.lm import Scores
from hmmlm.support import Support

EOS = 2


def worked_example() -> HMM:
    """The model of docs/evaluation.md."""
    init = torch.tensor([1.0, 0.0], dtype=torch.float64)
    trans = torch.tensor([[0.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    emit = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]], dtype=torch.float64)
    return HMM.from_tables(init.log(), trans.log(), emit.log())


def random_hmm(states: int = 3, words: int = 5, dtype: torch.dtype = torch.float64) -> HMM:
    generator = torch.Generator().manual_seed(3)

    def rows(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, dtype=dtype).log_softmax(-1)

    return HMM.from_tables(rows(states), rows(states, states), rows(states, words))


def text(length: int, words: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, words, length)


def nats_by_forward_algorithm(hmm: HMM, rows: list[np.ndarray]) -> float:
    """-log p of each row from a cold start, by the forward algorithm in plain probabilities."""
    init, trans, emit = (f.exp().numpy() for f in (hmm.log_init, *hmm.fields()[1:]))
    total = 0.0
    for row in rows:
        forward = init * emit[row[0]]
        for token in row[1:]:
            forward = (forward @ trans) * emit[token]
        total -= math.log(forward.sum())
    return total


class Recorder:
    """A model that gives every token the same probability and notes what it is asked."""

    def __init__(
        self,
        log_prob: float = -1.0,
        precision: str = "float32",
        error: float = 0.0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.vocab_size, self.precision = 5, precision
        self.log_prob, self.error, self.dtype = log_prob, error, dtype
        self.calls: list[tuple[torch.Tensor, torch.Tensor, object]] = []

    def row_error(self, rows: int, seed: int) -> float:
        assert rows == 256
        return self.error

    def score_tokens(
        self, tokens, *, lengths=None, carry=None, reset_id=None, ends=False
    ) -> Scores:
        self.calls.append((tokens, lengths, carry))
        live = torch.arange(tokens.shape[1]) < lengths[:, None]
        log_probs = torch.where(live, self.log_prob, 0.0).to(self.dtype)
        return Scores(log_probs, len(self.calls))


@pytest.mark.parametrize(
    ("mode", "probability"),
    [("sentence", 1 / 16), ("streaming", 3 / 128), ("window 2", 1 / 64)],
)
def test_the_worked_example_of_the_docs(mode, probability):
    result = evaluate(HmmLM(worked_example()), np.array([EOS, 0, 1]), mode=mode, eos_id=EOS)
    assert result.tokens == 3
    assert result.nats == pytest.approx(-math.log(probability), abs=1e-12)
    assert result.perplexity == pytest.approx(probability ** (-1 / 3), abs=1e-12)
    assert result.mode == mode
    assert result.max_row_error < 1e-12


@pytest.mark.parametrize("batch_tokens", [1, 3, 17, 1 << 14])
@pytest.mark.parametrize("ends_with_eos", [True, False])
def test_modes_equal_the_forward_algorithm_on_each_stretch(batch_tokens, ends_with_eos):
    hmm, tokens = random_hmm(), text(60)
    tokens[-1] = EOS if ends_with_eos else 0
    stretches = {
        "sentence": [r for r in np.split(tokens, np.flatnonzero(tokens == EOS) + 1) if len(r)],
        "streaming": [tokens],
        "window 7": [tokens[i : i + 7] for i in range(0, 60, 7)],
        "window 100": [tokens],
    }
    for mode, rows in stretches.items():
        result = evaluate(HmmLM(hmm), tokens, mode=mode, eos_id=EOS, batch_tokens=batch_tokens)
        expected = nats_by_forward_algorithm(hmm, rows)
        assert result.nats == pytest.approx(expected, abs=1e-10), mode
        assert result.tokens == 60
        assert result.perplexity == pytest.approx(math.exp(expected / 60), abs=1e-10)


@pytest.mark.parametrize("mode", ["sentence", "streaming", "window 4"])
@pytest.mark.parametrize("batch_tokens", [1, 5, 16, 1000])
def test_every_token_is_asked_once_and_batches_are_bounded(mode, batch_tokens):
    tokens, model, done = text(97), Recorder(), []
    result = evaluate(
        model, tokens, mode=mode, eos_id=EOS, batch_tokens=batch_tokens, progress=done.append
    )
    assert result.nats == 97 and result.tokens == 97
    assert sum(done) == 97 and min(done) > 0
    assert max(rows.numel() for rows, _, _ in model.calls) <= batch_tokens
    asked = [
        int(token)
        for rows, lengths, _ in model.calls
        for row, length in zip(rows, lengths, strict=True)
        for token in row[:length]
    ]
    assert sorted(asked) == sorted(tokens.tolist())


def test_carry_is_handed_on_within_a_row_and_not_between_rows():
    model = Recorder()
    evaluate(model, text(10), mode="window 5", batch_tokens=2)
    assert [carry for _, _, carry in model.calls] == [None, 1, 2, None, 4, 5]


def test_nats_are_summed_in_float64():
    # In float32 a sum of 2^25 stops growing by ones long before a hundred times as many.
    model = Recorder(log_prob=-(2.0**-24) - 1, dtype=torch.float32)
    value = float(torch.tensor(model.log_prob))
    result = evaluate(model, np.zeros(200_000, int), mode="window 8", batch_tokens=1 << 16)
    assert result.nats == pytest.approx(-value * 200_000, abs=1e-9)
    hmm = random_hmm(dtype=torch.float32)
    result = evaluate(HmmLM(hmm), torch.zeros(5, dtype=torch.long), mode="streaming")
    scored = HmmLM(hmm).score_tokens(torch.zeros(1, 5, dtype=torch.long)).token_log_probs
    assert scored.dtype == torch.float32
    assert result.nats == -float(scored.double().sum())


def test_tensors_arrays_corpora_and_lists_are_the_same_text():
    tokens, model = text(20), HmmLM(random_hmm())
    parts = [tokens[:7].astype(np.uint16), tokens[7:].astype(np.uint16)]
    same = (tokens, tokens.astype(np.uint16), TokenArray(parts, eos_id=EOS))
    results = {
        evaluate(model, given, mode="sentence", eos_id=EOS)
        for given in (*same, torch.from_numpy(tokens), tokens.tolist())
    }
    assert len(results) == 1


def test_an_impossible_token_has_infinite_perplexity():
    hmm = HMM.from_tables(
        torch.zeros(1), torch.zeros(1, 1), torch.tensor([[0.0, -torch.inf, -torch.inf]])
    )
    result = evaluate(HmmLM(hmm), np.array([0, 1, 0, 2]), mode="sentence", eos_id=EOS)
    assert result.nats == math.inf and result.perplexity == math.inf
    huge = evaluate(Recorder(log_prob=-1e4), np.zeros(3, int), mode="streaming")
    assert huge.nats == 3e4 and huge.perplexity == math.inf


def test_the_hmm_adapter_carries_its_belief_and_resets():
    model = HmmLM(random_hmm())
    tokens = torch.from_numpy(text(12))[None]
    whole = model.score_tokens(tokens, reset_id=EOS).token_log_probs
    for cut in range(1, 12):
        first = model.score_tokens(tokens[:, :cut], reset_id=EOS)
        rest = model.score_tokens(tokens[:, cut:], reset_id=EOS, carry=first.carry)
        both = torch.cat([first.token_log_probs, rest.token_log_probs], 1)
        assert torch.allclose(both, whole, atol=1e-12, rtol=0)
    sentences = evaluate(model, tokens[0], mode="sentence", eos_id=EOS)
    assert sentences.nats == pytest.approx(-float(whole.sum()), abs=1e-12)


def test_the_hmm_adapter_keeps_no_gradient_graph():
    hmm = random_hmm()
    hmm.log_init.requires_grad_()
    model = HmmLM(hmm)
    assert not model.hmm.log_init.requires_grad
    assert not model.score_tokens(torch.zeros(1, 2, dtype=torch.long)).token_log_probs.requires_grad


@pytest.mark.parametrize("field", ["log_init", "log_trans", "log_emit"])
def test_row_error_sees_every_table(field):
    hmm = random_hmm()
    table = hmm.transitions.fields()[0] if field == "log_trans" else getattr(hmm, field)
    assert HmmLM(hmm).row_error(256, 0) < 1e-12
    table += math.log(1.001)
    assert HmmLM(hmm).row_error(256, 0) == pytest.approx(1e-3, abs=1e-9)
    table.view(-1)[0] = math.nan
    assert math.isnan(HmmLM(hmm).row_error(256, 0))


def test_row_error_of_emissions_on_a_ragged_support():
    support = Support.ragged([[0, 1], [1], [2], [0, 1, 2]], 3)
    probs = torch.tensor([[0.5, 0.0, 0.0, 0.5], [0.2, 0.3, 0.0, 0.5], [0.0, 0.0, 0.4, 0.6]])
    hmm = HMM.from_tables(
        torch.full((3,), 1 / 3).log(), torch.full((3, 3), 1 / 3).log(), probs.log(), support=support
    )
    assert HmmLM(hmm).row_error(256, 0) < 1e-6
    hmm.log_emit[2, 0] += math.log(1.5)
    assert HmmLM(hmm).row_error(256, 0) == pytest.approx(0.2, abs=1e-6)


def test_row_error_checks_as_many_rows_as_asked():
    hmm = random_hmm(states=50)
    hmm.transitions.fields()[0][7] += math.log(2.0)
    assert HmmLM(hmm).row_error(50, 0) == pytest.approx(1.0)
    assert {HmmLM(hmm).row_error(1, seed) > 0.5 for seed in range(200)} == {True, False}


@pytest.mark.parametrize(
    ("mode", "parsed"),
    [
        ("sentence", ("sentence", None)),
        ("streaming", ("streaming", None)),
        ("window 32", ("window", 32)),
        ("window:32", ("window", 32)),
        (("window", 32), ("window", 32)),
    ],
)
def test_modes_are_parsed(mode, parsed):
    assert parse_mode(mode) == parsed


@pytest.mark.parametrize("mode", ["", "words", "window", "window 0", "window -3", "sentence 3"])
def test_other_modes_are_refused(mode):
    with pytest.raises(InputError, match=f"mode is '{mode}' but must be 'sentence', 'streaming'"):
        parse_mode(mode)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_low_precision_has_no_perplexity(precision):
    model = Recorder(precision=precision)
    with pytest.raises(InputError, match=f"model is in {precision} but .* only from float32"):
        evaluate(model, text(5), mode="streaming")
    assert model.calls == []


@pytest.mark.parametrize("error", [1e-4, 0.5, math.nan])
def test_rows_that_do_not_sum_to_one_have_no_perplexity(error):
    model = Recorder(error=error)
    with pytest.raises(InputError, match=f"sum to one only within {error:.3g}, .* under 0.0001"):
        evaluate(model, text(5), mode="streaming")
    assert model.calls == []


@pytest.mark.parametrize(
    ("tokens", "given", "message"),
    [
        ([0, 5, 1], {}, "tokens has id 5 but this vocabulary runs from 0 to 4; re-encode"),
        ([0, -1, 1], {}, "tokens has id -1 but this vocabulary runs from 0 to 4"),
        ([], {}, "no tokens to evaluate"),
        ([0], {"mode": "sentence"}, "needs the id of the end-of-sentence token"),
        ([0], {"batch_tokens": 0}, "batch_tokens is 0 but must be at least 1"),
    ],
)
def test_bad_input_is_refused_before_any_work(tokens, given, message):
    model = Recorder()
    with pytest.raises(InputError, match=message):
        evaluate(model, np.array(tokens, int), **{"mode": "streaming", **given})
    assert model.calls == []


def test_a_model_that_answers_nan_is_refused():
    with pytest.raises(InputError, match="not a number"):
        evaluate(Recorder(log_prob=math.nan), text(5), mode="streaming")


def test_a_bigram_model_goes_through_the_same_door():
    tokens = text(300)
    model = KneserNeyBigram(tokens, 5, eos_id=EOS)
    sentence = evaluate(model, tokens, mode="sentence", eos_id=EOS, batch_tokens=40)
    streaming = evaluate(model, tokens, mode="streaming", batch_tokens=40)
    assert sentence.nats == pytest.approx(streaming.nats, abs=1e-9)
    contexts = np.concatenate([[model.start], tokens[:-1]])
    table = model.next_log_probs(torch.arange(5)).numpy()
    assert streaming.nats == pytest.approx(-table[contexts, tokens].sum(), abs=1e-9)
