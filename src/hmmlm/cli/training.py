"""`hmmlm train`: a model out of text."""

from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from hmmlm.cli.fitting import fit
from hmmlm.cli.output import (
    Device,
    Json,
    Recipe,
    mute,
    number,
    one_of,
    pick_device,
    positive,
    print_json,
    say,
    zero_or_more,
)
from hmmlm.cli.texts import check_places, find_again, open_corpus
from hmmlm.errors import InputError, counted
from hmmlm.storage import refuse_existing


def train(
    source: Annotated[
        Path | None, typer.Argument(help="A corpus folder made by prepare, or a run.toml.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The model folder to write; by default runs/NAME.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="Plain text to train on instead, one sentence per line.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="The folder of a training that was stopped, to go on with.", metavar="RUN"
        ),
    ] = None,
    resume_if_begun: Annotated[
        bool,
        typer.Option(
            "--resume-if-begun",
            help="Go on if a training has begun in OUT, and end well if it is over there.",
        ),
    ] = False,
    set: Annotated[
        list[str] | None,
        typer.Option(help="A setting, such as train.epochs=20; may be repeated.", metavar="K=V"),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(  # its name said: some versions of typer take a metavar like it instead
            "--kind",
            "--model",
            help="What to train: an HMM by its parameterisation (scalar, lowrank, mlp, "
            "transformer or pretrained), or feed_forward, lstm, awd_lstm, hmm_rnn or decoder to "
            "compare with.",
            metavar="KIND",
        ),
    ] = None,
    recipe: Recipe = None,
    states: Annotated[
        int | None, number("--states", "Hidden states; by default what suits the text.")
    ] = None,
    blocks: Annotated[
        int | None,
        number(
            "--blocks",
            "Emission blocks, those of <eos> and <unk> included: a word comes from the states of "
            "its block alone. 0: from all states.",
            0,
        ),
    ] = None,
    clusters: Annotated[
        Path | None, typer.Option(help="A paths file to make the blocks of.")
    ] = None,
    cluster_by: Annotated[
        str | None,
        typer.Option(
            help="How to make the blocks: exchange (the default) or brown.",
            parser=one_of("brown", "exchange"),
            metavar="METHOD",
        ),
    ] = None,
    like_hmm_lm: Annotated[
        bool,
        typer.Option(
            "--like-hmm-lm",
            help="Put tokens without a cluster, <eos> too, into the last one, as Chiu & Rush did.",
        ),
    ] = False,
    dropout: Annotated[
        float | None,
        typer.Option(
            help="Share of each block's states that a step leaves out.",
            parser=zero_or_more,
            metavar="NUMBER",
        ),
    ] = None,
    epochs: Annotated[int | None, number("--epochs", "Passes over the training text.")] = None,
    optimiser: Annotated[
        str | None,
        typer.Option(
            help="adamw, sgd, em (Baum-Welch, for kind scalar) or gem (gradients towards counts).",
            metavar="NAME",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Labels of the text's words, line by line, _ where unknown; for em."),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Highest rate.", parser=positive, metavar="NUMBER")
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(help="Decay of the weights.", parser=zero_or_more, metavar="NUMBER"),
    ] = None,
    batch_size: Annotated[int | None, number("--batch-size", "Rows of a batch.")] = None,
    length: Annotated[int | None, number("--length", "Tokens in a row.")] = None,
    seed: Annotated[
        int | None, number("--seed", "Seed of the start, the dropout and the order of the text.", 0)
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a model and write its folder.

    If there is validation text, the model that was best on it is kept. Words are clustered into
    blocks first; the clusters are kept in the corpus' folder. Settings come from run.toml, then
    from the options. Ctrl-C saves a checkpoint and leaves; --resume RUN goes on from there.
    Processes started by torchrun train one model together.
    """
    from hmmlm import __version__
    from hmmlm.data.batches import own_rows
    from hmmlm.train.distributed import join, restarts
    from hmmlm.train.run import is_unfinished, read_run

    if resume is not None and out is not None:
        raise InputError(f"--resume goes on in {resume}; leave --out away.")
    if resume_if_begun and out is None:
        raise InputError("--resume-if-begun needs --out, the folder that is looked into.")
    run = source if source is not None and source.suffix == ".toml" else None
    named = {
        "train.recipe": recipe,
        "model.kind": kind,
        "model.states": states,
        "model.blocks": blocks,
        "model.clusters": None if clusters is None else str(clusters),
        "model.cluster_by": cluster_by,
        "model.like_hmm_lm": like_hmm_lm or None,
        "train.dropout": dropout,
        "train.optimiser": optimiser,
        "train.epochs": epochs,
        "train.learning_rate": learning_rate,
        "train.weight_decay": weight_decay,
        "train.seed": seed,
        "data.batch_size": batch_size,
        "data.length": length,
        "data.corpus": None if source is None or run is not None else str(source),
        "data.text": None if text is None else str(text),
        "data.labels": None if labels is None else str(labels),
    }
    with ExitStack() as stack:
        ranks = stack.enter_context(join(pick_device(device)))
        if ranks.rank:
            mute()
        given = {"--out": out, "--resume": resume, "--resume-if-begun": resume_if_begun or None}
        asked = {name: "given" for name, value in given.items() if value is not None}
        ranks.agree({"the version of hmmlm": __version__, **asked})
        again = out is not None and (resume_if_begun or restarts() > 0)
        begun_in = out if again else resume
        if begun_in is not None and ranks.once(_is_over, begun_in, again):
            say(f"{begun_in} was trained to its end before; there is nothing left to do.")
            if json:
                nothing = {"steps": 0, "seconds": 0.0, "val": None, "peak_bytes": None}
                print_json({"folder": str(begun_in), **nothing})
            return
        if again and ranks.once(is_unfinished, out):
            out, resume = None, out
        if out is not None:
            ranks.once(_refuse, out)
        begun = None if resume is None else ranks.once(read_run, resume)
        config = _configure(run, begun, set or [], named)
        if resume is not None:
            find_again(config, resume)
        own_rows(config.data.batch_size, ranks.rank, ranks.ranks)
        corpus, name = open_corpus(config, stack)
        ranks.agree(_facts(config, corpus))
        choose = free_folder if out is None else refuse_existing
        folder = resume or ranks.once(choose, out or Path("runs") / name)
        result = fit(corpus, folder, config, ranks=ranks, resume=resume is not None)
    best = "" if result["val"] is None else f", validation perplexity {result['val']:.2f}"
    say(f"{counted(result['steps'], 'step')} in {result['seconds']:.1f} s{best}; wrote {folder}")
    if json:
        print_json(result)


def _configure(run: Path | None, begun: Any, changes: list[str], named: dict[str, Any]) -> Any:
    """The configuration of what was begun, a file over it, then changes, then options."""
    from hmmlm.baselines.kinds import NEURAL
    from hmmlm.train.config import FILES, make_config
    from hmmlm.train.tables import override, read_config

    tables, source = ({}, {}) if begun is None else (begun[0]["config"], begun[1])
    tables.setdefault("data", {})
    given = {} if run is None else read_config(run)
    if "sweep" in given:
        raise InputError(
            f"{run} has a table [sweep], of many trainings; use hmmlm sweep {quote(str(run))}."
        )
    for name, table in given.items():
        known = tables.get(name, {})
        tables[name] = {**known, **table} if isinstance(table, dict) else table
    tables = override(tables, changes)
    changed = {change.partition("=")[0].strip() for change in changes}
    for name, value in named.items():
        if value is not None:
            table, _, key = name.partition(".")
            other = tables.setdefault(table, {}).get(key)
            if name in changed and other != value:
                option = "the corpus" if name == "data.corpus" else f"--{key.replace('_', '-')}"
                raise InputError(
                    f"{option} is {value} but --set says {name}={other}; leave one of them out."
                )
            tables[table][key] = value
    other_text = not {"corpus", "text"}.isdisjoint(tables["data"])
    for name in FILES:
        table, _, key = name.partition(".")
        if key in source and not (other_text and key in ("corpus", "text")):
            tables.setdefault(table, {}).setdefault(key, source[key])
    config = make_config(tables, NEURAL)
    if run is not None:
        check_places(tables, run)
    return config


def _is_over(folder: Path, again: bool) -> bool:
    """Whether a training has come to its end in a folder; what a kill at the end left is removed.

    Where nobody has asked for it `again`, a model that is as it should be is not taken for one.
    """
    from hmmlm.text_model import read_model_config
    from hmmlm.train.run import settle

    try:
        stopped = read_model_config(folder).get("stopped")
    except InputError:
        return False
    if not settle(folder) and not again:
        return False
    if stopped is not None:
        raise InputError(f"{stopped} The model was written to {folder}.")
    return True


def _refuse(out: Path) -> None:
    """Refuses a folder that is there; of an unfinished training it says how to go on."""
    from hmmlm.train.run import is_unfinished

    if is_unfinished(out):
        raise InputError(
            f"{out} already exists: its training is not over. Go on with hmmlm train --resume "
            f"{quote(str(out))}, or choose another name."
        )
    refuse_existing(out)


def _facts(config: Any, corpus: Any) -> dict[str, Any]:
    """What must be the same on all ranks; files may have other places on other machines."""
    from hmmlm.train.checkpoint import flatten
    from hmmlm.train.config import FILES

    facts = flatten(config.as_tables())
    for path in FILES:
        facts.pop(path, None)
    return {**facts, **{f"the corpus' {name}": held for name, held in corpus.identity().items()}}


def free_folder(path: Path) -> Path:
    """The path, or the first of path-2, path-3, ... that is free."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return refuse_existing(free)
