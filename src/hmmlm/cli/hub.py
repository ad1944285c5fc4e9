"""Models of Hugging Face's by their names: what is said before the hub is asked for one."""

from pathlib import Path

from hmmlm.cli.output import warn


def tell_of_hub(source: str) -> None:
    """A line on stderr where a name is no folder: a misspelt one is then not waited for."""
    is_path = Path(source).is_absolute() or source.startswith((".", "~"))
    if not is_path and not Path(source).exists():  # a path that is not there is refused at once
        warn(f"{source} is no folder here; asking Hugging Face's hub.")
