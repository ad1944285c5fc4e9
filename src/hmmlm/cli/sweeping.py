"""`hmmlm sweep`: trainings that differ in some settings, and the table of how they did."""

import hashlib
import itertools
import json as json_format
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from hmmlm.cli.output import Device, Json, console, pick_device, print_json, say, whole
from hmmlm.cli.texts import check_places
from hmmlm.errors import InputError, counted

LONGEST_NAME = 120
SECONDS_TO_STOP = 30
"""Then a training that was asked to stop is ended."""


class Run(NamedTuple):
    """A training of the sweep: its folder, its own settings and all of them, as of --set."""

    folder: Path
    settings: dict[str, Any]
    changes: list[str]


class Outcome(NamedTuple):
    """How a run ended; `state` is trained, kept (from an earlier sweep) or failed."""

    run: Run
    state: str
    val: float | None = None
    best_step: int | None = None
    seconds: float | None = None
    error: str | None = None


def sweep(
    source: Annotated[Path, typer.Argument(help="A run.toml with one more table, sweep.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of the runs; by default its own out, or runs/NAME."),
    ] = None,
    at_once: Annotated[
        int,
        typer.Option(help="How many to train at the same time.", parser=whole(1), metavar="N"),
    ] = 1,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a model for each of several settings, and compare them on validation.

    The table has a grid, of which all combinations are run, a list of settings, or both. What was
    finished before is not run again.
    """
    runs = _read_sweep(source, out)
    place = pick_device(device)
    folder = runs[0].folder.parent
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file but must be a folder for the runs; choose another.")
    kept = [run for run in runs if _is_finished(run.folder)]
    for run in kept:
        _check_settings(run)
    waiting = [run for run in runs if run not in kept]
    say(f"{counted(len(runs), 'run')} in {folder}, {len(kept):,} of them finished before")
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = [_outcome(run, "kept") for run in kept]
    with closing(_train_all(waiting, at_once, place)) as trained:
        for outcome in trained:
            outcomes.append(outcome)
            name, count = outcome.run.folder.name, f"{len(outcomes):,} of {len(runs):,}"
            say(f"{count}  {name}  {_result(outcome)}")
    outcomes.sort(key=lambda one: (one.state == "failed", one.val is None, one.val or 0.0))
    _print_table(outcomes)
    if json:
        print_json({"folder": str(folder), "runs": [_facts(outcome) for outcome in outcomes]})
    if any(outcome.state == "failed" for outcome in outcomes):
        raise typer.Exit(1)


def _read_sweep(source: Path, out: Path | None) -> list[Run]:
    """The runs that a file asks for, all of their settings checked."""
    from hmmlm.baselines.kinds import NEURAL
    from hmmlm.train.config import make_config
    from hmmlm.train.tables import override, read_config

    tables: dict[str, Any] = read_config(source)
    asked = tables.pop("sweep", None)
    if not isinstance(asked, dict):
        raise InputError(
            f"{source} has no table [sweep]; add one, such as [sweep.grid] with "
            f'"train.learning_rate" = [0.01, 0.03], or use hmmlm train.'
        )
    if unknown := sorted(asked.keys() - {"grid", "list", "out"}):
        raise InputError(f"There is no setting sweep.{unknown[0]}. Known are grid, list, out.")
    folder = asked.get("out", str(Path("runs") / source.stem))
    if not isinstance(folder, str) or not folder:
        raise InputError(f"sweep.out is {folder!r} but must be the name of a folder.")
    folder = Path(folder) if out is None else out
    runs = []
    for settings in [*_grid(asked.get("grid", {})), *_list(asked.get("list", []))]:
        changes = _changes({**_flat(tables), **settings})
        merged = override({}, changes)
        make_config(merged, NEURAL)  # as the training itself will
        check_places(merged, source)
        runs.append(Run(folder / _name(settings), settings, changes))
    if not runs:
        raise InputError(f"The [sweep] of {source} is empty; give a grid or a list of settings.")
    names = [run.folder.name for run in runs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"Two runs of {source} are named {twice[0]}; leave one of them out.")
    return runs


def _grid(grid: Any) -> Iterator[dict[str, Any]]:
    """Every combination of the values of a grid."""
    if not isinstance(grid, dict):
        raise InputError(f"sweep.grid is {grid!r} but must be a table of lists: [sweep.grid].")
    flat = _flat(grid)
    for key, values in flat.items():
        if not isinstance(values, list):
            raise InputError(
                f"sweep.grid has {key} = {values!r} but must have a list of values, such as "
                f"[{values!r}]."
            )
        if not values:
            raise InputError(f"sweep.grid has no values for {key}; give at least one or remove it.")
    if flat:
        for values in itertools.product(*flat.values()):
            yield dict(zip(flat, values, strict=True))


def _list(entries: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(
            f"sweep.list is {entries!r} but must be a list of settings, such as "
            f'[{{ "train.seed" = 1 }}].'
        )
    yield from map(_flat, entries)


def _flat(table: dict[str, Any]) -> dict[str, Any]:
    """Settings by "table.key"; TOML reads that as a table in a table unless it is in quotes."""
    from hmmlm.train.checkpoint import flatten  # torch takes a second to import

    return flatten(table)


def _changes(settings: dict[str, Any]) -> list[str]:
    """Settings as `hmmlm train --set` takes them; JSON writes these values as TOML does."""
    return [
        f"{key}={json_format.dumps(value, ensure_ascii=False, default=str)}"
        for key, value in settings.items()
    ]


def _name(settings: dict[str, Any]) -> str:
    """A folder's name that says the settings, the same in whatever order they are given."""
    parts = [change.replace('"', "") for change in sorted(_changes(settings))]
    name = re.sub(r"[^\w.,=+-]", "_", ",".join(parts)) or "base"
    if len(name.encode()) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(",".join(parts).encode()).hexdigest()[:8]
    return f"{name.encode()[: LONGEST_NAME - 9].decode(errors='ignore')}-{digest}"


def _is_finished(folder: Path) -> bool:
    """Whether a training has come to its end there."""
    from hmmlm.text_model import CONFIG
    from hmmlm.train.run import RUN

    return (folder / CONFIG).exists() and not (folder / RUN).exists()


def _check_settings(run: Run) -> None:
    """Refuses a finished run of other settings: its name says only those that the sweep varies."""
    from hmmlm.baselines.kinds import NEURAL
    from hmmlm.text_model import CONFIG
    from hmmlm.train.config import make_config
    from hmmlm.train.tables import override

    try:
        kept = json_format.loads((run.folder / CONFIG).read_bytes())["training"]
        kept = _flat({name: {**kept[name]} for name in ("data", "model", "train")})
    except (ValueError, KeyError, TypeError, OSError, RecursionError):
        raise InputError(
            f"{run.folder / CONFIG} does not say how its model was trained; remove the folder or "
            "choose another with --out."
        ) from None
    asked = _flat(make_config(override({}, run.changes), NEURAL).as_tables())
    chosen = {"model.states", "model.blocks"} - asked.keys()
    for key in [key for key in {**kept, **asked} if key not in chosen]:
        if _place(key, kept.get(key)) != _place(key, asked.get(key)):
            was, now = (repr(part[key]) if key in part else "nothing" for part in (kept, asked))
            raise InputError(
                f"{run.folder} was trained with {key} = {was} but the sweep now says {now}; remove "
                f"the folder or choose another with --out."
            )


def _place(key: str, value: Any) -> Any:
    """The value of a setting; files are the same by whatever name."""
    from hmmlm.train.config import FILES

    return Path(value).absolute() if key in FILES and isinstance(value, str) else value


def _train_all(runs: list[Run], at_once: int, device: str) -> Generator[Outcome, None, None]:
    """Trains in processes of their own, some at once; they are stopped when this is left."""
    waiting = list(reversed(runs))
    running: dict[subprocess.Popen[bytes], Run] = {}
    with tempfile.TemporaryDirectory() as scratch, _stopped_like_ctrl_c():
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    run = waiting.pop()
                    said = Path(scratch) / run.folder.name
                    running[_start(run, said, at_once, device)] = run
                for process in [process for process in running if process.poll() is not None]:
                    run = running.pop(process)
                    yield _ended(run, process.returncode, Path(scratch) / run.folder.name)
                time.sleep(0.05)
        finally:
            for process in running:
                process.send_signal(signal.SIGINT)
            for process in running:
                _wait(process)


def _start(run: Run, said: Path, at_once: int, device: str) -> subprocess.Popen[bytes]:
    from hmmlm.train.run import is_unfinished

    place = "--resume" if is_unfinished(run.folder) else "--out"
    if run.folder.is_dir() and not any(run.folder.iterdir()):
        run.folder.rmdir()
    command = [sys.executable, "-m", "hmmlm", "train", place, str(run.folder)]
    command += ["--device", device, *(f"--set={change}" for change in run.changes)]
    environment = dict(os.environ)
    if at_once > 1:  # each would take all processors, and they would wait for each other
        share = max(1, (os.cpu_count() or 1) // at_once)
        environment.setdefault("OMP_NUM_THREADS", str(share))
    with said.open("wb") as errors:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
            process_group=0,  # Ctrl-C comes to this process alone, which passes it on once
        )


def _ended(run: Run, status: int, said: Path) -> Outcome:
    if status == 0:
        return _outcome(run, "trained")
    lines = said.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    reason = last.removeprefix("hmmlm: ") or f"It ended with status {status} and said nothing."
    return Outcome(run, "failed", error=reason)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(SECONDS_TO_STOP)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


@contextmanager
def _stopped_like_ctrl_c() -> Iterator[None]:
    """Other ways to stop this process are as Ctrl-C: no training goes on without it."""
    kinds = [signal.SIGTERM, signal.SIGHUP]
    kinds = [kind for kind in kinds if signal.getsignal(kind) != signal.SIG_IGN]  # as of nohup
    before = [(kind, signal.signal(kind, signal.default_int_handler)) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in before:
            signal.signal(kind, handler)


def _outcome(run: Run, state: str) -> Outcome:
    """A finished run by its metrics; its seconds are those of training, without validation."""
    from hmmlm.explore.curves import best_check, read_metrics
    from hmmlm.text_model import CONFIG

    stopped = json_format.loads((run.folder / CONFIG).read_bytes()).get("stopped")
    if stopped is not None:
        written = f"{stopped} The model was written to {run.folder}."
        return Outcome(run, "failed", error=written)
    try:
        steps = read_metrics(run.folder)
    except InputError as error:
        return Outcome(run, "failed", error=str(error))
    seconds = steps[-1].tokens / steps[-1].tokens_per_second
    best = best_check(steps)
    if best is None:
        return Outcome(run, state, seconds=seconds)
    return Outcome(run, state, best.val, best.step, seconds)


def _result(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f"failed: {outcome.error}"
    return "trained" if outcome.val is None else f"validation perplexity {outcome.val:.2f}"


def _print_table(outcomes: list[Outcome]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("run", overflow="fold")
    for title in ("validation", "best step", "seconds"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("outcome", overflow="fold")
    for run, state, val, best_step, seconds, error in outcomes:
        table.add_row(
            Text(run.folder.name),
            "" if val is None else f"{val:.2f}",
            "" if best_step is None else f"{best_step:,}",
            "" if seconds is None else f"{seconds:,.1f}",
            Text(state if error is None else f"{state}: {error}"),
        )
    # Where nobody watches, a line is as long as it is.
    page = console if console.is_terminal else Console(width=10_000, highlight=False)
    page.print(table)


def _facts(outcome: Outcome) -> dict[str, Any]:
    run, *_ = outcome
    facts = {"name": run.folder.name, "folder": str(run.folder), "settings": run.settings}
    return {**facts, **{k: v for k, v in outcome._asdict().items() if k != "run"}}
