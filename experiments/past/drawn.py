"""HMMs that read, beside PTB, text that networks trained on PTB have drawn; validation text alone.

    python -m experiments.past.drawn --data DIR --work DIR --clusters DIR [--row NAME]

A network is trained once in the work folder, then draws 10 million tokens as streams of sentences,
each given those before it. `search` has the same without (dropout 0.5 to 0, averaged). On a CPU it
did not help an HMM that does not know its text by heart (LOG.md); those of 2^14 states and more do.
"""

from experiments.chiu_rush_2020.recipes import AWD_PTB, SIDE_BY_SIDE
from experiments.past.recipes import CHOSEN, settings
from experiments.rows import Drawn, Row, Teacher
from experiments.runner import main

EXPERIMENT = "past/drawn"
TOKENS = 10_000_000
TEACHERS = (
    Teacher("2x256 LSTM", (*SIDE_BY_SIDE, "train.epochs=40"), kind="lstm"),
    Teacher(
        "AWD-LSTM",
        (*AWD_PTB, "train.weight_decay=0.1", "train.epochs=100"),
        kind="awd_lstm",
    ),
)
LESS = {"train.dropout": "0.2"}
"""For most text is read only twice."""

ROWS = tuple(
    Row(
        f"{teacher.name}, 2^{power}",
        "ptb",
        states=2**power,
        blocks=128,
        settings=settings("ptb", CHOSEN, LESS),
        modes=("sentence",),
        drawn=Drawn(teacher, TOKENS),
        epochs=2,
        tested=False,
    )
    for teacher in TEACHERS
    for power in (14, 15)
)

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
