"""Every inference function on a device says what it says on the CPU.

The device is a GPU where there is one, and else one of pretence (`pretend_gpu`). What goes with an
HMM, such as tokens and lengths, may lie on its device or on the host.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from devices.answers import check_same, drawn
from hmmlm import HMM, inference
from hmmlm.evaluate import HmmLM, evaluate, token_log_probs
from hmmlm.mixture import mixture
from hmmlm.results import Belief
from hmmlm.tempering import tempered
from models import make_hmm, with_holes

KINDS = [
    ("dense", "factored"),
    ("dense", "holes"),
    ("blocks", "factored"),
    ("uneven", "dense"),
    ("uniform", "factored"),
]
ROWS = [[0, 3, -1, 1, 2, 2], [4, 1, 1, 0, 0, 3], [-1, 1, 2, 0, 0, 0]]
UNTIED = [[0, 1, -1, 1, 4, 0], [0, 1, -1, 3, 0, 2], [-1, 3, 3, 0, 0, 2]]
"""Texts whose four best paths are a tenth of a nat or more apart, under every kind of HMM."""

WORDS = [[0, 3, 4, 1, 2, 2], [4, 1, 1, 0, 0, 3], [2, 1, 2, 0, 0, 0]]
EOS = 1
INF = torch.inf
WEIGHTS = [[0.0, -INF, -1.0, 0.7, -2.0], [-INF, -INF, 0.0, -INF, -0.5]]
Place = Callable[[Any], Any]


def belief_of(hmm: HMM, there: Place) -> Belief:
    states = torch.tensor([[0, hmm.num_states - 1, -1]]).repeat(3, 1)
    log_probs = torch.tensor([[0.3, 0.7, 0.0]], dtype=torch.float64).log().repeat(3, 1)
    return Belief(there(states), there(log_probs), there(torch.arange(3) == 1))


def given(hmm: HMM, there: Place) -> dict[str, Any]:
    restart = torch.zeros(3, 6, dtype=torch.bool)
    restart[0, 2] = restart[1, 4] = True
    return {
        "lengths": there(torch.tensor([6, 5, 3])),
        "belief": belief_of(hmm, there),
        "reset_id": EOS,
        "restart": there(restart),
    }


def less(how: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in how.items() if name not in names}


def seed(hmm: HMM) -> torch.Generator:
    return torch.Generator(hmm.device).manual_seed(3)


def passes(hmm: HMM, there: Place) -> Any:
    tokens, how = there(torch.tensor(ROWS)), given(hmm, there)
    for name in ("reference", "scaled"):
        for run in ("log_prob", "filter", "smooth", "counts", "next_log_probs"):
            yield getattr(inference, run)(hmm, tokens, implementation=name, **how)
    yield inference.token_log_probs(hmm, tokens, **how)
    if hmm.support.is_dense:
        yield inference.log_prob(hmm, tokens, implementation="scan", **how)
        yield inference.smooth(hmm, tokens, implementation="scan", **how)
    yield inference.smooth(hmm, tokens, **how).dense(hmm.num_states)


def paths(hmm: HMM, there: Place) -> Any:
    tokens, how = there(torch.tensor(ROWS)), given(hmm, there)
    soft = {"log_weights": there(torch.tensor(WEIGHTS, dtype=torch.float64))}
    yield inference.viterbi(hmm, tokens, **how)
    yield inference.best_paths(hmm, there(torch.tensor(UNTIED)), k=3, **soft, **how)
    yield inference.min_risk_path(hmm, tokens, **soft, **how)
    yield inference.path_entropy(hmm, tokens, **soft, **how)
    paths = inference.sample_paths(hmm, tokens, num_samples=2, generator=seed(hmm), **how)
    yield drawn(paths, alike=hmm.support.is_dense)  # a CPU has gaps of blocks apart


def gaps(hmm: HMM, there: Place) -> Any:
    texts = torch.tensor([[0, 5, -1, 1, 2, 2], [4, 1, -1, 6, 0, 3], [-1, 1, 2, 0, 0, 0]])
    tokens, how = there(texts), given(hmm, there)
    how["log_weights"] = there(torch.tensor(WEIGHTS, dtype=torch.float64))
    yield inference.word_log_probs(hmm, tokens, **how)
    yield inference.word_log_probs(hmm, tokens, **how).top(2)
    filled = there(torch.tensor([[0, 3, 2, 1, 2, 2], [4, 1, 0, 2, 0, 3], [4, 1, 2, 0, 0, 0]]))
    yield inference.fill_log_prob(hmm, tokens, filled, **how)
    fills = inference.sample_fills(hmm, tokens, num_samples=2, generator=seed(hmm), **how)
    yield drawn(fills, alike=hmm.support.is_dense)
    how = less(how, "restart")
    yield inference.pseudo_log_prob(hmm, tokens, **how)
    for at in (1, there(torch.tensor([1, 2, 0]))):
        yield inference.gap_lengths(hmm, tokens, at, length=(0, 2), **how)
        asked = {"length": (0, 2), "filler": 5, "num_samples": 2, **how}
        found = inference.sample_gap(hmm, tokens, at, generator=seed(hmm), **asked)
        yield drawn(found, alike=hmm.support.is_dense)


def soft(hmm: HMM, there: Place) -> Any:
    softened = inference.soften(hmm, there(torch.tensor(WEIGHTS, dtype=torch.float64)))
    tokens = there(torch.tensor([[0, 5, -1, 1, 6, 2], [4, 1, 1, 6, 0, 3], [5, 1, 2, 0, 0, 0]]))
    how = given(hmm, there)
    for run in ("log_prob", "filter", "smooth", "counts", "viterbi", "next_log_probs"):
        yield getattr(inference, run)(softened, tokens, **how)
    paths = inference.sample_paths(softened, tokens, generator=seed(hmm), **how)
    yield drawn(paths, alike=hmm.support.is_dense)


def streaming(hmm: HMM, there: Place) -> Any:
    state = inference.start(hmm, 2, reset_id=EOS)
    for tokens in ([0, 3], [1, -1], [2, 2]):
        state = inference.advance(state, there(torch.tensor(tokens)))
        yield inference.next_log_probs(state)
        yield state.belief, state.log_evidence
    state = inference.advance(state.select([1, 0, 1]), 4)
    yield inference.next_log_probs(inference.advance(state, there(torch.tensor(WORDS))))


def drawing(hmm: HMM, there: Place) -> Any:
    tokens, belief = there(torch.tensor(WORDS)), belief_of(hmm, there)

    def sample(**how: Any) -> Any:
        return drawn(inference.sample(hmm, generator=seed(hmm), **how))

    yield sample(length=7, num_samples=3)
    yield sample(length=5, num_samples=2, belief=belief, stop_id=0, reset_id=EOS)
    if bool(torch.isfinite(inference.log_prob(hmm, tokens).log_evidence).all()):
        yield sample(length=5, tokens=tokens, reset_id=EOS)
    for run in (inference.cross_entropy, inference.kl_divergence):
        other, how = tempered(hmm, emit=0.8, trans=0.9), {"length": 4, "num_samples": 5}
        yield drawn(run(hmm, other, reset_id=EOS, generator=seed(hmm), **how))


def values(hmm: HMM, there: Place) -> Any:
    yield hmm.long_run()
    yield inference.state_information(hmm, 1, 3), inference.word_information(hmm, 1, 3)
    yield tempered(hmm, emit=0.8, trans=1.2).fields()
    mixed = mixture([hmm, tempered(hmm, emit=0.5)], there(torch.tensor([0.7, 0.3]).log()))
    yield mixed.validate().fields()
    yield inference.log_prob(mixed, there(torch.tensor(WORDS))).log_evidence
    if not hmm.support.is_dense:
        kept = hmm.restrict(there(torch.tensor([0, 2, 3])), carried=there(torch.tensor([1])))
        yield kept.fields()


def texts(hmm: HMM, there: Place) -> Any:
    tokens = there(torch.tensor(WORDS).flatten())
    for mode in ("sentence", "streaming", "window 4"):
        yield evaluate(HmmLM(hmm), tokens, mode=mode, eos_id=EOS, batch_tokens=8)[:3]
    yield torch.from_numpy(token_log_probs(HmmLM(hmm), tokens, eos_id=EOS))


def gradients(hmm: HMM, there: Place) -> Any:
    tokens, how = there(torch.tensor(ROWS)), less(given(hmm, there), "belief")
    for name in ("reference", "scaled", "auto"):
        fields = [field.detach().clone().requires_grad_() for field in hmm.fields()]
        trans = hmm.transitions.with_fields(*fields[1:-1])
        made = HMM(fields[0], trans, fields[-1], hmm.support)
        inference.log_prob(made, tokens, implementation=name, **how).log_evidence.sum().backward()
        yield [field.grad for field in fields]


RUNS = (passes, paths, gaps, soft, streaming, drawing, values, texts, gradients)
QUESTIONS = {run.__name__: run for run in RUNS}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_answers_of_the_cpu(kind, question, device):
    hmm, run = model(*kind), QUESTIONS[question]
    check_same(run(hmm.to(device), lambda value: value.to(device)), run(hmm, lambda value: value))


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("kind", KINDS[1:3], ids="-".join)
def test_what_goes_with_an_hmm_may_be_on_the_host(kind, question, device):
    hmm, run = model(*kind), QUESTIONS[question]
    check_same(run(hmm.to(device), lambda value: value), run(hmm, lambda value: value))


def model(support: str, transitions: str) -> HMM:
    hmm = make_hmm(support, "dense" if transitions == "holes" else transitions)
    return with_holes(hmm) if transitions == "holes" else hmm
