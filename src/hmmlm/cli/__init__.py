"""The command line: `hmmlm COMMAND`. One module per kind of work; all arithmetic is elsewhere."""

import sys

import typer

from hmmlm.cli.asking import evaluate, info, next_tokens, sample, score, tag
from hmmlm.cli.making import prepare, train
from hmmlm.cli.tour import demo
from hmmlm.errors import InputError

app = typer.Typer(
    help="Hidden Markov language models with tens of thousands of states.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(prepare)
app.command()(train)
app.command()(evaluate)
app.command()(score)
app.command()(tag)
app.command()(sample)
app.command("next")(next_tokens)
app.command()(info)
app.command()(demo)


def main() -> None:
    """Runs a command; a mistake of the user's is one line on stderr and exit status 2."""
    try:
        app(prog_name="hmmlm")
    except InputError as error:
        print(f"hmmlm: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"hmmlm: {where}{error.strerror or error}.", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("hmmlm: stopped.", file=sys.stderr)
        sys.exit(130)
