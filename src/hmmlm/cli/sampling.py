"""`hmmlm sample-corpus` and `hmmlm gap`: text of a teacher, and how far a model of it is."""

import json as json_format
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hmmlm.cli.asking import Folder, check_split, load_any
from hmmlm.cli.bars import progress_bar
from hmmlm.cli.hub import tell_of_hub
from hmmlm.cli.output import (
    Device,
    Json,
    note,
    number,
    one_of,
    pick_device,
    positive,
    print_json,
    say,
)
from hmmlm.errors import InputError, counted
from hmmlm.storage import refuse_existing

if TYPE_CHECKING:
    from hmmlm.distill.gap import Band

HELD_OUT = 20
"""Unless told otherwise, for validation and for testing one token each in so many..."""

MOST_HELD_OUT = 1_000_000
"""...and no more than this."""


Prompts = Annotated[
    Path | None,
    typer.Option(
        help="A text file: texts begin with its lines, in turn; \\n in one is a new line."
    ),
]
Type = Annotated[
    str,
    typer.Option(
        help="Of the teacher: float32, bfloat16 or float16.",
        parser=one_of("float32", "bfloat16", "float16"),
        metavar="TYPE",
    ),
]


def sample_corpus(
    teacher: Annotated[
        str,
        typer.Argument(
            help="A model of ours, or a causal language model of Hugging Face's: a folder, or a "
            "name on the hub."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The corpus folder to write.")],
    tokens: Annotated[int, number("--tokens", "Tokens to train on.")],
    valid: Annotated[
        int | None, number("--valid", "Tokens for validation; a twentieth, to a million.", 0)
    ] = None,
    test: Annotated[
        int | None, number("--test", "Tokens for testing; a twentieth, to a million.", 0)
    ] = None,
    length: Annotated[int, number("--length", "Most tokens of a text.")] = 256,
    batch_size: Annotated[
        int | None, number("--batch-size", "Texts drawn together; by default what suits.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Divides the logits.", parser=positive, metavar="X")
    ] = 1.0,
    prompts: Prompts = None,
    beside: Annotated[
        Path | None,
        typer.Option(
            help="A corpus: its training text comes first, and held-out text is that of it."
        ),
    ] = None,
    go_on: Annotated[
        bool,
        typer.Option(
            "--go-on",
            help="Of a model of ours that was trained on streams: a text goes on after its end, to "
            "--length tokens.",
        ),
    ] = False,
    gguf_file: Annotated[
        str | None, typer.Option(help="A GGUF file in the teacher's folder.", metavar="NAME")
    ] = None,
    dtype: Type = "float32",
    seed: Annotated[int, number("--seed", "Another one gives other texts.", 0)] = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Make a corpus of text that is drawn from a model: of ours, or of Hugging Face's.

    Tokens are the teacher's. Each text begins after the teacher's own first token and goes on to
    its end token, or to --length tokens. The teacher's log-probabilities of the held-out tokens
    are kept for hmmlm gap. If it is stopped, the same command goes on from there.
    """
    from hmmlm.data.corpus import read_lines
    from hmmlm.data.shards import Corpus
    from hmmlm.distill.sampling import SampleSettings
    from hmmlm.distill.sampling import sample_corpus as run

    refuse_existing(out)
    if beside is not None:
        if valid or test:
            raise InputError(f"Held-out text is that of {beside}; leave --valid and --test out.")
        valid = test = 0
    other = None if beside is None else Corpus.open(beside)
    lines = [] if prompts is None else list(read_lines(prompts, empty_lines="skip"))
    lines = [line.replace("\\n", "\n") for line in lines]
    held_out = min(-(-tokens // HELD_OUT), MOST_HELD_OUT)
    settings = SampleSettings(
        tokens=tokens,
        valid=held_out if valid is None else valid,
        test=held_out if test is None else test,
        length=length,
        temperature=temperature,
        seed=seed,
    )
    place = pick_device(device)
    with progress_bar(f"Loading {teacher}", None):
        loaded = _source(teacher, dtype, place, gguf_file, go_on)
    rows = loaded.rows_together(length) if batch_size is None else batch_size
    settings = replace(settings, batch_size=rows)
    began, first = time.perf_counter(), None
    with progress_bar("Drawing tokens", sum(settings.sizes.values())) as bar:

        def report(done: int, total: int) -> None:
            nonlocal first
            first = done if first is None else first
            bar.update(bar.task_ids[0], completed=done)

        try:
            how: dict[str, Any] = {"prompts": lines, "beside": other, "progress": report}
            result = run(out, loaded, settings, **how, notice=say)
        except KeyboardInterrupt:
            note("What was done is kept; the same command goes on from there.")
            raise
    for name, counts in result["splits"].items():
        drawn, cut = result["drawn"][name], result["marks"][name]
        say(
            f"{name:>6}  {counts['tokens']:>13,} tokens, {drawn:,} of them drawn  "
            f"{counts['sentences']:>11,} texts, {cut:,} of them cut"
        )
    speed = (sum(settings.sizes.values()) - (first or 0)) / (time.perf_counter() - began)
    say(f"vocabulary of {result['vocab']:,}; {speed:,.0f} tokens a second; written to {out}")
    if json:
        print_json({**result, "tokens_per_second": speed, "folder": str(out)})


def _source(teacher: str, dtype: str, device: str, gguf_file: str | None, go_on: bool) -> Any:
    """Whom to draw from; one that cannot be had is an error."""
    from hmmlm.distill.causal import CausalTeacher
    from hmmlm.model_source import ModelSource

    if not is_ours(Path(teacher)):
        if go_on:
            raise InputError(f"{teacher} is no model of ours, of which --go-on is; leave it out.")
        tell_of_hub(teacher)
        return CausalTeacher(teacher, dtype=dtype, device=device, gguf_file=gguf_file)
    if dtype != "float32" or gguf_file is not None:
        raise InputError(
            f"{teacher} is a model of ours, drawn from as it is; leave --dtype and --gguf-file out."
        )
    return ModelSource(teacher, goes_on=go_on, device=device)


def is_ours(folder: Path) -> bool:
    """Whether a folder is one that hmmlm wrote, or writes: its training may not be over."""
    from hmmlm.train.run import is_unfinished

    if is_unfinished(folder):
        return True
    try:
        return "hmmlm_version" in json_format.loads((folder / "config.json").read_text())
    except (OSError, ValueError, TypeError):
        return False


def gap(
    model: Folder,
    corpus: Annotated[Path, typer.Argument(help="A corpus that hmmlm sample-corpus made.")],
    split: Annotated[str, typer.Option(help="Split of the corpus: test or valid.")] = "test",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """How far a model is from the teacher whose text it learnt, in nats per token.

    The gap between -log p of both, on text that the teacher drew and nobody learnt, estimates
    KL(teacher || model): of all tokens, by position in their text, and by their rank in the
    training text. Each text starts cold. The standard error is that over texts.
    """
    from hmmlm.data.shards import Corpus, check_vocabulary
    from hmmlm.distill.gap import measure_gap
    from hmmlm.distill.sampling import read_log_probs

    opened = Corpus.open(corpus)
    tokens = opened.split(check_split(opened, split))
    read_log_probs(opened, split)  # refuses a corpus without, before the model is loaded
    loaded = load_any(model, device)
    check_vocabulary(opened, loaded.tokenizer)
    with progress_bar("Scoring", len(tokens)) as bar:
        found = measure_gap(
            loaded.lm,
            opened,
            split=split,
            device=loaded.device,
            progress=lambda done: bar.advance(bar.task_ids[0], done),
        )
    titles = ("tokens", "model", "teacher", "gap", "error", "share")
    say(f"{'':>14}" + "".join(f"{title:>11}" for title in titles))
    _say_band(found.whole)
    for title, bands in (("position", found.by_position), ("frequency", found.by_frequency)):
        say(f"by {title}")
        for band in bands:
            _say_band(band)
    whole = found.whole
    say(
        f"{whole.gap:.4f} nats per token (standard error {whole.error:.4f}) behind the teacher, "
        f"over {counted(found.texts, 'text')} of {split}"
    )
    if json:
        bands = {
            name: [band._asdict() for band in getattr(found, name)]
            for name in ("by_position", "by_frequency")
        }
        print_json({"texts": found.texts, "whole": whole._asdict(), **bands})


def _say_band(band: "Band") -> None:
    numbers = (band.model, band.teacher, band.gap, band.error)
    shown = "".join(f"{number:>11.4f}" for number in numbers)
    say(f"{band.name:>14}{band.tokens:>11,}{shown}{band.share:>11.1%}")
