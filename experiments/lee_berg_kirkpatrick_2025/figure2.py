"""Figures 2, 11 and 12: the size and the architecture of the network, 256, 512 and 1,024 states.

    python -m experiments.lee_berg_kirkpatrick_2025.figure2 --data DIR --work DIR [--row NAME]

Deviations from the paper: those of `recipes`.
- 25M tokens, one seed, three at 2^22 parameters. The paper does not say how networks grow: ours by
  their width, in steps of 8, at two layers (transformers at two blocks), to the number of
  parameters that is nearest. Rates are those of width 256.
"""

from bisect import bisect_left

from experiments.lee_berg_kirkpatrick_2025.recipes import MODELS, PART, SEEDS, Model, train
from experiments.runner import main
from hmmlm.train.config import make_config
from hmmlm.train.estimate import count_parameters
from hmmlm.train.tables import override

EXPERIMENT = "lee_berg_kirkpatrick_2025/figure2"
POWERS = range(18, 27)
WORDS = 32_000
NAMES = {"Chiu and Rush": "MLP", "MLP, monolithic": "MLP, monolithic"}
NAMES |= {"TRF": "TRF", "TRF, monolithic": "TRF, monolithic"}


def of_width(model: Model, width: int) -> Model:
    """The model at a width, transformers with two blocks."""
    kind, settings = model
    changed = {"model.width": width} | ({"model.depth": 2} if kind == "transformer" else {})
    kept = [setting for setting in settings if setting.partition("=")[0] not in changed]
    return kind, (*kept, *(f"{key}={value}" for key, value in changed.items()))


def parameters(model: Model, states: int) -> int:
    kind, settings = model
    sizes = [f"model.kind={kind}", f"model.states={states}", "model.blocks=0"]
    return count_parameters(make_config(override({}, [*sizes, *settings])), WORDS)


def of_size(model: Model, states: int, number: int) -> Model:
    """The width that comes nearest to so many parameters."""

    def size(step: int) -> int:
        return parameters(of_width(model, 8 * step), states)

    step = bisect_left(range(256), number, 1, 256, key=size)  # sizes rise with the width
    near = [some for some in (step - 1, step) if some >= 1]
    return of_width(model, 8 * min(near, key=lambda some: abs(size(some) - number)))


def curve(name: str, states: int) -> tuple:
    rows = []
    for power in POWERS:
        model = of_size(MODELS[name], states, 2**power)
        title = f"{NAMES[name]}, {states} states, 2^{power}"
        seeds = SEEDS if power == 22 else SEEDS[:1]
        rows += train(title, model, like=name, states=states, tokens=PART, seeds=seeds)
    return tuple(rows)


BASELINES = tuple(
    row
    for states in (256, 512, 1024)
    for row in train(f"HMM, {states} states", MODELS["HMM"], like="HMM", states=states, tokens=PART)
)
ROWS = (
    *BASELINES,
    *(row for states in (512, 256) for name in NAMES for row in curve(name, states)),
    *curve("Chiu and Rush", 1024),
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
