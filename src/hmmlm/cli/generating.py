"""`hmmlm sample`, `hmmlm constraint` and `hmmlm guide`: text that is drawn, and what it must be."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hmmlm.cli.asking import Folder, load_any, load_hmm
from hmmlm.cli.bars import progress_bar
from hmmlm.cli.hub import tell_of_hub
from hmmlm.cli.output import (
    Device,
    Json,
    note,
    number,
    pick_device,
    print_json,
    readable,
    say,
    whole,
    zero_or_more,
)
from hmmlm.cli.unknown import tell_unknown
from hmmlm.errors import InputError, counted
from hmmlm.storage import new_file, refuse_existing

if TYPE_CHECKING:
    from hmmlm.generate import Constraint


def _texts(name: str, help: str) -> Any:
    return typer.Option(name, help=f"{help} May be repeated.", metavar="TEXT")


def _span(name: str, help: str) -> Any:
    return typer.Option(name, help=f"{help}, such as 10..20, 10.. or 12.", metavar="A..B")


MustContain = Annotated[list[str] | None, _texts("--must-contain", "A word or phrase to be there.")]
AnyOf = Annotated[
    list[str] | None, _texts("--any-of", "Words, with | between them, one of which is there.")
]
MustNot = Annotated[list[str] | None, _texts("--must-not", "A word or phrase not to be there.")]
Pattern = Annotated[
    list[str] | None, _texts("--regex", "A regular expression of the whole new text.")
]
Begins = Annotated[str | None, typer.Option("--starts-with", help="How it begins.", metavar="TEXT")]
Ends = Annotated[str | None, typer.Option("--ends-with", help="How it ends.", metavar="TEXT")]
Words = Annotated[str | None, _span("--words", "How many words")]
Sentences = Annotated[str | None, _span("--sentences", "How many sentences")]
Tokens = Annotated[str | None, _span("--tokens", "How many tokens")]
Seed = Annotated[
    int | None,
    typer.Option(help="Seed; by default a new one each time.", parser=whole(0), metavar="N"),
]
Prompt = Annotated[
    str, typer.Option(help="Go on after this text.", parser=readable, metavar="TEXT")
]


def sample(
    model: Folder,
    count: Annotated[
        int, typer.Option("--count", "-n", help="How many texts.", parser=whole(1), metavar="N")
    ] = 1,
    prompt: Prompt = "",
    length: Annotated[
        int, typer.Option(help="Most tokens to draw.", parser=whole(1), metavar="N")
    ] = 100,
    must_contain: MustContain = None,
    any_of: AnyOf = None,
    must_not: MustNot = None,
    regex: Pattern = None,
    starts_with: Begins = None,
    ends_with: Ends = None,
    words: Words = None,
    sentences: Sentences = None,
    tokens: Tokens = None,
    seed: Seed = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Text drawn from a model, one per line.

    With something it must be (docs/constraints.md), every text is: each is drawn from the model's
    own texts that are and that end within --length tokens, and how probable those are is said
    before. That is for HMMs.
    """
    wanted = make_constraint(
        must_contain, any_of, must_not, regex, starts_with, ends_with, words, sentences, tokens
    )
    if wanted is None:
        loaded = load_any(model, device)
        with progress_bar("Sampling", None):
            texts = loaded.sample(count, prompt=prompt, length=length, seed=seed)
        tell_unknown(loaded.tokenizer, prompt)
        _print_texts(texts, json, {})
        return
    hmm = load_hmm(model, device)
    with progress_bar("Looking ahead", None):
        look = hmm.look_ahead(wanted, length=length)
        log_prob = hmm.log_probability(look, prompt=prompt, length=length)
        if not json:
            note(_told(log_prob, length))
        texts = hmm.sample(count, prompt=prompt, length=length, seed=seed, constraint=look)
    tell_unknown(hmm.tokenizer, prompt)
    _print_texts(texts, json, {"log_probability": log_prob, "constraint": str(wanted)})


def constraint(
    model: Folder,
    must_contain: MustContain = None,
    any_of: AnyOf = None,
    must_not: MustNot = None,
    regex: Pattern = None,
    starts_with: Begins = None,
    ends_with: Ends = None,
    words: Words = None,
    sentences: Sentences = None,
    tokens: Tokens = None,
    prompt: Prompt = "",
    length: Annotated[int, number("--length", "Most tokens of a text, <eos> among them.")] = 100,
    svg: Annotated[
        Path | None, typer.Option(help="Draw the automaton into this file.", metavar="FILE")
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """How probable a constraint is, its shortest text, and its automaton.

    The options are those of hmmlm sample.
    """
    wanted = make_constraint(
        must_contain, any_of, must_not, regex, starts_with, ends_with, words, sentences, tokens
    )
    if wanted is None:
        raise InputError("There is no constraint; give --must-contain TEXT or another of them.")
    if svg is not None:
        refuse_existing(svg)
    loaded = load_hmm(model, device)
    with progress_bar("Looking ahead", None):
        look = loaded.look_ahead(wanted, length=length)
        log_prob = loaded.log_probability(look, prompt=prompt, length=length)
    automaton = look.automaton
    if svg is not None:
        from hmmlm.explore.automaton import draw_automaton

        names = [loaded.tokenizer.token(id) for id in range(loaded.tokenizer.vocab_size)]
        drawing = draw_automaton(automaton, names, str(wanted))
    shortest = int(automaton.distance[0])
    say(f"{wanted}")
    say(
        f"{counted(automaton.num_states, 'state')}, {counted(automaton.num_columns, 'kind')} of "
        f"tokens; the shortest text has {counted(shortest, 'token')}"
    )
    say(_told(log_prob, length))
    if svg is not None:
        with new_file(svg) as temporary:
            temporary.write_text(drawing, encoding="utf-8")
        say(f"drawn into {svg}")
    if json:
        print_json(
            {
                "constraint": str(wanted),
                "states": automaton.num_states,
                "kinds": automaton.num_columns,
                "shortest": shortest,
                "log_probability": log_prob,
            }
        )


def guide(
    model: Annotated[Path, typer.Argument(help="The HMM's folder, of the same tokenizer.")],
    llm: Annotated[
        str, typer.Option(help="A causal language model of Hugging Face's: a folder, or a name.")
    ],
    prompt: Prompt = "",
    count: Annotated[
        int, typer.Option("--count", "-n", help="How many texts.", parser=whole(1), metavar="N")
    ] = 1,
    length: Annotated[int, number("--length", "Most new tokens, the last of them <eos>.")] = 32,
    must_contain: MustContain = None,
    any_of: AnyOf = None,
    must_not: MustNot = None,
    regex: Pattern = None,
    starts_with: Begins = None,
    ends_with: Ends = None,
    words: Words = None,
    sentences: Sentences = None,
    tokens: Tokens = None,
    strength: Annotated[
        float,
        typer.Option(help="The power of the HMM's factor.", parser=zero_or_more, metavar="X"),
    ] = 1.0,
    temperature: Annotated[
        float,
        typer.Option(help="Divides the logits; 0 takes the best token.", parser=zero_or_more,
                     metavar="X"),
    ] = 1.0,
    gguf_file: Annotated[
        str | None, typer.Option(help="A GGUF file in the model's folder.", metavar="NAME")
    ] = None,
    seed: Seed = None,
    device: Device = "auto",
    json: Json = False,
) -> None:  # fmt: skip
    """Write with a large language model under constraints, which are met in time for certain.

    An HMM of the same tokens (hmmlm distill) says for each next token how probable that makes it.
    """
    wanted = make_constraint(
        must_contain, any_of, must_not, regex, starts_with, ends_with, words, sentences, tokens
    )
    if wanted is None:
        raise InputError("There is nothing to guide to; give --must-contain TEXT or another.")
    from hmmlm.distill.causal import CausalTeacher

    loaded = load_hmm(model, device)
    tell_of_hub(llm)
    place = pick_device(device)
    teacher = CausalTeacher(llm, device=place, gguf_file=gguf_file, what="language model")
    from hmmlm.hf.writing import Writer  # needs transformers, which the line above asks for

    writer = Writer(teacher, loaded)
    with progress_bar("Writing", None):
        look = loaded.look_ahead(wanted, length=length)
        log_prob = loaded.log_probability(look, length=length, prompt=prompt)
        if not json:
            note(_told(log_prob, length))
        texts = writer.write(
            look, prompt, count=count, length=length, strength=strength,
            temperature=temperature, seed=seed,
        )  # fmt: skip
    _print_texts(texts, json, {"log_probability": log_prob, "constraint": str(wanted)})


def make_constraint(
    must_contain: list[str] | None,
    any_of: list[str] | None,
    must_not: list[str] | None,
    regex: list[str] | None,
    starts_with: str | None,
    ends_with: str | None,
    words: str | None,
    sentences: str | None,
    tokens: str | None,
) -> "Constraint | None":
    """All of what the options ask for; None if that is nothing."""
    lists = (must_contain, any_of, must_not, regex)
    if not any(lists) and all(
        one is None for one in (starts_with, ends_with, words, sentences, tokens)
    ):
        return None
    from hmmlm import generate as g
    from hmmlm.explore.constraining import read_range

    parts = [g.contains(phrase) for phrase in must_contain or ()]
    parts += [g.contains_any(*choice.split("|")) for choice in any_of or ()]
    parts += [~g.contains(phrase) for phrase in must_not or ()]
    parts += [g.regex(pattern) for pattern in regex or ()]
    parts += [] if starts_with is None else [g.starts_with(starts_with)]
    parts += [] if ends_with is None else [g.ends_with(ends_with)]
    for make, said, name in (
        (g.words, words, "--words"),
        (g.sentences, sentences, "--sentences"),
        (g.tokens, tokens, "--tokens"),
    ):
        parts += [] if said is None else [make(*read_range(said, name))]
    made = parts[0]
    for part in parts[1:]:
        made = made & part
    return made


def _told(log_prob: float, length: int) -> str:
    from hmmlm.explore.constraining import told

    return told(log_prob, length)


def _print_texts(texts: list[str], json: bool, more: dict[str, Any]) -> None:
    if json:
        print_json({"texts": texts, **more})
        return
    sys.stdout.write("".join(text + "\n" for text in texts))
