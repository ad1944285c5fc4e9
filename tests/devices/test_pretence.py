"""The GPU of pretence refuses what CUDA refuses, and counts what waits for it."""

import pytest
import torch

from pretend_gpu import pretend_gpu


def test_tensors_of_two_devices_do_not_meet():
    with pretend_gpu():
        there, here = torch.arange(3.0, device="cuda"), torch.ones(3)
        assert there.is_cuda and there.device == torch.device("cuda:0") and not here.is_cuda
        for meet in (
            lambda: there + here,
            lambda: here.gather(0, there.long()),
            lambda: here[there.long()],
            lambda: torch.cat([there, here]),
            lambda: torch.mm(there[None], here[:, None]),
            lambda: here.__iadd__(there[0]),
        ):
            with pytest.raises(RuntimeError, match="at least two devices"):
                meet()
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            there.numpy()
        for device, draws in (("cuda", torch.Generator()), ("cpu", torch.Generator("cuda"))):
            with pytest.raises(RuntimeError, match="device type for generator but found"):
                torch.rand(2, device=device, generator=draws)
        assert (there + torch.tensor(1.0)).tolist() == [1.0, 2.0, 3.0]  # a number may come along
        here.copy_(there)
        assert here.tolist() == [0.0, 1.0, 2.0]


def test_what_is_computed_there_stays_there():
    with pretend_gpu():
        layer = torch.nn.Linear(3, 2).to("cuda")
        layer(torch.ones(4, 3, device="cuda")).sum().backward()
        assert layer.weight.grad is not None and layer.weight.grad.is_cuda
        there = torch.zeros(3, device="cuda")
        there[[0, 2]] = 1.0
        there += 1
        found = (there.new_zeros(2), there.new_tensor([1]), torch.as_tensor(there), there[1:])
        assert all(tensor.is_cuda for tensor in found) and there.tolist() == [2.0, 1.0, 2.0]
        assert not there.cpu().is_cuda
    assert not torch.cuda.is_available() or torch.version.cuda


@pytest.mark.parametrize(
    ("wait", "number"),
    [
        (lambda x: x.sum().item(), 1),
        (lambda x: bool((x > 0).any()), 1),
        (lambda x: x.tolist(), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: x.unique(), 1),
        (lambda x: torch.equal(x, x), 1),
        (lambda x: x[torch.tensor([0])], 1),
        (lambda x: x.repeat_interleave(x.long()), 1),
        (lambda x: torch.multinomial(x, 1), 2),
        (lambda x: torch.where(x > 0, x, 0.0).cumsum(0), 0),
        (lambda x: x.masked_fill(x > 0, 1.0), 0),
        (lambda x: x.clone().__setitem__(x > 0, 1.0), 0),
    ],
)
def test_waits_are_counted(wait, number):
    with pretend_gpu() as gpu:
        there = torch.arange(3.0, device="cuda")
        assert sum(gpu.copies.values()) == 0
        gpu.clear()
        wait(there)
        assert sum(gpu.waits.values()) == number
