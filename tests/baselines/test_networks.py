"""Neural models against their definition, one word at a time, in float64; and the laws."""

import itertools

import pytest
import torch

from hmmlm.baselines import awd_lstm, decoder, feed_forward, hmm_rnn, lstm
from hmmlm.baselines.kinds import NEURAL
from hmmlm.errors import InputError
from hmmlm.evaluate import evaluate
from hmmlm.lm import LanguageModel
from hmmlm.train.next_token import Reader
from networks import SETTINGS, START, WORDS, defined_log_prob, make, text

CLOSE = {"atol": 1e-10, "rtol": 0}
RESET = 4


def define(model, row: list[int], reset_id: int | None = None) -> list[float]:
    found, past = [], []
    for word in row:
        found.append(defined_log_prob(model, past, word))
        past = [] if word == reset_id else [*past, word]
    return found


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("reset_id", [None, RESET])
def test_scores_agree_with_the_definition(name, reset_id):
    model, tokens, lengths = make(name), text(3, 6), torch.tensor([6, 4, 1])
    assert isinstance(model, LanguageModel) and isinstance(model, Reader)
    scored = model.score_tokens(tokens, lengths=lengths, reset_id=reset_id)
    assert scored.token_log_probs.dtype == torch.float64
    for row, length, found in zip(tokens.tolist(), lengths, scored.token_log_probs, strict=True):
        expected = torch.tensor(define(model, row[:length], reset_id), dtype=torch.float64)
        torch.testing.assert_close(found[:length], expected, **CLOSE)
        assert (found[length:] == 0).all()


@pytest.mark.parametrize("name", SETTINGS)
def test_strings_of_a_length_sum_to_one(name):
    model = make(name)
    every = torch.tensor(list(itertools.product(range(WORDS), repeat=3)))
    total = model.score_tokens(every).token_log_probs.sum(1).exp().sum()
    assert float(total) == pytest.approx(1, abs=1e-12)
    assert model.row_error(64, 0) < 1e-12


@pytest.mark.parametrize("name", SETTINGS)
def test_next_words_are_those_that_are_scored(name):
    model = make(name)
    read = model.score_tokens(text(2, 4), lengths=torch.tensor([4, 2]))
    following = torch.stack(
        [
            model.score_tokens(torch.full((2, 1), word), carry=read.carry).token_log_probs[:, 0]
            for word in range(WORDS)
        ],
        1,
    )
    with torch.no_grad():
        torch.testing.assert_close(model.next_log_probs(read.carry), following, **CLOSE)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("reset_id", [None, RESET])
def test_splitting_a_text_anywhere_gives_the_same_scores(name, reset_id):
    model, tokens, lengths = make(name), text(2, 9, seed=3), torch.tensor([9, 7])
    whole = model.score_tokens(tokens, lengths=lengths, reset_id=reset_id)
    for cut in range(1, 9):
        first = model.score_tokens(
            tokens[:, :cut], lengths=lengths.clamp(max=cut), reset_id=reset_id
        )
        left = (lengths - cut).clamp(min=0)
        rest = model.score_tokens(
            tokens[:, cut:], lengths=left, reset_id=reset_id, carry=first.carry
        )
        both = torch.cat([first.token_log_probs, rest.token_log_probs], 1)
        torch.testing.assert_close(both, whole.token_log_probs, **CLOSE)
        for part, expected in whole.carry.items():
            torch.testing.assert_close(rest.carry[part], expected, **CLOSE)


@pytest.mark.parametrize("name", SETTINGS)
def test_restarts_begin_rows_of_their_own_and_padding_does_not_matter(name):
    model, tokens = make(name), text(2, 8, seed=5)
    restart = torch.zeros(2, 8, dtype=torch.bool)
    restart[0, [0, 3, 4]] = restart[1, 6] = True
    lengths, carry = torch.tensor([7, 8]), model.score_tokens(text(2, 3)).carry
    poisoned = tokens.clone()
    poisoned[0, 7] = RESET
    restart[0, 7] = True
    with torch.no_grad():
        found = model.read(tokens, lengths=lengths, restart=restart, carry=carry)
        again = model.read(poisoned, lengths=lengths, restart=restart, carry=carry)
    assert torch.equal(found.token_log_probs, again.token_log_probs)
    alone = [tokens[:1, :3], tokens[:1, 3:4], tokens[:1, 4:7], tokens[1:, 6:]]
    scores = [model.score_tokens(part).token_log_probs[0] for part in alone]
    torch.testing.assert_close(found.token_log_probs[0, :7], torch.cat(scores[:3]), **CLOSE)
    torch.testing.assert_close(found.token_log_probs[1, 6:], scores[3], **CLOSE)
    second = {key: part[1:] for key, part in carry.items()}
    kept = model.score_tokens(tokens[1:, :6], carry=second).token_log_probs[0]
    torch.testing.assert_close(found.token_log_probs[1, :6], kept, **CLOSE)
    last = model.score_tokens(tokens[:1, 4:7]).carry
    for part, expected in last.items():
        torch.testing.assert_close(found.carry[part][:1], expected, **CLOSE)


@pytest.mark.parametrize("name", SETTINGS)
def test_gradient_agrees_with_finite_differences(name):
    model, tokens = make(name), text(2, 5, seed=2)
    lengths, restart = torch.tensor([5, 4]), torch.zeros(2, 5, dtype=torch.bool)
    restart[0, 2] = True

    def nats():
        read = model.read(
            tokens, lengths=lengths, restart=restart, generator=torch.Generator().manual_seed(0)
        )
        return read.penalty - read.token_log_probs.sum() / 9

    nats().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        along = torch.randn(
            parameter.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64
        )
        step, values = 1e-6, []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(along, alpha=sign * step)
            values.append(float(nats().detach()))
            with torch.no_grad():
                parameter.add_(along, alpha=-sign * step)
        difference = (values[0] - values[1]) / (2 * step)
        assert float((parameter.grad * along).sum()) == pytest.approx(difference, abs=1e-7)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_mode_counts_each_token_once(name):
    model, tokens = make(name), text(1, 40)[0]
    for mode, reset_id in (("sentence", RESET), ("streaming", None)):
        found = evaluate(model, tokens, mode=mode, eos_id=RESET, batch_tokens=7)
        whole = model.score_tokens(tokens[None], reset_id=reset_id).token_log_probs
        assert found.tokens == 40
        assert found.nats == pytest.approx(-float(whole.sum()), rel=1e-12)
    first = model.score_tokens(tokens[None]).token_log_probs[0, 0]
    assert float(first) == pytest.approx(defined_log_prob(model, [], int(tokens[0])), abs=1e-10)


def test_row_error_sees_what_does_not_sum_to_one(monkeypatch):
    model = make("lstm")
    plain = model.next_log_probs
    monkeypatch.setattr(model, "next_log_probs", lambda carry: plain(carry) + 0.1)
    assert model.row_error(8, 0) > 0.1


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(InputError, match="tokens has id 5 but this vocabulary runs from 0 to 4"):
        make("lstm").score_tokens(torch.tensor([[0, 5]]))


@pytest.mark.parametrize("name", NEURAL)
def test_dropout_follows_the_generator(name):
    model, tokens = make(name), text(4, 12)

    def read(seed: int | None):
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        with torch.no_grad():
            return model.read(tokens, generator=generator).token_log_probs

    assert torch.equal(read(1), read(1))
    assert not torch.equal(read(1), read(2)) and not torch.equal(read(1), read(None))
    assert torch.equal(read(None), read(None))


def test_locked_dropout_leaves_the_same_out_at_every_step():
    model = make("awd_lstm")
    ones = torch.ones(2, 6, 50, dtype=torch.float64)
    dropped = model._drop(ones, 0.5, torch.Generator().manual_seed(0))
    assert (dropped == dropped[:, :1]).all() and set(dropped.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(dropped[0], dropped[1])
    loose = make("lstm")._drop(ones, 0.5, torch.Generator().manual_seed(0))
    assert (loose != loose[:, :1]).any()


def test_penalties_are_those_of_the_paper():
    settings = awd_lstm.Settings(
        3, 4, 2, 0.0, 0.0, 0.0, dropout_output=0.0, weight_drop=0.0, activation=2.0, change=3.0
    )
    model = settings.build(
        WORDS, start_id=START, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    tokens, generator = text(2, 5), torch.Generator()
    with torch.no_grad():
        read = model.read(tokens, lengths=torch.tensor([5, 3]), generator=generator)
    inputs = torch.cat([torch.full((2, 1), START), tokens[:, :-1]], 1)
    with torch.no_grad():
        out, _ = model._run(inputs, None, model.cold(2), None)
    kept = torch.cat([out[0], out[1, :3]])
    changes = torch.cat([out[0, 1:] - out[0, :-1], out[1, 1:3] - out[1, :2]])
    expected = 2 * kept.pow(2).mean() + 3 * changes.pow(2).mean()
    assert float(read.penalty) == pytest.approx(float(expected), rel=1e-12)
    assert float(model.read(tokens).penalty) == 0


def test_sizes_are_those_of_the_papers():
    def size(settings, words=10_000):
        model = settings.build(words, start_id=0, generator=torch.Generator())
        return sum(parameter.numel() for parameter in model.parameters())

    assert size(lstm.Settings(), 10_001) == 3_612_928
    assert size(feed_forward.Settings(), 10_005) == 2_889_472
    assert size(awd_lstm.Settings()) == 24_221_600
    assert 9.5e6 < size(hmm_rnn.Settings()) < 10.5e6


def test_hidden_states_are_what_the_next_word_is_predicted_from():
    model, tokens = make("decoder"), text(2, 6)
    hidden = model.hidden(tokens)
    logits = hidden[:, :-1] @ model.words.T + model.bias
    found = logits.log_softmax(2).gather(2, tokens[:, 1:, None])[:, :, 0]
    torch.testing.assert_close(found, model.read(tokens).token_log_probs[:, 1:])


@pytest.mark.parametrize(
    ("module", "setting", "message"),
    [
        (lstm, {"dropout": 1.0}, "dropout is 1.0 but must be at least 0 and less than 1"),
        (lstm, {"layers": 0}, "layers is 0 but must be at least 1"),
        (awd_lstm, {"weight_drop": -0.1}, "weight_drop is -0.1 but must be at least 0"),
        (feed_forward, {"order": 1}, "order is 1 but must be at least 2"),
        (decoder, {"context": 0}, "context is 0 but must be at least 1"),
        (decoder, {"heads": 3}, "The width is 256, which 3 heads cannot share; make it a multiple"),
        (hmm_rnn, {"states": 0}, "states is 0 but must be at least 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(module, setting, message):
    with pytest.raises(InputError, match=message):
        module.Settings(**setting)
