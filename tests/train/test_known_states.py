"""Learning from words whose states are known, before those whose states are not."""

import pytest
import torch

from hmmlm.data.batches import Batch, Windows
from hmmlm.data.shards import TokenArray
from hmmlm.inference import sample
from hmmlm.params import lowrank, mlp, scalar
from hmmlm.support import Support
from hmmlm.train.graph import GraphedSteps
from hmmlm.train.loop import Training, TrainSettings
from hmmlm.train.loss import Dropout, HmmLoss
from hmmlm.train.sgd import Sgd
from models import make_hmm

BLOCKS = Support.from_clusters([0, 1, 1, 0, 1], [2, 3])
KINDS = {"scalar": scalar.Settings(), "lowrank": lowrank.Settings(width=4)}
KINDS["mlp"] = mlp.Settings(width=4)


def make_batch(known: bool = True) -> Batch:
    tokens = torch.tensor([[0, 1, 3, 4], [2, 2, 0, 0]])
    labels = torch.tensor([[1, 2, 0, 4], [3, 2, -1, -1]])
    if not known:
        labels[0, 2] = -1
    restart = torch.tensor([[True, False, False, True], [True, False, False, False]])
    return Batch(tokens, torch.tensor([4, 2]), restart, 6, labels)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_sum_of_the_cells(kind: str) -> None:
    model = KINDS[kind].build(
        BLOCKS, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    loss = HmmLoss(model, BLOCKS, dropout=Dropout(0.5), joint=True)
    value = loss(make_batch(), 0.0)
    hmm = model()
    trans = hmm.transitions.rows(0, 5)
    slot = {1: 1, 2: 0, 0: 0, 4: 2, 3: 1}  # of a state in its block
    direct = hmm.log_init[[1, 4, 3]].sum() + trans[1, 2] + trans[2, 0] + trans[3, 2]
    pairs = [(0, 1), (1, 2), (3, 0), (4, 4), (2, 3), (2, 2)]
    direct = direct + sum(hmm.log_emit[word, slot[state]] for word, state in pairs)
    assert float(value.detach()) == pytest.approx(float(-direct.detach()) / 6, rel=1e-12)
    parameters = [p for p in model.parameters() if p.requires_grad]
    ours = torch.autograd.grad(value, parameters, allow_unused=True)
    wanted = torch.autograd.grad(-direct / 6, parameters, allow_unused=True)
    for one, other in zip(ours, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def test_what_is_known_only_in_part_is_learnt_as_if_nothing_were() -> None:
    model = KINDS["lowrank"].build(BLOCKS, generator=torch.Generator().manual_seed(0))
    losses = {}
    for joint in (True, False):
        for known in (True, False):
            loss = HmmLoss(model, BLOCKS, joint=joint)
            losses[joint, known] = float(loss(make_batch(known), 0.0).detach())
    plain = losses[False, False]
    assert losses[False, True] == losses[True, False] == plain < losses[True, True]


def test_no_graph_is_asked_for_what_is_known() -> None:
    model = KINDS["lowrank"].build(BLOCKS, generator=torch.Generator().manual_seed(0))
    loss = HmmLoss(model, BLOCKS, joint=True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1), fused=True)
    steps = GraphedSteps(model, loss, optimiser, TrainSettings())
    assert steps.step(make_batch(), 0.1, 0.0) is None and not steps.lost
    assert loss.fit(make_batch(known=False), 0.0) == 0.0


def test_states_that_are_shown_first_are_those_that_are_learnt() -> None:
    """A planted HMM: without them its states may come out in any order, or not at all."""
    truth = make_hmm(Support.dense(5, 3), dtype=torch.float32, seed=1)
    random = torch.Generator().manual_seed(1)
    drawn = sample(truth, length=50, num_samples=400, generator=random)
    tokens = TokenArray.from_ids(drawn.tokens.flatten().tolist(), eos_id=-1)
    shown = (drawn.states.flatten() + 1) % 3  # by other names than they have
    labels = TokenArray.from_ids((shown + 1).tolist(), eos_id=-1)
    model = KINDS["scalar"].build(truth.support, generator=torch.Generator().manual_seed(2))
    batches = Windows(tokens, 10, 50, seed=1, first=15000, labels=labels)
    settings = TrainSettings(learning_rate=0.3, epochs=4, weight_decay=0.0)
    loss = HmmLoss(model, truth.support, joint=True)
    for _ in Training(Sgd(model, loss, settings), batches, settings=settings):
        pass
    _, trans, emit = (table.exp() for table in model().fields())
    names = torch.tensor([1, 2, 0])
    wanted = truth.transitions.rows(0, 3).exp()
    torch.testing.assert_close(trans[names][:, names], wanted, rtol=0, atol=0.1)
    torch.testing.assert_close(emit[:, names], truth.log_emit.exp(), rtol=0, atol=0.1)
