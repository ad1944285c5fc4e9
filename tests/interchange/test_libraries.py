"""Parameters of hmmlearn, pomegranate and dynamax, as objects and as arrays in files."""

import itertools
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from enumeration import enumerate_row
from foreign import (
    EMIT,
    INIT,
    TRANS,
    dynamax_arrays,
    hmmlearn_arrays,
    pomegranate_arrays,
    sum_over_paths,
)
from hmmlm import HMM, inference
from hmmlm.errors import InputError
from hmmlm.interchange import from_dynamax, from_hmmlearn, from_pomegranate, read
from hmmlm.interchange.reading import read_source
from models import make_hmm

ARRAYS = {
    "hmmlearn": hmmlearn_arrays,
    "pomegranate": pomegranate_arrays,
    "dynamax": dynamax_arrays,
}
TEXTS = [list(words) for n in (1, 2, 3) for words in itertools.product(range(4), repeat=n)]
FROM = {"hmmlearn": from_hmmlearn, "pomegranate": from_pomegranate, "dynamax": from_dynamax}


def log_p(hmm: HMM, words: list[int]) -> float:
    return float(inference.log_prob(hmm, torch.tensor([words])).log_evidence)


def thing(kind: str, hmm: HMM) -> SimpleNamespace:
    """What a library would hold of an HMM, with its names."""
    init, trans = hmm.log_init.exp(), hmm.transitions.rows(0, hmm.num_states).exp()
    emit = hmm.log_emit.T.exp()
    if kind == "hmmlearn":
        return SimpleNamespace(
            startprob_=init.numpy(), transmat_=trans.numpy(), emissionprob_=emit.numpy()
        )
    if kind == "dynamax":
        return SimpleNamespace(
            initial=SimpleNamespace(probs=init.numpy()),
            transitions=SimpleNamespace(transition_matrix=trans.numpy()),
            emissions=SimpleNamespace(probs=emit[:, None].numpy()),
        )
    return SimpleNamespace(
        starts=torch.nn.Parameter(init.log()),
        edges=torch.nn.Parameter(trans.log()),
        ends=None,
        distributions=[SimpleNamespace(probs=row[None]) for row in emit],
    )


@pytest.mark.parametrize("kind", FROM)
def test_an_object_gives_the_probabilities_of_its_tables(kind):
    hmm = make_hmm()
    back = FROM[kind](thing(kind, hmm))
    assert back.dtype == torch.float64
    for words in itertools.product(range(5), repeat=3):
        wanted = enumerate_row(hmm, list(words)).log_evidence
        assert log_p(back, list(words)) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_in_a_file_give_the_probabilities_of_their_tables(tmp_path, kind, suffix):
    path = tmp_path / f"x.{suffix}"
    if suffix == "npz":
        np.savez(path, **ARRAYS[kind]())
    else:
        arrays = {name: np.ascontiguousarray(array) for name, array in ARRAYS[kind]().items()}
        save_file(arrays, path)
    hmm = read(path)
    assert isinstance(hmm, HMM)
    for words in TEXTS:
        by_hand = np.log(max(sum_over_paths(INIT, TRANS, EMIT, words), 1e-300))
        found = max(log_p(hmm, words), float(np.log(1e-300)))
        assert found == pytest.approx(by_hand, abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_model_of_hmmlearn_scores_the_same(tmp_path, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from hmmlearn.hmm import CategoricalHMM
    rng = np.random.default_rng(seed)
    fitted = CategoricalHMM(n_components=5, n_iter=3, random_state=seed, tol=0)
    fitted.fit(np.append(np.arange(7), rng.integers(0, 7, 93))[:, None])
    text = rng.integers(0, 7, 30)
    ours = from_hmmlearn(fitted)
    assert log_p(ours, text.tolist()) == pytest.approx(fitted.score(text[:, None]), abs=1e-6)
    names = ("startprob_", "transmat_", "emissionprob_")
    np.savez(tmp_path / "x.npz", **{name: getattr(fitted, name) for name in names})
    again = read(tmp_path / "x.npz")
    assert isinstance(again, HMM)
    assert log_p(again, text.tolist()) == pytest.approx(fitted.score(text[:, None]), abs=1e-6)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"startprob_": np.ones(2) / 2}, r"transmat_ has the shape \(3, 3\), where 3 must be the"),
        ({"transmat_": np.ones((3, 2)) / 2}, r"transmat_ has the shape \(3, 2\), where 2 must be"),
        ({"emissionprob_": EMIT.numpy()[:2]}, r"emissionprob_ has the shape \(2, 4\), where 2 m"),
    ],
)
def test_arrays_of_hmmlearn_that_do_not_fit(changed, said):
    with pytest.raises(InputError, match=said):
        from_hmmlearn(SimpleNamespace(**{**hmmlearn_arrays(), **changed}))


def test_arrays_of_any_numbers():
    """Whole numbers and lists are exact; one table of float64 makes all of them float64."""
    arrays = {"startprob_": [1, 0, 0], "transmat_": np.eye(3, dtype=int)}
    arrays["emissionprob_"] = EMIT.float().numpy()
    hmm = from_hmmlearn(SimpleNamespace(**arrays))
    assert hmm.dtype == torch.float64 and log_p(hmm, [0, 3]) == pytest.approx(np.log(0.125))
    for name, array in hmmlearn_arrays().items():
        short = {key: value.astype(np.float32) for key, value in hmmlearn_arrays().items()}
        assert from_hmmlearn(SimpleNamespace(**short)).dtype == torch.float32
        assert from_hmmlearn(SimpleNamespace(**{**short, name: array})).dtype == torch.float64


def test_arrays_that_cannot_be_written_to():
    arrays = {name: np.array(array) for name, array in hmmlearn_arrays().items()}
    for array in arrays.values():
        array.flags.writeable = False
    assert log_p(from_hmmlearn(SimpleNamespace(**arrays)), [0]) == pytest.approx(np.log(0.28))


def test_starts_must_sum_to_one():
    arrays = {**hmmlearn_arrays(), "startprob_": np.array([0.5, 0.3, 0.1])}
    said = "of startprob_ must sum to 1, but they sum to 0.9; normalise them"
    with pytest.raises(InputError, match=said):
        from_hmmlearn(SimpleNamespace(**arrays))
    one = {"startprob_": np.ones(1), "transmat_": np.full((1, 1), 0.9), "emissionprob_": EMIT[:1]}
    with pytest.raises(InputError, match=r"of transmat_ must sum to 1, but those of 0 sum to 0\.9"):
        from_hmmlearn(SimpleNamespace(**one))


def test_a_model_of_counts_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from hmmlearn.hmm import GaussianHMM, MultinomialHMM
    other = MultinomialHMM(n_components=2)
    other.n_features = 3
    said = "This MultinomialHMM emits counts of 3 symbols, not one symbol at a time; fit hmmlearn's"
    with pytest.raises(InputError, match=said):
        from_hmmlearn(other)
    said = "This GaussianHMM has no startprob_, transmat_, emissionprob_; a CategoricalHMM of hmm"
    with pytest.raises(InputError, match=said):
        from_hmmlearn(GaussianHMM(n_components=2))


ENDING = torch.tensor([[0.5, 0.3], [0.2, 0.1]], dtype=torch.float64)
ENDS = torch.tensor([0.2, 0.7], dtype=torch.float64)


def with_ends(edges: torch.Tensor, ends: torch.Tensor) -> SimpleNamespace:
    return SimpleNamespace(
        starts=INIT[:2].div(0.8).log(),
        edges=edges.log(),
        ends=ends.log(),
        distributions=[SimpleNamespace(probs=row[None]) for row in EMIT[:2]],
    )


def test_ends_of_pomegranate_are_one_more_word():
    hmm = from_pomegranate(with_ends(ENDING, ENDS))
    assert (hmm.num_states, hmm.vocab_size) == (3, 5)
    start = INIT[:2] / 0.8
    for n in (1, 2, 3):
        for words in itertools.product((0, 1, 3), repeat=n):
            # Forward by hand, and then the ends: pomegranate's log_probability.
            here = start * EMIT[:2, words[0]]
            for word in words[1:]:
                here = (here @ ENDING) * EMIT[:2, word]
            wanted = float((here @ ENDS).log())
            assert log_p(hmm, [*words, 4]) == pytest.approx(wanted, abs=1e-9)
    total = sum(
        np.exp(log_p(hmm, [*words, 4]))
        for n in range(1, 6)
        for words in itertools.product((0, 1, 3), repeat=n)
    )
    assert 0.9 < total < 1


def test_ends_that_pomegranate_made_up_are_left_out():
    whole = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
    hmm = from_pomegranate(with_ends(whole, torch.tensor([0.5, 0.5])))
    wanted = sum_over_paths(INIT[:2] / 0.8, whole, EMIT[:2], [0, 1, 3])
    assert log_p(hmm, [0, 1, 3]) == pytest.approx(np.log(wanted), abs=1e-9)


def test_ends_of_long_texts_are_not_taken_for_rounding():
    rare = torch.tensor([2e-4, 1e-4], dtype=torch.float64)
    whole = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
    assert from_pomegranate(with_ends(whole * (1 - rare[:, None]), rare)).vocab_size == 5
    assert from_pomegranate(with_ends(whole, torch.full((2,), 2e-4))).vocab_size == 4
    assert from_pomegranate(with_ends(whole, torch.zeros(2))).vocab_size == 4


def test_edges_of_a_sparse_model():
    dense, sparse = with_ends(ENDING, ENDS), with_ends(ENDING, ENDS)
    sparse.edges = sparse.edges.flatten()
    sparse._edge_idx_starts = torch.tensor([0, 0, 1, 1])
    sparse._edge_idx_ends = torch.tensor([0, 1, 0, 1])
    pairs = zip(from_pomegranate(dense).fields(), from_pomegranate(sparse).fields(), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b)
    for wrong, said in ((2, "0 to 2"), (-1, "-1 to 1")):
        sparse._edge_idx_ends = torch.tensor([0, 1, 0, wrong])
        with pytest.raises(InputError, match=f"edges between states {said} but 2 states; save the"):
            from_pomegranate(sparse)
    sparse._edge_idx_ends = torch.tensor([0, 1, 0])
    with pytest.raises(InputError, match=r"_edge_idx_ends has the shape \(3,\), where 3 must be"):
        from_pomegranate(sparse)
    sparse.edges = sparse._edge_idx_starts = sparse._edge_idx_ends = torch.zeros(0)
    with pytest.raises(InputError, match="of edges with ends must sum to 1, but those of 0 sum to"):
        from_pomegranate(sparse)


def test_ends_that_are_no_probabilities_are_refused():
    whole = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
    said = "edges sum to 1 without ends, and ends differ from 0.2 to 0.7, so that texts have"
    with pytest.raises(InputError, match=said):
        from_pomegranate(with_ends(whole, ENDS))
    said = "of edges with ends must sum to 1, but those of 1 sum to 1.2; normalise them"
    with pytest.raises(InputError, match=said):
        from_pomegranate(with_ends(ENDING, torch.tensor([0.2, 0.9])))
    said = "of edges with ends must sum to 1, but those of 1 sum to 1.5; normalise them"
    with pytest.raises(InputError, match=said):
        from_pomegranate(with_ends(0.9 * whole, torch.tensor([0.5, 0.6])))
    with pytest.raises(InputError, match=r"ends differ from 0\.2 to 0\.20001, so that texts have"):
        from_pomegranate(with_ends(whole, torch.tensor([0.2, 0.20001])))
    with pytest.raises(InputError, match=r"ends has the shape \(1,\), where 1 must be the 2 of"):
        from_pomegranate(with_ends(ENDING, torch.tensor([0.2])))


def test_the_word_that_ends_texts_of_a_file_is_known(tmp_path):
    model = with_ends(ENDING, ENDS)
    arrays = {name: getattr(model, name).numpy() for name in ("starts", "edges", "ends")}
    for state in range(2):
        arrays[f"distributions.{state}.probs"] = EMIT[state : state + 1].numpy()
    np.savez(tmp_path / "x.npz", **arrays)
    source = read_source(tmp_path / "x.npz")
    assert (source.kind, source.eos_id, source.hmm.vocab_size) == ("pomegranate", 4, 5)
    np.savez(tmp_path / "y.npz", **pomegranate_arrays())
    assert read_source(tmp_path / "y.npz").eos_id is None


def test_distributions_of_pomegranate_must_be_categorical_and_all_there():
    model = with_ends(ENDING, ENDS)
    model.distributions[1] = SimpleNamespace(means=torch.ones(1))
    said = "has no distributions.1.probs; an HMM of 2 states has distributions.0.probs, distrib"
    with pytest.raises(InputError, match=said):
        from_pomegranate(model)
    model.distributions = [SimpleNamespace(probs=EMIT[:1])] * 3
    said = "has distributions.2.probs, which an HMM of 2 states has not; it has distributions.0"
    with pytest.raises(InputError, match=said):
        from_pomegranate(model)
    model.distributions = [SimpleNamespace(probs=EMIT[:2])] * 2
    with pytest.raises(InputError, match=r"shape \(2, 4\), where 2 must be 1; save the tables"):
        from_pomegranate(model)


def test_several_emissions_of_dynamax_are_refused(tmp_path):
    arrays = dynamax_arrays()
    arrays["emissions.probs"] = np.repeat(arrays["emissions.probs"], 2, 1)
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(
        InputError, match=r"emissions.probs has the shape \(3, 2, 4\), where 2 must"
    ):
        read(tmp_path / "x.npz")


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_that_are_missing_or_unknown_are_named(tmp_path, kind):
    arrays = ARRAYS[kind]()
    lost = {"hmmlearn": "transmat_", "pomegranate": "edges", "dynamax": "emissions.probs"}[kind]
    np.savez(tmp_path / "x.npz", **{name: a for name, a in arrays.items() if name != lost})
    with pytest.raises(InputError, match=rf"has no {lost}; a.* has .*: save all of them"):
        read(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", **arrays, means=np.ones(3))
    with pytest.raises(InputError, match=r"y\.npz has means, which an? .* has not; it has .*"):
        read(tmp_path / "y.npz")


@pytest.mark.parametrize("kind", FROM)
def test_rows_must_sum_to_one(kind):
    hmm = make_hmm()
    model = thing(kind, hmm)
    if kind == "hmmlearn":
        model.transmat_[2] *= 1.1
        name = "transmat_"
    elif kind == "dynamax":
        model.transitions.transition_matrix[2] *= 1.1
        name = "transitions.transition_matrix"
    else:
        model.edges = model.edges.detach().clone()
        model.edges[2] += np.log(1.1)
        name = "edges"
    said = f"the probabilities of {name} must sum to 1, but those of 2 sum to 1.1; normalise them"
    with pytest.raises(InputError, match=said):
        FROM[kind](model)
