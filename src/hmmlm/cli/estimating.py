"""`hmmlm estimate`: what a training, scoring and guiding would cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hmmlm.cli.bars import in_words, progress_bar
from hmmlm.cli.clustering import count_blocks
from hmmlm.cli.output import (
    Device,
    Json,
    Recipe,
    number,
    pick_device,
    positive,
    print_json,
    say,
    warn,
)
from hmmlm.errors import InputError, counted

if TYPE_CHECKING:
    from hmmlm.calibration import Measured


def estimate(
    source: Annotated[
        Path | None,
        typer.Argument(help="A corpus folder made by prepare, or a run.toml; by default neither."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", help="The parameterisation; by default lowrank.", metavar="KIND"),
    ] = None,
    recipe: Recipe = None,
    states: Annotated[
        int | None, number("--states", "Hidden states; by default what suits the text.")
    ] = None,
    blocks: Annotated[
        int | None, number("--blocks", "Emission blocks. 0: words have all states.", 0)
    ] = None,
    vocab: Annotated[
        int | None,
        number("--vocab", "Words of the vocabulary; by default those of the corpus, or 10,000.", 2),
    ] = None,
    batch: Annotated[
        int | None, number("--batch", "Rows of a batch, in training and guiding.")
    ] = None,
    length: Annotated[int | None, number("--length", "Tokens in a row.")] = None,
    tokens: Annotated[
        int | None,
        number("--tokens", "Tokens of the text; by default those of the corpus, or 1,000,000."),
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(help="A setting, such as model.states=4096; may be repeated.", metavar="K=V"),
    ] = None,
    device: Device = "auto",
    measure: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure", help="Run it for a short while, or compute from sizes alone."
        ),
    ] = True,
    seconds: Annotated[
        float,
        typer.Option(
            help="How long to measure training, scoring and guiding, each.",
            parser=positive,
            metavar="S",
        ),
    ] = 10.0,
    json: Json = False,
) -> None:
    """What a model of some shape would cost on this machine: memory and time.

    A model of that shape trains, scores and guides for a short while, on made-up words. Where time
    or memory do not suffice, smaller ones do, and the rest is extrapolated. With --no-measure: the
    parameters, memory and operations of a step, part by part, computed from sizes. Of a corpus the
    vocabulary and the number of tokens are taken, not the text.
    """
    from hmmlm.train.config import make_config
    from hmmlm.train.estimate import estimate as cost_of
    from hmmlm.train.sizes import with_sizes
    from hmmlm.train.tables import override, read_config

    from_file = source is not None and not source.is_dir()
    named = {"model.kind": kind, "model.states": states, "model.blocks": blocks}
    named |= {"train.recipe": recipe}
    named |= {"data.corpus": None if source is None or from_file else str(source)}
    named |= {"data.batch_size": batch, "data.length": length}
    tables = override(read_config(source) if source is not None and from_file else {}, set or [])
    for name, value in named.items():
        if value is not None:
            table, _, key = name.partition(".")
            tables.setdefault(table, {})[key] = value
    config = make_config(tables)
    vocab, tokens = _sizes(config.data, vocab, tokens)
    config, reason = with_sizes(config, tokens, vocab)
    model, found, each = config.model, None, None
    assert model.states is not None
    if model.clusters:
        path = Path(model.clusters)
        found = count_blocks(path, model.states, like_hmm_lm=model.like_hmm_lm)
        reason = f" in {found:,} blocks"
    elif model.states_per_word:
        found = max(1, model.states // model.states_per_word)  # a word has that share of them
    elif model.blocks:
        reason = reason or f" in {model.blocks:,} blocks"
    if (found or model.blocks or 0) > vocab:
        raise InputError(
            f"{found or model.blocks:,} blocks need as many words but the vocabulary has "
            f"{vocab:,}; use fewer blocks, or give --vocab."
        )
    if model.uneven:
        from hmmlm.calibration.parts import widest_block

        each = widest_block(config, vocab, found)
        reason += f", {each:,} at most"
    place = pick_device(device) if measure else ""
    cost = cost_of(config, vocab, blocks=found, each=each)
    say(
        f"{model.kind}, {model.states:,} states{reason}, {cost.kept_states:,} kept; "
        f"{cost.parameters:,} parameters, {cost.tokens:,} tokens a {cost.unit}"
    )
    result = {
        "parameters": cost.parameters,
        "unit": cost.unit,
        "tokens": cost.tokens,
        "bytes": cost.total_memory,
        "flops": cost.total_flops,
        "file_bytes": cost.file_bytes,
        "memory": cost.memory,
        "operations": cost.flops,
    }
    if measure:
        result |= _measure(config, vocab, found, place, seconds, tokens)
    else:
        _say_parts(cost)
    if json:
        print_json(result)


def _sizes(data: Any, vocab: int | None, tokens: int | None) -> tuple[int, int]:
    """Words and tokens: as given, else those of the corpus, else what is common."""
    from hmmlm.data.shards import Corpus

    if data.corpus and (vocab is None or tokens is None):
        corpus = Corpus.open(data.corpus, verify=False)
        known = len(corpus.split("train"))
        tokens = tokens or min(known, data.tokens or known)
        vocab = vocab or corpus.tokenizer.vocab_size
    return vocab or 10_000, tokens or 1_000_000


def _say_parts(cost: Any) -> None:
    for name in dict.fromkeys([*cost.memory, *cost.flops]):
        say(
            f"{name:>14}  {cost.memory.get(name, 0) / 1e6:>10,.1f} MB  "
            f"{cost.flops.get(name, 0) / 1e9:>10,.2f} GFLOP"
        )
    memory, flops = cost.total_memory / 1e6, cost.total_flops / 1e9
    say(f"{'in all':>14}  {memory:>10,.1f} MB  {flops:>10,.2f} GFLOP")


def _measure(
    config: Any, vocab: int, blocks: int | None, device: str, seconds: float, tokens: int
) -> dict[str, Any]:
    """Prints what was measured, a line for each part; returns it for JSON."""
    from hmmlm.calibration import PARTS, Task, measure_apart

    found = {}
    with progress_bar("Measuring", len(PARTS)) as bar:
        for part in PARTS:
            bar.update(bar.task_ids[0], details=part)
            tables = config.as_tables()
            found[part] = measure_apart(Task(part, tables, vocab, device, seconds, tokens, blocks))
            bar.advance(bar.task_ids[0])
    for one in found.values():
        say(f"{one.part:>14}  {one.tokens_per_second:>12,.0f} tokens/s  {_memory(one)}{_how(one)}")
    epoch = tokens / found["training"].tokens_per_second
    epochs = config.train.epochs
    say(
        f"an epoch of {counted(tokens, 'token')} takes about {in_words(epoch)}, the training of "
        f"{counted(epochs, 'epoch')} about {in_words(epochs * epoch)}"
    )
    guiding = found["guiding"].facts
    say(
        f"guiding is by one constraint, {guiding['automaton_states']:.0f} states of an automaton; "
        f"to prepare it for {guiding['budget']:.0f} tokens takes "
        f"{guiding['prepare_seconds']:,.1f} s"
    )
    for one in found.values():
        if not one.fits:
            assert one.free_bytes is not None
            warn(
                f"{one.part} does not fit: it needs {one.bytes / 1e9:,.1f} GB but "
                f"{(one.free_bytes + one.base_bytes) / 1e9:,.1f} GB are free."
            )
    return {
        "device": device,
        "measured": {name: _plain(one) for name, one in found.items()},
        "epoch_seconds": epoch,
        "training_seconds": epochs * epoch,
    }


def _memory(one: "Measured") -> str:
    libraries = f", {one.base_bytes / 1e6:,.0f} of them libraries" if one.base_bytes else ""
    return f"{one.bytes / 1e6:>10,.0f} MB{libraries}"


def _how(one: "Measured") -> str:
    if not one.is_extrapolated:
        return ""
    return f"; extrapolated from {one.also:,} and {one.states:,} states for want of {one.why}"


def _plain(one: "Measured") -> dict[str, Any]:
    plain = one._asdict()
    del plain["part"]
    return {**plain, **plain.pop("facts"), "fits": one.fits}
