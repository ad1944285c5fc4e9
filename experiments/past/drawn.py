"""HMMs that read, beside PTB, text that networks trained on PTB have drawn; validation text alone.

    python -m experiments.past.drawn --data DIR --work DIR --clusters DIR [--row NAME]

A network is trained once in the work folder, then draws 10 million tokens as streams of sentences,
each given those before it. Rows without a teacher read PTB alone, by the recipe that has won so
far; beside drawn text there is less dropout and fewer epochs, for most of it is read only twice.
"""

from experiments.chiu_rush_2020.recipes import AWD_PTB, SIDE_BY_SIDE
from experiments.past.recipes import CHOSEN, EPOCHS, settings
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


def _row(teacher: Teacher | None, power: int) -> Row:
    changes = [CHOSEN] if teacher is None else [CHOSEN, LESS]
    return Row(
        f"{teacher.name if teacher else 'PTB alone'}, 2^{power}",
        "ptb",
        states=2**power,
        blocks=128,
        settings=settings("ptb", *changes),
        modes=("sentence",),
        drawn=teacher and Drawn(teacher, TOKENS),
        epochs=2 if teacher else EPOCHS["ptb"],
        tested=False,
    )


ROWS = tuple(_row(teacher, power) for teacher in (None, *TEACHERS) for power in (14, 15))

if __name__ == "__main__":
    raise SystemExit(main({EXPERIMENT: ROWS}, __doc__ or ""))
