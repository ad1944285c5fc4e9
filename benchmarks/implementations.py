"""Everyone who computes the quantities, each in its fastest documented way.

An implementation prepares its own form of the tables once and then answers with no arguments:
log-likelihood with the log-probability of each row (or one total), counts with
(log-probability, starts (Z,), transitions (Z, Z), emissions (V, Z)), an EM step with the
log-probability before it and the new probabilities in the same order. A part that is a function
is called where the answer is checked, and not timed: nobody needs probabilities and their logs.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks import plain
from benchmarks.cases import Case, Problem

Answer = Callable[[], object]


@dataclass(frozen=True)
class Implementation:
    """`prepare(problem, what)` gives the call to be timed."""

    name: str
    prepare: Callable[[Problem, str], Answer]
    package: str | None = None
    dtype: str = "float32"
    is_peer: bool = False
    try_one_row: bool = False  # slow enough at some sizes to be tried on one row first
    skip: Callable[[Case, str], str | None] = lambda case, what: None

    @property
    def is_installed(self) -> bool:
        return self.package is None or importlib.util.find_spec(self.package) is not None


def _ours(implementation: str, dtype: torch.dtype) -> Callable[[Problem, str], Answer]:
    def prepare(problem: Problem, what: str) -> Answer:
        from hmmlm import HMM
        from hmmlm.inference import counts, log_prob

        hmm = HMM.from_tables(
            problem.log_init.to(dtype), problem.log_trans.to(dtype), problem.log_emit.to(dtype).T
        )
        tokens = problem.tokens
        if what == "log-likelihood":
            return lambda: log_prob(hmm, tokens, implementation=implementation).log_evidence
        if what == "em-step" and implementation == "auto":
            return _em_step(hmm, tokens)

        def run() -> tuple:
            result = counts(hmm, tokens, implementation=implementation)
            answer = result.log_evidence, result.init, result.trans, result.emit
            return answer if what == "counts" else _normalised(*answer)

        return run

    return prepare


def _em_step(hmm: Any, tokens: torch.Tensor) -> Answer:
    """Our learner's step, from the same tables every time: putting them back is timed too.

    Through `.data`, which the learner does not see: they are the log tables that it would write.
    """
    from hmmlm.data.batches import Batch
    from hmmlm.params.scalar import Scalar
    from hmmlm.train.em import Em

    model = Scalar.from_hmm(hmm)
    learner, start = Em(model), [part.detach().clone() for part in model.parameters()]
    restart = torch.zeros_like(tokens, dtype=torch.bool)
    restart[:, 0] = True
    batch = Batch(tokens, torch.full(tokens.shape[:1], tokens.shape[1]), restart, tokens.numel())

    def run() -> tuple:
        for part, before in zip(model.parameters(), start, strict=True):
            part.data.copy_(before)
        made = learner.step([batch], 1.0, 0.0)
        return -made.loss * made.tokens, *(part.detach().exp for part in model.parameters())

    return run


def _normalised(log_prob: Any, init: Any, trans: Any, emit: Any) -> tuple:
    """The M-step: tables out of counts."""
    return log_prob, init / init.sum(), trans / trans.sum(1)[:, None], emit / emit.sum(0)


def _plain(dtype: torch.dtype) -> Callable[[Problem, str], Answer]:
    def prepare(problem: Problem, what: str) -> Answer:
        tables = [
            table.to(dtype).exp()
            for table in (problem.log_init, problem.log_trans, problem.log_emit)
        ]
        run = plain.log_likelihood if what == "log-likelihood" else plain.counts
        if what == "em-step":
            return lambda: _normalised(*run(*tables, problem.tokens))
        return lambda: run(*tables, problem.tokens)

    return prepare


def _hmmlearn(problem: Problem, what: str) -> Answer:
    """`score`, and one EM iteration of `fit`, for counts stopped where the M-step would begin."""
    import logging

    from hmmlearn.hmm import CategoricalHMM

    logging.getLogger("hmmlearn").setLevel(logging.ERROR)  # "more parameters than data"

    class Counter(CategoricalHMM):
        def _do_mstep(self, stats):
            self.stats = stats

    kind = CategoricalHMM if what == "em-step" else Counter
    model = kind(
        problem.case.states,
        implementation="scaling",
        n_iter=1,
        init_params="",
        n_features=problem.case.words,
    )
    tables = {
        "startprob_": problem.log_init.double().softmax(-1).numpy(),
        "transmat_": problem.log_trans.double().softmax(-1).numpy(),
        "emissionprob_": problem.log_emit.double().softmax(0).T.contiguous().numpy(),
    }
    for name, table in tables.items():
        setattr(model, name, table)
    tokens = problem.tokens.reshape(-1, 1).numpy()
    lengths = [problem.tokens.shape[1]] * problem.tokens.shape[0]
    if what == "log-likelihood":
        return lambda: model.score(tokens, lengths)

    if what == "em-step":

        def step() -> tuple:
            for name, table in tables.items():
                setattr(model, name, table)
            model.fit(tokens, lengths)
            new = (model.startprob_, model.transmat_, model.emissionprob_.T)
            return model.monitor_.history[-1], *new

        return step

    def run() -> tuple:
        model.fit(tokens, lengths)
        stats = model.stats
        return model.monitor_.history[-1], stats["start"], stats["trans"], stats["obs"].T

    return run


def _pomegranate(problem: Problem, what: str) -> Answer:
    """`DenseHMM` given emissions gathered by hand; counts of emissions by one index_add.

    Its own `summarize` loops over every word of every state in Python: minutes at these sizes.
    """
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import DenseHMM

    states, tokens = problem.case.states, problem.tokens
    # With emissions given, the distributions are only counted.
    model = DenseHMM(
        [Categorical([[0.5, 0.5]]) for _ in range(states)],
        edges=problem.log_trans.exp().numpy(),
        starts=problem.log_init.exp().numpy(),
        ends=np.ones(states, dtype=np.float32),
    )

    def gather() -> torch.Tensor:
        return problem.log_emit[tokens]

    if what == "log-likelihood":
        return lambda: model.forward(emissions=gather())[:, -1].logsumexp(1)

    def run() -> tuple:
        trans, log_posterior, starts, _, log_prob = model.forward_backward(emissions=gather())
        emit = torch.zeros_like(problem.log_emit)
        emit.index_add_(0, tokens.flatten(), log_posterior.exp().reshape(-1, states))
        answer = log_prob, starts.sum(0), trans.sum(0), emit
        return answer if what == "counts" else _normalised(*answer)

    return run


def _pomegranate_skip(case: Case, what: str) -> str | None:
    needed = 3 * 4 * case.batch * (case.steps - 1) * case.states**2
    if what != "log-likelihood" and needed > 4 << 30:
        return f"needs about {needed / 2**30:,.0f} GiB: Z x Z numbers for every token, three times"
    return None


def _dynamax(own_pairs: bool) -> Callable[[Problem, str], Answer]:
    """The low-level filter and two-filter smoother, jitted and vmapped, emissions gathered by hand.

    Its model class would make B x T x Z x V numbers. With `own_pairs` its transition counts,
    one Z x Z sum per token, are replaced by a single product of ours over all tokens.
    """

    def prepare(problem: Problem, what: str) -> Answer:
        import jax
        import jax.numpy as jnp
        from dynamax.hidden_markov_model import hmm_filter, hmm_two_filter_smoother

        init, trans = (
            jnp.asarray(table.exp().numpy()) for table in (problem.log_init, problem.log_trans)
        )
        log_emit, tokens = (
            jnp.asarray(problem.log_emit.numpy()),
            jnp.asarray(problem.tokens.numpy()),
        )

        @jax.jit
        def score(init, trans, log_emit, tokens):
            seen = log_emit[tokens]
            return jax.vmap(lambda rows: hmm_filter(init, trans, rows).marginal_loglik)(seen)

        @jax.jit
        def count(init, trans, log_emit, tokens):
            seen = log_emit[tokens]

            result = jax.vmap(lambda rows: hmm_two_filter_smoother(init, trans, rows))(seen)
            if own_pairs:  # and XLA drops the unused sums
                ratio = result.smoothed_probs[:, 1:] / result.predicted_probs[:, 1:]
                pairs = trans * jnp.einsum("btk,btl->kl", result.filtered_probs[:, :-1], ratio)
            else:
                pairs = result.trans_probs.sum(0)
            emit = jnp.zeros_like(log_emit).at[tokens].add(result.smoothed_probs)
            answer = result.marginal_loglik, result.initial_probs.sum(0), pairs, emit
            return answer if what == "counts" else _normalised(*answer)

        run = score if what == "log-likelihood" else count
        return lambda: jax.block_until_ready(run(init, trans, log_emit, tokens))

    return prepare


def _only_small(case: Case, what: str) -> str | None:
    if case.states > 64:
        return "log space holds B x Z x Z numbers a step: minutes at this size"
    return None


def _only_counts(case: Case, what: str) -> str | None:
    return "differs from dynamax in the counts only" if what == "log-likelihood" else None


IMPLEMENTATIONS = {
    one.name: one
    for one in (
        Implementation("hmmlm", _ours("auto", torch.float32)),
        Implementation("hmmlm-reference", _ours("reference", torch.float32), skip=_only_small),
        Implementation("pytorch", _plain(torch.float32)),
        Implementation("hmmlearn", _hmmlearn, "hmmlearn", "float64", True, True),
        Implementation(
            "pomegranate", _pomegranate, "pomegranate", is_peer=True, skip=_pomegranate_skip
        ),
        Implementation("dynamax", _dynamax(False), "dynamax", is_peer=True),
        Implementation(
            "dynamax-one-product", _dynamax(True), "dynamax", is_peer=True, skip=_only_counts
        ),
    )
}


def truth(problem: Problem, what: str) -> tuple[Answer, Answer]:
    """Our float64 answer, in log space where that is quick, and the plain loop's to confirm it."""
    name = "reference" if problem.case.states <= 64 else "scaled"
    return (
        _ours(name, torch.float64)(problem, what),
        _plain(torch.float64)(problem, what),
    )
