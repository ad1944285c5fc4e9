"""scikit-learn's own tools over the estimator; batches; from and to an HMM; settings refused."""

import io
import pickle
import subprocess
import sys
import warnings
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder
from sklearn.utils.estimator_checks import check_estimator

from hmmlm import inference
from hmmlm.errors import InputError
from hmmlm.scikit import CategoricalHMM, HmmEstimator
from models import SUPPORTS, make_hmm

TABLES = ("startprob_", "transmat_", "emissionprob_")
NEAR = {"rtol": 0, "atol": 1e-12}


def planted(peaked: float = 1.0) -> HmmEstimator:
    """Three states that are easily told apart, the less so the less `peaked` they are."""
    model = HmmEstimator(3, init_params="")
    model.startprob_ = np.array([0.8, 0.1, 0.1])
    trans = np.array([[0.8, 0.15, 0.05], [0.05, 0.8, 0.15], [0.15, 0.05, 0.8]])
    emit = np.array([[0.45, 0.45, 0.04, 0.03, 0.03], [0.04, 0.04, 0.84, 0.04, 0.04], [0.0] * 5])
    emit[2] = emit[0, ::-1]
    model.transmat_ = peaked * trans + (1 - peaked) / 3
    model.emissionprob_ = peaked * emit + (1 - peaked) / 5
    return model


def texts(count: int = 40, length: int = 25, seed: int = 0) -> list[np.ndarray]:
    source = np.random.RandomState(seed)
    return [planted().sample(length, random_state=source)[0][:, 0] for _ in range(count)]


def test_a_clone_has_the_settings_and_nothing_learnt():
    prior = np.full((3, 3), 1.5)
    model = HmmEstimator(3, transmat_prior=prior, random_state=0, unseen="missing").fit(texts())
    assert model.n_features == 5 and model.get_params()["n_features"] is None
    other = clone(model)
    assert not hasattr(other, "transmat_") and other.n_features is None
    assert other.unseen == "missing" and other.transmat_prior.tolist() == prior.tolist()
    other.set_params(transmat_prior=1.0, n_iter=3, n_features=7)
    assert (other.n_iter, other.n_features, other.transmat_prior) == (3, 7, 1.0)
    assert CategoricalHMM is HmmEstimator


def test_a_pickle_goes_on_where_it_was():
    X = texts()
    for model in (
        HmmEstimator(3, random_state=0).fit(X),
        HmmEstimator(3, random_state=0).partial_fit(X),
    ):
        kept = io.BytesIO()
        joblib.dump(model, kept)
        kept.seek(0)
        for other in (joblib.load(kept), pickle.loads(pickle.dumps(model))):
            assert other.score(X) == model.score(X)
            before = clone(model)
            vars(before).update(pickle.loads(pickle.dumps(vars(model))))
            np.testing.assert_array_equal(
                other.partial_fit(X[:9]).transmat_, before.partial_fit(X[:9]).transmat_
            )


def test_a_pipeline_takes_words_and_words_it_does_not_know():
    words = np.array(["rain", "sun", "snow"])
    symbols = np.random.RandomState(0).randint(3, size=60)
    X, lengths = words[symbols][:, None], [20, 40]
    unknown = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
    line = make_pipeline(
        OrdinalEncoder(dtype=int, **unknown), HmmEstimator(2, random_state=0, n_iter=3)
    )
    line.fit(X, lengths)  # a pipeline hands on what is in the place of y
    place = np.searchsorted(np.sort(words), X)
    plain = HmmEstimator(2, random_state=0, n_iter=3).fit(place, lengths)
    np.testing.assert_array_equal(line[-1].transmat_, plain.transmat_)
    assert line.score(X, lengths) == plain.score(place, lengths) != line.score(X)
    assert line.predict(X).shape == (60,)
    hail = np.array([["sun"], ["hail"], ["snow"]])
    assert line.score(hail) == plain.score([[2], [-1], [1]])


def test_a_grid_of_states_is_searched_over_sequences():
    X = texts()
    search = GridSearchCV(
        HmmEstimator(n_features=5, n_iter=60),
        {"n_components": [1, 2, 3], "random_state": [0, 1, 2, 3]},
        cv=KFold(4),
    ).fit(X)
    assert search.best_params_["n_components"] == 3
    scores = search.cv_results_["mean_test_score"]
    by_hand = [
        HmmEstimator(2, n_features=5, random_state=1, n_iter=60)
        .fit([X[i] for i in seen])
        .score([X[i] for i in unseen])
        for seen, unseen in KFold(4).split(X)
    ]
    assert scores[5] == pytest.approx(np.mean(by_hand), abs=1e-9)
    assert search.score(X) == search.best_estimator_.score(X)
    column = np.concatenate(X)[:, None]  # cut anywhere, as arrays are
    assert (
        GridSearchCV(search.estimator, {"n_components": [1, 3]}, cv=2).fit(column).best_score_ < 0
    )


NOT_HERE = {
    "check_n_features_in_after_fitting": "n_features_in_ is 1, whatever the check's X has",
    "check_n_features_in": "n_features_in_ is 1, whatever the check's X has",
    "check_positive_only_tag_during_fit": "-1 is a missing symbol",
    "check_estimators_dtypes": "symbols are integers; floats are refused",
    "check_dtype_object": "symbols are integers; objects are refused",
    "check_complex_data": "refused, but for not being integers",
    "check_estimators_nan_inf": "refused, but for not being integers",
    "check_estimators_empty_data_messages": "refused in other words: not (n_samples, 1)",
    "check_fit2d_predict1d": "refused in other words: use X.reshape(-1, 1)",
    "check_methods_sample_order_invariance": "the order of samples is what an HMM is about",
    "check_methods_subset_invariance": "a part of a sequence is another sequence",
}


class OneColumn(HmmEstimator):
    """Without `lengths`, in whose place the checks have y, and with the first of their columns."""

    def fit(self, X: Any, y: Any = None) -> "OneColumn":
        super().fit(first_column(X))
        return self

    def partial_fit(self, X: Any, y: Any = None) -> "OneColumn":
        super().partial_fit(first_column(X))
        return self

    def score(self, X: Any, y: Any = None) -> float:
        return super().score(first_column(X))

    def score_samples(self, X: Any) -> Any:
        return super().score_samples(first_column(X))

    def predict_proba(self, X: Any) -> Any:
        return self.score_samples(X)[1]

    def decode(self, X: Any, lengths: Any = None, algorithm: Any = None) -> Any:
        return super().decode(first_column(X), None, algorithm)


def first_column(X: Any) -> Any:
    return X[:, :1] if isinstance(X, np.ndarray) and X.ndim == 2 and X.shape[1] else X


def test_the_checks_of_scikit_learn_that_apply():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(OneColumn(), on_fail=None, on_skip=None)
    failed = {check["check_name"] for check in found if check["status"] == "failed"}
    assert failed == set(NOT_HERE)
    assert sum(check["status"] == "passed" for check in found) >= 25


def test_batches_approach_a_fit():
    X = texts(200)
    whole = planted(0.3).set_params(n_iter=300, tol=1e-4).fit(X)
    model = planted(0.3)
    gaps = [whole.score(X) - model.score(X)]
    for _ in range(10):
        for start in range(0, 200, 20):
            model.partial_fit(X[start : start + 20])
        gaps.append(whole.score(X) - model.score(X))
    per_symbol = np.array(gaps) / 5000
    assert per_symbol[0] > 0.1 and 0 < per_symbol[-1] < 1e-3
    for name in TABLES[1:]:
        np.testing.assert_allclose(getattr(model, name), getattr(whole, name), rtol=0, atol=0.03)


def test_a_batch_weighs_what_its_decay_says():
    """By hand: rates of the model itself first, then (k + 1)^-decay of each batch's."""
    hmm = make_hmm("dense")
    batches = [np.array([[0, 1, 2, 4]]), np.array([[3, 3, 1, 0], [2, 2, 2, 1]])]
    model = HmmEstimator.from_hmm(hmm, learning_decay=0.6, params="t", transmat_prior=1.5)
    use = hmm.long_run()
    rate, seen = use[:, None] * hmm.transitions.rows(0, 3).exp(), 0
    for k, batch in enumerate(batches, 1):
        counts = inference.counts(model.hmm, torch.tensor(batch)).trans
        model.partial_fit(list(batch))
        seen += batch.size
        weight = (k + 1) ** -0.6
        rate = (1 - weight) * rate + weight * counts / batch.size
        expected = rate * seen + 0.5
        expected = (expected / expected.sum(1, keepdim=True)).numpy()
        np.testing.assert_allclose(model.transmat_, expected, **NEAR)
    np.testing.assert_allclose(model.emissionprob_.T, hmm.log_emit.exp().numpy(), **NEAR)


def test_a_fit_forgets_the_batches_before_it():
    X = np.random.RandomState(0).randint(0, 3, (40, 1))
    settings = {"n_components": 2, "n_features": 3, "random_state": 0, "n_iter": 2}
    after = HmmEstimator(**settings).partial_fit(X[:10]).fit(X).partial_fit(X[10:])
    fresh = HmmEstimator(**settings).fit(X).partial_fit(X[10:])
    np.testing.assert_array_equal(after.emissionprob_, fresh.emissionprob_)


def test_a_batch_without_a_symbol_does_not_make_it_impossible():
    model = HmmEstimator(2, n_features=3, random_state=0)
    model.partial_fit([[0], [1], [0]]).partial_fit([[2], [2]])
    assert (model.emissionprob_ > 0).all() and model.score([[2], [0]]) > -10
    with pytest.raises(InputError, match="X has symbol 3 but the model emits 0 to 2; fit wi"):
        model.partial_fit([[3]])


@pytest.mark.parametrize("transitions", ["dense", "factored"])
@pytest.mark.parametrize("support", SUPPORTS)
def test_from_an_hmm_and_back(support, transitions):
    hmm = make_hmm(support, transitions)
    model = HmmEstimator.from_hmm(hmm)
    tokens = torch.tensor([[0, 2, 4, 1], [3, 3, 2, 0]])
    score = float(inference.log_prob(hmm, tokens).log_evidence.sum())
    assert model.score(list(tokens)) == pytest.approx(score, abs=1e-10)
    again = model.hmm.validate()
    assert again.support.is_dense and again.dtype == torch.float64
    again_scores = inference.log_prob(again, tokens).log_evidence.sum()
    assert float(again_scores) == pytest.approx(score, abs=1e-10)
    assert model.fit(list(tokens)).monitor_.history[0] == pytest.approx(score, abs=1e-10)
    narrow = HmmEstimator.from_hmm(hmm, dtype="float32")
    assert narrow.hmm.dtype == torch.float32
    assert narrow.score(list(tokens)) == pytest.approx(score, rel=1e-5)


def test_a_large_hmm_is_refused(monkeypatch):
    monkeypatch.setattr("hmmlm.scikit.tables.MOST", 10)
    with pytest.raises(InputError, match="3 states and 5 symbols has tables of up to 15 cel"):
        HmmEstimator.from_hmm(make_hmm("dense"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_components": 0}, "n_components is 0 but must be an integer, 1 or more"),
        ({"n_components": 2.0}, r"n_components is 2\.0 but must be an integer, 1 or more"),
        ({"n_iter": -1}, "n_iter is -1 but must be an integer, 0 or more"),
        ({"n_features": 0}, "n_features is 0 but must be an integer, 1 or more"),
        ({"params": "stm"}, r"params is 'stm' but may have the letters s \(start\), t"),
        ({"init_params": None}, "init_params is None but may have the letters s"),
        ({"algorithm": "best"}, "algorithm is 'best' but must be viterbi or map"),
        ({"implementation": "c"}, "implementation is 'c' but must be log or scaling"),
        ({"unseen": "skip"}, "unseen is 'skip' but must be error or missing"),
        ({"learning_decay": 0.5}, r"learning_decay is 0\.5 but must be above 0\.5 and at most 1"),
        ({"learning_decay": "x"}, "learning_decay is 'x' but must be a number"),
        ({"tol": None}, "tol is None but must be a number"),
        ({"n_components": True}, "n_components is True but must be an integer, 1 or more"),
        ({"n_features": 1 << 30}, "2 states and 1,073,741,824 symbols has tables of up to .* with"),
        (
            {"device": "gpu"},
            "device is 'gpu' but must be auto, or one that torch has here, such as cpu",
        ),
        (
            {"device": "cuda:99"},
            "device is cuda:99 but torch finds [0-9]+ GPUs? here; use device cpu",
        ),
        ({"dtype": "half"}, "dtype is 'half' but must be float64 or float32"),
        ({"startprob_prior": [1, 2, 3]}, r"startprob_prior is \[1, 2, 3\] but .* shape \(2,\)"),
        ({"transmat_prior": -1}, r"transmat_prior has -1\.0 but Dirichlet parameters are finite"),
        ({"emissionprob_prior": np.inf}, "emissionprob_prior has inf but Dirichlet parameters"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        HmmEstimator(**{"n_components": 2, **settings}).fit([[0], [1], [1]])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("startprob_", [1.0], r"startprob_ has shape \(1,\) but must have \(3,\), by n_components"),
        ("transmat_", np.eye(2), r"transmat_ has shape \(2, 2\) but must have \(3, 3\)"),
        ("emissionprob_", [], r"emissionprob_ has shape \(0,\) but must have \(3, 5\)"),
        ("transmat_", np.ones((3, 3)), "transmat_: rows must sum to 1, not 3; divide each by its"),
        ("startprob_", [0.5, 0.4, 0.0], r"startprob_: must sum to 1, not 0\.9; divide"),
        ("startprob_", ["a", "b", "c"], r"startprob_ is no table of numbers; give \(3,\) probab"),
        ("transmat_", [[1.0], [0.5, 0.5], [1.0]], r"transmat_ is no table of numbers; give \(3, 3"),
        ("transmat_", np.full((3, 3), np.nan), "transmat_ has nan among its probabilities; none"),
        ("startprob_", [1.5, -0.5, 0], r"startprob_ has -0\.5 among its probabilities; none may"),
    ],
)
def test_tables_that_cannot_be_are_refused(name, value, said):
    model = HmmEstimator.from_hmm(make_hmm("dense"))
    setattr(model, name, value)
    for ask in (model.score, model.predict, model.fit):
        with pytest.raises(InputError, match=said):
            ask([[0], [1]])
    with pytest.raises(InputError, match=said):
        model.sample(3)


def test_what_else_is_refused():
    with pytest.raises(NotFittedError, match="not fitted yet; call fit, or set startprob_, transm"):
        HmmEstimator(2).score([[0]])
    model = HmmEstimator.from_hmm(make_hmm("dense"))
    with pytest.raises(InputError, match="n_samples is 0 but must be at least 1"):
        model.sample(0)
    with pytest.raises(InputError, match="currstate is 3 but states are 0 to 2"):
        model.sample(1, currstate=3)
    with pytest.raises(InputError, match="algorithm is 'beam' but must be viterbi or map"):
        model.decode([[0]], algorithm="beam")
    model.monitor_ = object()
    with pytest.raises(InputError, match="monitor_ is a object, but a fit makes its own; set tol"):
        model.fit([[0]])


def test_without_scikit_learn_it_says_how_to_get_it():
    code = "import sys, hmmlm.hmm, hmmlm.train.em; print('sklearn' in sys.modules)\n"
    code += "sys.modules['sklearn'] = None\nimport hmmlm.scikit"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode and "not installed; run pip install 'hmmlm[sklearn]'" in done.stderr
    assert done.stdout == "False\n"
