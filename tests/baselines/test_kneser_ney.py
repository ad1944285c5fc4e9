from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from hmmlm.baselines.kneser_ney import FALLBACK, KneserNey
from hmmlm.errors import InputError
from hmmlm.evaluate import evaluate
from hmmlm.lm import LanguageModel

EOS = 0


def zipf_text(length: int = 2000, words: int = 12, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, words + 1)
    return rng.choice(words, length, p=share / share.sum())


class Defined:
    """The definition, with tuples of words as contexts, one probability at a time."""

    def __init__(self, text, vocab_size, order, start):
        self.size, self.order, self.start = vocab_size, order, start
        raw = defaultdict(Counter)  # by length of the context
        past = (start,)
        for word in text.tolist():
            for length in range(min(order, len(past) + 1)):
                raw[length][(*past[len(past) - length :], word)] += 1
            past = (start,) if word == start else (*past, word)[-(order - 1) or 1 :]
        self.counts = {}
        for length in range(order):
            longer = Counter(gram[1:] for gram in raw[length + 1])
            at_start = {gram for gram in raw[length] if length and gram[0] == start}
            self.counts[length] = {
                gram: count if length + 1 == order or gram in at_start else longer[gram]
                for gram, count in raw[length].items()
            }

    def discounts(self, length):
        kinds = Counter(self.counts[length].values())
        n1, n2, n3, n4 = (kinds[count] for count in (1, 2, 3, 4))
        if 0 in (n1, n2, n3, n4):
            return FALLBACK
        y = n1 / (n1 + 2 * n2)
        return 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3

    def prob(self, context, word):
        """p(word | context), the start of a text its first word at most."""
        lower = self.prob(context[1:], word) if context else 1 / self.size
        if len(context) >= self.order:
            return lower
        counts = {
            gram[-1]: count
            for gram, count in self.counts[len(context)].items()
            if gram[:-1] == context
        }
        if not counts:
            return lower
        taken = self.discounts(len(context))
        total, count = sum(counts.values()), counts.get(word, 0)
        kept = count - taken[min(count, 3) - 1] if count else 0
        return (kept + sum(taken[min(c, 3) - 1] for c in counts.values()) * lower) / total


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("eos_id", [EOS, None])
def test_agrees_with_the_definition(order, eos_id):
    text, size = zipf_text(400), 13  # a word more than occurs
    model = KneserNey(text, size, order=order, eos_id=eos_id)
    start = size if eos_id is None else eos_id
    defined = Defined(text, size, order, start)
    for length, discounts in enumerate(model.discounts):
        assert discounts == pytest.approx(defined.discounts(length), abs=1e-15)
    tokens = torch.from_numpy(np.append(zipf_text(60, seed=1), 12))
    scores = model.score_tokens(tokens[None]).token_log_probs[0].exp().numpy()
    past = (start,)
    for word, found in zip(tokens.tolist(), scores, strict=True):
        context = past[max(0, len(past) - order + 1) :]
        assert found == pytest.approx(defined.prob(context, word), abs=1e-14)
        past = (start,) if word == start else (*past, word)[-(order - 1) or 1 :]


def test_by_hand():
    # Words: eos=0 a=1 b=2 c=3 d=4, and 5 that never occurs. The text: a a a a b b b c c d, one a
    # line. Pairs (eos a) and (a eos) 4, of b 3, of c 2, of d 1: two of each count.
    text = np.array([[w, EOS] for w in [1] * 4 + [2] * 3 + [3] * 2 + [4]]).flatten()
    model = KneserNey(text, 6, order=2, eos_id=EOS)
    unigram, bigram = model.discounts
    assert bigram == pytest.approx((1 - 2 / 3, 2 - 3 / 3, 3 - 4 / 3), abs=1e-15)
    assert unigram == FALLBACK  # eos follows four words, the others one: nothing is two or three
    spare = (4 * 0.5 + 1.5) / 8 / 6
    word = np.array([(4 - 1.5) / 8, *[(1 - 0.5) / 8] * 4, 0]) + spare
    assert word.sum() == pytest.approx(1, abs=1e-15)
    after_eos = (1 / 3 + 1 + 5 / 3 + 5 / 3) / 10 * word
    after_eos += np.array([0, 4 - 5 / 3, 3 - 5 / 3, 2 - 1, 1 - 1 / 3, 0]) / 10
    after_d = 1 / 3 * word
    after_d[EOS] += 1 - 1 / 3
    table = model.next_log_probs(torch.tensor([[EOS], [4], [5]])).exp().numpy()
    np.testing.assert_allclose(table, [after_eos, after_d, word], atol=1e-15, rtol=0)
    scores = model.score_tokens(torch.tensor([[4, EOS]])).token_log_probs.exp()[0]
    np.testing.assert_allclose(scores, [after_eos[4], after_d[EOS]], atol=1e-15, rtol=0)
    assert model.num_grams == [5, 8]


@pytest.mark.parametrize("eos_id", [EOS, None])
@pytest.mark.parametrize("length", [1, 2, 5, 2000])
def test_every_context_sums_to_one_and_every_word_has_mass(eos_id, length):
    model = KneserNey(zipf_text(length), 15, order=4, eos_id=eos_id)
    rng = np.random.default_rng(0)
    contexts = torch.from_numpy(rng.integers(-1, 15, (300, 3)))
    probs = model.next_log_probs(contexts).exp()
    assert probs.dtype == torch.float64
    assert (probs.sum(1) - 1).abs().max() < 1e-12
    assert (probs > 0).all()
    assert model.row_error(256, 0) < 1e-12
    words = torch.arange(15)
    for context, row in zip(contexts[:20], probs, strict=False):
        each = model.score_tokens(words[:, None], carry=context.expand(15, 3)).token_log_probs
        torch.testing.assert_close(each[:, 0].exp(), row, atol=1e-14, rtol=0)


def test_row_error_sees_a_broken_table():
    model = KneserNey(zipf_text(), 15, order=3)
    model.orders[2].backoff[:] *= 1.5
    assert model.row_error(256, 0) > 0.1


@pytest.mark.parametrize("reset_id", [None, 3])
@pytest.mark.parametrize("eos_id", [EOS, None])
def test_splitting_a_text_anywhere_gives_the_same_scores(reset_id, eos_id):
    model = KneserNey(zipf_text(), 12, order=4, eos_id=eos_id)
    tokens = torch.from_numpy(zipf_text(30, seed=1)).reshape(2, 15)
    whole = model.score_tokens(tokens, reset_id=reset_id)
    for cut in range(1, 15):
        first = model.score_tokens(tokens[:, :cut], reset_id=reset_id)
        rest = model.score_tokens(tokens[:, cut:], reset_id=reset_id, carry=first.carry)
        both = torch.cat([first.token_log_probs, rest.token_log_probs], 1)
        assert torch.equal(both, whole.token_log_probs)


def test_reset_starts_a_sentence_and_lengths_end_the_row():
    model = KneserNey(zipf_text(), 12, order=3)
    tokens = torch.tensor([[5, 3, 7, 1], [3, 7, 2, 2]])
    scored = model.score_tokens(tokens, lengths=torch.tensor([4, 1]), reset_id=3)
    alone = model.score_tokens(torch.tensor([[7, 1]])).token_log_probs
    assert torch.equal(scored.token_log_probs[0, 2:], alone[0])
    assert (scored.token_log_probs[1, 1:] == 0).all() and (scored.token_log_probs[1, 0] < 0)
    following = model.score_tokens(torch.tensor([[4, 4], [7, 1]]), carry=scored.carry)
    assert torch.equal(following.token_log_probs[1], alone[0])


def test_modes_agree_where_contexts_end_at_eos():
    text = zipf_text(500, seed=2)
    model = KneserNey(zipf_text(), 12, eos_id=EOS)
    assert isinstance(model, LanguageModel)
    found = [evaluate(model, text, mode=m, eos_id=EOS) for m in ("sentence", "streaming")]
    assert found[0].nats == pytest.approx(found[1].nats, rel=1e-12)
    assert found[0].tokens == 500
    running = KneserNey(zipf_text(), 12)
    found = [evaluate(running, text, mode=m, eos_id=EOS) for m in ("sentence", "streaming")]
    assert found[0].nats != pytest.approx(found[1].nats, rel=1e-3)


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="order is 0 but must be at least 1"):
        KneserNey(np.array([0, 1]), 3, order=0)
    with pytest.raises(InputError, match="tokens has id 3 but this vocabulary runs from 0 to 2"):
        KneserNey(np.array([0, 3]), 3)
    with pytest.raises(InputError, match="no training tokens"):
        KneserNey(np.array([], int), 3)
    model = KneserNey(np.array([0, 1, 2]), 3)
    with pytest.raises(InputError, match="tokens has id -1 but this vocabulary runs from 0 to 2"):
        model.score_tokens(torch.tensor([[-1, 0]]))
