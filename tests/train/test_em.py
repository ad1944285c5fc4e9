"""Expectation maximisation: against other code, the laws it obeys, and what it finds."""

import copy
import itertools
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hmmlm import inference
from hmmlm.data.batches import Batch, Windows
from hmmlm.data.shards import TokenArray
from hmmlm.errors import InputError
from hmmlm.hmm import HMM
from hmmlm.params import lowrank, mlp
from hmmlm.params.scalar import Scalar
from hmmlm.support import Support
from hmmlm.train.em import Em
from hmmlm.train.expectation import Expectation
from hmmlm.train.gem import GeneralisedEm, expected_log_prob, with_table
from hmmlm.train.loop import State, Training, TrainSettings, learning_rate
from models import SUPPORTS, make_hmm, make_support

EOS = 1
BAUM_WELCH = {"accumulate": 0, "schedule": "constant", "learning_rate": 1.0, "warmup_steps": 0}


def make_batch(support: Support, seed: int, rows: int = 4, steps: int = 12) -> Batch:
    """Words at random, rows of unequal length, some with a second start."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(support.vocab_size, (rows, steps), generator=generator)
    lengths = torch.randint(1, steps + 1, (rows,), generator=generator)
    restart = torch.rand(rows, steps, generator=generator) < 0.1
    restart[:, 0] = True
    return Batch(tokens, lengths, restart, int(lengths.sum()))


def log_evidence(model: nn.Module, batches: list[Batch]) -> float:
    with torch.no_grad():
        hmm = model()
        scores = [
            inference.log_prob(hmm, b.tokens, lengths=b.lengths, restart=b.restart) for b in batches
        ]
    return sum(float(score.log_evidence.sum()) for score in scores)


def log_prior(hmm: HMM, tie: str) -> float:
    """Sum of the logs of all numbers that can be learnt, the tied ones once."""
    support = hmm.support
    init, trans, emit = hmm.fields()
    if tie == "trans":
        trans = trans[support.rows[:, 0]]
    emit = emit[:, :1] if tie == "emit" else emit[support.rows[support.row_of_word] >= 0]
    cells = torch.cat([init.flatten(), trans.flatten(), emit.flatten()])
    return float(cells[torch.isfinite(cells)].sum())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pseudocount", [0.0, 0.3])
@pytest.mark.parametrize("support", SUPPORTS)
def test_the_evidence_never_falls(support, pseudocount, seed):
    model = Scalar.from_hmm(make_hmm(support, seed=seed))
    batches = [make_batch(model.support, 10 * seed + i) for i in range(2)]
    climb(model, batches, pseudocount, "none")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pseudocount", [0.0, 0.3])
@pytest.mark.parametrize("tie", ["emit", "trans"])
@pytest.mark.parametrize("support", ["blocks", "uneven", "one"])
def test_the_evidence_of_tied_tables_never_falls(support, tie, pseudocount, seed):
    model = Scalar.from_hmm(make_hmm(support, seed=seed))
    batches = [make_batch(model.support, 10 * seed + i) for i in range(2)]
    climb(model, batches, pseudocount, tie)
    hmm = model()
    for row in model.support.rows.tolist():
        states = [state for state in row if state >= 0]
        for state in states if tie == "trans" else []:
            torch.testing.assert_close(
                hmm.transitions.rows(state, state + 1),
                hmm.transitions.rows(states[0], states[0] + 1),
            )
    if tie == "emit":
        inside = model.support.rows[model.support.row_of_word] >= 0
        first = hmm.log_emit[:, :1].expand_as(hmm.log_emit)
        torch.testing.assert_close(hmm.log_emit[inside], first[inside])


def climb(model: Scalar, batches: list[Batch], pseudocount: float, tie: str) -> None:
    learner, reached = Em(model, pseudocount=pseudocount, tie=tie), []
    for _ in range(6):
        before = log_evidence(model, batches)
        reached.append(before + pseudocount * log_prior(model().detach(), tie))
        step = learner.step(batches, 1.0, 0.0)
        tokens = sum(batch.num_tokens for batch in batches)
        assert (step.tokens, step.size) == (tokens, 0.0)
        assert step.loss == pytest.approx(-before / tokens, abs=1e-12)
    model().detach().validate()
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(reached)), reached
    assert reached[-1] > reached[0] + 0.01


def test_tied_counts_are_summed_and_each_number_has_one_pseudocount():
    """By hand, from the counts: words 0 and 3 come from state 0, the others from 1, 2 and 3."""
    hmm = make_hmm("uneven")
    batch = make_batch(hmm.support, 0)
    for tie in ("emit", "trans"):
        model = Scalar.from_hmm(hmm)
        learner = Em(model, pseudocount=0.5, tie=tie)
        how = {"lengths": batch.lengths, "restart": batch.restart}
        counted = inference.counts(model().detach(), batch.tokens, **how)
        learner.step([batch], 1.0, 0.0)
        now = model().detach()
        if tie == "emit":
            sums = counted.emit.sum(1) + 0.5
            for words, slots in (([0, 3], 1), ([1, 2, 4], 3)):
                expected = (sums[words] / sums[words].sum()).log()[:, None].expand(-1, slots)
                torch.testing.assert_close(now.log_emit[words, :slots], expected)
        else:
            sums = counted.trans[1:].sum(0) + 0.5
            expected = (sums / sums.sum()).log().expand(3, -1)
            torch.testing.assert_close(now.transitions.rows(1, 4), expected)
            alone = counted.trans[0] + 0.5
            torch.testing.assert_close(now.transitions.rows(0, 1)[0], (alone / alone.sum()).log())


@pytest.mark.parametrize("seed", [0, 1])
def test_a_step_is_that_of_hmmlearn(seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from hmmlearn.hmm import CategoricalHMM
    hmm = make_hmm(Support.dense(11, 7), seed=seed)
    other = CategoricalHMM(7, n_iter=1, init_params="", n_features=11)
    other.startprob_, other.transmat_, other.emissionprob_ = (
        np.ascontiguousarray(table.exp().numpy())
        for table in (hmm.log_init, hmm.transitions.rows(0, 7), hmm.log_emit.T)
    )
    batch = make_batch(hmm.support, seed, rows=6, steps=40)
    batch.restart[:, 1:] = False
    kept = [row[:n] for row, n in zip(batch.tokens, batch.lengths.tolist(), strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.fit(torch.cat(kept)[:, None].numpy(), batch.lengths.tolist())
    model = Scalar.from_hmm(hmm)
    step = Em(model).step([batch], 1.0, 0.0)
    mine = model().detach()
    assert step.loss * batch.num_tokens == pytest.approx(-other.monitor_.history[0], abs=1e-6)
    near = {"rtol": 0, "atol": 1e-6}
    np.testing.assert_allclose(mine.log_init.exp().numpy(), other.startprob_, **near)
    np.testing.assert_allclose(mine.transitions.rows(0, 7).exp(), other.transmat_, **near)
    np.testing.assert_allclose(mine.log_emit.exp().T.numpy(), other.emissionprob_, **near)


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_the_rate_mixes_probabilities(rate):
    old, batch = make_hmm("ragged"), make_batch(make_support("ragged"), 3)
    whole, part = Scalar.from_hmm(old), Scalar.from_hmm(old)
    Em(whole).step([batch], 1.0, 0.0)
    Em(part).step([batch], rate, 0.0)
    for new, mixed, before in zip(
        whole().fields(), part().fields(), Scalar.from_hmm(old)().fields(), strict=True
    ):
        expected = rate * new.exp() + (1 - rate) * before.exp()
        torch.testing.assert_close(mixed.exp(), expected, rtol=0, atol=1e-12)


def test_batches_are_summed_and_reduced():
    """Two processes that add up what they counted step as one with all batches."""
    support = make_support("blocks")
    batches = [make_batch(support, i) for i in range(4)]
    alone = Scalar.from_hmm(make_hmm("blocks"))
    Em(alone).step(iter(batches), 1.0, 0.0)
    seen: list[list[Tensor]] = []
    first = Expectation(reduce=lambda sums: seen.append([s.clone() for s in sums]))
    Em(Scalar.from_hmm(make_hmm("blocks")), first).step(batches[:1], 1.0, 0.0)
    assert {total.dtype for total in seen[0]} == {torch.float64}

    def add(sums: list[Tensor]) -> None:
        for mine, theirs in zip(sums, seen[0], strict=True):
            mine += theirs

    together = Scalar.from_hmm(make_hmm("blocks"))
    step = Em(together, Expectation(reduce=add)).step(batches[1:], 1.0, 0.0)
    assert step.tokens == sum(batch.num_tokens for batch in batches)
    for mine, theirs in zip(alone.parameters(), together.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_what_is_impossible_stays_so_and_what_is_not_seen_stays_as_it_was():
    hmm = make_hmm("blocks")  # words 0 and 3 come from states 0 and 1
    trans = torch.zeros(4, 4).double()
    trans[0, 1] = -torch.inf
    trans = torch.log_softmax(trans, 1)
    start = HMM(hmm.log_init, type(hmm.transitions)(trans), hmm.log_emit, hmm.support)
    batch = make_batch(hmm.support, 0)
    batch.tokens[:] = torch.where(batch.tokens % 2 == 0, 0, 3)
    model = Scalar.from_hmm(start)
    Em(model).step([batch], 1.0, 0.0)
    now = model().detach()
    assert torch.isneginf(now.transitions.rows(0, 1)[0, 1])
    torch.testing.assert_close(now.transitions.rows(2, 4), trans[2:])
    block = [1, 2, 4]  # no word of theirs occurred
    torch.testing.assert_close(now.log_emit[block], hmm.log_emit[block])
    assert (
        torch.isneginf(now.log_init[2:]).all()
        and torch.isneginf(now.transitions.rows(0, 2))[:, 2:].all()
    )
    batch.tokens[0, 0] = 2
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=r"zero to 1 of the rows of text\. .*pseudocount"):
        Em(model).step([batch], 1.0, 0.0)
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def planted() -> HMM:
    """Six tags, each with words of its own most of the time, that follow one another in a ring."""
    tags, words = 6, 30
    near = torch.full((tags, tags), 0.06)
    near[torch.arange(tags), (torch.arange(tags) + 1) % tags] = 0.7
    emit = torch.full((tags, words), 0.3 / words)
    for tag in range(tags):
        emit[tag, 4 * tag : 4 * tag + 6] += 0.7 / 6  # neighbours share words
    init = torch.full((tags,), 1 / tags)
    return HMM.from_tables(init.log(), near.log(), emit.log())


def best_map(found: Tensor, truth: Tensor, tags: int) -> float:
    """Accuracy under the best one-to-one map of states to tags."""
    table = torch.zeros(tags, tags).index_put(
        (found.flatten(), truth.flatten()), torch.ones(truth.numel()), accumulate=True
    )
    maps = torch.tensor(list(itertools.permutations(range(tags))))
    return float(table[torch.arange(tags), maps].sum(1).max() / truth.numel())


def test_a_few_labels_find_planted_tags():
    hmm = planted()
    generator = torch.Generator().manual_seed(0)
    drawn = inference.sample(hmm, num_samples=60, length=20, generator=generator)
    given = torch.rand(drawn.states.shape, generator=generator) < 0.15
    labels = torch.where(given, drawn.states, -1)
    restart = torch.zeros(60, 20, dtype=torch.bool)
    restart[:, 0] = True
    batch = Batch(drawn.tokens, torch.full((60,), 20), restart, 1200, labels)
    found = {}
    for name, kinds in (("labelled", torch.arange(6)), ("unlabelled", None)):
        generator = torch.Generator().manual_seed(3)
        model = Scalar(hmm.support, scale=0.5, generator=generator)
        learner = Em(model, Expectation(label_of_state=kinds), pseudocount=0.1)
        losses = [learner.step([batch], 1.0, 0.0).loss for _ in range(40)]
        assert losses[-1] < losses[0]
        paths = inference.viterbi(model().detach(), batch.tokens).states
        right = (paths == drawn.states)[~given].float().mean()
        found[name] = float(right) if kinds is not None else best_map(paths, drawn.states, 6)
    truth = inference.viterbi(hmm, batch.tokens).states
    assert found["labelled"] > 0.9 * float((truth == drawn.states).float().mean())
    assert found["labelled"] > found["unlabelled"] + 0.05, found


def test_the_evidence_of_text_and_labels_never_falls():
    hmm = make_hmm("dense")
    batch = make_batch(hmm.support, 5, rows=8)
    inside = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
    labels = torch.where(inside & (batch.tokens % 2 == 0), batch.tokens % 3, -1)
    learner = Em(Scalar.from_hmm(hmm), Expectation(label_of_state=torch.arange(3)))
    losses = [learner.step([batch._replace(labels=labels)], 1.0, 0.0).loss for _ in range(8)]
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(losses)) and losses[-1] < losses[0]


KINDS = {"lowrank": lowrank.Settings(width=4), "mlp": mlp.Settings(width=4)}


@pytest.mark.parametrize("rate", [0.03, 30.0])
@pytest.mark.parametrize("support", ["dense", "blocks", "ragged"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_towards_counts_never_lower_the_evidence(kind, support, rate):
    """At a rate far too high as well: the weights then stay as they were."""
    generator = torch.Generator().manual_seed(0)
    model = KINDS[kind].build(make_support(support), generator=generator, dtype=torch.float64)
    batches = [make_batch(model.support, seed) for seed in range(2)]
    settings = TrainSettings(weight_decay=0.0)
    learner = GeneralisedEm(model, settings=settings, gradient_steps=3)
    reached = [log_evidence(model, batches)]
    for _ in range(5):
        step = learner.step(batches, rate, 0.0)
        assert step.loss * step.tokens == pytest.approx(-reached[-1], abs=1e-9)
        reached.append(log_evidence(model, batches))
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(reached)), reached
    assert rate > 1 or reached[-1] > reached[0] + 0.1
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_towards_counts_and_pseudocounts():
    generator = torch.Generator().manual_seed(0)
    settings = lowrank.Settings(width=4, scale=1.0)
    model = settings.build(make_support("uneven"), generator=generator, dtype=torch.float64)
    batches, pseudocount = [make_batch(model.support, 0)], 20.0
    learner = GeneralisedEm(
        model, settings=TrainSettings(weight_decay=0.0), gradient_steps=3, pseudocount=pseudocount
    )
    reached, priors = [], []
    for _ in range(6):
        priors.append(log_prior(with_table(model().detach()), "none"))
        reached.append(log_evidence(model, batches) + pseudocount * priors[-1])
        learner.step(batches, 0.05, 0.0)
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(reached)), reached
    assert priors[-1] > priors[0] + 1


def test_ranks_have_the_weights_of_one_after_a_step_of_gradients():
    model = lowrank.Settings(width=3).build(
        Support.dense(5, 3), generator=torch.Generator().manual_seed(0)
    )
    batch = make_batch(Support.dense(5, 3), seed=1)

    def share(tensors: list[Tensor]) -> None:
        for tensor in tensors:
            tensor.fill_(0.25)

    learner = GeneralisedEm(model, settings=TrainSettings(), gradient_steps=1, share=share)
    learner.step([batch], 0.1, 0.0)
    assert all(bool((parameter == 0.25).all()) for parameter in model.parameters())


def test_weights_stay_where_no_rate_helps(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    model = KINDS["lowrank"].build(make_support("dense"), generator=generator)
    batch, tried = make_batch(model.support, 0), []
    learner = GeneralisedEm(model, settings=TrainSettings())

    def downhill(sums, rate):
        tried.append(rate)
        for parameter in model.parameters():
            parameter.data += 1 + torch.arange(parameter.numel()).view_as(parameter) % 3

    monkeypatch.setattr(learner, "_climb", downhill)
    before = copy.deepcopy(model.state_dict())
    learner.step([batch], 0.8, 0.0)
    assert tried == [0.8, 0.4, 0.2, 0.1, 0.05, 0.025]
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


@pytest.mark.parametrize("transitions", ["dense", "factored"])
@pytest.mark.parametrize("support", ["dense", "ragged"])
def test_the_gradient_of_expected_log_prob_is_the_counts(support, transitions):
    hmm = make_hmm(support, transitions)
    batch = make_batch(hmm.support, 1)
    sums = Expectation()(with_table(hmm), [batch])
    for field in hmm.fields():
        field.requires_grad_()
    value = expected_log_prob(hmm, sums)
    value.backward()
    how = {"lengths": batch.lengths, "restart": batch.restart}
    counted = inference.counts(hmm.detach(), batch.tokens, **how)
    for field, count in zip(hmm.fields(), counted.fields(), strict=True):
        torch.testing.assert_close(field.grad, count, rtol=0, atol=1e-10)
    evidence = float(sums.log_evidence)
    assert evidence == pytest.approx(float(counted.log_evidence.sum()), abs=1e-10)
    assert float(value.detach()) < evidence  # by the entropy of the path


def test_polishing_the_tables_of_a_low_rank_model():
    generator = torch.Generator().manual_seed(0)
    model = KINDS["lowrank"].build(make_support("blocks"), generator=generator)
    with torch.no_grad():
        polished = Scalar.from_hmm(model())
    batch = make_batch(model.support, 0)
    assert log_evidence(polished, [batch]) == pytest.approx(log_evidence(model, [batch]), abs=1e-4)
    Em(polished).step([batch], 1.0, 0.0)
    assert log_evidence(polished, [batch]) > log_evidence(model, [batch]) + 1


@pytest.mark.parametrize("learner", ["em", "gem"])
def test_going_on_is_as_if_nothing_had_happened(learner):
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(5, (130,), generator=generator).numpy()
    tokens = TokenArray.from_ids(ids, eos_id=EOS)
    settings = TrainSettings(
        **{**BAUM_WELCH, "accumulate": 2, "learning_rate": 0.5, "schedule": "power", "epochs": 3}
    )

    def make() -> Training:
        model = Scalar(make_support("uneven"), generator=torch.Generator().manual_seed(1))
        expectation = Expectation()
        made = (
            Em(model, expectation, pseudocount=0.1)
            if learner == "em"
            else GeneralisedEm(model, expectation, settings=settings, gradient_steps=2)
        )
        return Training(made, Windows(tokens, 3, 7), settings=settings)

    whole = make()
    first = [step._replace(tokens_per_second=0) for step in whole]
    for stop in (1, len(first) // 2, len(first) - 1):
        before, after = make(), make()
        steps = iter(before)
        done = [next(steps)._replace(tokens_per_second=0) for _ in range(stop)]
        after.restore(State(*copy.deepcopy(before.state())))
        done += [step._replace(tokens_per_second=0) for step in after]
        assert done == first


def test_the_power_schedule():
    settings = TrainSettings(**{**BAUM_WELCH, "learning_rate": 0.8, "schedule": "power"})
    rates = [learning_rate(settings, step, 10) for step in (1, 2, 10)]
    assert rates == pytest.approx([0.8, 0.8 * 2**-0.6, 0.8 * 10**-0.6])
    with pytest.raises(InputError, match=r"schedule_power is 0\.0 but must be more than 0"):
        TrainSettings(schedule_power=0.0)


def test_what_is_refused():
    model = Scalar.from_hmm(make_hmm("dense"))
    with pytest.raises(InputError, match="ties the states of a block, but this model has no bl"):
        Em(model, tie="emit")
    with pytest.raises(InputError, match="but this model shares states among words; use model"):
        Em(Scalar.from_hmm(make_hmm("ragged")), tie="trans")
    with pytest.raises(InputError, match="tie is 'words' but must be one of none, emit, trans"):
        Em(model, tie="words")
    with pytest.raises(InputError, match=r"pseudocount is -1\.0 but must be at least 0"):
        Em(model, pseudocount=-1.0)
    with pytest.raises(InputError, match=r"pseudocount is -1\.0 but must be at least 0"):
        GeneralisedEm(model, settings=TrainSettings(), pseudocount=-1.0)
    with pytest.raises(InputError, match="gradient_steps is 0 but must be at least 1"):
        GeneralisedEm(model, settings=TrainSettings(), gradient_steps=0)
    with pytest.raises(InputError, match=r"the weight of the new tables, at most 1, not 1\.5"):
        Em(model).step([], 1.5, 0.0)
