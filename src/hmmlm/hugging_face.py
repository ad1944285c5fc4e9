"""Models of Hugging Face's, from a folder or the hub; transformers is imported when one is read."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hmmlm.errors import InputError
from hmmlm.storage import signature

MODEL_TYPE = "hmmlm"
"""What our own folders say that they are: doors to others, nobody's teacher."""


def read_config(source: str, *, what: str, gguf_file: str = "") -> Any:
    """How a model is built; `what` it is to us stands in messages, `gguf_file` is in its folder."""
    how = {"gguf_file": gguf_file} if gguf_file else {}
    with reading(source, what) as transformers:
        return transformers.AutoConfig.from_pretrained(source, **how)


def read_model(
    source: str,
    *,
    what: str,
    dtype: torch.dtype,
    gguf_file: str = "",
    config: Any = None,
    seed: int | None = None,
    **how: Any,
) -> Any:
    """The model without its head, or an error: never another one in its place.

    With a `seed` it has the architecture alone, and weights drawn from that. `config` is one of
    `read_config`, if it is not as it was.
    """
    if seed is not None:
        config = read_config(source, what=what, gguf_file=gguf_file) if config is None else config
        with reading(source, what) as transformers, torch.random.fork_rng():
            torch.manual_seed(seed)
            return transformers.AutoModel.from_config(config, dtype=dtype, **how)
    how |= {"gguf_file": gguf_file} if gguf_file else {}
    how |= {} if config is None else {"config": config}
    with reading(source, what) as transformers:
        model, found = transformers.AutoModel.from_pretrained(
            source, dtype=dtype, output_loading_info=True, **how
        )
        # Of these transformers draws weights; a pooler comes after all that is read here.
        missing = sorted(name for name in found["missing_keys"] if "pooler" not in name)
        if missing:
            raise OSError(f"it has no weights of {missing[0]} ({len(missing):,} are missing).")
    return model


def read_head(
    source: str, *, what: str, dtype: torch.dtype, gguf_file: str = "", seed: int | None = None
) -> Float[Tensor, "V D"] | None:
    """The output embeddings of a causal language model; None where it has none of its own."""
    how = {"gguf_file": gguf_file} if gguf_file else {}
    with reading(source, what) as transformers, torch.random.fork_rng():
        door, missing = transformers.AutoModelForCausalLM, []
        if seed is None:
            whole, found = door.from_pretrained(
                source, dtype=dtype, output_loading_info=True, **how
            )
            missing = found["missing_keys"]
        else:
            torch.manual_seed(seed)
            config = transformers.AutoConfig.from_pretrained(source, **how)
            whole = door.from_config(config, dtype=dtype)
        head = whole.get_output_embeddings()
        # What a folder lacks, transformers draws; that is nobody's head.
        named = dict(whole.named_parameters())
        if head is None or any(named.get(name) is head.weight for name in missing):
            return None
        return head.weight.detach().float()


def outline(source: str, config: Any, *, what: str) -> Any:
    """The model without its head and without numbers: its parameters have shapes alone."""
    with reading(source, what) as transformers, torch.device("meta"):
        return transformers.AutoModel.from_config(config)


def place_of(source: str, config: Any) -> list[Any]:
    """What tells a model from others: the files of its folder, or the commit on the hub."""
    if Path(source).is_dir():
        return [signature(path) for path in sorted(Path(source).iterdir()) if path.is_file()]
    return [getattr(config, "_commit_hash", None)]


def is_causal(model: Any) -> bool:
    """Whether a model without its head is that of a causal language model, and no encoder."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    known = type(model.config) in MODEL_FOR_CAUSAL_LM_MAPPING
    return known and not model.config.is_encoder_decoder and not hasattr(model, "pooler")


@contextmanager
def reading(source: str, what: str) -> Iterator[Any]:
    """transformers, silent; what goes wrong with it becomes one sentence."""
    try:
        import transformers
        from transformers.utils import logging
    except ImportError:
        raise InputError(
            f"The {what} {source} needs Hugging Face's transformers; pip install 'hmmlm[hf]'."
        ) from None
    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub = getLogger("huggingface_hub")  # which tells every time it tries again
    hub_level = hub.level
    hub.setLevel(ERROR)
    try:
        is_folder = Path(source).is_absolute() or source.startswith((".", "~"))
        if is_folder and not Path(source).exists():
            raise OSError("there is no such folder.")
        if _is_ours(Path(source)):
            raise OSError("it is an HMM of this library's.")
        yield transformers
    except InputError:
        raise
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"The {what} {source} cannot be loaded: {said} Give a folder that transformers reads, "
            f"or a name on the hub."
        ) from error
    finally:
        logging.set_verbosity(level)
        hub.setLevel(hub_level)
        if has_bars:
            logging.enable_progress_bar()


def _is_ours(folder: Path) -> bool:
    """Whether transformers might read an HMM there, which it does once `hmmlm.hf` is imported."""
    try:
        said = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and said.get("model_type") == MODEL_TYPE
