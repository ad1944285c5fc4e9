"""`hmmlm train` and `hmmlm estimate`: a model out of text, and what that costs."""

import hashlib
import math
import signal
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from hmmlm.cli.clustering import Method, blocks_support, count_blocks
from hmmlm.cli.output import (
    Device,
    Json,
    mute,
    pick_device,
    positive,
    print_json,
    progress_bar,
    say,
    warn,
    whole,
    zero_or_more,
)
from hmmlm.errors import InputError
from hmmlm.storage import check_space, refuse_existing

HELD_OUT = 20
"""Of plain text without a validation file, one line in so many is held out."""


def number(name: str, help: str, least: int = 1) -> Any:
    return typer.Option(name, help=help, parser=whole(least), metavar="N")


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
    set: Annotated[
        list[str] | None,
        typer.Option(help="A setting, such as train.epochs=20; may be repeated.", metavar="K=V"),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(  # its name said: some versions of typer take a metavar like it instead
            "--kind",
            help="The parameterisation: scalar, lowrank, mlp or transformer.",
            metavar="KIND",
        ),
    ] = None,
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
    cluster_by: Method | None = None,
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
            help="adamw, em (Baum-Welch, for kind scalar) or gem (gradients towards counts).",
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
        int | None, number("--seed", "Seed of the start, the dropout and the order of lines.", 0)
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
    from hmmlm.data.batches import own_rows
    from hmmlm.train.distributed import join, restarts
    from hmmlm.train.run import is_unfinished, read_run

    if resume is not None and out is not None:
        raise InputError(f"--resume goes on in {resume}; leave --out away.")
    run = source if source is not None and source.suffix == ".toml" else None
    named = {
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
        if out is not None and restarts() and ranks.once(is_unfinished, out):
            out, resume = None, out
        if out is not None:
            ranks.once(refuse_existing, out)
        begun = None if resume is None else ranks.once(read_run, resume)
        config = _configure(run, begun, set or [], named)
        own_rows(config.data.batch_size, ranks.rank, ranks.ranks)
        corpus, name = _open(config, stack)
        ranks.agree(_facts(config, corpus))
        choose = free_folder if out is None else refuse_existing
        folder = resume or ranks.once(choose, out or Path("runs") / name)
        result = fit(corpus, folder, config, ranks=ranks, resume=resume is not None)
    best = "" if result["val"] is None else f", validation perplexity {result['val']:.2f}"
    say(f"{result['steps']:,} steps in {result['seconds']:.1f} s{best}; wrote {folder}")
    if json:
        print_json(result)


def _configure(run: Path | None, begun: Any, changes: list[str], named: dict[str, Any]) -> Any:
    """The configuration of what was begun, a file over it, then changes, then options."""
    from hmmlm.train.config import make_config, override, read_config

    tables, source = ({}, {}) if begun is None else (begun[0]["config"], begun[1])
    tables.setdefault("data", {})
    given = {} if run is None else read_config(run)
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
    if {"corpus", "text"} & tables["data"].keys():
        source = {name: place for name, place in source.items() if name == "labels"}
    tables["data"] = {**source, **tables["data"]}
    return make_config(tables)


def _facts(config: Any, corpus: Any) -> dict[str, Any]:
    """What must be the same on all ranks; files may have other places on other machines."""
    tables = config.as_tables().items()
    facts = {f"{name}.{key}": value for name, keys in tables for key, value in keys.items()}
    for path in ("data.corpus", "data.text", "model.clusters"):
        facts.pop(path, None)
    return {**facts, **{f"the corpus' {name}": held for name, held in corpus.identity().items()}}


def _open(config: Any, stack: ExitStack) -> tuple[Any, str]:
    """The corpus of a configuration, and a name for its model."""
    from hmmlm.data.corpus import read_lines
    from hmmlm.data.shards import Corpus, write_corpus
    from hmmlm.data.tokenizer import Tokenizer

    data = config.data
    if bool(data.corpus) == bool(data.text):
        raise InputError(
            "Give either a corpus folder, made by hmmlm prepare, or plain text with --text; here "
            "or in the run's [data], but not both."
        )
    if data.corpus:
        path = Path(data.corpus)
        if path.is_file():
            way_out = "run hmmlm prepare on it, or give it with --text"
            if _is_config(path):
                way_out = "if it is a run's file, its name must end in .toml"
            raise InputError(f"{path} is a file but must be a corpus folder; {way_out}.")
        with progress_bar(f"Checking {path}", None):
            return Corpus.open(path), path.absolute().name.split(".")[0]
    path = Path(data.text)
    with progress_bar(f"Reading {path}", None):
        lines = list(read_lines(path, empty_lines="skip"))
        splits = {"train": lines}
        if len(lines) >= 2 * HELD_OUT:
            splits["valid"] = lines[HELD_OUT - 1 :: HELD_OUT]
            del lines[HELD_OUT - 1 :: HELD_OUT]
        words = Tokenizer.words(lines, min_count=2 if len(lines) >= 1000 else 1)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "corpus"
        counts = write_corpus(scratch, words, splits)["splits"]
    held_out = f", {counts['valid']['tokens']:,} held out" if "valid" in counts else ""
    say(f"{counts['train']['tokens']:,} tokens to train on{held_out}, {words.vocab_size:,} words")
    return Corpus.open(scratch), path.absolute().name.split(".")[0]


def _is_config(path: Path) -> bool:
    """Whether a file has tables of settings."""
    from hmmlm.train.config import TABLES, read_config

    try:
        return not read_config(path).keys().isdisjoint((*TABLES, "sweep"))
    except InputError:
        return False


def _start(corpus: Any, config: Any, device: str) -> tuple[Any, Any]:
    """The configuration with the sizes of the model to start from, and that model's HMM."""
    from hmmlm.data.shards import check_vocabulary
    from hmmlm.model import Model
    from hmmlm.train.config import with_start
    from hmmlm.train.memory import check_tables

    if not config.learner.start:
        return config, None
    model = Model.load(config.learner.start)
    check_vocabulary(corpus, model.tokenizer)
    check_tables(model.hmm.support, device)
    return with_start(config, model.hmm), model.hmm


def _labels(corpus: Any, config: Any) -> Any:
    """The labels of the words to train on, if there are any."""
    from hmmlm.data.labels import read_labels

    if not config.data.labels:
        return None
    path, held_out = config.data.labels, bool(config.data.text) and "valid" in corpus.splits
    with progress_bar(f"Reading {path}", None):
        left_out = HELD_OUT if held_out else 0
        return read_labels(path, corpus.split("train"), corpus.tokenizer, left_out=left_out)


def _check_validation(corpus: Any, config: Any) -> None:
    """Refuses settings that ask validation where there is none."""
    train = config.train
    asked = "schedule plateau" if train.schedule == "plateau" else "early_stop"
    if "valid" in corpus.splits or (train.schedule != "plateau" and not train.early_stop):
        return
    if config.data.text:
        way_out = f"give at least {2 * HELD_OUT} lines, of which some are held out"
    else:
        way_out = "prepare the corpus with --valid"
    raise InputError(
        f"{asked} needs validation text, and there is none; {way_out}, or leave it out."
    )


def fit(
    corpus: Any,
    out: Path,
    config: Any,
    *,
    ranks: Any,
    indent: int = 0,
    resume: bool = False,
) -> dict[str, Any]:
    """Trains on an opened corpus with a progress bar, and writes the model.

    Of several ranks the first one makes the blocks, validates and writes.
    """
    import torch

    from hmmlm.baselines.ngram import Unigram
    from hmmlm.evaluate import HmmLM, evaluate
    from hmmlm.model import Model
    from hmmlm.params.scalar import Scalar
    from hmmlm.train.config import make_batches, validation_mode, with_sizes
    from hmmlm.train.estimate import estimate as cost_of
    from hmmlm.train.labels import check_labels, share_states
    from hmmlm.train.learner import make_learner
    from hmmlm.train.loop import Diverged, Training
    from hmmlm.train.run import Interrupts, open_run

    _check_validation(corpus, config)
    tokens, words, device = corpus.split("train"), corpus.tokenizer, ranks.device
    config, start = _start(corpus, config, device)
    labels, label_of_state = _labels(corpus, config), None
    tags = () if labels is None else labels.tags
    config, reason = with_sizes(config, len(tokens), words.vocab_size, len(tags))
    if start is None:
        support, facts = ranks.once(_make_support, corpus, config, indent)
    else:
        support, facts = start.support, {}
    if labels is not None:
        label_of_state = share_states(config.model.states, len(tags))
        check_labels(support, label_of_state, labels, tokens, words)
        facts["labels"] = {"tags": tags, "states_per_tag": config.model.states // len(tags)}
    cost = cost_of(
        config,
        words.vocab_size,
        blocks=max(1, support.num_states // support.width),
        validation="valid" in corpus.splits,
    )
    say(
        f"{config.model.kind}, {support.num_states:,} states{reason}; {cost.parameters:,} "
        f"parameters, about {cost.total_memory / 1e6:,.0f} MB and "
        f"{cost.total_flops / 1e9:,.1f} GFLOP a {cost.unit}",
        indent=indent,
    )
    if ranks.ranks > 1:
        rows = config.data.batch_size // ranks.ranks
        say(f"{ranks.ranks:,} ranks, each {rows:,} rows of a batch", indent=indent)
    ranks.once(check_space, out, cost.file_bytes)
    if start is not None:
        model = Scalar.from_hmm(start).to(device)
    else:
        generator = torch.Generator().manual_seed(config.seed)
        frequency = ranks.once(lambda: Unigram(tokens, words.vocab_size).log_probs).exp().float()
        model = config.params.build(support, word_probs=frequency, generator=generator).to(device)
    batches = make_batches(config, tokens, None if labels is None else labels.ids, ranks)
    learner = make_learner(
        config, model, support, eos_id=words.eos_id, label_of_state=label_of_state, ranks=ranks
    )

    def validate(model: Any) -> float:
        held_out = corpus.split("valid")
        found = evaluate(
            HmmLM(model()),
            held_out,
            mode=validation_mode(config.data),
            eos_id=words.eos_id,
            device=device,
        )
        return found.perplexity

    training = Training(
        learner,
        batches,
        settings=config.train,
        evaluate=partial(ranks.once, validate) if "valid" in corpus.splits else None,
    )
    about, source = _describe(corpus, config, support)
    described = {"training": {**config.as_tables(), "device": device}, **facts}
    began, trouble, stopped = time.perf_counter(), None, False
    with ExitStack() as stack:
        run: Any = None
        if ranks.rank == 0:
            opened = open_run(out, about, config.saving, source=source, resume=resume)
            run = stack.enter_context(opened)
        interrupts = stack.enter_context(Interrupts())
        state = ranks.once(lambda: run.checkpoints.read())
        if state is not None:
            training.restore(state)
        if resume:
            say(f"going on after step {training.step:,} of {training.steps:,}", indent=indent)
        try:
            stopped = _follow(training, run, interrupts, ranks)
        except InputError as error:
            # What one rank alone has met ends it at once: the others wait elsewhere.
            if training.step == 0 or (ranks.ranks > 1 and not isinstance(error, Diverged)):
                raise
            trouble = error
            described["stopped"] = f"{error} The model was written to {out}."
        if stopped:
            _leave(ranks.once(lambda: run.checkpoints.newest()), out, interrupts.asked)
        with torch.no_grad():
            made = Model(model().to("cpu"), words, described)
        ranks.once(lambda: _finish(run, made))
    seconds = time.perf_counter() - began
    if trouble is not None:
        raise InputError(described["stopped"]) from trouble
    best = training.best.val if training.evaluate is not None else None
    return {"folder": str(out), "steps": training.step, "seconds": round(seconds, 3), "val": best}


def _make_support(corpus: Any, config: Any, indent: int) -> tuple[Any, dict[str, Any]]:
    """Which states may emit which word, and facts about it for the model's config."""
    from hmmlm.support import Support

    model = config.model
    if not model.blocks and not model.clusters:
        return Support.dense(corpus.tokenizer.vocab_size, model.states), {}
    support, blocks = blocks_support(
        corpus,
        model.states,
        blocks=model.blocks or None,
        clusters=Path(model.clusters) if model.clusters else None,
        method=model.cluster_by,
        like_hmm_lm=model.like_hmm_lm,
        indent=indent,
    )
    return support, {"blocks": blocks}


def _describe(corpus: Any, config: Any, support: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """What must be the same when a run goes on; and where its text is, which may be elsewhere."""
    tables = config.as_tables()
    source = {}
    for name in ("corpus", "text", "labels"):
        if name in tables["data"]:
            source[name] = str(Path(tables["data"].pop(name)).absolute())
    ids = hashlib.sha256(support.rows.numpy().tobytes() + support.row_of_word.numpy().tobytes())
    about = {"config": tables, "corpus": corpus.identity(), "support": ids.hexdigest()[:16]}
    return about, source


def _follow(training: Any, run: Any, interrupts: Any, ranks: Any) -> bool:
    """Trains with a progress bar, metrics and checkpoints, until the end or a signal to any rank.

    `run` is None on ranks that write nothing. True if it was a signal.
    """
    from hmmlm.train.tensorboard import open_log

    with ExitStack() as stack:
        bar, log = stack.enter_context(progress_bar("Training", training.steps)), None
        if run is not None:
            run.cut_metrics(training.step)
            log = stack.enter_context(open_log(run.folder / "tensorboard"))
        for step in training:
            late = run is not None and run.checkpoints.due(step.step)
            asked = interrupts.asked is not None  # read once: a signal may come at any line
            due, stop = ranks.total(late, asked)
            state = training.state() if due or stop else None
            if run is not None:
                _record(run, log, step, state)
            best = training.best.val
            details = f"perplexity {step.perplexity:.1f}, {step.tokens_per_second:,.0f} tokens/s"
            details += "" if math.isinf(best) else f", best on validation {best:.1f}"
            bar.update(bar.task_ids[0], completed=step.step, details=details)
            if stop and not training.is_over:
                return True
    return False


def _record(run: Any, log: Any, step: Any, state: Any) -> None:
    """Writes down a step, and a checkpoint if there is one; a full disk ends no training."""
    try:
        run.add_metrics(step)
        log.write(step)
        if state is not None:
            run.checkpoints.write(state)
    except (InputError, OSError) as error:
        if state is not None:
            last = run.checkpoints.newest()
            kept = "there is none" if last is None else f"the last is that of step {last:,}"
            warn(f"No checkpoint of step {step.step:,}, {kept}. {error}")


def _finish(run: Any, model: Any) -> None:
    """Writes the model into the folder of its run, and removes what only a run needs."""
    try:
        model.write_into(run.folder)
    except (InputError, OSError) as error:
        last = run.checkpoints.newest() or 0
        raise InputError(
            f"Training is over but the model is not written: {error} Then run hmmlm train "
            f"--resume {quote(str(run.folder))}, which goes on after step {last:,}."
        ) from error
    run.finish()


def _leave(last: int | None, folder: Path, number: int | None) -> None:
    """Ends the program as a signal asked, and says how to go on."""
    warn(f"Stopped; hmmlm train --resume {quote(str(folder))} goes on after step {last or 0:,}.")
    raise SystemExit(128 + (number or signal.SIGTERM))


def free_folder(path: Path) -> Path:
    """The path, or the first of path-2, path-3, ... that is free."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return refuse_existing(free)


def estimate(
    source: Annotated[Path | None, typer.Argument(help="A run.toml; by default no file.")] = None,
    vocab: Annotated[int, number("--vocab", "Words of the vocabulary.", 1)] = 10_000,
    tokens: Annotated[
        int, number("--tokens", "Tokens of the text, for sizes that are not given.")
    ] = 1_000_000,
    set: Annotated[
        list[str] | None,
        typer.Option(help="A setting, such as model.states=4096; may be repeated.", metavar="K=V"),
    ] = None,
    json: Json = False,
) -> None:
    """What a training step would cost: parameters, memory and operations.

    Memory is the most that a step or a validation takes.
    """
    from hmmlm.train.config import make_config, override, read_config, with_sizes
    from hmmlm.train.estimate import estimate as cost_of

    tables = {} if source is None else read_config(source)
    config, reason = with_sizes(make_config(override(tables, set or [])), tokens, vocab)
    model, blocks = config.model, None
    if model.clusters:
        assert model.states is not None
        path = Path(model.clusters)
        blocks = count_blocks(path, model.states, like_hmm_lm=model.like_hmm_lm)
        reason = f" in {blocks:,} blocks"
    cost = cost_of(config, vocab, blocks=blocks)
    say(
        f"{config.model.kind}, {config.model.states:,} states{reason}, {cost.kept_states:,} kept; "
        f"{cost.parameters:,} parameters, {cost.tokens:,} tokens a {cost.unit}"
    )
    for name in dict.fromkeys([*cost.memory, *cost.flops]):
        say(
            f"{name:>14}  {cost.memory.get(name, 0) / 1e6:>10,.1f} MB  "
            f"{cost.flops.get(name, 0) / 1e9:>10,.2f} GFLOP"
        )
    memory, flops = cost.total_memory / 1e6, cost.total_flops / 1e9
    say(f"{'in all':>14}  {memory:>10,.1f} MB  {flops:>10,.2f} GFLOP")
    if json:
        print_json(
            {
                "parameters": cost.parameters,
                "unit": cost.unit,
                "tokens": cost.tokens,
                "bytes": cost.total_memory,
                "flops": cost.total_flops,
                "file_bytes": cost.file_bytes,
                "memory": cost.memory,
                "operations": cost.flops,
            }
        )
