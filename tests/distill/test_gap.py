"""The gap between a model and the teacher whose text it learnt."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from hmmlm.data.shards import Corpus, TokenArray
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.distill import gap as module
from hmmlm.distill.drawing import DrawnText
from hmmlm.distill.gap import compare, measure_gap
from hmmlm.distill.sampling import SampleSettings, sample_corpus
from hmmlm.errors import InputError
from hmmlm.evaluate import HmmLM, evaluate
from hmmlm.hmm import HMM
from hmmlm.inference import log_prob, sample

WORDS = 30


def make_hmm(seed: int, states: int = 4) -> HMM:
    generator = torch.Generator().manual_seed(seed)
    init, trans, emit = (
        torch.log_softmax(2 * torch.randn(*size, generator=generator).double(), -1)
        for size in ((states,), (states, states), (states, WORDS))
    )
    return HMM.from_tables(init, trans, emit)


class HmmTeacher:
    """An HMM that text is drawn from, as if it were a large model."""

    device, max_length = torch.device("cpu"), None

    def __init__(self, hmm: HMM) -> None:
        self.hmm = hmm
        self.tokenizer = Tokenizer.words({f"w{number}": 1 for number in range(WORDS - 2)})
        self.name, self.signature, self.end_ids = "an HMM", [], [self.tokenizer.eos_id]

    def draw(self, prompts, *, length, temperature, generator) -> list[DrawnText]:
        how = {"stop_id": self.tokenizer.eos_id, "generator": generator}
        drawn = sample(self.hmm, length=length, num_samples=len(prompts), **how)
        found = []
        for ids, size in zip(drawn.tokens, drawn.lengths.tolist(), strict=True):
            ids = ids[:size]
            scores = log_prob(self.hmm, ids[None]).token_log_probs[0]
            found.append(DrawnText(ids.numpy(), scores.float().numpy()))
        return found


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    folder = tmp_path_factory.mktemp("drawn") / "corpus"
    settings = SampleSettings(tokens=2000, valid=300, test=3000, batch_size=50, length=20)
    sample_corpus(folder, HmmTeacher(make_hmm(0)), settings)
    return Corpus.open(folder)


def test_a_teacher_is_not_far_from_itself(corpus) -> None:
    found = measure_gap(HmmLM(make_hmm(0)), corpus)
    assert found.whole.gap == pytest.approx(0, abs=1e-6)
    for band in (*found.by_position, *found.by_frequency):
        assert band.gap == pytest.approx(0, abs=1e-6)
        assert band.model == pytest.approx(band.teacher, abs=1e-6)


def test_the_gap_is_that_of_the_two_models_on_the_same_tokens(corpus) -> None:
    other, tokens = HmmLM(make_hmm(1)), corpus.split("valid")
    found = measure_gap(other, corpus, split="valid")
    marks = np.isnan(np.load(corpus.folder / "teacher-valid.npy"))
    assert marks.any() and found.whole.tokens == len(tokens) - marks.sum()
    nats, scored = {}, {}
    for name, hmm in (("model", make_hmm(1)), ("teacher", make_hmm(0))):
        starts = [*tokens.sentence_offsets(), len(tokens)]
        texts = [torch.tensor(tokens[a:b])[None] for a, b in pairwise(starts)]
        scored[name] = torch.cat([log_prob(hmm, text).token_log_probs[0] for text in texts])
        nats[name] = -float(scored[name][~torch.tensor(marks)].mean())
    assert found.whole.model == pytest.approx(nats["model"], abs=1e-5)
    assert found.whole.teacher == pytest.approx(nats["teacher"], abs=1e-5)
    assert found.whole.gap == pytest.approx(nats["model"] - nats["teacher"], abs=1e-5)
    assert found.whole.gap > 3 * found.whole.error > 0
    # With the marks, it is what `evaluate` reads.
    everything = evaluate(other, tokens, mode="sentence", eos_id=tokens.eos_id)
    assert -float(scored["model"].sum()) == pytest.approx(everything.nats)


def test_bands_sum_to_the_whole(corpus, monkeypatch) -> None:
    monkeypatch.setattr(module, "RANKS", (3, 10))
    found = measure_gap(HmmLM(make_hmm(1)), corpus)
    assert [band.name for band in found.by_position] == ["1", "2-3", "4-7", "8-15", "16-31"]
    assert [band.name for band in found.by_frequency][:3] == ["1-3", "4-10", "11 on"]
    for bands in (found.by_position, found.by_frequency):
        assert sum(band.tokens for band in bands) == found.whole.tokens
        for key in ("model", "teacher", "gap"):
            total = sum(getattr(band, key) * band.tokens for band in bands)
            assert total == pytest.approx(getattr(found.whole, key) * found.whole.tokens)
        assert sum(band.share for band in bands) == pytest.approx(1)
    assert found.by_position[0].tokens == found.texts


def test_bands_by_hand(monkeypatch) -> None:
    monkeypatch.setattr(module, "RANKS", (1, 2))
    # Two texts: 3 1 <eos>, and 2 3 4 with a mark; 4 is never seen, and 3 is the most frequent.
    tokens = TokenArray.from_ids([3, 1, 0, 2, 3, 4, 0], eos_id=0)
    teacher = np.array([-1, -1, -1, -1, -1, -1, np.nan], dtype=np.float32)
    model = np.array([-2, -3, -1, -4, -2, -9, -5], dtype=np.float32)
    found = compare(model, teacher, tokens, np.array([5, 2, 1, 9, 0]))
    assert found.texts == 2 and found.whole.tokens == 6
    assert found.whole[2:5] == pytest.approx((21 / 6, 1, 15 / 6))
    first, second = found.by_position
    assert (first.name, first.tokens, first.gap) == ("1", 2, 2.0)
    assert (second.name, second.tokens, second.gap) == ("2-3", 4, 11 / 4)
    bands = [(band.name, band.tokens, band.gap) for band in found.by_frequency]
    assert bands == [("1", 2, 1.0), ("2", 1, 0.0), ("3 on", 2, 2.5), ("never seen", 1, 8.0)]
    # Sums of the texts are 3 and 12, of three tokens each, around a mean of 2.5.
    assert found.whole.error == pytest.approx(math.sqrt(2 * (4.5**2 + 4.5**2)) / 6)
    assert first.share == pytest.approx(4 / 15)


def test_the_error_is_how_much_the_gap_varies(tmp_path) -> None:
    """Over many corpora of the same teacher, the gap varies by its standard error."""
    generator, size, found = np.random.default_rng(0), 40, []
    for _ in range(400):
        lengths = generator.integers(2, 8, size)
        ids = np.concatenate([[1] * (length - 1) + [0] for length in lengths])
        level = np.repeat(generator.normal(3, 0.5, size), lengths)
        model = (-1 - level + 0.1 * generator.normal(size=len(ids))).astype(np.float32)
        teacher = np.full(len(ids), -1, dtype=np.float32)
        tokens = TokenArray.from_ids(ids, eos_id=0)
        found.append(compare(model, teacher, tokens, np.array([1, 1])).whole)
    spread = np.std([band.gap for band in found])
    assert np.mean([band.error for band in found]) == pytest.approx(spread, rel=0.1)


def test_what_a_model_rules_out_is_infinitely_far() -> None:
    tokens = TokenArray.from_ids([1, 0, 1, 0], eos_id=0)
    model = np.array([-1, -math.inf, -1, -1], dtype=np.float32)
    teacher = np.full(4, -1, dtype=np.float32)
    found = compare(model, teacher, tokens, np.array([1, 1]))
    assert found.whole.gap == math.inf and math.isnan(found.whole.error)
    assert found.by_position[0].gap == 0 and found.by_position[1].gap == math.inf


def test_one_text_has_no_standard_error() -> None:
    tokens = TokenArray.from_ids([1, 0], eos_id=0)
    teacher = np.full(2, -1, dtype=np.float32)
    found = compare(2 * teacher, teacher, tokens, np.array([1, 1]))
    assert found.whole.gap == 1 and math.isnan(found.whole.error)


def test_a_text_without_tokens_of_the_teacher() -> None:
    tokens, nothing = TokenArray.from_ids([1, 0], eos_id=0), np.full(2, np.nan, dtype=np.float32)
    with pytest.raises(InputError, match="No token of this text was drawn from the teacher"):
        compare(nothing, nothing, tokens, np.array([1, 1]))
