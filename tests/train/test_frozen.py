"""Parameters that stay as they are for the first share of training."""

import copy
from dataclasses import replace

import pytest
import torch

from hmmlm.data.batches import Windows
from hmmlm.data.shards import TokenArray
from hmmlm.params import lowrank
from hmmlm.support import Support
from hmmlm.train.loop import Training, TrainSettings
from hmmlm.train.loss import Dropout, HmmLoss
from hmmlm.train.sgd import Sgd

SUPPORT = Support.from_clusters([0, 1, 1, 0, 1], [2, 3])
SETTINGS = TrainSettings(epochs=2, learning_rate=0.1, weight_decay=0.5, clip=0.1)
IDS = torch.randint(5, (200,), generator=torch.Generator().manual_seed(0)).tolist()
THAW = 0.3
"""Of twenty steps, six."""


def make(thaw: float = THAW, optimiser: str = "adamw", **changes) -> Training:
    settings = replace(SETTINGS, **changes)
    model = lowrank.Settings(width=4).build(SUPPORT, generator=torch.Generator().manual_seed(0))
    loss = HmmLoss(model, SUPPORT, dropout=Dropout(0.4), seed=1)
    frozen = [model.words, model.embeddings["emit"].weight]
    sgd = Sgd(model, loss, settings, optimiser=optimiser, frozen=frozen, thaw=thaw)
    batches = Windows(TokenArray.from_ids(IDS, eos_id=-1), 4, 5, seed=1)
    return Training(sgd, batches, settings=settings)


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_they_stay_until_the_thaw_and_move_after(optimiser: str, accumulate: int) -> None:
    training = make(optimiser=optimiser, accumulate=accumulate)
    learner, thaws = training.learner, 6 // accumulate
    assert isinstance(learner, Sgd) and training.steps == 20 // accumulate
    before = [parameter.detach().clone() for parameter in learner.frozen]
    others = [p for p in learner.model.parameters() if all(p is not q for q in learner.frozen)]
    first = [parameter.detach().clone() for parameter in others]
    for progress in training:
        same = [torch.equal(p, q) for p, q in zip(learner.frozen, before, strict=True)]
        assert same == [progress.step <= thaws] * 2, progress.step
        if progress.step == thaws:  # the others do not wait
            assert not any(torch.equal(p, q) for p, q in zip(others, first, strict=True))
            assert not any(parameter in learner.optimiser.state for parameter in learner.frozen)
    if optimiser == "adamw":  # moments are those of the steps since
        state = learner.optimiser.state
        ages = [int(state[p]["step"]) for p in (learner.frozen[0], others[0])]
        assert ages == [training.steps - thaws, training.steps]


def test_they_have_no_part_in_the_gradient_s_norm() -> None:
    found = []
    for thaw in (THAW, 0.0):
        training = make(thaw)
        learner, sizes = training.learner, []
        assert isinstance(learner, Sgd)
        made = learner.step([next(iter(training.batches))], 0.1, 0.0)
        sizes = [p.grad.norm() for p in learner.model.parameters() if p.grad is not None]
        found.append((made.size, len(sizes)))
    assert found[0][0] < found[1][0] and found[0][1] == found[1][1] - 2


@pytest.mark.parametrize("stop", [1, 5, 6, 7, 15])
def test_going_on_on_either_side_of_the_thaw(stop: int) -> None:
    whole, before, after = make(), make(), make()
    first = [step._replace(tokens_per_second=0) for step in whole]
    steps = iter(before)
    done = [next(steps)._replace(tokens_per_second=0) for _ in range(stop)]
    after.restore(copy.deepcopy(before.state()))
    assert done + [step._replace(tokens_per_second=0) for step in after] == first
    ends = [training.learner.model.state_dict() for training in (whole, after)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels of a GPU take no CPU tensors")
def test_a_step_by_kernels_holds_them_too(monkeypatch) -> None:
    """As a CUDA graph would capture it; a thaw lets graphs go."""
    pytest.importorskip("triton")
    from hmmlm.train.graph import GraphedSteps

    monkeypatch.setattr("hmmlm.train.graph.WARM", 99)  # no graph without a GPU
    plain, graphed = make(), make()
    learner = graphed.learner
    assert isinstance(learner, Sgd)
    learner.optimiser = torch.optim.AdamW(
        learner.model.parameters(), lr=torch.tensor(0.1), weight_decay=0.5, fused=True
    )
    learner.graphed = GraphedSteps(learner.model, learner.loss, learner.optimiser, SETTINGS)
    before, forgotten = [p.detach().clone() for p in learner.frozen], []
    forget = learner.graphed.forget
    monkeypatch.setattr(learner.graphed, "forget", lambda: [forgotten.append(1), forget()])
    batches = list(plain.batches)[:3]
    for batch, done in zip(batches, (0.0, 0.2, 0.4), strict=True):
        one, other = (part.step([batch], 0.1, done) for part in (plain.learner, learner))
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        assert one.size == pytest.approx(other.size, rel=1e-3)
        same = [torch.equal(p, q) for p, q in zip(learner.frozen, before, strict=True)]
        assert same == [done < THAW] * 2
        # Once for those that are held, once for the dropout, and once at the thaw.
        assert len(forgotten) == (2 if done < THAW else 3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_graphs_before_and_after_the_thaw() -> None:
    from hmmlm.data.batches import Batch

    losses, ends = [], []
    for graph in (True, False):
        settings = lowrank.Settings(width=16)
        model = settings.build(SUPPORT, generator=torch.Generator().manual_seed(0)).to("cuda")
        loss = HmmLoss(model, SUPPORT, dropout=Dropout(0.4), seed=1)
        how = replace(SETTINGS, precision="bf16", learning_rate=0.01)
        sgd = Sgd(model, loss, how, frozen=[model.words], thaw=0.5)
        assert sgd.graphed is not None
        sgd.graphed.may_capture, before = graph, model.words.detach().clone()
        found = []
        for number in range(20):
            tokens = torch.randint(5, (3, 6), generator=torch.Generator().manual_seed(number))
            restart = torch.zeros(3, 6, dtype=torch.bool)
            restart[:, 0] = True
            batch = Batch(tokens, torch.tensor([6, 2, 5]), restart, 13)
            found.append(sgd.step(iter([batch]), 0.01, number / 20).loss)
            assert torch.equal(model.words, before) == (number < 10)
            assert len(sgd.graphed.graphs) == (graph and number % 10 >= 2)
        losses.append(found)
        ends.append(model.words.detach().cpu())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-3)
