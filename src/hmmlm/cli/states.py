"""States of an HMM in lines for people, and which of them are used most."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hmmlm.cli.output import console

if TYPE_CHECKING:
    from hmmlm.model import Model


def state_lines(model: "Model", states: Iterable[int]) -> list[str]:
    """States by the words they emit most, as many as fit on a line."""
    lines = []
    for state in states:
        line = f"{state:>8} "
        for word, prob in model.top_words(state, k=8):
            part = f" {word} {prob:.2f}"
            if len(line) + len(part) > console.width:
                break
            line += part + " "
        lines.append(line.rstrip())
    return lines


def most_used(model: "Model", count: int) -> tuple[list[int], str]:
    """The states with the largest shares of a text, and which text, as `hmmlm report` has them."""
    import numpy as np

    from hmmlm.explore.texts import find_text
    from hmmlm.explore.use import UseReader

    text = find_text(model, None)
    reader = UseReader(model.hmm, model.tokenizer.eos_id)
    for group in reader.groups(text.lines()):
        reader.read(group)
    order = np.argsort(-reader.use().share, kind="stable")
    return order[:count].tolist(), text.name.partition(";")[0]  # without options of report
