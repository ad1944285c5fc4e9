"""Table 3: variants of Chiu & Rush's network, 512 states.

    python -m experiments.lee_berg_kirkpatrick_2025.table3 --data DIR --work DIR [--row NAME]

Deviations from the paper: those of `recipes`.
"""

from experiments.lee_berg_kirkpatrick_2025.recipes import Model, network, train
from experiments.runner import main

EXPERIMENT = "lee_berg_kirkpatrick_2025/table3"
WORDS = ("split", "monolithic", "layers", "skip", "relu", "norm")
PAPER = (
    ((False, False, 1, False, True, False), 329.5),
    ((True, False, 1, False, True, False), 336.6),
    ((False, False, 2, True, True, False), 336.7),
    ((True, False, 2, False, False, True), 341.2),
    ((True, False, 2, True, True, False), 342.6),
    ((True, True, 2, True, True, False), 343.5),
    ((False, False, 1, False, False, False), 344.4),
)


def _named(parts: tuple) -> str:
    found = dict(zip(WORDS, parts, strict=True))
    held = [word for word in WORDS if word != "layers" and found[word]]
    return ", ".join([f"{found['layers']} layer{'s' * (found['layers'] > 1)}", *held])


VARIANTS: dict[str, Model] = {
    _named(parts): network(**dict(zip(WORDS, parts, strict=True))) for parts, _ in PAPER
}

ROWS = tuple(
    row
    for (name, model), (_, paper) in zip(VARIANTS.items(), PAPER, strict=True)
    for row in train(name, model, paper=paper)
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
