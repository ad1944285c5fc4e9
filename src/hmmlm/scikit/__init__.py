"""HMMs as scikit-learn's estimators, with the names and arguments of hmmlearn."""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "hmmlm.scikit needs scikit-learn, which is not installed; run pip install "
        "'hmmlm[sklearn]'.",
        name="sklearn",
    ) from None

from hmmlm.scikit.estimator import CategoricalHMM, HmmEstimator

__all__ = ["CategoricalHMM", "HmmEstimator"]
