import copy
import itertools
import json
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from hmmlm.data.batches import Batch, Packed, Windows
from hmmlm.data.shards import TokenArray
from hmmlm.data.streams import Streams
from hmmlm.errors import InputError
from hmmlm.evaluate import HmmLM, evaluate
from hmmlm.hmm import HMM
from hmmlm.params import lowrank
from hmmlm.params.scalar import Scalar
from hmmlm.support import Support
from hmmlm.train.loop import Batches, Progress, State, Training, TrainSettings, learning_rate
from hmmlm.train.loss import Dropout, HmmLoss, loss
from hmmlm.train.sgd import Sgd, train
from hmmlm.transitions import Dense, Factored

EOS = 0


def scalar(support: Support, seed: int = 0, dtype: torch.dtype = torch.float64) -> Scalar:
    return Scalar(support, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def row_batch(rows: list[list[int]]) -> Batch:
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = torch.tensor(row)
    restart = torch.zeros_like(tokens, dtype=torch.bool)
    restart[:, 0] = True
    restart[:, 1:] = tokens[:, :-1] == EOS
    return Batch(tokens, lengths, restart, int(lengths.sum()))


def planted() -> HMM:
    """Three states in a ring, each with two words of its own; any may end the sentence."""
    near = torch.tensor([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
    words = [0.14, 0.41, 0.41, 0.01, 0.01, 0.01, 0.01]
    emit = torch.tensor([words[:1] + (words[1:] * 2)[6 - s : 12 - s] for s in (0, 2, 4)])
    return HMM.from_tables(torch.tensor([0.8, 0.1, 0.1]).log(), near.log(), emit.log())


def sentences(hmm: HMM, number: int, seed: int) -> list[list[int]]:
    """Ancestral samples, each ending in <eos>."""
    generator = torch.Generator().manual_seed(seed)
    init, trans, emit = hmm.log_init.exp(), hmm.fields()[1].exp(), hmm.log_emit.exp().T

    def draw(probs: Tensor) -> int:
        return int(torch.multinomial(probs, 1, generator=generator))

    texts = []
    for _ in range(number):
        state, text = draw(init), []
        while not text or text[-1] != EOS:
            text.append(draw(emit[state]))
            state = draw(trans[state])
        texts.append(text)
    return texts


class Fixed(list[Batch]):
    """The same batches every epoch."""

    @property
    def num_batches(self) -> int:
        return len(self)


def packed(texts: list[list[int]], rows: int = 8, width: int = 30) -> Fixed:
    filled: list[list[int]] = [[]]
    for text in texts:
        if filled[-1] and len(filled[-1]) + len(text) > width:
            filled.append([])
        filled[-1].extend(text)
    return Fixed(row_batch(filled[i : i + rows]) for i in range(0, len(filled), rows))


def two_batches() -> Fixed:
    return Fixed(packed(sentences(planted(), 40, seed=0), rows=4)[:2])


def nats_by_enumeration(hmm: HMM, tokens: Tensor, lengths: Tensor, reset_id: int | None) -> Tensor:
    """-log p of the rows by summing over every path; differentiable in the tables."""
    sources = hmm.num_states
    trans = hmm.transitions.rows(0, sources)
    ids = hmm.support.rows[hmm.support.row_of_word]
    total = hmm.log_init.new_zeros(())
    for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True):
        paths = []
        for path in itertools.product(range(sources), repeat=length):
            terms = []
            for t, (state, word) in enumerate(zip(path, row, strict=False)):
                slot = (ids[word] == state).nonzero().flatten().tolist()
                if not slot:
                    break
                fresh = t == 0 or row[t - 1] == reset_id
                terms.append(hmm.log_init[state] if fresh else trans[path[t - 1], state])
                terms.append(hmm.log_emit[word, slot[0]])
            else:
                paths.append(sum(terms))
        total = total - torch.logsumexp(torch.stack(paths), 0)
    return total


def steps(model: nn.Module, batches: Batches, *, evaluate=None, **settings) -> Iterator[Progress]:
    how = TrainSettings(**settings)
    yield from train(model, HmmLoss(model, model.support), batches, settings=how, evaluate=evaluate)


def run(model: nn.Module, batches: Batches, **settings) -> list[Progress]:
    return list(steps(model, batches, **settings))


@pytest.mark.parametrize("reset_id", [None, EOS])
@pytest.mark.parametrize(
    "support",
    [Support.dense(4, 3), Support.ragged([[0, 1, 2], [1], [2, 0], [0, 1]], 3)],
    ids=["dense", "ragged"],
)
def test_the_gradient_is_that_of_the_sum_over_all_paths(support, reset_id):
    batch = row_batch([[1, 0, 2, 3], [3], [2, 2, 0]])
    ours, truth = scalar(support), scalar(support)
    value = loss(ours(), batch.tokens, lengths=batch.lengths, reset_id=reset_id)
    value.backward()
    expected = nats_by_enumeration(truth(), batch.tokens, batch.lengths, reset_id) / 8
    expected.backward()
    assert float(value.detach()) == pytest.approx(float(expected.detach()), abs=1e-12)
    for (name, mine), theirs in zip(ours.named_parameters(), truth.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-12, rtol=0), name


def test_the_gradient_through_factored_transitions():
    generator = torch.Generator().manual_seed(0)
    factors = [torch.randn(3, 2, generator=generator, dtype=torch.float64) for _ in range(2)]
    tables = scalar(Support.dense(4, 3))().detach()
    batch = row_batch([[1, 0, 2, 3], [3, 1]])

    def gradients(value_of) -> list[Tensor]:
        leaves = [f.clone().requires_grad_() for f in factors]
        hmm = HMM(tables.log_init, Factored.normalise(*leaves), tables.log_emit, tables.support)
        value_of(hmm).backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    ours = gradients(lambda hmm: loss(hmm, batch.tokens, lengths=batch.lengths, reset_id=EOS))
    truth = gradients(lambda h: nats_by_enumeration(h, batch.tokens, batch.lengths, EOS) / 6)
    assert len(ours) == len(truth) == 2
    for mine, theirs in zip(ours, truth, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12, rtol=0)


def test_the_loss_scales_and_adds_like_any_tensor():
    model, batch = scalar(Support.dense(4, 3)), row_batch([[1, 2, 0]])
    once = torch.autograd.grad(loss(model(), batch.tokens), list(model.parameters()))
    thrice = torch.autograd.grad(3 * loss(model(), batch.tokens) + 1, list(model.parameters()))
    for one, three in zip(once, thrice, strict=True):
        assert torch.allclose(3 * one, three, atol=1e-14, rtol=0)


def test_impossible_cells_get_no_gradient_and_no_nan():
    log_trans = torch.tensor([[0.0, -torch.inf], [0.5, 0.5]], dtype=torch.float64)
    log_trans = torch.cat([log_trans[:1], log_trans[1:].log()]).requires_grad_()
    hmm = HMM(
        torch.tensor([0.5, 0.5], dtype=torch.float64).log(),
        Dense(log_trans),
        torch.full((2, 2), 0.5, dtype=torch.float64).log(),
        Support.dense(2, 2),
    )
    loss(hmm, torch.tensor([[0, 1, 0]])).backward()
    assert log_trans.grad is not None and log_trans.grad.isfinite().all()
    assert log_trans.grad[0, 1] == 0 and log_trans.grad[0, 0] < 0


def test_a_planted_hmm_is_recovered():
    truth = planted()
    batches = packed(sentences(truth, 600, seed=0))
    held_out = torch.tensor([t for text in sentences(truth, 300, seed=1) for t in text])

    def nats(hmm: HMM) -> float:
        result = evaluate(HmmLM(hmm), held_out, mode="sentence", eos_id=EOS)
        return result.nats / result.tokens

    model = scalar(Support.dense(7, 3), seed=1, dtype=torch.float32)
    before, true = nats(model()), nats(truth)
    assert before > true + 0.3
    seen = run(model, batches, epochs=6, learning_rate=0.2, weight_decay=0.0)
    assert nats(model()) < true + 0.015
    assert seen[-1].loss < seen[0].loss - 0.3
    # Without the order of the words nothing under the entropy of single words can be reached.
    counts = torch.bincount(held_out).double() / len(held_out)
    assert nats(model()) < float(-(counts * counts.log()).sum()) - 0.1


def test_the_same_seeds_give_the_same_numbers():
    tokens = [t for text in sentences(planted(), 100, seed=0) for t in text]

    def losses(seed: int) -> list[float]:
        batches = Packed(TokenArray.from_ids(tokens, eos_id=EOS), 4, 30, seed=seed)
        return [s.loss for s in run(scalar(Support.dense(7, 3)), batches, epochs=2)]

    assert losses(0) == losses(0)
    assert losses(0) != losses(1)


def test_progress_counts_steps_epochs_and_tokens():
    batches = two_batches()
    model = scalar(Support.dense(7, 3))
    values = iter([3.0, 2.0])
    seen = run(model, batches, epochs=2, evaluate=lambda model: next(values))
    each = 2
    assert [s.step for s in seen] == list(range(1, 2 * each + 1))
    assert {s.steps for s in seen} == {2 * each}
    assert [s.epoch for s in seen] == [1] * each + [2] * each
    assert [s.val for s in seen] == ([None] * (each - 1) + [3.0]) + ([None] * (each - 1) + [2.0])
    assert seen[-1].tokens == 2 * sum(batch.num_tokens for batch in batches)
    assert all(s.tokens_per_second > 0 for s in seen)
    assert seen[0].perplexity == pytest.approx(math.exp(seen[0].loss))


def _values(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([3.0, 1.0, 2.0], 1),
        ([1.0, 2.0, 3.0], 0),
        ([math.inf] * 3, 2),
        ([math.inf, 2.0, math.inf], 1),
    ],
)
def test_the_best_weights_on_validation_are_restored(values, best):
    model, batches = scalar(Support.dense(7, 3)), packed(sentences(planted(), 20, seed=0))
    seen: list[list[Tensor]] = []

    def judge(model: nn.Module) -> float:
        assert not model().log_init.requires_grad
        seen.append(_values(model))
        return values[len(seen) - 1]

    for _ in steps(model, batches, epochs=3, evaluate=judge):
        pass
    assert len(seen) == 3 and not torch.equal(seen[0][0], seen[2][0])
    assert all(torch.equal(a, b) for a, b in zip(_values(model), seen[best], strict=True))


@pytest.mark.parametrize("stop_after", [1, 3])
def test_leaving_early_keeps_the_best_weights_if_there_are_any(stop_after):
    model, batches = scalar(Support.dense(7, 3)), two_batches()
    at_epoch: list[list[Tensor]] = []

    def judge(model: nn.Module) -> float:
        at_epoch.append(_values(model))
        return 1.0

    running = steps(model, batches, epochs=3, evaluate=judge)
    for _ in range(stop_after):
        next(running)
    current = _values(model)
    running.close()
    expected = at_epoch[0] if at_epoch else current
    assert bool(at_epoch) == (stop_after == 3)
    assert all(torch.equal(a, b) for a, b in zip(_values(model), expected, strict=True))


class _Breaks(nn.Module):
    """A model whose tables become NaN at its n-th call."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.inner, self.at, self.calls = scalar(Support.dense(7, 3)), at, 0
        self.support = self.inner.support

    def forward(self, states=None, carried=None) -> HMM:
        self.calls += 1
        hmm = self.inner()
        broken = hmm.log_init * (math.nan if self.calls == self.at else 1.0)
        return HMM(broken, hmm.transitions, hmm.log_emit, hmm.support)


@pytest.mark.parametrize(("at", "kept"), [(1, 0), (4, 2)])
def test_nan_stops_with_the_last_good_weights(at, kept):
    model, batches = _Breaks(at), two_batches()
    settings = TrainSettings(epochs=3, learning_rate=0.25, warmup_steps=0)
    rate = learning_rate(settings, at, 6)
    weights = [_values(model)]
    message = f"stopped at step {at} with learning rate {rate:.3g}: .* those of step {kept};"
    with pytest.raises(InputError, match=message):
        for _ in train(model, HmmLoss(model, model.support), batches, settings=settings):
            weights.append(_values(model))
    assert len(weights) == at
    assert all(torch.equal(a, b) for a, b in zip(_values(model), weights[kept], strict=True))


@pytest.mark.parametrize("average", [0.0, 0.5])
@pytest.mark.parametrize("validated", [False, True])
def test_before_the_first_check_weights_of_a_finite_loss_are_kept(average, validated):
    """Of an epoch's 34 steps every third is kept, once the loss of the next one is finite."""
    model, batches = _Breaks(33), Fixed(two_batches() * 17)
    settings = TrainSettings(epochs=2, learning_rate=0.25, average=average)
    training = Training(
        Sgd(model, HmmLoss(model, model.support), settings),
        batches,
        settings=settings,
        evaluate=(lambda model: 1.0) if validated else None,
    )
    weights = [_values(model)]
    with pytest.raises(InputError, match=r"stopped at step 33 .* those of step 30;"):
        for _ in training:
            weights.append(_values(training.shown))
    assert all(torch.equal(a, b) for a, b in zip(_values(model), weights[30], strict=True))


def test_leaving_early_keeps_the_averaged_weights():
    model = scalar(Support.dense(7, 3))
    settings = TrainSettings(epochs=9, average=0.5)
    training = Training(
        Sgd(model, HmmLoss(model, model.support), settings), two_batches(), settings=settings
    )
    steps = iter(training)
    for _ in range(3):
        next(steps)
    wanted = _values(training.shown)
    assert not torch.equal(wanted[0], _values(model)[0])
    steps.close()
    assert all(torch.equal(a, b) for a, b in zip(_values(model), wanted, strict=True))


def test_the_learning_rate_warms_up_and_falls_as_a_cosine():
    settings = TrainSettings(learning_rate=0.2, warmup_steps=4)
    rates = [learning_rate(settings, step, 100) for step in range(1, 101)]
    assert rates[0] == pytest.approx(0.05)
    assert rates[1] == pytest.approx(0.1)
    assert rates[3] == rates[4] == 0.2 == max(rates)
    assert rates[52] == pytest.approx(0.1)  # in the middle between 4 and 100
    assert 0 < rates[-1] < 1e-3
    flat = TrainSettings(learning_rate=0.2, warmup_steps=0)
    assert learning_rate(flat, 1, 100) == 0.2
    short = TrainSettings(learning_rate=0.2, warmup_steps=20)
    assert [learning_rate(short, step, 30) for step in (1, 2, 3)] == pytest.approx(
        [0.2 / 3, 0.4 / 3, 0.2]
    )


def test_the_optimiser_sees_clipped_gradients_and_the_scheduled_rate(monkeypatch):
    model, seen = scalar(Support.dense(7, 3)), []
    plain = torch.optim.AdamW.step

    def step(self, *given):
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        seen.append((norm.item(), self.param_groups[0]["lr"], self.param_groups[0]["weight_decay"]))
        return plain(self, *given)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    taken = run(model, two_batches(), epochs=2, clip=1e-3, weight_decay=0.07)
    norms, rates, decays = zip(*seen, strict=True)
    assert max(norms) == pytest.approx(1e-3, rel=1e-3)
    assert list(rates) == [s.learning_rate for s in taken] and len(set(rates)) == 4
    assert set(decays) == {0.07}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 0}, "epochs is 0 but must be at least 1"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1 but must be at least 0"),
        ({"warmup_steps": -1}, "warmup_steps is -1 but must be at least 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0 but must be more than 0"),
        ({"clip": math.nan}, "clip is nan but must be more than 0"),
    ],
)
def test_bad_settings_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        TrainSettings(**given)


def test_no_batches_are_refused():
    with pytest.raises(InputError, match="no batches to train on"):
        run(scalar(Support.dense(7, 3)), Fixed())


def test_two_batches_of_a_step_are_one_large_batch(monkeypatch):
    gradients, plain = [], torch.optim.AdamW.step

    def step(self, *given):
        gradients.append([p.grad.clone() for p in self.param_groups[0]["params"]])
        return plain(self, *given)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    rows = [[1, 2, 0], [3, 4, 5, 6, 0], [2, 0], [1, 1, 0, 3]]
    apart = Fixed([row_batch(rows[:2]), row_batch(rows[2:])])
    together = Fixed([row_batch(rows)])
    ours, truth = scalar(Support.dense(7, 3)), scalar(Support.dense(7, 3))
    (two,) = run(ours, apart, epochs=1, accumulate=2, warmup_steps=0)
    (one,) = run(truth, together, epochs=1, warmup_steps=0)
    assert two.loss == pytest.approx(one.loss, abs=1e-12) and two.tokens == one.tokens
    # Adam's first step hardly depends on how large they are, so they are compared themselves.
    mean = scalar(Support.dense(7, 3))
    loss(mean(), together[0].tokens, lengths=together[0].lengths, reset_id=EOS).backward()
    for a, b, c in zip(*gradients, [p.grad for p in mean.parameters()], strict=True):
        torch.testing.assert_close(a, c, rtol=0, atol=1e-12)
        torch.testing.assert_close(b, c, rtol=0, atol=1e-12)
    for a, b in zip(_values(ours), _values(truth), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_a_plateau_divides_the_rate_by_an_absolute_threshold():
    """Values fall by 0.05 a check, less than the threshold of 0.1: as good as standing still."""
    values = iter([-5.0, -5.05, -5.1, -5.15, -6.0, -6.0, -6.0, -6.0])
    seen = run(
        scalar(Support.dense(7, 3)),
        two_batches(),
        epochs=8,
        warmup_steps=0,
        learning_rate=0.1,
        schedule="plateau",
        plateau_patience=2,
        plateau_factor=4.0,
        plateau_threshold=0.1,
        evaluate=lambda model: next(values),
    )
    # Checks 2, 3 and 4 are bad, 5 is good, 6 to 8 are bad.
    assert [s.learning_rate for s in seen[::2]] == [0.1] * 4 + [0.025] * 4


def test_a_constant_rate_stays_and_a_cosine_ends_where_it_should():
    flat = TrainSettings(learning_rate=0.2, warmup_steps=2, schedule="constant")
    assert [learning_rate(flat, step, 90) for step in (1, 2, 90)] == [0.1, 0.2, 0.2]
    high = TrainSettings(learning_rate=0.2, warmup_steps=0, final_rate=0.1)
    assert learning_rate(high, 10_000, 10_000) == pytest.approx(0.02, rel=1e-4)


def test_checks_are_spread_over_an_epoch_and_training_stops_early():
    batches = packed(sentences(planted(), 60, seed=0), rows=1)[:7]
    values = iter([3.0, 2.0, 2.5, 2.6, 2.7])
    model = scalar(Support.dense(7, 3))
    judged: list[list[Tensor]] = []

    def judge(model: nn.Module) -> float:
        judged.append(_values(model))
        return next(values)

    seen = run(model, Fixed(batches), epochs=9, checks=3, early_stop=3, evaluate=judge)
    assert [s.step for s in seen if s.val is not None] == [2, 5, 7, 9, 12]
    assert seen[-1].step == 12 and len(judged) == 5
    assert all(torch.equal(a, b) for a, b in zip(_values(model), judged[1], strict=True))


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
def test_averaged_weights_are_those_that_are_kept(decay):
    model, batches = scalar(Support.dense(7, 3)), two_batches()
    passed: list[list[Tensor]] = []
    for _ in steps(model, batches, epochs=2, average=decay):
        passed.append(_values(model))
    # A mean: where steps are few, the first of them counts for no more than others.
    shares = [decay ** (len(passed) - 1 - step) for step in range(len(passed))]
    for ours, values in zip(_values(model), zip(*passed, strict=True), strict=True):
        pairs = zip(shares, values, strict=True)
        mean = sum(share * value for share, value in pairs) / sum(shares)
        torch.testing.assert_close(ours, mean)


def test_dropout_trains_on_a_part_of_the_states_and_comes_down():
    support = Support.from_clusters([0, 0, 1, 1, 2, 2, 3], 4)
    model = scalar(support)
    sizes = []
    plain = model.forward

    def forward(states=None, carried=None):
        sizes.append(support.num_states if states is None else len(states))
        return plain(states, carried)

    model.forward = forward
    how = TrainSettings(epochs=4)
    part = HmmLoss(model, support, dropout=Dropout(0.5, last=0.0), seed=1)
    assert list(train(model, part, two_batches(), settings=how))
    assert sizes == [8, 12, 12, 12, 16, 16, 16, 16]


@pytest.mark.parametrize(
    ("most", "rate", "kept"), [(8, 0.0, 8), (11, 0.0, 8), (8, 0.75, 4), (2, 0.0, 4), (16, 0.0, 16)]
)
def test_a_step_keeps_so_many_states_at_most(most: int, rate: float, kept: int):
    """As many of each block, and one at least."""
    support = Support.from_clusters([0, 0, 1, 1, 2, 2, 3], 4)
    model = scalar(support)
    seen = []
    plain = model.forward
    model.forward = lambda states=None, carried=None: (seen.append(states), plain(states))[1]
    part = HmmLoss(model, support, dropout=Dropout(rate, most=most), seed=1)
    part(row_batch([[1, 3, 2], [5, 6, 4]]), 0.0)
    states = torch.arange(16) if seen[0] is None else seen[0]
    assert (states // 4).bincount(minlength=4).tolist() == [kept // 4] * 4
    with pytest.raises(InputError, match="kept is 0 states but must be at least 1"):
        Dropout(most=0)


def test_tables_may_decay_by_themselves():
    """Where no gradient comes in, a step takes away a weight's own share of it and no more."""
    support = Support.from_clusters([0, 0, 1, 1, 2, 2, 3], 4)
    made = lowrank.Settings(width=4, composed=True).build(
        support, generator=torch.Generator().manual_seed(0)
    )
    before = {name: value.detach().clone() for name, value in made.named_parameters()}
    how = TrainSettings(weight_decay=0.1, decay_states=0.5, decay_words=0.2)

    def nothing(batch: Batch, done: float) -> Tensor:
        return 0 * sum(parameter.sum() for parameter in made.parameters())

    learner = Sgd(made, nothing, how)
    learner.step([row_batch([[1, 3]])], 1.0, 0.0)
    seen = {}
    for name, value in made.named_parameters():
        if bool(before[name].any()):
            seen[name.split(".")[0]] = 1 - float((value / before[name]).detach().mean())
    wanted = {"embeddings": 0.5, "networks": 0.1, "words": 0.2, "start": 0.1}
    assert seen == {key: pytest.approx(value, abs=1e-5) for key, value in wanted.items()}
    with pytest.raises(InputError, match=r"decay_words is -1.0 but must be at least 0"):
        TrainSettings(decay_words=-1.0)


def test_streams_go_on_where_they_were_across_two_subsets():
    """Batches in a row, other states kept each time: the belief is carried by global ids."""
    support = Support.from_clusters([0, 0, 1, 1, 2, 2, 3], 4)
    model = scalar(support)
    first = row_batch([[1, 3, 2], [5, 6, 4]])
    second = row_batch([[2, 4], [6, 1]])._replace(restart=torch.zeros(2, 2, dtype=torch.bool))
    whole = HmmLoss(model, support, carry=True)
    pieces = [float(whole(batch, 0.0).detach()) * batch.num_tokens for batch in (first, second)]
    text = torch.cat([first.tokens, second.tokens], 1)
    assert sum(pieces) == pytest.approx(float(loss(model(), text).detach()) * 10, abs=1e-10)
    cold = HmmLoss(model, support)
    cold(first, 0.0)
    assert float(cold(second, 0.0).detach()) * 4 != pytest.approx(pieces[1], abs=1e-3)
    part = HmmLoss(model, support, carry=True, dropout=Dropout(0.5))
    kept = []
    for batch in (first, second):
        part(batch, 0.0).backward()
        assert part.belief is not None
        kept.append(set(part.belief.states.flatten().tolist()))
    assert kept[0] != kept[1]
    ended = second._replace(
        tokens=second.tokens[:1], lengths=second.lengths[:1], restart=second.restart[:1]
    )
    assert part(ended, 0.0).isfinite()  # a stream that is over is missing


def test_a_reset_at_the_end_of_a_slice_can_be_left_out():
    """The released code of Chiu & Rush restarts after `<eos>` within a slice only."""
    support = Support.from_clusters([0, 0, 1, 1, 2, 2, 3], 4)
    model = scalar(support)
    first = row_batch([[1, EOS, 3, EOS]])
    second = row_batch([[2, 4]])._replace(restart=torch.zeros(1, 2, dtype=torch.bool))

    def total(**settings):
        part = HmmLoss(model, support, carry=True, reset_id=EOS, **settings)
        return sum(float(part(batch, 0.0).detach()) * batch.num_tokens for batch in (first, second))

    text = torch.cat([first.tokens, second.tokens], 1)
    everywhere = float(loss(model(), text, reset_id=EOS).detach()) * 6
    within = torch.tensor([[True, False, True, False, False, False]])
    inside = float(loss(model(), text, restart=within).detach()) * 6
    assert total() == pytest.approx(everywhere, abs=1e-10)
    assert total(reset_at_ends=False) == pytest.approx(inside, abs=1e-10)
    assert abs(inside - everywhere) > 1e-3


def test_a_corpus_shorter_than_a_batch_trains():
    tokens = TokenArray.from_ids([1, 2, EOS], eos_id=EOS)
    (seen,) = run(scalar(Support.dense(7, 3)), Packed(tokens, 16, 64), epochs=1)
    assert seen.tokens == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"precision": "fp8"}, "precision is 'fp8' but must be one of float32, tf32, bf16"),
        ({"schedule": "linear"}, "schedule is 'linear' but must be one of cosine, plateau, const"),
        ({"average": 1.0}, "average is 1.0 but must be at least 0 and less than 1"),
        ({"plateau_factor": 1.0}, "plateau_factor is 1.0 but must be more than 1"),
        ({"checks": 0}, "checks is 0 but must be at least 1"),
        ({"early_stop": -1}, "early_stop is -1 but must be at least 0"),
    ],
)
def test_more_settings_that_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        TrainSettings(**given)
    with pytest.raises(InputError, match=r"The state dropout is 1\.0 but must be at least 0"):
        Dropout(1.0)


def test_mixed_precision_is_for_the_loss_and_not_for_validation():
    seen: list[tuple[str, bool]] = []
    model = scalar(Support.dense(7, 3))
    inner = HmmLoss(model, model.support)

    def watched(batch: Batch, done: float) -> Tensor:
        seen.append(("loss", torch.is_autocast_enabled("cpu")))
        return inner(batch, done)

    def validate(model: nn.Module) -> float:
        seen.append(("validation", torch.is_autocast_enabled("cpu")))
        return 1.0

    for precision in ("bf16", "float32"):
        settings = TrainSettings(epochs=1, precision=precision)
        for _ in train(model, watched, packed([[1, 2, 0]]), settings=settings, evaluate=validate):
            pass
    mixed = [("loss", True), ("validation", False)]
    assert seen == [*mixed, ("loss", False), ("validation", False)]
    assert not torch.is_autocast_enabled("cpu")


RESUMED = {
    "dropout": ({}, 0.4, Packed),
    "an average": ({"average": 0.9, "accumulate": 2}, 0.0, Packed),
    "a plateau": ({"schedule": "plateau", "plateau_patience": 1, "checks": 3}, 0.0, Packed),
    "early stop": ({"early_stop": 3, "learning_rate": 3.0, "checks": 2}, 0.0, Packed),
    "carried belief": ({}, 0.4, Streams),
    "windows": ({}, 0.4, Windows),
}


@pytest.mark.parametrize("case", RESUMED)
def test_going_on_from_a_state_is_as_if_nothing_had_happened(case):
    changes, dropout, layout = RESUMED[case]
    carry, drawn = layout is Streams, {} if layout is Streams else {"seed": 2}
    settings = TrainSettings(**{"epochs": 4, "learning_rate": 0.3, **changes})
    texts = sentences(planted(), 60, seed=3)
    tokens = TokenArray.from_ids([token for text in texts for token in text], eos_id=EOS)

    def make() -> Training:
        support = Support.from_clusters([0, 0, 0, 1, 1, 2, 2], 3)
        model = scalar(support, dtype=torch.float32)
        lossy = HmmLoss(model, support, dropout=Dropout(dropout), carry=carry, seed=5)
        batches = layout(tokens, 4, 20 if layout is Packed else 7, **drawn)
        held_out = torch.tensor([[1, 2, 3, 4, 0, 6, 5]])
        training = Training(Sgd(model, lossy, settings), batches, settings=settings)
        if case == "a plateau":
            training.evaluate = lambda model: 1.0
        elif case != "dropout":
            training.evaluate = lambda model: float(loss(model(), held_out))
        return training

    whole = make()
    first = [step._replace(tokens_per_second=0) for step in whole]
    assert len(first) // whole.per_epoch > 2 or case == "early stop"
    # The second of them is in the middle of the second epoch.
    for stop in (1, len(first) // 3, len(first) // 2, len(first) - 1, len(first)):
        before, after = make(), make()
        steps = iter(before)
        done = [next(steps)._replace(tokens_per_second=0) for _ in range(stop)]
        state = copy.deepcopy(before.state())
        after.restore(State(state.tensors, json.loads(json.dumps(state.numbers))))
        done += [step._replace(tokens_per_second=0) for step in after]
        assert done == first
        ends = [training.learner.model.state_dict() for training in (whole, after)]
        assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_state_beyond_the_end_is_at_the_end():
    settings = TrainSettings(epochs=2, early_stop=3)
    model = scalar(Support.dense(7, 3))
    training = Training(Sgd(model, loss, settings), packed([[1, 2, 0]]), settings=settings)
    assert not training.is_over
    training.step = 10**9
    assert training.is_over and list(training) == []
    training.step, training.best.waited = 0, 4
    assert training.is_over


def test_a_state_of_another_training_is_told():
    settings = TrainSettings(epochs=2)
    batches = packed([[1, 2, 0]])
    one, other = (
        Training(Sgd(model, loss, settings), batches, settings=settings)
        for model in (scalar(Support.dense(7, 3)), scalar(Support.dense(7, 4)))
    )
    with pytest.raises(InputError, match=r"The checkpoint of step 0 does not fit this training"):
        other.restore(one.state())
    state = one.state()
    del state.numbers["best"]["val"]
    with pytest.raises(InputError, match=r"\('val'\); remove its folder to go on from the one be"):
        one.restore(state)
