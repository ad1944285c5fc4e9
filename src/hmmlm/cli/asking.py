"""`hmmlm evaluate`, `hmmlm score` and `hmmlm next`; opening a model or a text for any command."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hmmlm.cli.bars import progress_bar
from hmmlm.cli.output import (
    Device,
    EmptyLines,
    Json,
    pick_device,
    print_json,
    readable,
    say,
    warn,
    whole,
)
from hmmlm.cli.unknown import UnknownWords, tell_unknown
from hmmlm.errors import InputError, counted

if TYPE_CHECKING:
    from hmmlm.data.shards import Corpus
    from hmmlm.model import Model
    from hmmlm.neural_model import NeuralModel
    from hmmlm.topic_model import TopicModel

Folder = Annotated[Path, typer.Argument(help="A model's folder.")]
Text = Annotated[
    Path | None, typer.Argument(help="A text file, one sentence per line; by default stdin.")
]


def evaluate(
    model: Folder,
    corpus: Annotated[Path, typer.Argument(help="A corpus folder, or a text file.")],
    split: Annotated[str | None, typer.Option(help="Split of the corpus; by default test.")] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="sentence (by default), streaming or 'window N' (docs/evaluation.md)."),
    ] = None,
    empty_lines: EmptyLines = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Perplexity of a model on a text, every token counted once."""
    from hmmlm.data.corpus import read_lines
    from hmmlm.data.shards import Corpus, check_vocabulary
    from hmmlm.data.token_array import TokenArray
    from hmmlm.evaluate import evaluate as run
    from hmmlm.evaluate import parse_mode

    parse_mode(mode or "sentence")
    loaded = load_any(model, device)
    if corpus.is_dir():
        opened = Corpus.open(corpus)
        check_vocabulary(opened, loaded.tokenizer)
        tokens = opened.split(check_split(opened, "test" if split is None else split))
    else:
        if split is not None:
            raise InputError(f"--split {split} needs a corpus folder; {corpus} is one text.")
        import numpy as np

        unknown = UnknownWords(loaded.tokenizer)
        lines = unknown.watch(read_lines(corpus, empty_lines=empty_lines or "refuse"))
        ids = np.concatenate(list(loaded.encode(lines)))
        tokens = TokenArray.from_ids(ids, eos_id=loaded.tokenizer.eos_id)
        unknown.tell()
    with progress_bar("Evaluating", len(tokens)) as bar:
        result = run(
            loaded.lm,
            tokens,
            mode=mode or "sentence",
            eos_id=loaded.tokenizer.eos_id,
            device=loaded.device,
            progress=lambda done: bar.advance(bar.task_ids[0], done),
        )
    say(
        f"perplexity {result.perplexity:.3f} over {counted(result.tokens, 'token')}, mode "
        f"{result.mode} ({result.nats:,.1f} nats; rows of the model sum to one within "
        f"{result.max_row_error:.1e})"
    )
    if mode is None:
        _warn_of_mode(model, loaded)
    if json:
        print_json(result._asdict())


def _warn_of_mode(folder: Path, model: "Model | NeuralModel | TopicModel") -> None:
    """Says when a model that was read by sentence was validated in another way."""
    from hmmlm.topic_model import TopicModel
    from hmmlm.train.config import mode_of_training

    if isinstance(model, TopicModel):  # which reads every line from p(first state)
        return
    trained = mode_of_training(model.config)
    if trained not in (None, "sentence"):
        warn(
            f"{folder} was validated in mode {trained} and is read here by sentence, which gives "
            f"another number; --mode {quote(trained)} reads as in its training."
        )


def score(
    model: Folder,
    text: Text = None,
    empty_lines: EmptyLines = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Log-probability (nats) of every token of a text or of stdin, each line on its own.

    One line of output per line of text: its total, then token and log-probability in turn.
    """
    import numpy as np

    loaded = load_any(model, device)
    unknown = UnknownWords(loaded.tokenizer)
    lines = text_lines(text, empty_lines, f"hmmlm score {quote(str(model))}")
    lines = unknown.watch(lines)
    found: list[Any] = []
    tokens, nats = 0, 0.0
    with progress_bar("Scoring", None, prints=not json) as bar:
        for ids, log_probs in loaded.score_ids(loaded.encode(lines)):
            tokens += len(ids)
            nats -= float(log_probs.sum(dtype=np.float64))
            bar.update(bar.task_ids[0], details=counted(tokens, "token"))
            if json:
                found.append(log_probs)
            else:
                words = (loaded.tokenizer.token(int(i)) for i in ids)
                pairs = (f"{w} {p:.4f}" for w, p in zip(words, log_probs.tolist(), strict=True))
                total = log_probs.sum(dtype=np.float64)
                sys.stdout.write(f"{total:.4f}\t" + "  ".join(pairs) + "\n")
    unknown.tell()
    if json:
        print_json({"tokens": tokens, "nats": nats, "log_probs": np.concatenate(found).tolist()})


def next_tokens(
    model: Folder,
    prompt: Annotated[
        str, typer.Argument(help="The text so far.", parser=readable, metavar="TEXT")
    ] = "",
    k: Annotated[
        int,
        typer.Option("--k", "-k", help="How many tokens to show.", parser=whole(1), metavar="N"),
    ] = 10,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """The most probable tokens after a text, with their probabilities."""
    loaded = load_any(model, device)
    found = loaded.next(prompt, k=k)
    tell_unknown(loaded.tokenizer, prompt)
    if json:
        print_json({"next": [{"token": token, "prob": prob} for token, prob in found]})
        return
    for token, prob in found:
        sys.stdout.write(f"{prob:.6f}  {token}\n")


def check_split(corpus: "Corpus", split: str) -> str:
    """The name of a split, if the corpus has it."""
    if split not in corpus.splits:
        raise InputError(
            f"{corpus.folder} has no split {split!r}; choose one with --split "
            f"{' or --split '.join(corpus.splits)}."
        )
    return split


def load_any(folder: Path, device: str) -> "Model | NeuralModel | TopicModel":
    from hmmlm.neural_model import load_model

    place = pick_device(device)
    with progress_bar(f"Loading {folder}", None):
        return load_model(folder, device=place)


def load_hmm(folder: Path, device: str) -> "Model":
    from hmmlm.model import Model

    place = pick_device(device)
    with progress_bar(f"Loading {folder}", None):
        return Model.load(folder, device=place)


def text_lines(text: Path | None, empty_lines: str | None, command: str) -> Iterator[str]:
    """The lines of a text, or of stdin; `command` is what reads them there."""
    from hmmlm.data.corpus import read_lines

    name = "-" if text is None else str(text)
    if name == "-" and sys.stdin.isatty():
        warn("reading lines from the terminal; Ctrl-D ends.")
    elif name != "-" and not os.path.exists(name):  # also of a text too long for a name
        raise InputError(
            f"{name} does not exist; give a text file; echo {quote(name)} | {command} reads the "
            f"words themselves."
        )
    return read_lines(name, empty_lines=empty_lines or "refuse")
