"""The loss of models that read word by word, and what trains them: SGD, averaging, going on."""

import copy
import json

import pytest
import torch
from torch import nn

from hmmlm.baselines import awd_lstm, decoder, feed_forward, hmm_rnn, lstm
from hmmlm.baselines.kinds import NEURAL
from hmmlm.data.batches import Batch
from hmmlm.data.shards import TokenArray
from hmmlm.data.streams import Streams
from hmmlm.errors import InputError
from hmmlm.train.graph import GraphedSteps, why_no_graph
from hmmlm.train.loop import State, Training, TrainSettings
from hmmlm.train.next_token import NextTokenLoss
from hmmlm.train.sgd import Sgd
from networks import SETTINGS, WORDS, make, text

EOS = 2
SMALL = [name for name in SETTINGS if name in NEURAL]
WIDER = {
    "feed_forward": feed_forward.Settings(width=16, dropout=0.1),
    "lstm": lstm.Settings(width=16, dropout=0.1),
    "awd_lstm": awd_lstm.Settings(16, 16, 2, dropout_input=0.1, dropout_output=0.1),
    "decoder": decoder.Settings(width=16, depth=2, heads=2, context=4),
    "hmm_rnn": hmm_rnn.Settings(states=8, embedding=8, width=16, dropout=0.1),
}


def streams(length: int = 5, **how) -> Streams:
    return Streams(TokenArray.from_ids(text(1, 61)[0].tolist(), eos_id=EOS), 4, length, **how)


def without_dropout(name: str) -> nn.Module:
    model = make(name)
    model.read = _undropped(model.read)
    return model


def _undropped(read):
    return lambda *given, generator=None, **named: read(*given, **named)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("reset_id", [None, EOS])
def test_batches_that_go_on_are_one_text(name, reset_id):
    model, batches = without_dropout(name), streams()
    loss = NextTokenLoss(model, carry=True, reset_id=reset_id)
    nats = sum(float(loss(batch, 0.0).detach()) * batch.num_tokens for batch in batches)
    rows = text(1, 61)[0].split([16, 15, 15, 15])
    whole = sum(
        model.score_tokens(row[None], reset_id=reset_id).token_log_probs.sum() for row in rows
    )
    assert nats == pytest.approx(-float(whole), rel=1e-12)
    cold = NextTokenLoss(model, reset_id=reset_id)
    again = sum(float(cold(batch, 0.0).detach()) * batch.num_tokens for batch in batches)
    assert again != pytest.approx(nats, rel=1e-6)
    again = sum(float(loss(batch, 0.0).detach()) * batch.num_tokens for batch in batches)
    assert again == pytest.approx(nats, rel=1e-12)  # an epoch starts cold


def test_a_penalty_is_in_the_gradient_and_not_in_the_value():
    model, batch = make("awd_lstm"), next(iter(streams()))
    value = NextTokenLoss(model, seed=3)(batch, 0.0)
    read = model.read(
        batch.tokens, restart=batch.restart, generator=torch.Generator().manual_seed(3)
    )
    nats = -read.token_log_probs.sum() / batch.num_tokens
    assert float(value.detach()) == pytest.approx(float(nats.detach()), rel=1e-12)
    (found,) = torch.autograd.grad(value, [model.layers[0].from_input])
    (expected,) = torch.autograd.grad(nats + read.penalty, [model.layers[0].from_input])
    assert float(read.penalty.detach()) > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_a_plain_step_goes_down_the_clipped_gradient_at_a_rate_in_proportion():
    model, batch = make("feed_forward"), next(iter(streams()))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    NextTokenLoss(model, seed=1)(batch, 0.0).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    settings = TrainSettings(clip=float(norm) / 2, weight_decay=0.01)
    learner = Sgd(model, NextTokenLoss(model, seed=1), settings, optimiser="sgd", full_tokens=40)
    made = learner.step([batch], 0.3, 0.0)
    assert made.tokens == 20 and made.size == pytest.approx(float(norm))
    for old, new, gradient in zip(before, model.parameters(), gradients, strict=True):
        expected = old - 0.3 * 20 / 40 * (gradient / 2 + 0.01 * old)
        torch.testing.assert_close(new.detach(), expected, atol=1e-6, rtol=0)
    assert learner.why_no_graph == "the optimiser is sgd"


def test_weights_are_averaged_from_where_checks_stop_getting_better():
    # The sixth check is worse than the best of those more than two before it: 3.0, 2.0, 1.0.
    values = iter([3.0, 2.0, 1.0, 1.5, 0.9, 1.2, 0.8, 0.7])
    model, passed, judged = make("lstm", dtype=torch.float32), [], []

    def judge(shown: nn.Module) -> float:
        judged.append(shown.words.detach().clone())
        return next(values)

    settings = TrainSettings(epochs=8, average_after=2, learning_rate=0.5, clip=1.0)
    batches = streams(length=16)
    learner = Sgd(model, NextTokenLoss(model), settings, optimiser="sgd")
    training = Training(learner, batches, settings=settings, evaluate=judge)
    for _ in training:
        passed.append(model.words.detach().clone())
    assert training.best.past == [3.0, 2.0, 1.0, 1.5, 0.9, 1.2]
    for check in range(6):
        assert torch.equal(judged[check], passed[check])
    torch.testing.assert_close(judged[6], passed[6])
    torch.testing.assert_close(judged[7], (passed[6] + passed[7]) / 2)
    assert torch.equal(model.words, judged[7])  # the best, in the end


def test_there_is_one_average():
    with pytest.raises(InputError, match=r"average is 0\.5 and average_after 5, but there is one"):
        TrainSettings(average=0.5, average_after=5)
    with pytest.raises(InputError, match="average_after is -1 but must be at least 0"):
        TrainSettings(average_after=-1)


@pytest.mark.parametrize("name", SMALL)
def test_going_on_from_a_state_is_as_if_nothing_had_happened(name):
    optimiser = "sgd" if name == "awd_lstm" else "adamw"
    settings = TrainSettings(
        epochs=4, learning_rate=0.3, average_after=1, schedule="constant", warmup_steps=0
    )
    values = [3.0, 2.0, 2.5, 2.6, 2.7, 2.8]

    def begin() -> Training:
        model = make(name, dtype=torch.float32)
        batches = streams(vary=True, seed=7)
        learner = Sgd(
            model,
            NextTokenLoss(model, carry=True, seed=5),
            settings,
            optimiser=optimiser,
            full_tokens=20,
        )
        training = Training(learner, batches, settings=settings)
        training.evaluate = lambda model: values[training.step // training.per_epoch]
        return training

    whole = begin()
    first = [step._replace(tokens_per_second=0) for step in whole]
    assert whole.best.is_averaging
    for stop in (1, len(first) // 3, len(first) // 2 + 1, len(first) - 1):
        before, after = begin(), begin()
        steps = iter(before)
        done = [next(steps)._replace(tokens_per_second=0) for _ in range(stop)]
        state = copy.deepcopy(before.state())
        after.restore(State(state.tensors, json.loads(json.dumps(state.numbers))))
        done += [step._replace(tokens_per_second=0) for step in after]
        assert done == first
        ends = [training.state().tensors for training in (whole, after)]
        assert ends[0].keys() == ends[1].keys()
        assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("name", SMALL)
def test_training_learns_the_order_of_words(name):
    tokens = torch.arange(200) % WORDS
    batches = Streams(TokenArray.from_ids(tokens.tolist(), eos_id=EOS), 4, 10)
    settings = TrainSettings(epochs=20, learning_rate=0.03, weight_decay=0.0)
    generator = torch.Generator().manual_seed(0)
    model = WIDER[name].build(WORDS, start_id=EOS, generator=generator)
    loss = NextTokenLoss(model, carry=True)
    learner = Sgd(model, loss, settings)
    for _ in Training(learner, batches, settings=settings):
        pass
    found = model.score_tokens(tokens[None]).token_log_probs[0, 5:].mean()
    assert float(found) > -0.4  # by chance it is -1.6


@pytest.mark.parametrize("name", SMALL)
def test_steps_in_bfloat16_are_near_those_in_float32(name):
    batch = next(iter(streams()))
    values = []
    for precision in ("float32", "bf16"):
        model = make(name, dtype=torch.float32)
        settings = TrainSettings(precision=precision)
        learner = Sgd(model, NextTokenLoss(model, seed=2), settings)
        values.append(learner.step([batch], 0.01, 0.0).loss)
    assert values[0] == pytest.approx(values[1], rel=0.02)


def test_a_batch_with_fewer_rows_goes_on_with_the_first(monkeypatch):
    model, seen = make("lstm"), []
    loss = NextTokenLoss(model, carry=True)
    read = model.read
    monkeypatch.setattr(
        model, "read", lambda *a, carry, **k: (seen.append(carry), read(*a, carry=carry, **k))[1]
    )
    batches = list(streams())
    assert [len(batch.tokens) for batch in batches] == [4, 4, 4, 1]
    for batch in batches:
        loss(batch, 0.0)
    assert seen[0] is None and [len(carry["word"]) for carry in seen[1:]] == [4, 4, 1]
    assert torch.equal(seen[3]["word"], batches[2].tokens[:1, -1])


def test_no_gradient_flows_into_what_is_carried():
    loss, batches = NextTokenLoss(make("hmm_rnn"), carry=True), streams()
    for _, batch in zip(range(2), batches, strict=False):
        loss(batch, 0.0).backward()
    assert all(not part.requires_grad for part in loss.carried.values())


def test_rows_of_packed_sentences_start_cold():
    model = without_dropout("lstm")
    tokens = torch.tensor([[1, EOS, 3, 3, EOS, 0]])
    restart = torch.tensor([[True, False, True, False, False, False]])
    batch = Batch(tokens, torch.tensor([5]), restart, 5)
    value = NextTokenLoss(model)(batch, 0.0).detach()
    parts = [model.score_tokens(tokens[:, a:b]).token_log_probs.sum() for a, b in ((0, 2), (2, 5))]
    assert float(value) == pytest.approx(-float(sum(parts)) / 5, rel=1e-12)


def by_graph(model: nn.Module, loss: NextTokenLoss, settings: TrainSettings) -> Sgd:
    """Steps as they are captured on a GPU, and taken as they are elsewhere."""
    learner = Sgd(model, loss, settings)
    if learner.graphed is None:
        rate = torch.tensor(0.01)
        optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=True)
        learner.optimiser, learner.why_no_graph = optimiser, None
        learner.graphed = GraphedSteps(model, loss, optimiser, settings)
    return learner


@pytest.mark.parametrize("name", SMALL)
def test_a_captured_step_is_the_ordinary_one(name, monkeypatch):
    monkeypatch.setattr("hmmlm.train.graph.WARM", 99)
    settings, found, taken = TrainSettings(weight_decay=0.01, clip=0.2), [], []
    for captured in (True, False):
        model = make(name, dtype=torch.float32)
        loss = NextTokenLoss(model, carry=True, seed=4)
        learner = (by_graph if captured else Sgd)(model, loss, settings)
        if captured:
            step = learner.graphed.step
            learner.graphed.step = lambda *given, step=step: taken.append(step(*given)) or taken[-1]
        steps = [learner.step(iter([batch]), 0.01, 0.0) for batch in streams()]
        found.append((torch.tensor([[made.loss, made.size] for made in steps]), loss.state()))
    assert [made is None for made in taken] == [True, False, False, True]  # cold, ..., shorter
    (numbers, state), (plain_numbers, plain_state) = found
    torch.testing.assert_close(numbers, plain_numbers, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(state, plain_state, rtol=0, atol=1e-5)


def test_a_captured_step_that_is_not_finite_carries_nothing_on():
    model = make("lstm", dtype=torch.float32)
    loss = NextTokenLoss(model, carry=True)
    learner = by_graph(model, loss, TrainSettings())
    first, second, *_ = streams()
    learner.step(iter([first]), 0.01, 0.0)
    before = {key: part.clone() for key, part in loss.carried.items()}
    with torch.no_grad():
        model.words[int(second.tokens[0, 0])] = torch.nan
    assert learner.graphed.step(second, 0.01, 0.0) is None
    torch.testing.assert_close(loss.carried, before, rtol=0, atol=0)


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_products_are_made_in_the_precision_that_was_asked_for(precision, monkeypatch):
    model, seen = make("lstm", dtype=torch.float32), []
    places = torch.backends.cuda.matmul, torch.backends.cudnn.rnn
    before = [place.fp32_precision for place in places]
    plain = torch.nn.functional.linear

    def linear(*given):
        seen.append([place.fp32_precision for place in places])
        return plain(*given)

    monkeypatch.setattr("torch.nn.functional.linear", linear)
    settings = TrainSettings(precision=precision)
    for learner in (Sgd, by_graph):
        loss = NextTokenLoss(model, carry=True)
        for batch in streams():
            learner(model, loss, settings).step(iter([batch]), 0.01, 0.0)
    assert len(seen) == 8
    assert all((one == ["tf32"] * 2) if precision == "tf32" else "tf32" not in one for one in seen)
    assert [place.fp32_precision for place in places] == before


def test_why_a_network_has_no_graph(monkeypatch):
    model = make("lstm", dtype=torch.float32)
    loss, settings = NextTokenLoss(model, carry=True), TrainSettings()
    assert "this is cpu" in str(why_no_graph(loss, model, settings, 1))
    monkeypatch.setattr(torch.Tensor, "device", torch.device("cuda", 0))
    assert why_no_graph(loss, model, settings, 1) is None
    loss.reset_id = 2
    assert "cut where a sentence ends" in str(why_no_graph(loss, model, settings, 1))
    loss.carry = False
    assert "starts cold" in str(why_no_graph(loss, model, settings, 1))
