import numpy as np
import pytest
import torch

from hmmlm.baselines.ngram import KneserNeyBigram, Unigram
from hmmlm.errors import InputError

EOS = 0


def zipf_text(length: int = 2000, words: int = 40, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, words + 1)
    return rng.choice(words, length, p=share / share.sum())


def test_unigram_is_the_share_of_each_word():
    model = Unigram(np.array([0, 1, 1, 2, 0, 1, 1, 1]), 3)
    assert torch.allclose(
        model.log_probs.exp(), torch.tensor([2, 5, 1], dtype=torch.float64) / 8, atol=1e-15
    )
    scores = model.score_tokens(torch.tensor([[1, 2], [0, 0]]), lengths=torch.tensor([2, 1]))
    expected = torch.tensor([[5 / 8, 1 / 8], [2 / 8, 1.0]], dtype=torch.float64).log()
    assert torch.allclose(scores.token_log_probs, expected, atol=1e-15)


def test_unigram_adds_one_when_a_word_is_unseen():
    model = Unigram(np.array([0, 0, 1]), 3)
    expected = torch.tensor([3, 2, 1], dtype=torch.float64) / 6
    assert torch.allclose(model.log_probs.exp(), expected, atol=1e-15)
    assert model.row_error(256, 0) < 1e-12


def test_kneser_ney_by_hand():
    # Words: eos=0 a=1 b=2 c=3, and d=4 that never occurs. The text: a b eos a b eos a c eos.
    # Pairs: (eos a) 3, (a b) 2, (b eos) 2, (a c) 1, (c eos) 1. Two are one, two are two.
    # Different words before eos 2 (b c), a 1, b 1, c 1: three are one, one is two.
    model = KneserNeyBigram(np.array([1, 2, 0, 1, 2, 0, 1, 3, 0]), 5, eos_id=EOS)
    discount, lower = 2 / (2 + 4), 3 / (3 + 2)
    assert model.discount == pytest.approx(discount, abs=1e-15)
    assert model.continuation_discount == pytest.approx(lower, abs=1e-15)

    uniform = lower * 4 / 5 / 5  # discount, four kinds of word, five kinds of pair, five words
    word = np.array([(2 - lower) / 5, *[(1 - lower) / 5] * 3, 0]) + uniform
    assert word.sum() == pytest.approx(1, abs=1e-15)
    after_a = discount * 2 / 3 * word
    after_a[2] += (2 - discount) / 3
    after_a[3] += (1 - discount) / 3
    after_start = discount * 1 / 3 * word
    after_start[1] += (3 - discount) / 3
    table = model.next_log_probs(torch.tensor([1, EOS, 4])).exp().numpy()
    np.testing.assert_allclose(table, [after_a, after_start, word], atol=1e-15, rtol=0)

    scores = model.score_tokens(torch.tensor([[1, 3, 0, 4]])).token_log_probs.exp()[0]
    after_c = (1 - discount) / 1 + discount * word[0]
    expected = [after_start[1], after_a[3], after_c, after_start[4]]
    np.testing.assert_allclose(scores, expected, atol=1e-15, rtol=0)


@pytest.mark.parametrize("eos_id", [EOS, None])
@pytest.mark.parametrize("length", [1, 2, 5, 2000])
def test_every_context_sums_to_one_and_every_word_has_mass(eos_id, length):
    model = KneserNeyBigram(zipf_text(length), 50, eos_id=eos_id)
    probs = model.next_log_probs(torch.arange(51)).exp()  # 50 words and the start
    assert probs.dtype == torch.float64
    assert (probs.sum(1) - 1).abs().max() < 1e-12
    assert (probs > 0).all()
    assert model.row_error(256, 0) < 1e-12


def test_row_error_sees_a_broken_table():
    model = KneserNeyBigram(zipf_text(), 50, eos_id=EOS)
    model._continuation *= 1.5
    assert model.row_error(256, 0) > 0.1
    unigram = Unigram(zipf_text(), 40)
    unigram.log_probs += 0.1
    assert unigram.row_error(256, 0) > 0.1


def test_discounts_when_no_count_is_one():
    # (start 1) once and (1 1) five times; word 1 has two contexts.
    model = KneserNeyBigram(np.array([1, 1, 1, 1, 1, 1]), 2)
    assert (model.discount, model.continuation_discount) == (1.0, 0.5)
    # (1 1) six times; word 1 has one context.
    model = KneserNeyBigram(np.array([1, 1, 1, 1, 1, 1]), 2, eos_id=1)
    assert (model.discount, model.continuation_discount) == (0.5, 1.0)


@pytest.mark.parametrize("reset_id", [None, 3])
@pytest.mark.parametrize("eos_id", [EOS, None])
def test_splitting_a_text_anywhere_gives_the_same_scores(reset_id, eos_id):
    model = KneserNeyBigram(zipf_text(), 40, eos_id=eos_id)
    tokens = torch.from_numpy(zipf_text(30, seed=1)).reshape(2, 15)
    whole = model.score_tokens(tokens, reset_id=reset_id)
    for cut in range(1, 15):
        first = model.score_tokens(tokens[:, :cut], reset_id=reset_id)
        rest = model.score_tokens(tokens[:, cut:], reset_id=reset_id, carry=first.carry)
        both = torch.cat([first.token_log_probs, rest.token_log_probs], 1)
        assert torch.equal(both, whole.token_log_probs)
        assert torch.equal(rest.carry, whole.carry)


def test_reset_starts_a_sentence_and_lengths_end_the_row():
    model = KneserNeyBigram(zipf_text(), 40)
    tokens = torch.tensor([[5, 3, 7, 1], [3, 7, 2, 2]])
    scored = model.score_tokens(tokens, lengths=torch.tensor([4, 1]), reset_id=3)
    alone = model.score_tokens(torch.tensor([[7, 1]])).token_log_probs
    assert torch.equal(scored.token_log_probs[0, 2:], alone[0])
    assert (scored.token_log_probs[1, 1:] == 0).all() and (scored.token_log_probs[1, 0] < 0)
    assert scored.carry.tolist() == [1, model.start]


def test_bigrams_beat_unigrams_on_text_with_order():
    tokens = np.tile([1, 2, 3, 4, EOS], 50)
    unigram, bigram = Unigram(tokens, 5), KneserNeyBigram(tokens, 5, eos_id=EOS)
    rows = torch.from_numpy(tokens)[None]
    assert float(unigram.score_tokens(rows).token_log_probs.mean()) == pytest.approx(-np.log(5))
    assert float(bigram.score_tokens(rows).token_log_probs.mean()) > -0.05


@pytest.mark.parametrize("kind", [Unigram, KneserNeyBigram])
def test_bad_ids_are_refused(kind):
    with pytest.raises(InputError, match="tokens has id 3 but this vocabulary runs from 0 to 2"):
        kind(np.array([0, 3]), 3)
    with pytest.raises(InputError, match="no training tokens"):
        kind(np.array([], int), 3)
    model = kind(np.array([0, 1, 2]), 3)
    with pytest.raises(InputError, match="tokens has id -1 but this vocabulary runs from 0 to 2"):
        model.score_tokens(torch.tensor([[-1, 0]]))


def test_a_long_text_is_counted_in_parts(monkeypatch):
    class Parts(list):
        def __getitem__(self, key):
            assert len(range(*key.indices(len(self)))) <= 3
            return super().__getitem__(key)

    whole = Unigram(np.array([0, 1, 1, 2, 0, 1, 1, 1]), 3)
    monkeypatch.setattr("hmmlm.baselines.ngram._CHUNK", 3)
    assert torch.equal(Unigram(Parts([0, 1, 1, 2, 0, 1, 1, 1]), 3).log_probs, whole.log_probs)
    with pytest.raises(InputError, match="tokens has id 9 but this vocabulary runs from 0 to 2"):
        Unigram(Parts([0, 1, 1, 2, 9]), 3)
