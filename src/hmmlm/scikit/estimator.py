"""The estimator: hmmlearn's names over the functions of inference."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from hmmlm import inference
from hmmlm.devices import find_device
from hmmlm.errors import InputError, check_count
from hmmlm.hmm import HMM
from hmmlm.params.scalar import Scalar
from hmmlm.scikit import tables
from hmmlm.scikit.learning import (
    LETTERS,
    Monitor,
    Stepwise,
    expect,
    learn,
    read_priors,
    tables_of,
)
from hmmlm.scikit.sequences import UNSEEN, Sequences, read
from hmmlm.scikit.tables import Arrays

ALGORITHMS = ("viterbi", "map")
IMPLEMENTATIONS = ("log", "scaling")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
TABLES = ("startprob_", "transmat_", "emissionprob_")


class HmmEstimator(BaseEstimator):
    """An HMM over symbols 0 to `n_features` - 1, learnt by Baum-Welch.

    The arguments up to `implementation` are those of hmmlearn's CategoricalHMM and mean the same;
    with the same `random_state` a fit begins with the same tables. `fit` draws those tables anew
    that `init_params` names (s, t, e: start, transitions, emissions) and learns those of `params`.
    `implementation` is accepted and changes nothing: scaled, and redone in log space where digits
    are lost.

    X is (n_samples, 1) integers, sequences one after the other, with their `lengths`; or a list of
    1-d arrays, a sequence each. -1 is a missing symbol, which is summed over. A symbol from
    `n_features` on is refused, or with `unseen="missing"` taken for a missing one.

    `learning_decay`: batch k of `partial_fit` has weight (k + 1)^-learning_decay. `device` and
    `dtype` ("float64", "float32") are where and in what the arithmetic is done.
    """

    startprob_: Any
    transmat_: Any
    emissionprob_: Any
    monitor_: Any
    _stepwise: Stepwise

    def __init__(
        self,
        n_components: Any = 1,
        startprob_prior: Any = 1.0,
        transmat_prior: Any = 1.0,
        *,
        emissionprob_prior: Any = 1.0,
        n_features: Any = None,
        algorithm: Any = "viterbi",
        random_state: Any = None,
        n_iter: Any = 10,
        tol: Any = 1e-2,
        verbose: Any = False,
        params: Any = LETTERS,
        init_params: Any = LETTERS,
        implementation: Any = "log",
        unseen: Any = "error",
        learning_decay: Any = 0.7,
        device: Any = "cpu",
        dtype: Any = "float64",
    ) -> None:
        self.n_components = n_components
        self.startprob_prior = startprob_prior
        self.transmat_prior = transmat_prior
        self.emissionprob_prior = emissionprob_prior
        self.n_features = n_features
        self.algorithm = algorithm
        self.random_state = random_state
        self.n_iter = n_iter
        self.tol = tol
        self.verbose = verbose
        self.params = params
        self.init_params = init_params
        self.implementation = implementation
        self.unseen = unseen
        self.learning_decay = learning_decay
        self.device = device
        self.dtype = dtype

    @property
    def n_features(self) -> int | None:
        """How many symbols there are: as given, else as many as `emissionprob_` has."""
        given = vars(self)["n_features"]
        if given is None and hasattr(self, "emissionprob_"):
            return np.shape(self.emissionprob_)[-1]
        return given

    @n_features.setter
    def n_features(self, value: Any) -> None:
        vars(self)["n_features"] = value

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments as they were given: `n_features` stays None where data decides it."""
        return {**super().get_params(deep=deep), "n_features": vars(self)["n_features"]}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.positive_only = True
        return tags

    @staticmethod
    def from_hmm(hmm: HMM, **settings: Any) -> "HmmEstimator":
        """An estimator with the tables of an HMM, from which `fit` goes on.

        Supports and factors are lost: every symbol has all states, some with probability zero.
        """
        whole = {"n_components": hmm.num_states, "n_features": hmm.vocab_size, "init_params": ""}
        estimator = HmmEstimator(**{**whole, **settings})
        estimator._set_tables(tables.of_hmm(hmm))
        return estimator

    @property
    def hmm(self) -> HMM:
        """The tables as an HMM, which the functions of `hmmlm.inference` take."""
        return tables.as_hmm(self._tables(), self._device(), self._dtype())

    def fit(self, X: Any, lengths: Any = None) -> "HmmEstimator":
        """Learns the tables by at most `n_iter` steps of Baum-Welch, fewer if one gains little."""
        self._check_settings()
        sequences = self._begin(read(X, lengths), redraw=self.init_params)
        self.monitor_ = Monitor(self.tol, self.n_iter, bool(self.verbose))
        vars(self).pop("_stepwise", None)
        model = Scalar.from_hmm(self.hmm)
        priors = self._priors()
        batches = list(sequences.batches(self.n_components))
        while self.monitor_.iter < self.n_iter:
            found = expect(tables_of(model), batches)
            learn(model, found, priors, self.params)
            self.monitor_.report(found.log_evidence)
            if self.monitor_.has_settled:
                break
        self._take(model)
        return self

    def partial_fit(self, X: Any, lengths: Any = None) -> "HmmEstimator":
        """A step of stepwise EM on a batch, from the tables as they are; drawn, if there are none.

        Give `n_features` if the first batch may lack symbols of later ones.
        """
        self._check_settings()
        sequences = self._begin(read(X, lengths), redraw="")
        model = Scalar.from_hmm(self.hmm)
        total = len(sequences.symbols)
        found = expect(tables_of(model), sequences.batches(self.n_components))
        if not hasattr(self, "_stepwise"):
            self._stepwise = Stepwise.begin(tables_of(model), len(sequences.lengths) / total)
        everything = self._stepwise.take(found, total, self.learning_decay)
        learn(model, everything, self._priors(), self.params)
        self._take(model)
        return self

    def score(self, X: Any, lengths: Any = None) -> float:
        """log p(X), the sum over its sequences; missing symbols count nothing."""
        sequences, hmm = self._read(X, lengths), self.hmm
        return sum(
            float(_ask(inference.log_prob, hmm, rows).log_evidence.sum())
            for rows in sequences.batches(hmm.num_states)
        )

    def score_samples(self, X: Any, lengths: Any = None) -> tuple[float, Float[np.ndarray, "N Z"]]:
        """log p(X), and p(z_t | the sequence) of every sample."""
        return self._states(inference.smooth, X, lengths)

    def predict_proba(self, X: Any, lengths: Any = None) -> Float[np.ndarray, "N Z"]:
        """p(z_t | the sequence) of every sample; zeros where the sequence is impossible."""
        return self.score_samples(X, lengths)[1]

    def filter_proba(self, X: Any, lengths: Any = None) -> Float[np.ndarray, "N Z"]:
        """p(z_t | the sequence up to t) of every sample: nothing of what comes later is used."""
        return self._states(inference.filter, X, lengths)[1]

    def next_proba(self, X: Any, lengths: Any = None) -> Float[np.ndarray, "S V"]:
        """p(the symbol that comes after | the sequence), a row for each sequence."""
        sequences, hmm = self._read(X, lengths), self.hmm
        found = np.empty((len(sequences.lengths), hmm.vocab_size))
        for rows in sequences.batches(hmm.num_states):
            following = _ask(inference.next_log_probs, hmm, rows)
            found[rows.sequences] = following.double().exp().cpu().numpy()
        return found

    def decode(
        self, X: Any, lengths: Any = None, algorithm: str | None = None
    ) -> tuple[float, Int[np.ndarray, " N"]]:
        """States of every sample: of the best path, or by "map" the most probable ones.

        Also log p of the paths and X, or by "map" how many states are expected to be right. The
        states of an impossible sequence are -1, or 0 by "map".
        """
        algorithm = algorithm or self.algorithm
        _check_among("algorithm", algorithm, ALGORITHMS)
        if algorithm == "map":
            probs = self.predict_proba(X, lengths)
            return float(probs.max(1).sum()), probs.argmax(1)
        sequences, hmm = self._read(X, lengths), self.hmm
        states, total = np.empty(len(sequences.symbols), dtype=int), 0.0
        for rows in sequences.batches(hmm.num_states):
            best = _ask(inference.viterbi, hmm, rows)
            states[rows.places] = best.states.cpu().numpy()[rows.active]
            total += float(best.log_prob.double().sum())
        return total, states

    def predict(self, X: Any, lengths: Any = None) -> Int[np.ndarray, " N"]:
        """The states that `decode` finds."""
        return self.decode(X, lengths)[1]

    def sample(
        self, n_samples: int = 1, random_state: Any = None, currstate: Any = None
    ) -> tuple[Int[np.ndarray, "N 1"], Int[np.ndarray, " N"]]:
        """Symbols and states drawn from the model, the first state being `currstate` if given."""
        drawn_from = self._tables()
        check_count("n_samples", n_samples)
        if currstate is not None and not 0 <= currstate < self.n_components:
            raise InputError(
                f"currstate is {currstate} but states are 0 to {self.n_components - 1:,}."
            )
        source = check_random_state(self.random_state if random_state is None else random_state)
        state = None if currstate is None else int(currstate)
        return tables.walk(drawn_from, int(n_samples), state, source)

    def get_stationary_distribution(self) -> Float[np.ndarray, " Z"]:
        """How often each state is used in the long run."""
        return tables.stationary(self._tables(), self.hmm)

    def aic(self, X: Any, lengths: Any = None) -> float:
        """Akaike's criterion, -2 log p(X) + 2 parameters; lower is better."""
        return -2 * self.score(X, lengths) + 2 * self._num_parameters()

    def bic(self, X: Any, lengths: Any = None) -> float:
        """The Bayesian criterion, -2 log p(X) + parameters log samples; lower is better."""
        samples = len(read(X, lengths).symbols)
        return -2 * self.score(X, lengths) + self._num_parameters() * float(np.log(samples))

    def _num_parameters(self) -> int:
        states, symbols = self.n_components, self._num_symbols()
        return (states - 1) + states * (states - 1) + states * (symbols - 1)

    def _num_symbols(self) -> int:
        assert self.n_features is not None
        return int(self.n_features)

    def _states(
        self, ask: Callable[..., Any], X: Any, lengths: Any
    ) -> tuple[float, Float[np.ndarray, "N Z"]]:
        sequences, hmm = self._read(X, lengths), self.hmm
        probs, total = np.empty((len(sequences.symbols), hmm.num_states)), 0.0
        for rows in sequences.batches(hmm.num_states):
            found = _ask(ask, hmm, rows)
            dense = found.dense(hmm.num_states).double().exp().cpu().numpy()
            probs[rows.places] = dense[rows.active]
            total += float(found.log_evidence.sum())
        return total, probs

    def _read(self, X: Any, lengths: Any) -> Sequences:
        """X as it is asked about, its symbols within those of the model."""
        self._tables()
        _check_among("unseen", self.unseen, UNSEEN)
        return read(X, lengths).within(self._num_symbols(), self.unseen)

    def _begin(self, sequences: Sequences, *, redraw: str) -> Sequences:
        """Draws the tables that are to be, or are not there; X within the model's symbols."""
        given = vars(self)["n_features"]
        if given is None and "e" not in redraw:
            given = self.n_features
        symbols = int(sequences.symbols.max()) + 1 if given is None else int(given)
        tables.check_size(self.n_components, symbols)
        if symbols < 1:
            raise InputError("All of X is missing (-1) and n_features is not given; give it.")
        sequences = sequences.within(symbols, self.unseen)
        names = dict(zip(LETTERS, TABLES, strict=True))
        wanted = "".join(c for c in LETTERS if c in redraw or not hasattr(self, names[c]))
        # Twice, as hmmlearn does: a seed gives both the same numbers.
        both = (check_random_state(self.random_state), check_random_state(self.random_state))
        for letter, table in tables.drawn(wanted, self.n_components, symbols, *both).items():
            setattr(self, names[letter], table)
        self.n_features_in_ = 1
        return sequences

    def _set_tables(self, found: Arrays, names: str = LETTERS) -> None:
        for letter, name, table in zip(LETTERS, TABLES, found, strict=True):
            if letter in names:
                setattr(self, name, table)

    def _take(self, model: Scalar) -> None:
        """The tables of a model, but those that were not to be learnt."""
        init, trans, emit = tables_of(model).fields()
        self._set_tables(tables.as_arrays(init, trans, emit.T), self.params)

    def _tables(self) -> Arrays:
        check_is_fitted(
            self,
            TABLES,
            msg="This %(name)s is not fitted yet; call fit, or set startprob_, transmat_ and "
            "emissionprob_.",
        )
        states, symbols = self.n_components, self._num_symbols()
        return (
            tables.checked("startprob_", self.startprob_, (states,)),
            tables.checked("transmat_", self.transmat_, (states, states)),
            tables.checked("emissionprob_", self.emissionprob_, (states, symbols)),
        )

    def _priors(self) -> Any:
        return read_priors(
            self.startprob_prior,
            self.transmat_prior,
            self.emissionprob_prior,
            self.n_components,
            self._num_symbols(),
            self._device(),
        )

    def _device(self) -> torch.device:
        return find_device(self.device)

    def _dtype(self) -> torch.dtype:
        _check_among("dtype", self.dtype, tuple(DTYPES))
        return DTYPES[self.dtype]

    def _check_settings(self) -> None:
        for name, least in (("n_components", 1), ("n_iter", 0), ("n_features", 1)):
            value = vars(self)[name]
            if value is None and name == "n_features":
                continue
            is_bool = isinstance(value, bool)
            if is_bool or not isinstance(value, int | np.integer) or value < least:
                raise InputError(f"{name} is {value!r} but must be an integer, {least} or more.")
        for name in ("params", "init_params"):
            value = getattr(self, name)
            if not isinstance(value, str) or not set(value) <= set(LETTERS):
                raise InputError(
                    f"{name} is {value!r} but may have the letters s (start), t (transitions) and "
                    "e (emissions) only."
                )
        _check_among("algorithm", self.algorithm, ALGORITHMS)
        _check_among("implementation", self.implementation, IMPLEMENTATIONS)
        _check_among("unseen", self.unseen, UNSEEN)
        for name in ("tol", "learning_decay"):
            value = getattr(self, name)
            if not isinstance(value, int | float | np.number):
                raise InputError(f"{name} is {value!r} but must be a number.")
        if not 0.5 < self.learning_decay <= 1:
            raise InputError(
                f"learning_decay is {self.learning_decay} but must be above 0.5 and at most 1, or "
                "partial_fit does not settle."
            )
        if type(getattr(self, "monitor_", None)) not in (type(None), Monitor):
            raise InputError(
                f"monitor_ is a {type(self.monitor_).__name__}, but a fit makes its own; set tol "
                "and n_iter, or call fit with n_iter=1 and init_params='' in a loop."
            )


CategoricalHMM = HmmEstimator
"""hmmlearn's name for it."""


def _ask(function: Callable[..., Any], hmm: HMM, rows: Any) -> Any:
    return function(hmm, rows.tokens.to(hmm.device), lengths=rows.lengths.to(hmm.device))


def _check_among(name: str, value: Any, names: tuple[str, ...]) -> None:
    if value not in names:
        raise InputError(f"{name} is {value!r} but must be {' or '.join(names)}.")
