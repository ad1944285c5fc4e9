"""`hmmlm convert`: models of other libraries, read and written."""

from pathlib import Path
from typing import Annotated

import typer

from hmmlm.cli.output import Json, one_of, print_json, say
from hmmlm.errors import InputError, counted
from hmmlm.storage import refuse_existing


def convert(
    source: Annotated[
        Path,
        typer.Argument(help="A model's folder, or a .npz or .safetensors of arrays."),
    ],
    to: Annotated[
        str,
        typer.Option(help="hmmlm or ctrl-g.", parser=one_of("hmmlm", "ctrl-g"), metavar="FORMAT"),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="The tokenizer.json or SentencePiece .model of the source's tokens."),
    ] = None,
    eos: Annotated[
        str | None, typer.Option(help="Its token that ends a line; by default the source's.")
    ] = None,
    keep_states: Annotated[
        bool,
        typer.Option(
            "--keep-states",
            help="To ctrl-g: no state is added in which texts end, as Ctrl-G expects one.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Make a model of another library's, or a checkpoint for Ctrl-G.

    Read are folders of hmmlm, HMMs that transformers saved, checkpoints of Ctrl-G and TRACE, and
    arrays of hmmlearn, pomegranate and dynamax; which, is seen from what is in them. No pickle is
    ever read.
    """
    if keep_states and to != "ctrl-g":
        raise InputError("--keep-states is for --to ctrl-g; leave it out.")
    refuse_existing(out)
    from hmmlm.interchange import write_ctrl_g
    from hmmlm.interchange.reading import TITLES, read_source
    from hmmlm.model import Model

    found = read_source(source, tokenizer=tokenizer, eos=eos)
    if found.kind == to:
        raise InputError(f"{source} is {TITLES[to]} already; copy it.")
    if found.eos_id is None or (to == "hmmlm" and not isinstance(found.model, Model)):
        raise InputError(
            f"{source} does not say which words its {found.hmm.vocab_size:,} tokens are; pass "
            f"--tokenizer FILE, a tokenizer.json or SentencePiece .model with as many."
        )
    sizes = f"{counted(found.hmm.num_states, 'state')}, {counted(found.hmm.vocab_size, 'word')}"
    say(f"{source} is {TITLES[found.kind]}: {sizes}")
    if to == "ctrl-g":
        states = write_ctrl_g(found.model, out, eos_id=found.eos_id, end_state=not keep_states)
    else:
        assert isinstance(found.model, Model)
        found.model.save(out)
        states = found.hmm.num_states
    say(f"wrote {out}, {TITLES[to]}: {counted(states, 'state')}")
    if json:
        print_json(
            {
                "source": str(source),
                "from": found.kind,
                "to": to,
                "folder": str(out),
                "states": states,
                "words": found.hmm.vocab_size,
                "eos_id": found.eos_id,
            }
        )
