"""The same answers on a GPU as on a CPU."""

import pytest
import torch

from hmmlm import inference
from hmmlm.results import StateProbs
from models import SUPPORTS, TRANSITIONS, make_hmm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
TOKENS = torch.tensor([[0, 3, -1, 1, 2, 2], [4, 1, 1, 0, 0, 3], [-1, 1, 2, 0, 0, 0]])
LENGTHS = torch.tensor([6, 5, 3])


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_function(support: str, transitions: str, dtype: torch.dtype) -> None:
    hmm = make_hmm(support, transitions, dtype=dtype)
    there = hmm.to("cuda")
    # Counts become numbers of hundreds below, of which float32 has seven digits.
    tolerance = (
        {"rtol": 0, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 2e-6, "atol": 1e-4}
    )
    how = {"lengths": LENGTHS, "reset_id": 1}
    for name in ("log_prob", "filter", "smooth", "counts", "viterbi", "next_log_probs"):
        for implementation in ("reference", "scaled"):
            if name == "viterbi" and implementation == "scaled":
                continue
            run = getattr(inference, name)
            ours = run(hmm, TOKENS, implementation=implementation, **how)
            theirs = run(there, TOKENS.cuda(), implementation=implementation, **how)
            for one, other in zip(tensors(ours), tensors(theirs), strict=True):
                assert other.device.type == "cuda"
                if one.is_floating_point():
                    one, other = one.exp(), other.exp()
                torch.testing.assert_close(other.cpu(), one, **tolerance)
    generator = torch.Generator("cuda").manual_seed(0)
    paths = inference.sample_paths(there, TOKENS.cuda(), generator=generator, **how).states
    assert paths.device.type == "cuda" and (paths[0] >= 0).all()
    drawn = inference.sample(there, length=4, num_samples=3, generator=generator)
    assert drawn.tokens.shape == (3, 4)
    state = inference.advance(inference.start(there, 2), torch.tensor([0, 3]).cuda())
    total = inference.next_log_probs(state).exp().sum(1).cpu().double()
    torch.testing.assert_close(total, torch.ones(2).double(), rtol=0, atol=1e-5)


def tensors(result) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result[:-1] if isinstance(result, StateProbs) else result
    return [t for part in parts for t in (tensors(part) if part is not None else [])]
