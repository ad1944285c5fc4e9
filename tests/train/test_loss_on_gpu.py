"""The loss on a GPU: the same number and the same gradient as on a CPU."""

import pytest
import torch

from hmmlm.data.batches import Batch
from hmmlm.params import lowrank, mlp, scalar, transformer
from hmmlm.params.dropout import FreeKeeper, Keeper, keep_states
from hmmlm.support import Support
from hmmlm.train.loss import Dropout, HmmLoss, arithmetic

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DEVICES = ("cpu", "cuda")
SETTINGS = {
    "scalar": scalar.Settings(),
    "lowrank": lowrank.Settings(width=8),
    "mlp": mlp.Settings(width=8),
    "transformer": transformer.Settings(width=8, heads=2),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("shape", ["dense", "blocks", "overlapping"])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_loss_and_gradient(name: str, shape: str, rate: float, monkeypatch) -> None:
    blocks = 4 if shape == "blocks" else 1
    support = Support.from_clusters(torch.arange(30) % blocks, 16 // blocks)
    if shape == "overlapping":
        support = Support.uniform(30, 16, 8, torch.Generator().manual_seed(5))
    # A generator of another device draws other numbers: both keep the states that one drew.
    kept = keep_states(support, rate, torch.Generator().manual_seed(3))
    for keeper in (Keeper, FreeKeeper):
        monkeypatch.setattr(keeper, "draw", lambda self, generator: kept.to(generator.device))
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(30, (4, 20), generator=generator)
    restart = torch.rand(4, 20, generator=generator) < 0.2
    batch = Batch(tokens, torch.tensor([20, 20, 7, 1]), restart, 48)
    values, gradients = [], []
    for device in DEVICES:
        start = torch.Generator().manual_seed(0)
        model = SETTINGS[name].build(support, generator=start).to(device)
        loss = HmmLoss(model, support, dropout=Dropout(rate))
        value = loss(batch, 0.0)
        value.backward()
        values.append(float(value.detach()))
        gradients.append([p.grad.cpu() for p in model.parameters() if p.grad is not None])
    assert values[0] == pytest.approx(values[1], abs=1e-4)
    assert len(gradients[0]) == len(gradients[1]) > 0
    for ours, truth in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["lowrank", "mlp", "transformer"])
@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_mixed_precision(name: str, blocks: int, precision: str) -> None:
    support = Support.from_clusters(torch.arange(300) % blocks, 64 // blocks)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(300, (4, 20), generator=generator)
    batch = Batch(tokens, torch.full((4,), 20), torch.zeros(4, 20, dtype=torch.bool), 80)
    start = torch.Generator().manual_seed(0)
    exact = SETTINGS[name].build(support, generator=start, dtype=torch.float64)
    model = SETTINGS[name].build(support, generator=start)
    model.load_state_dict(exact.state_dict())
    wanted = HmmLoss(exact, support)(batch, 0.0)
    model.to("cuda")
    with arithmetic(precision, "cuda"):
        hmm = model()
        found = HmmLoss(model, support)(batch, 0.0)
    found.backward()
    assert hmm.detach().transitions.row_error(torch.arange(64, device="cuda")) < 1e-5
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-3)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
