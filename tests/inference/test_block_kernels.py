"""Inference on blocks by kernels, against the reference: in Triton's interpreter, or on a GPU."""

import pytest
import torch
from torch import Tensor

from hmmlm import inference
from hmmlm.errors import InputError
from hmmlm.inference import block_kernels
from hmmlm.results import Belief, Counts, StateProbs
from hmmlm.support import Support
from models import TRANSITIONS, make_hmm

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCKS = Support.from_clusters([0, 1, 2, 1, 0, 2, 1], [3, 17, 5])
LENGTHS = torch.tensor([9, 1, 6])


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(7, (3, 9), generator=torch.Generator().manual_seed(seed))


def close(ours: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(ours.cpu().double(), truth.double(), rtol=0, atol=2e-4)


@pytest.mark.parametrize("transitions", TRANSITIONS)
@pytest.mark.parametrize("stretch", [100, 4, 1])
@pytest.mark.parametrize("carried", [False, True])
def test_every_function(transitions: str, stretch: int, carried: bool, monkeypatch) -> None:
    """In one stretch and in many, from p(z1) and from a belief that was carried."""
    monkeypatch.setattr(block_kernels, "TILED", stretch * 3 * 17**2)
    monkeypatch.setattr("hmmlm.inference.smoothing.KEPT", 5 * 3 * 17)
    hmm = make_hmm(BLOCKS, transitions, scale=0.7)
    there = hmm.to(DEVICE, torch.float32)
    belief = theirs = None
    if carried:
        belief = inference.log_prob(hmm, tokens(1), lengths=LENGTHS, reset_id=4).belief
        belief = belief._replace(fresh=torch.tensor([False, True, False]))
        theirs = Belief(*(part.to(DEVICE) for part in belief))
    how = {"lengths": LENGTHS, "reset_id": 4}
    for name in ("log_prob", "filter", "smooth", "counts"):
        run = getattr(inference, name)
        truth = run(hmm, tokens(), belief=belief, implementation="reference", **how)
        ours = run(there, tokens().to(DEVICE), belief=theirs, implementation="kernel", **how)
        close(ours.log_evidence, truth.log_evidence)
        close(ours.belief.log_probs.exp(), truth.belief.log_probs.exp())
        if isinstance(truth, StateProbs):
            close(ours.dense(25).exp(), truth.dense(25).exp())
        if isinstance(truth, Counts):
            for one, other in zip(ours.fields(), truth.fields(), strict=True):
                close(one, other)
        else:
            close(ours.token_log_probs, truth.token_log_probs)


def test_a_row_that_loses_digits_is_redone() -> None:
    hmm = make_hmm(BLOCKS, "dense", scale=0.7)
    hmm.log_emit[3, 0] = -200.0
    text = tokens()
    text[0, 2] = 3
    truth = inference.counts(hmm, text, implementation="reference")
    ours = inference.counts(hmm.to(DEVICE, torch.float32), text.to(DEVICE), implementation="kernel")
    close(ours.log_evidence, truth.log_evidence)
    for one, other in zip(ours.fields(), truth.fields(), strict=True):
        close(one, other)


def test_what_no_kernel_takes() -> None:
    missing = tokens()
    missing[1, 0] = -1
    for support, dtype, text, said in (
        ("dense", torch.float32, tokens() % 5, "for training steps"),
        ("uniform", torch.float32, tokens() % 5, "share only a part"),
        (BLOCKS, torch.float64, tokens(), "the tables are float64"),
        (BLOCKS, torch.float32, missing, "a token is missing"),
    ):
        hmm = make_hmm(support, "dense", dtype=dtype)
        with pytest.raises(InputError, match=f"{said}.*use scaled, or auto"):
            inference.log_prob(hmm, text, implementation="kernel")
        assert torch.isfinite(inference.log_prob(hmm, text).log_evidence).all()


def test_a_kernel_where_there_is_no_gpu(monkeypatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    hmm = make_hmm(BLOCKS, "dense", dtype=torch.float32)
    with pytest.raises(InputError, match="this is cpu; use scaled"):
        inference.log_prob(hmm, tokens(), implementation="kernel")
