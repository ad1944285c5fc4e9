"""`hmmlm train` and `hmmlm estimate`: a model out of text, and what that costs."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from hmmlm.cli.clustering import Method, blocks_support
from hmmlm.cli.output import (
    Device,
    Json,
    pick_device,
    positive,
    print_json,
    progress_bar,
    say,
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
    set: Annotated[
        list[str] | None,
        typer.Option(help="A setting, such as train.epochs=20; may be repeated.", metavar="K=V"),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="The parameterisation: scalar, lowrank, mlp or transformer.", metavar="KIND"
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
    from the options.
    """
    from hmmlm.train.config import make_config, override, read_config

    if out is not None:
        refuse_existing(out)
    tables: dict[str, Any] = {}
    if source is not None and source.suffix == ".toml":
        tables, source = read_config(source), None
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
        "data.corpus": None if source is None else str(source),
        "data.text": None if text is None else str(text),
        "data.labels": None if labels is None else str(labels),
    }
    tables = override(tables, set or [])
    for name, value in named.items():
        if value is not None:
            table, _, key = name.partition(".")
            tables.setdefault(table, {})[key] = value
    config = make_config(tables)
    place = pick_device(device)
    with ExitStack() as stack:
        corpus, name = _open(config, stack)
        folder = free_folder(Path("runs") / name) if out is None else refuse_existing(out)
        result = fit(corpus, folder, config, device=place)
    best = "" if result["val"] is None else f", validation perplexity {result['val']:.2f}"
    say(f"{result['steps']:,} steps in {result['seconds']:.1f} s{best}; wrote {folder}")
    if json:
        print_json(result)


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
            raise InputError(
                f"{path} is a file but must be a corpus folder; run hmmlm prepare on it, or give "
                f"it with --text."
            )
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


def fit(corpus: Any, out: Path, config: Any, *, device: str, indent: int = 0) -> dict[str, Any]:
    """Trains on an opened corpus with a progress bar, and writes the model."""
    import torch

    from hmmlm.baselines.ngram import Unigram
    from hmmlm.evaluate import HmmLM, evaluate
    from hmmlm.model import Model
    from hmmlm.params.scalar import Scalar
    from hmmlm.support import Support
    from hmmlm.train.config import make_batches, with_sizes
    from hmmlm.train.estimate import estimate as cost_of
    from hmmlm.train.labels import check_labels, share_states
    from hmmlm.train.learner import make_learner
    from hmmlm.train.loop import Training

    tokens, words = corpus.split("train"), corpus.tokenizer
    config, start = _start(corpus, config, device)
    labels, label_of_state = _labels(corpus, config), None
    tags = () if labels is None else labels.tags
    config, reason = with_sizes(config, len(tokens), words.vocab_size, len(tags))
    facts: dict[str, Any] = {}
    if labels is not None:
        label_of_state = share_states(config.model.states, len(tags))
        facts["labels"] = {"tags": tags, "states_per_tag": config.model.states // len(tags)}
    if start is not None:
        support = start.support
    elif config.model.blocks or config.model.clusters:
        support, facts["blocks"] = blocks_support(
            corpus,
            config.model.states,
            blocks=config.model.blocks or None,
            clusters=Path(config.model.clusters) if config.model.clusters else None,
            method=config.model.cluster_by,
            like_hmm_lm=config.model.like_hmm_lm,
            indent=indent,
        )
    else:
        support = Support.dense(words.vocab_size, config.model.states)
    if labels is not None and label_of_state is not None:
        check_labels(support, label_of_state, labels, tokens, words)
    cost = cost_of(config, words.vocab_size)
    say(
        f"{config.model.kind}, {support.num_states:,} states{reason}; {cost.parameters:,} "
        f"parameters, about {cost.total_memory / 1e6:,.0f} MB and "
        f"{cost.total_flops / 1e9:,.1f} GFLOP a step",
        indent=indent,
    )
    check_space(out, cost.file_bytes)
    generator = torch.Generator().manual_seed(config.seed)
    if start is not None:
        model = Scalar.from_hmm(start).to(device)
    else:
        frequency = Unigram(tokens, words.vocab_size).log_probs.exp().float()
        model = config.params.build(support, word_probs=frequency, generator=generator).to(device)
    batches = make_batches(config, tokens, None if labels is None else labels.ids)
    learner = make_learner(
        config, model, support, eos_id=words.eos_id, label_of_state=label_of_state
    )
    mode = "streaming" if config.data.layout == "streams" and not config.data.reset else "sentence"

    def validate(model: Any) -> float:
        held_out = corpus.split("valid")
        found = evaluate(HmmLM(model()), held_out, mode=mode, eos_id=words.eos_id, device=device)
        return found.perplexity

    began, metrics, best, trouble = time.perf_counter(), [], None, None
    training = Training(
        learner,
        batches,
        settings=config.train,
        evaluate=validate if "valid" in corpus.splits else None,
    )
    with progress_bar("Training", training.steps) as bar:
        try:
            for step in training:
                metrics.append(step._asdict())
                if step.val is not None and (best is None or step.val < best):
                    best = step.val
                details = (
                    f"perplexity {step.perplexity:.1f}, {step.tokens_per_second:,.0f} tokens/s"
                )
                details += "" if best is None else f", best on validation {best:.1f}"
                bar.update(bar.task_ids[0], completed=step.step, details=details)
        except InputError as error:
            if not metrics:
                raise
            trouble = error
    seconds = time.perf_counter() - began
    with torch.no_grad():
        whole_model = model().to("cpu")
    about = {"training": {**config.as_tables(), "device": device}, **facts}
    try:
        Model(whole_model, words, about).save(out, metrics=metrics)
    except (InputError, OSError) as error:
        raise InputError(
            f"Training ended after {seconds:.0f} s, but its model is lost: {error}"
        ) from error
    if trouble is not None:
        raise InputError(f"{trouble} The model was written to {out}.") from trouble
    return {"folder": str(out), "steps": len(metrics), "seconds": round(seconds, 3), "val": best}


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
    """What a training step would cost: parameters, memory and operations."""
    from hmmlm.train.config import make_config, override, read_config, with_sizes
    from hmmlm.train.estimate import estimate as cost_of

    tables = {} if source is None else read_config(source)
    config, reason = with_sizes(make_config(override(tables, set or [])), tokens, vocab)
    cost = cost_of(config, vocab)
    say(
        f"{config.model.kind}, {config.model.states:,} states{reason}, {cost.kept_states:,} kept; "
        f"{cost.parameters:,} parameters, {cost.tokens_per_step:,} tokens a step"
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
                "bytes": cost.total_memory,
                "flops": cost.total_flops,
                "file_bytes": cost.file_bytes,
                "memory": cost.memory,
                "operations": cost.flops,
            }
        )
