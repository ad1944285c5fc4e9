"""`hmmlm world`: text of which the best that a model can do is known."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hmmlm.cli.bars import progress_bar
from hmmlm.cli.help import Command, Group
from hmmlm.cli.output import (
    Json,
    number,
    positive,
    print_json,
    say,
    whole,
    zero_or_more,
)
from hmmlm.errors import counted
from hmmlm.storage import refuse_existing

if TYPE_CHECKING:
    from hmmlm.worlds import World

HELD_OUT = 10
"""Unless told otherwise, for validation and for testing one document each in so many."""

world = typer.Typer(
    help="Make a world that is known: an HMM, a corpus drawn from it, and the optimum on it.",
    cls=Group,
    no_args_is_help=True,
)


def share(value: Any) -> float:
    """Reads an option that is a number from 0 to 1."""
    number = zero_or_more(value)
    if number > 1:
        raise typer.BadParameter(f"{str(value)!r} is not a number from 0 to 1.")
    return number


def counts(value: Any) -> tuple[int, ...]:
    """Reads whole numbers with commas between them."""
    return tuple(whole(0)(part.strip()) for part in str(value).split(","))


Out = Annotated[Path, typer.Option(help="The folder to write.")]
Documents = Annotated[int, number("--documents", "Documents to train on.")]
Valid = Annotated[int | None, number("--valid", "Documents for validation; by default a tenth.", 0)]
Test = Annotated[int | None, number("--test", "Documents for testing; by default a tenth.", 0)]
Length = Annotated[int, number("--length", "Tokens of a document in the mean, <eos> not counted.")]
Seed = Annotated[int, number("--seed", "Another one gives another world and other documents.", 0)]
Jsonl = Annotated[
    bool,
    typer.Option(
        "--jsonl", help="Write documents also as JSON: tokens, states, concept, log_probs."
    ),
]


@world.command(cls=Command)
def ginc(
    out: Out,
    concepts: Annotated[int, number("--concepts", "Concepts that a document may have.")] = 5,
    entities: Annotated[int, number("--entities", "Entities, rows of the table of words.")] = 10,
    properties: Annotated[int, number("--properties", "Properties, columns of it.", 2)] = 10,
    words: Annotated[int, number("--words", "Words, the delimiter among them.", 2)] = 50,
    documents: Documents = 1000,
    valid: Valid = None,
    test: Test = None,
    length: Length = 512,
    persistence: Annotated[
        float, typer.Option(help="p(an entity stays).", parser=share, metavar="P")
    ] = 0.9,
    temperature: Annotated[
        float,
        typer.Option(help="Of the weights of permutations.", parser=positive, metavar="X"),
    ] = 0.1,
    start_temperature: Annotated[
        float, typer.Option(help="Of p(z1).", parser=positive, metavar="X")
    ] = 10.0,
    smoothing: Annotated[
        float,
        typer.Option(
            help="Weight of any move in the transitions; with 0 most prompts are impossible.",
            parser=share,
            metavar="P",
        ),
    ] = 0.01,
    prompts: Annotated[
        int, number("--prompts", "Prompts to write for each number of examples.", 0)
    ] = 0,
    examples: Annotated[
        str,
        typer.Option(help="Examples that prompts have.", parser=counts, metavar="N,N,..."),
    ] = "0,1,2,4,8,16,32,64",
    example_length: Annotated[int, number("--example-length", "Tokens of each example.", 2)] = 5,
    seed: Seed = 0,
    jsonl: Jsonl = False,
    json: Json = False,
) -> None:
    """A mixture of HMMs as in GINC (Xie et al. 2021): a concept for each document.

    The folder has the world as a model, a corpus, and world.json (docs/worlds.md).
    """
    refuse_existing(out)
    from hmmlm import worlds

    made = worlds.ginc(
        concepts=concepts,
        entities=entities,
        properties=properties,
        words=words,
        length=length,
        persistence=persistence,
        temperature=temperature,
        start_temperature=start_temperature,
        smoothing=smoothing,
        seed=seed,
    )
    more = {"prompts": prompts, "examples": examples, "example_length": example_length}
    _write(out, made, documents, valid, test, seed, jsonl, json, **more)


@world.command(cls=Command)
def hmm(
    out: Out,
    states: Annotated[int, number("--states", "States, that of <eos> not counted.")] = 10,
    words: Annotated[int, number("--words", "Words.")] = 50,
    documents: Documents = 1000,
    valid: Valid = None,
    test: Test = None,
    length: Length = 100,
    concentration: Annotated[
        float,
        typer.Option(
            help="Of the Dirichlet distribution of rows; less is more peaked.",
            parser=positive,
            metavar="X",
        ),
    ] = 0.1,
    emission_concentration: Annotated[
        float | None,
        typer.Option(help="Of emissions; by default the same.", parser=positive, metavar="X"),
    ] = None,
    seed: Seed = 0,
    jsonl: Jsonl = False,
    json: Json = False,
) -> None:
    """One HMM with random rows.

    The folder has the world as a model, a corpus, and world.json (docs/worlds.md).
    """
    refuse_existing(out)
    from hmmlm import worlds

    made = worlds.random_hmm(
        states=states,
        words=words,
        length=length,
        concentration=concentration,
        emission_concentration=emission_concentration,
        seed=seed,
    )
    _write(out, made, documents, valid, test, seed, jsonl, json)


def _write(
    out: Path,
    made: "World",
    documents: int,
    valid: int | None,
    test: int | None,
    seed: int,
    jsonl: bool,
    json: bool,
    **more: Any,
) -> None:
    from hmmlm.worlds import WorldSettings, write_world

    held_out = -(-documents // HELD_OUT)
    settings = WorldSettings(
        documents=documents,
        valid=held_out if valid is None else valid,
        test=held_out if test is None else test,
        seed=seed,
        jsonl=jsonl,
        **more,
    )
    with progress_bar("Drawing documents", sum(settings.sizes.values())) as bar:
        about = write_world(
            out, made, settings, progress=lambda done: bar.advance(bar.task_ids[0], done)
        )
    say(
        f"{counted(made.num_concepts, 'concept')}, {counted(about['num_states'], 'state')}, "
        f"vocabulary of {about['vocab']:,}"
    )
    for name, best in about["optimum"].items():
        say(
            f"{name:>6}  {best['tokens']:>13,} tokens  {best['documents']:>11,} documents  "
            f"optimum {best['perplexity']:.3f}"
        )
    rate = about.get("entropy_rate")
    if rate is not None:
        say(
            f"entropy rate {rate['value']:.4f} nats per token (standard error "
            f"{rate['standard_error']:.4f}), perplexity {math.exp(rate['value']):.3f}"
        )
    for line in about.get("prompts", []):
        lost = f", {line['impossible']:,} impossible" if line["impossible"] else ""
        say(
            f"{counted(line['examples'], 'example'):>12}  the optimum answers "
            f"{line['accuracy']:.1%} of {settings.prompts:,} prompts as their concept would{lost}"
        )
    say(f"written to {out}")
    if json:
        print_json({**about, "folder": str(out)})
