"""A fit by `hmmlm.scikit` and by hmmlearn: seconds, and the last log p(X), which must agree.

OMP_NUM_THREADS=1 python -m benchmarks.scikit
"""

import json
import logging
import time
import warnings

import numpy as np

from hmmlm.scikit import CategoricalHMM

STATES, SYMBOLS, LENGTHS, STEPS = 256, 1000, [256] * 16, 3


def main() -> None:
    logging.disable()  # hmmlearn's word that there are more parameters than samples
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from hmmlearn.hmm import CategoricalHMM as Theirs
    X = np.random.RandomState(0).randint(SYMBOLS, size=(sum(LENGTHS), 1))
    CategoricalHMM(STATES, random_state=0, n_iter=1).fit(X[:256])  # compiles
    last = []
    for name, kind, implementation in (
        ("hmmlm", CategoricalHMM, "log"),
        ("hmmlearn-scaling", Theirs, "scaling"),
        ("hmmlearn-log", Theirs, "log"),
    ):
        model = kind(STATES, random_state=0, n_iter=STEPS, implementation=implementation)
        start = time.perf_counter()
        model.fit(X, LENGTHS)
        seconds = time.perf_counter() - start
        last.append(model.monitor_.history[-1])
        assert abs(last[-1] - last[0]) < 1e-6, last
        print(json.dumps({"fit": name, "seconds": round(seconds, 2), "log_prob": last[-1]}))


if __name__ == "__main__":
    main()
