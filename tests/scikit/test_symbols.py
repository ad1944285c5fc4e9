"""Missing and unseen symbols against the enumeration of all paths, and what is refused."""

import numpy as np
import pytest
import torch
from scipy import sparse

from enumeration import enumerate_row
from hmmlm.errors import InputError
from hmmlm.scikit import HmmEstimator
from hmmlm.scikit.sequences import Sequences, read
from models import SUPPORTS, make_hmm

NEAR = {"rtol": 0, "atol": 1e-10}
ROWS = [[0, -1, 4, 2], [-1, -1], [3], [1, 1, 0, 2, -1]]


def laid_out(rows: list[list[int]]) -> tuple[np.ndarray, list[int]]:
    return np.concatenate(rows)[:, None], [len(row) for row in rows]


@pytest.mark.parametrize("support", SUPPORTS)
def test_missing_symbols_are_summed_over(support):
    hmm = make_hmm(support)
    model = HmmEstimator.from_hmm(hmm)
    X, lengths = laid_out(ROWS)
    oracle = [enumerate_row(hmm, row) for row in ROWS]
    total = sum(row.log_evidence for row in oracle)
    assert model.score(X, lengths) == pytest.approx(total, abs=1e-10)
    smoothed = torch.cat([row.smoothed().exp() for row in oracle]).numpy()
    np.testing.assert_allclose(model.predict_proba(X, lengths), smoothed, **NEAR)
    filtered = torch.cat([row.filtered().exp() for row in oracle]).numpy()
    np.testing.assert_allclose(model.filter_proba(X, lengths), filtered, **NEAR)
    best = [row.best() for row in oracle]
    log_prob, states = model.decode(X, lengths)
    assert log_prob == pytest.approx(sum(value for value, _ in best), abs=1e-10)
    for found, (_, paths) in zip(np.split(states, np.cumsum(lengths)[:-1]), best, strict=True):
        assert found.tolist() in paths.tolist()
    following = [row.next_states(None) @ row.log_emit.exp().T for row in oracle]
    np.testing.assert_allclose(model.next_proba(X, lengths), torch.stack(following), **NEAR)


def test_a_step_of_a_fit_counts_what_is_expected_of_missing_symbols():
    hmm = make_hmm("dense")
    X, lengths = laid_out(ROWS)
    model = HmmEstimator.from_hmm(hmm, n_iter=1).fit(X, lengths)
    counted = [enumerate_row(hmm, row).counts() for row in ROWS]
    sums = [sum(fields) for fields in zip(*counted, strict=True)]
    for name, counts in zip(
        ("startprob_", "transmat_", "emissionprob_"), (sums[0], sums[1], sums[2].T), strict=True
    ):
        expected = (counts / counts.sum(-1, keepdim=True)).numpy()
        np.testing.assert_allclose(getattr(model, name), expected, **NEAR)


def test_unseen_symbols_are_refused_or_missing():
    hmm = make_hmm("dense")
    X, lengths = laid_out([[0, 7, 4, 2], [5]])
    with pytest.raises(InputError, match="X has symbol 7 but the model emits 0 to 4; fit with n_f"):
        HmmEstimator.from_hmm(hmm).score(X, lengths)
    with pytest.raises(InputError, match=r"n_features=8, or set unseen='missing' to sum over"):
        HmmEstimator.from_hmm(hmm).predict(X, lengths)
    model = HmmEstimator.from_hmm(hmm, unseen="missing")
    gaps = [[0, -1, 4, 2], [-1]]
    oracle = [enumerate_row(hmm, row) for row in gaps]
    total = sum(row.log_evidence for row in oracle)
    assert model.score(X, lengths) == pytest.approx(total, abs=1e-10)
    smoothed = torch.cat([row.smoothed().exp() for row in oracle]).numpy()
    np.testing.assert_allclose(model.predict_proba(X, lengths), smoothed, **NEAR)
    filled = HmmEstimator.from_hmm(hmm, unseen="missing").fit(X, lengths)
    plain = HmmEstimator.from_hmm(hmm).fit(*laid_out(gaps))
    np.testing.assert_allclose(filled.transmat_, plain.transmat_, **NEAR)


def test_filtering_does_not_look_ahead():
    model = HmmEstimator.from_hmm(make_hmm("dense"))
    X = np.array([0, 3, 1, 2, 2, 4])[:, None]
    whole = model.filter_proba(X)
    for stop in range(1, 7):
        np.testing.assert_allclose(whole[stop - 1], model.predict_proba(X[:stop])[-1], **NEAR)
    assert np.abs(model.predict_proba(X)[:3] - whole[:3]).max() > 1e-3


def test_an_impossible_sequence_leaves_its_neighbours_alone():
    hmm = make_hmm("blocks")
    model = HmmEstimator.from_hmm(hmm)
    model.emissionprob_ = model.emissionprob_.copy()
    model.emissionprob_[:, 0], total = 0.0, model.emissionprob_[:, 1:].sum(1, keepdims=True)
    model.emissionprob_ /= total
    X, lengths = laid_out([[1, 2], [1, 0, 2], [3, 4]])
    assert model.score(X, lengths) == -np.inf
    probs = model.predict_proba(X, lengths)
    np.testing.assert_allclose(probs.sum(1), [1, 1, 0, 0, 0, 1, 1], **NEAR)
    assert model.predict(X, lengths)[2:5].tolist() == [-1] * 3
    assert (model.predict(X, lengths)[[0, 1, 5, 6]] >= 0).all()
    with pytest.raises(InputError, match="zero to 1 of 3 sequences of X, from which nothing can"):
        model.fit(X, lengths)
    with pytest.raises(InputError, match="begin with tables without zeros, or take a prior above"):
        model.partial_fit(X, lengths)


def test_batches_have_every_symbol_once():
    source = np.random.RandomState(0)
    lengths = np.concatenate([source.randint(1, 9, 50), source.randint(100, 900, 9), [5000, 90]])
    symbols = source.randint(7, size=lengths.sum())
    sequences = Sequences(symbols, source.permutation(lengths))
    ends = np.cumsum(sequences.lengths)
    back = np.full_like(symbols, -5)
    seen = []
    for rows in sequences.batches(1 << 14):  # 1,024 symbols to a batch
        assert rows.tokens.numel() <= 1024 or len(rows.tokens) == 1
        assert 2 * int(rows.lengths.sum()) >= rows.tokens.numel()
        back[rows.places] = rows.tokens.numpy()[rows.active]
        for row, number in enumerate(rows.sequences):
            stop = int(ends[number])
            whole = symbols[stop - int(rows.lengths[row]) : stop]
            assert rows.tokens[row, : len(whole)].tolist() == whole.tolist()
        seen += rows.sequences.tolist()
    np.testing.assert_array_equal(back, symbols)
    assert sorted(seen) == list(range(len(lengths)))


def test_a_list_of_arrays_is_a_list_of_sequences():
    X, lengths = laid_out(ROWS)
    for found in (read([np.array(row) for row in ROWS]), read(tuple(map(torch.tensor, ROWS)))):
        np.testing.assert_array_equal(found.symbols, X[:, 0])
        assert found.lengths.tolist() == lengths
    # As hmmlearn reads it: one sequence of three samples.
    assert read([[0], [1], [2]]).lengths.tolist() == [3]


@pytest.mark.parametrize(
    ("X", "lengths", "said"),
    [
        ([0, 1, 2], None, r"X is list of shape \(3,\) but must be \(n_samples, 1\).*X\.reshape"),
        (np.zeros((2, 3), int), None, r"X is of shape \(2, 3\) but must be .* one symbol per row"),
        ([[0], [1, 2]], None, "X has rows of unequal length; give .* or a list of 1-d arrays"),
        ([[0.0], [1.0]], None, r"X is float64 but symbols must be integers.*OrdinalEncoder\(dtype"),
        ([["a"]], None, "X is <U1 but symbols must be integers from 0 on; encode them"),
        ([[0], [-2]], None, "X has symbol -2 but symbols must be nonnegative, or -1 where they"),
        (np.zeros((0, 1), int), None, r"X has no symbols \(0 samples\); give at least 1"),
        ([np.array([1]), np.array([-3])], None, r"X\[1\] has symbol -3 but symbols must be nonneg"),
        ([np.array([1]), np.array([0.5])], None, r"X\[1\] is float64 but symbols must be integers"),
        ([np.array([1])], [1], "X is a list of sequences, which have their own; leave lengths out"),
        (sparse.csr_array(np.eye(2)), None, r"X is a sparse matrix.*give X\.toarray\(\)"),
        ([[0], [1]], [1, 2], "lengths sum to 3, of 2 sequences, but X has 2 samples; give the num"),
        ([[0], [1]], [2, 0], "lengths has 0 but every sequence needs a sample"),
        ([[0], [1]], [2.0], r"lengths is float64 of shape \(1,\) but must be a list of integers"),
        ([[0], [1]], 2, r"lengths is int64 of shape \(\) but must be a list of integers, the num"),
    ],
)
def test_what_is_no_sequence_is_refused(X, lengths, said):
    model = HmmEstimator.from_hmm(make_hmm("dense"))
    for ask in (model.fit, model.partial_fit, model.score, model.predict, model.filter_proba):
        with pytest.raises(InputError, match=said):
            ask(X, lengths)


def test_all_missing_needs_the_number_of_symbols():
    with pytest.raises(InputError, match=r"All of X is missing \(-1\) and n_features is not given"):
        HmmEstimator(2).fit([[-1], [-1]])
    assert HmmEstimator(2, n_features=3, random_state=0).fit([[-1], [-1]]).n_features == 3
