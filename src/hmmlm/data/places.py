"""What is at a path where a corpus was wanted."""

from pathlib import Path

from hmmlm.errors import InputError


def no_corpus(folder: Path) -> InputError:
    """Why a folder without a corpus.json is none, and where one may be."""
    if not folder.exists():
        return InputError(f"{folder} does not exist; give a corpus folder, made by hmmlm prepare.")
    if (folder / "config.json").exists() and (folder / "tokenizer.json").exists():
        return InputError(
            f"{folder} is a model; a corpus is needed here, such as hmmlm prepare makes."
        )
    inner = folder / "corpus"
    if (inner / "corpus.json").exists():  # a world's, of hmmlm world
        return InputError(f"{folder} is not a prepared corpus; its corpus is {inner}.")
    return InputError(
        f"{folder} is not a prepared corpus: it has no corpus.json; make one with hmmlm prepare."
    )
