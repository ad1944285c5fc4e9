"""The command line: `hmmlm COMMAND`. One module per kind of work; all arithmetic is elsewhere."""

import io
import os
import sys
import time
from typing import Annotated

import typer
from rich.console import Console

from hmmlm.cli.asking import evaluate, next_tokens, score
from hmmlm.cli.clustering import cluster
from hmmlm.cli.converting import convert
from hmmlm.cli.distilling import distill
from hmmlm.cli.estimating import estimate
from hmmlm.cli.exploring import explore
from hmmlm.cli.filling import fill
from hmmlm.cli.generating import constraint, guide, sample
from hmmlm.cli.help import Command, Group, print_version
from hmmlm.cli.info import info
from hmmlm.cli.making import prepare
from hmmlm.cli.mixing import mix
from hmmlm.cli.output import note
from hmmlm.cli.plotting import plot
from hmmlm.cli.reclustering import recluster
from hmmlm.cli.reporting import report
from hmmlm.cli.sampling import gap, sample_corpus
from hmmlm.cli.sweeping import sweep
from hmmlm.cli.tagging import tag
from hmmlm.cli.tempering import temper
from hmmlm.cli.topics import topics
from hmmlm.cli.tour import demo
from hmmlm.cli.training import train
from hmmlm.cli.worlds import world
from hmmlm.errors import InputError, is_out_of_memory

app = typer.Typer(
    help="Hidden Markov language models with tens of thousands of states.",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PANELS = {
    "Text": (prepare, sample_corpus, cluster),
    "Train": (train, distill, sweep, estimate, recluster, topics, mix, temper),
    "Measure": (evaluate, score, gap),
    "Ask": (next_tokens, sample, fill, tag, constraint, guide),
    "See": (info, explore, report, plot),
    "Other": (convert, demo),
}
"""Commands by what they are for, as the help shows them."""

for panel, commands in PANELS.items():
    for command in commands:
        name = "next" if command is next_tokens else None
        app.command(name, cls=Command, rich_help_panel=panel)(command)
app.add_typer(world, name="world", rich_help_panel="Text")


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True),
    ] = False,
) -> None:
    """What all commands have in common, which is nothing but the version."""


STOPPED = 130


def _is_busy() -> bool:
    """Whether other programs use most of this machine's cores."""
    try:
        return os.getloadavg()[0] > 0.75 * (os.cpu_count() or 1)
    except (AttributeError, OSError):  # not every system counts
        return False


def main() -> None:
    """Runs a command; a mistake of the user's is one line on stderr and exit status 2."""
    # Before torch comes: its threads burn a core while they wait, which is a little faster, but
    # where other programs want that core a small model takes ten times as long.
    if _is_busy():
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # what was read as UTF-8 is written so
    try:
        status = app(prog_name="hmmlm", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has enough
        _give_up_output()
        sys.exit(1)
    except (KeyboardInterrupt, typer.Abort):
        status = STOPPED
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        _give_up_output()
        if sentence:
            _tell(sentence)
        sys.exit(2)
    if status == STOPPED:
        _tell("stopped.")
    sys.exit(status if isinstance(status, int) else 0)


def _tell(sentence: str) -> None:
    """Prints an error; ranks that have not joined yet see the same one, and the first tells it."""
    torch = sys.modules.get("torch")
    joined = torch is not None and torch.distributed.is_initialized()
    if os.environ.get("RANK", "0") == "0" or "LOCAL_RANK" not in os.environ or joined:
        if sys.stderr.isatty():  # wrapped at words; by a console of its own, for ours may be mute
            note(f"hmmlm: {sentence}", on=Console(stderr=True, highlight=False))
        else:
            print(f"hmmlm: {sentence}", file=sys.stderr)
    else:
        time.sleep(2.0)  # torchrun ends all ranks when one ends, also one that is about to tell


def _give_up_output() -> None:
    """Writes what is left, or drops it where that fails: the interpreter must not try again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(error: Exception) -> str | None:
    """What to tell a user whose mistake this was; None if it was not one."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}."
    if is_out_of_memory(error):
        return "There is not enough memory for this; use fewer states, shorter lines or less text."
    format_message = getattr(error, "format_message", None)
    if format_message is not None:  # a usage error, whichever click typer brings along
        message = format_message().rstrip(".")
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "hmmlm"
        return f"{message}; see {command} --help." if message else ""
    return None
