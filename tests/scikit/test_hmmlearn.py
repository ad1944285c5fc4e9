"""One import changed: what people do with hmmlearn, done with both libraries."""

import itertools
import warnings
from typing import Any

import numpy as np
import pytest

from hmmlm.errors import InputError
from hmmlm.inference.chain import Chain
from hmmlm.scikit import CategoricalHMM

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from hmmlearn.hmm import CategoricalHMM as Theirs

NEAR = {"rtol": 0, "atol": 1e-6}
TABLES = ("startprob_", "transmat_", "emissionprob_")
CASINO = (  # a fair die, and one that likes sixes; they are swapped now and then
    [1.0, 0.0],
    [[0.95, 0.05], [0.1, 0.9]],
    [[1 / 6] * 6, [0.1] * 5 + [0.5]],
)


def both(n_components: int, tables: Any = None, **settings: Any) -> tuple[Any, Any]:
    """The same model of either library."""
    models = (CategoricalHMM(n_components, **settings), Theirs(n_components, **settings))
    for model in models if tables is not None else ():
        for name, table in zip(TABLES, tables, strict=True):
            setattr(model, name, np.array(table))
    return models


def random_tables(states: int, symbols: int, seed: int) -> list[np.ndarray]:
    source = np.random.RandomState(seed)
    shapes = ((states,), (states, states), (states, symbols))
    return [source.dirichlet(np.ones(shape[-1]), shape[:-1]) for shape in shapes]


def rolls(count: int, seed: int = 0) -> np.ndarray:
    return both(2, CASINO)[0].sample(count, random_state=seed)[0]


def test_a_casino_with_known_tables_is_drawn_scored_and_decoded_alike():
    mine, theirs = both(2, CASINO)
    drawn, expected = (model.sample(500, random_state=7) for model in (mine, theirs))
    np.testing.assert_array_equal(drawn[0], expected[0])
    np.testing.assert_array_equal(drawn[1], expected[1])
    assert drawn[0].shape == (500, 1) and set(drawn[1]) == {0, 1}
    going_on = [model.sample(40, random_state=3, currstate=1) for model in (mine, theirs)]
    np.testing.assert_array_equal(going_on[0][0], going_on[1][0])
    assert going_on[0][1][0] == 1
    X, states = drawn
    assert mine.score(X) == pytest.approx(theirs.score(X), abs=1e-6)
    np.testing.assert_array_equal(mine.predict(X), theirs.predict(X))
    np.testing.assert_allclose(mine.predict_proba(X), theirs.predict_proba(X), **NEAR)
    assert (mine.predict(X) == states).mean() > 0.7
    np.testing.assert_allclose(mine.get_stationary_distribution(), [2 / 3, 1 / 3], **NEAR)


def test_the_best_of_several_fits_is_the_same_one():
    X, held_out = rolls(600), rolls(600, seed=1)
    scores: list[list[float]] = [[], []]
    fitted: list[list[Any]] = [[], []]
    for seed in range(4):
        for number, model in enumerate(both(2, random_state=seed, n_iter=30)):
            model.fit(X)
            scores[number].append(model.score(held_out))
            fitted[number].append(model)
    np.testing.assert_allclose(scores[0], scores[1], **NEAR)
    assert np.argmax(scores[0]) == np.argmax(scores[1])
    mine, theirs = (models[int(np.argmax(scores[0]))] for models in fitted)
    for name in TABLES:
        np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), **NEAR)
    np.testing.assert_array_equal(mine.predict(held_out), theirs.predict(held_out))


@pytest.mark.parametrize("implementation", ["log", "scaling"])
@pytest.mark.parametrize("seed", [0, 1])
def test_all_answers_are_the_same(implementation, seed):
    mine, theirs = both(4, random_tables(4, 7, seed), implementation=implementation)
    X = np.random.RandomState(seed).randint(7, size=(90, 1))
    lengths = [1, 40, 3, 46]
    assert mine.score(X, lengths) == pytest.approx(theirs.score(X, lengths), abs=1e-6)
    for ask in ("score_samples", "decode"):
        for found, expected in zip(
            getattr(mine, ask)(X, lengths), getattr(theirs, ask)(X, lengths), strict=True
        ):
            np.testing.assert_allclose(found, expected, **NEAR)
    score, states = mine.decode(X, lengths, algorithm="map")
    assert score == pytest.approx(theirs.decode(X, lengths, algorithm="map")[0], abs=1e-6)
    np.testing.assert_array_equal(states, theirs.decode(X, lengths, algorithm="map")[1])
    assert (states != mine.predict(X, lengths)).any()
    by_default = both(4, random_tables(4, 7, seed), algorithm="map")[0]
    np.testing.assert_array_equal(by_default.predict(X, lengths), states)
    np.testing.assert_allclose(mine.predict_proba(X, lengths).sum(1), 1.0, **NEAR)
    for ask in ("aic", "bic"):
        expected = getattr(theirs, ask)(X, lengths)
        assert getattr(mine, ask)(X, lengths) == pytest.approx(expected, abs=1e-6)
    found, expected = (model.get_stationary_distribution() for model in (mine, theirs))
    np.testing.assert_allclose(found, expected, **NEAR)


@pytest.mark.parametrize("kept", ["", "s", "t", "e", "st", "te", "ste"])
def test_some_tables_are_drawn_and_some_learnt(kept):
    """`init_params` and `params` are any letters; the others' tables stay what they are."""
    X = np.random.RandomState(0).randint(5, size=(120, 1))
    lengths = [50, 30, 40]
    start = random_tables(3, 5, 2)
    for settings in ({"init_params": kept}, {"params": kept, "init_params": ""}):
        mine, theirs = both(3, start, random_state=4, n_iter=4, tol=-np.inf, **settings)
        mine.fit(X, lengths)
        theirs.fit(X, lengths)
        for letter, name, before in zip("ste", TABLES, start, strict=True):
            np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), **NEAR)
            if "params" in settings:
                assert np.array_equal(getattr(mine, name), before) == (letter not in kept)
        np.testing.assert_allclose(mine.monitor_.history, theirs.monitor_.history, **NEAR)


def test_priors_are_added_to_counts():
    X = np.random.RandomState(0).randint(4, size=(60, 1))
    source = np.random.RandomState(1)
    priors = {
        "startprob_prior": source.uniform(0.5, 3, 3),
        "transmat_prior": source.uniform(0.5, 3, (3, 3)),
        "emissionprob_prior": source.uniform(0.5, 3, (3, 6)),
    }
    for some in (
        priors,
        {"transmat_prior": 2.5},
        {"emissionprob_prior": priors[next(iter(priors))][0]},
    ):
        mine, theirs = both(3, random_state=0, n_features=6, n_iter=5, tol=-np.inf, **some)
        mine.fit(X)
        theirs.fit(X)
        for name in TABLES:
            np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), **NEAR)
    model = CategoricalHMM(3, n_features=6, random_state=0, emissionprob_prior=1.1).fit(X)
    assert (model.emissionprob_[:, 4:] > 0).all()


def test_what_is_impossible_stays_so_with_a_prior():
    """A left-to-right model, whose zeros a prior does not fill."""
    start = ([1, 0, 0], [[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0, 1]], np.full((3, 4), 0.25))
    X = np.random.RandomState(0).randint(4, size=(60, 1))
    settings = {"startprob_prior": 2.0, "transmat_prior": 2.0, "init_params": "e"}
    mine, theirs = both(3, start, random_state=0, n_iter=5, **settings)
    mine.fit(X, [20, 20, 20])
    theirs.fit(X, [20, 20, 20])
    for name in TABLES:
        np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), **NEAR)
    assert mine.transmat_[1, 0] == 0 and (mine.startprob_ == [1, 0, 0]).all()


def test_a_fit_climbs_until_it_gains_little():
    X = rolls(300)
    mine, theirs = both(2, random_state=1, n_iter=200, tol=0.05)
    mine.fit(X, [100] * 3)
    theirs.fit(X, [100] * 3)
    history = mine.monitor_.history
    assert all(b >= a for a, b in itertools.pairwise(history))
    assert history[-1] - history[-2] < 0.05 <= history[-2] - history[-3]
    assert mine.score(X, [100] * 3) >= history[-1]
    assert mine.monitor_.iter == theirs.monitor_.iter < 200
    assert mine.monitor_.converged and mine.monitor_.has_settled
    short = CategoricalHMM(2, random_state=1, n_iter=3).fit(X)
    assert short.monitor_.converged and not short.monitor_.has_settled  # as hmmlearn has it
    assert len(CategoricalHMM(2, n_iter=0, random_state=0).fit(X).monitor_.history) == 0


def test_a_fit_says_its_steps(capsys):
    CategoricalHMM(2, random_state=0, n_iter=2, verbose=True).fit(rolls(50))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("step 1: log p(X) -") and second.endswith(")")


def test_the_number_of_symbols_is_found_or_given():
    X = rolls(100).clip(max=2)
    model = CategoricalHMM(2, random_state=0).fit(X)
    assert model.n_features == 3 and model.emissionprob_.shape == (2, 3)
    model = CategoricalHMM(2, n_features=5, random_state=0).fit(X)
    assert model.n_features == 5 and model.emissionprob_.shape == (2, 5)
    assert model.score([[0]]) > -np.inf == model.score([[4]])
    with pytest.raises(InputError, match="X has symbol 5 but the model emits 0 to 4; fit with n_f"):
        model.fit([[0], [5]])


def test_a_source_of_numbers_is_used_as_it_is_there():
    X = rolls(80)
    mine = CategoricalHMM(3, random_state=np.random.RandomState(5), n_iter=2).fit(X)
    theirs = Theirs(3, random_state=np.random.RandomState(5), n_iter=2).fit(X)
    np.testing.assert_allclose(mine.emissionprob_, theirs.emissionprob_, **NEAR)


def test_a_chain_with_two_ends_goes_where_it_starts():
    trans = [[1.0, 0, 0], [0.5, 0, 0.5], [0, 0, 1.0]]
    model = both(3, ([0, 0, 1.0], trans, np.full((3, 2), 0.5)))[0]
    np.testing.assert_allclose(model.get_stationary_distribution(), [0, 0, 1], **NEAR)


def test_hundreds_of_states_stay_out_of_log_space():
    """Their start is drawn with cells down to zero, which must not cost any digits of a row."""
    X = np.random.RandomState(0).randint(50, size=(160, 1))
    mine, theirs = both(200, random_state=0, n_iter=3, tol=-np.inf, implementation="scaling")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.fit(X, [20] * 8)
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Chain, "widened", lambda *_: asked.append(1))
        mine.fit(X, [20] * 8)
    assert not asked
    np.testing.assert_allclose(mine.monitor_.history, theirs.monitor_.history, **NEAR)
    rough = CategoricalHMM(200, random_state=0, n_iter=3, tol=-np.inf, dtype="float32")
    history = rough.fit(X, [20] * 8).monitor_.history
    np.testing.assert_allclose(history, mine.monitor_.history, rtol=1e-5)
