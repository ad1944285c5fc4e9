"""What may be read as an HMM: no other architecture, no pickle, and no tables that are none."""

import json
from pathlib import Path
from typing import Any

from hmmlm.errors import InputError
from hmmlm.evaluate import CHECKED_ROWS, HmmLM
from hmmlm.hf.configuration import HmmConfig
from hmmlm.hmm import HMM, TOLERANCE
from hmmlm.hugging_face import MODEL_TYPE


def check_folder(source: Any) -> None:
    """Refuses a folder of another kind of model, or one with a pickle alone; hubs answer later."""
    folder = Path(str(source))
    if not folder.is_dir():
        if folder.is_absolute() or str(source).startswith((".", "~")):
            raise InputError(f"{folder} is no folder; give one of hmmlm train, or a name on a hub.")
        return
    try:
        said = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        said = None  # of which transformers tells
    kind = said.get("model_type") if isinstance(said, dict) else None
    if kind not in (None, MODEL_TYPE):
        raise InputError(
            f"{folder} has a model of the type {kind!r} and no HMM; give a folder of hmmlm train, "
            f"or distil it with hmmlm distill --llm."
        )
    pickles = sorted(path for ending in ("bin", "pt", "pth") for path in folder.glob(f"*.{ending}"))
    if pickles and not any(folder.glob("*.safetensors")):
        raise InputError(
            f"{pickles[0]} is a pickle, which could run any program, and is never read; save the "
            f"model again with save_pretrained, which writes model.safetensors."
        )


def check_sizes(config: HmmConfig) -> None:
    """Refuses sizes that no table has, and more ends of a text than one."""
    if not isinstance(config.eos_token_id, int | None):
        raise InputError(
            f"The configuration says eos_token_id is {config.eos_token_id!r} but it must be one "
            f"token; give others to generate."
        )
    least = {"vocab_size": 1, "num_states": 1, "width": 1, "support_rows": 1, "factors": 0}
    for name, number in least.items():
        size = getattr(config, name)
        if not isinstance(size, int) or size < number:
            said = "states_per_word" if name == "width" else name
            raise InputError(
                f"The configuration says {said} is {size!r} but it must be a whole number of at "
                f"least {number}; copy or save the model again."
            )


def check_tables(source: Any, hmm: HMM) -> None:
    """Refuses a wrong support, and distributions that do not sum to one; of transitions some rows.

    No table of all transitions is made.
    """
    try:
        hmm.support.validate()
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    error = HmmLM(hmm).row_error(CHECKED_ROWS, 0)
    if not error <= TOLERANCE:
        raise InputError(
            f"{source}: the probabilities of its tables must sum to 1, but a sum is off by "
            f"{error:.3g}; copy or save the model again (of 16 bits, load it with dtype='auto')."
        )
