"""Models that pomegranate and dynamax have made themselves, where these are installed."""

import numpy as np
import pytest
import torch

from hmmlm import HMM, inference
from hmmlm.interchange import from_dynamax, from_pomegranate, read

pytestmark = pytest.mark.filterwarnings("ignore")


def log_p(hmm: HMM, words: list[int]) -> float:
    return float(inference.log_prob(hmm, torch.tensor([words])).log_evidence)


def test_a_fitted_model_of_pomegranate(tmp_path):
    hmms = pytest.importorskip("pomegranate.hmm")
    edges = torch.softmax(torch.randn(4, 4), 1)
    model = hmms.DenseHMM(some_states(), edges=edges, starts=[0.25] * 4, max_iter=3)
    texts = torch.randint(0, 6, (20, 9, 1))
    text = texts[0, :, 0].tolist()
    before = float(model.log_probability(texts[:1]))  # with ends of 1/4, which it made up
    assert log_p(from_pomegranate(model), text) == pytest.approx(before + np.log(4), abs=1e-5)
    model.fit(texts)  # from now on edges and ends sum to one together
    wanted = float(model.log_probability(texts[:1]))
    assert log_p(from_pomegranate(model), [*text, 6]) == pytest.approx(wanted, abs=1e-5)
    np.savez(tmp_path / "x.npz", **{name: t.numpy() for name, t in model.state_dict().items()})
    again = read(tmp_path / "x.npz")
    assert isinstance(again, HMM)
    assert log_p(again, [*text, 6]) == pytest.approx(wanted, abs=1e-5)


def test_a_sparse_model_of_pomegranate(tmp_path):
    hmms = pytest.importorskip("pomegranate.hmm")
    states = some_states()
    edges = [(states[i], states[j], 0.45) for i in range(4) for j in (i, (i + 1) % 4)]
    model = hmms.SparseHMM(states, edges=edges, starts=[0.25] * 4, ends=[0.1] * 4)
    text = torch.randint(0, 6, (1, 9, 1))
    wanted, words = float(model.log_probability(text)), [*text[0, :, 0].tolist(), 6]
    assert log_p(from_pomegranate(model), words) == pytest.approx(wanted, abs=1e-5)
    np.savez(tmp_path / "x.npz", **{name: t.numpy() for name, t in model.state_dict().items()})
    again = read(tmp_path / "x.npz")
    assert isinstance(again, HMM)
    assert log_p(again, words) == pytest.approx(wanted, abs=1e-5)


def some_states() -> list:
    distributions = pytest.importorskip("pomegranate.distributions")
    torch.manual_seed(0)
    return [distributions.Categorical(torch.softmax(torch.randn(1, 6), 1)) for _ in range(4)]


def test_parameters_of_dynamax():
    hmms = pytest.importorskip("dynamax.hidden_markov_model")
    random = pytest.importorskip("jax.random")
    model = hmms.CategoricalHMM(4, 1, 6)
    params, _ = model.initialize(random.PRNGKey(1))
    text = np.random.default_rng(0).integers(0, 6, 9)
    wanted = float(model.marginal_log_prob(params, text[:, None]))
    assert log_p(from_dynamax(params), text.tolist()) == pytest.approx(wanted, abs=1e-5)
