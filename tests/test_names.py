"""Names that people's programs rely on: a change here is a change for them."""

import inspect

import pytest
import torch

import hmmlm
from hmmlm import HMM, Model, Support, inference, interchange

COMMON = ["lengths", "belief", "reset_id", "restart", "implementation"]
PLAIN = ["lengths", "belief", "reset_id", "implementation"]
COMPARING = ["length", "num_samples", "reset_id", "generator"]
FUNCTIONS = {  # positional arguments, then those that only go by keyword
    "log_prob": (["hmm", "tokens"], COMMON),
    "token_log_probs": (["hmm", "tokens"], COMMON),
    "filter": (["hmm", "tokens"], COMMON),
    "smooth": (["hmm", "tokens"], COMMON),
    "counts": (["hmm", "tokens"], COMMON),
    "viterbi": (["hmm", "tokens"], COMMON),
    "sample_paths": (["hmm", "tokens"], ["num_samples", "generator", *COMMON]),
    "sample": (["hmm", "tokens"], ["length", "num_samples", "stop_id", "generator", *PLAIN]),
    "word_log_probs": (["hmm", "tokens"], ["log_weights", *COMMON]),
    "fill_log_prob": (["hmm", "tokens", "filled"], ["log_weights", *COMMON]),
    "sample_fills": (["hmm", "tokens"], ["log_weights", "num_samples", "generator", *COMMON]),
    "gap_lengths": (["hmm", "tokens", "at"], ["length", "filler", "log_weights", *PLAIN]),
    "sample_gap": (
        ["hmm", "tokens", "at"],
        ["length", "filler", "log_weights", "num_samples", "generator", *PLAIN],
    ),
    "best_paths": (["hmm", "tokens"], ["k", "log_weights", *COMMON[:-1]]),
    "min_risk_path": (["hmm", "tokens"], ["log_weights", *COMMON]),
    "path_entropy": (["hmm", "tokens"], ["log_weights", *COMMON[:-1]]),
    "pseudo_log_prob": (["hmm", "tokens"], ["log_weights", *PLAIN[:-1]]),
    "context_log_probs": (["hmm", "tokens"], PLAIN[:-1]),
    "soften": (["hmm", "log_weights"], []),
    "word_information": (["hmm", "first", "second"], []),
    "state_information": (["hmm", "first", "second"], []),
    "cross_entropy": (["model", "other"], COMPARING),
    "kl_divergence": (["model", "other"], COMPARING),
    "next_log_probs": (["state", "tokens"], COMMON),
    "start": (["hmm", "batch"], ["reset_id"]),
    "advance": (["state", "token"], ["implementation"]),
}


def test_the_front_door_has_three_names():
    assert hmmlm.HMM is HMM and hmmlm.Support is Support and hmmlm.Model is Model
    assert set(hmmlm.__all__) == {"HMM", "Model", "Support", "__version__"}
    with pytest.raises(AttributeError, match="module 'hmmlm' has no attribute 'Hmm'"):
        _ = hmmlm.Hmm


def test_inference_has_these_functions():
    assert set(inference.__all__) == {*FUNCTIONS, "State"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_of_an_inference_function(name):
    parameters = inspect.signature(getattr(inference, name)).parameters.values()
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    placed = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    assert (placed, named) == FUNCTIONS[name]
    defaults = {"lengths": None, "belief": None, "reset_id": None, "implementation": "auto"}
    for p in parameters:
        if p.name in defaults and p.kind is p.KEYWORD_ONLY:
            assert p.default == defaults[p.name]


def test_next_log_probs_takes_a_state_or_an_hmm_with_tokens():
    hmm = two_states()
    tokens = torch.tensor([[0, 2]])
    state = inference.advance(inference.start(hmm, 1), tokens)
    torch.testing.assert_close(
        inference.next_log_probs(state), inference.next_log_probs(hmm, tokens)
    )


def test_from_tables_takes_emissions_by_state():
    parameters = list(inspect.signature(HMM.from_tables).parameters)
    assert parameters == ["log_init", "log_trans", "log_emit", "support"]
    hmm = two_states()
    assert (hmm.num_states, hmm.vocab_size) == (2, 3)
    first = inference.log_prob(hmm, torch.tensor([[1]])).log_evidence
    assert float(first.exp()) == pytest.approx(0.25 * 0.3 + 0.75 * 0.1)


@pytest.mark.parametrize(
    ("name", "arguments"),
    {
        "save": ["self", "folder", "metrics"],
        "load": ["folder", "device", "check_rows"],
        "score": ["self", "lines"],
        "perplexity": ["self", "lines", "mode"],
        "posterior": ["self", "line"],
        "viterbi": ["self", "lines"],
        "tag": ["self", "lines"],
        "sample": ["self", "count", "prompt", "length", "seed", "constraint"],
        "probability": ["self", "constraint", "prompt", "length"],
        "log_probability": ["self", "constraint", "prompt", "length"],
        "look_ahead": ["self", "constraint", "length", "weights"],
        "next": ["self", "prompt", "k"],
        "fill": ["self", "pattern", "n", "length", "seed"],
        "gap_words": ["self", "pattern", "k", "length"],
        "span": ["self", "pattern", "words", "length"],
        "top_words": ["self", "state", "k"],
    }.items(),
)
def test_methods_of_a_model(name, arguments):
    assert list(inspect.signature(getattr(Model, name)).parameters) == arguments


@pytest.mark.parametrize(
    ("name", "arguments"),
    {
        "read": ["path", "tokenizer", "eos"],
        "from_hmmlearn": ["model"],
        "from_pomegranate": ["model"],
        "from_dynamax": ["params"],
        "write_ctrl_g": ["model", "folder", "eos_id", "end_state"],
    }.items(),
)
def test_functions_of_interchange(name, arguments):
    assert name in interchange.__all__ and len(interchange.__all__) == 5
    assert list(inspect.signature(getattr(interchange, name)).parameters) == arguments


@pytest.mark.parametrize("name", ["dense", "from_clusters", "uniform", "ragged"])
def test_a_support_is_made_in_four_ways(name):
    assert isinstance(inspect.getattr_static(Support, name), staticmethod)


def two_states() -> HMM:
    emit = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.1, 0.7]])
    trans = torch.tensor([[0.9, 0.1], [0.4, 0.6]])
    return HMM.from_tables(torch.tensor([0.25, 0.75]).log(), trans.log(), emit.log())
