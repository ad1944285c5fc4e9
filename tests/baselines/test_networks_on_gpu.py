"""The same scores and gradients on a GPU, by cuDNN, as on a CPU, and no warning of it."""

import pytest
import torch

from hmmlm.baselines.recurrent import _one_block
from hmmlm.data.shards import TokenArray
from hmmlm.data.streams import Streams
from hmmlm.train.loop import TrainSettings
from hmmlm.train.next_token import NextTokenLoss
from hmmlm.train.sgd import Sgd
from networks import SETTINGS, make, text

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_weights_in_one_block_are_the_same():
    weights = [torch.randn(4, 3, requires_grad=True), torch.randn(5, requires_grad=True)]
    block = _one_block(weights)
    assert all(torch.equal(a, b) for a, b in zip(weights, block, strict=True))
    assert block[1].data_ptr() == block[0].data_ptr() + 12 * 4
    (block[0].sum() + 2 * block[1].sum()).backward()
    assert (weights[0].grad == 1).all() and (weights[1].grad == 2).all()


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("lengths", [[9, 9, 9], [9, 4, 7]])
def test_a_gpu_agrees(name, lengths):
    tokens, lengths = text(3, 9), torch.tensor(lengths)
    found = []
    for device in ("cpu", "cuda"):
        model = make(name).to(device)
        read = model.read(tokens, lengths=lengths, reset_id=4)
        read.token_log_probs.sum().backward()
        carry = {key: part.double().cpu() for key, part in read.carry.items()}
        gradients = [parameter.grad.cpu() for parameter in model.parameters()]
        found.append((read.token_log_probs.detach().cpu(), carry, gradients))
    torch.testing.assert_close(found[0], found[1], atol=1e-9, rtol=0)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_gpu_trains(name, precision):
    model = make(name, dtype=torch.float32).cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
        read = model.read(text(4, 12), generator=generator)
        loss = read.penalty - read.token_log_probs.mean()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_graph_and_no_graph(name, precision):
    losses = []
    for graph in (True, False):
        model = make(name, dtype=torch.float32).cuda()
        loss = NextTokenLoss(model, carry=True, seed=2)
        learner = Sgd(model, loss, TrainSettings(precision=precision))
        assert learner.graphed is not None, learner.why_no_graph
        learner.graphed.may_capture = graph
        batches = Streams(TokenArray.from_ids(text(1, 600)[0].tolist(), eos_id=2), 4, 10)
        steps = [learner.step(iter([batch]), 0.01, 0.0) for _ in range(2) for batch in batches]
        assert len(learner.graphed.graphs) == graph
        losses.append([step.loss for step in steps])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
