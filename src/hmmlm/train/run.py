"""The folder a training lives in: what it is, its metrics and checkpoints; for one at a time."""

import fcntl
import json
import math
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hmmlm.errors import InputError
from hmmlm.storage import json_line, new_file, new_folder
from hmmlm.support import Support
from hmmlm.train.checkpoint import Checkpoints, Saving, describe_difference
from hmmlm.train.loop import Progress

RUN, LOCK, METRICS, CHECKPOINTS = "run.json", "run.lock", "metrics.jsonl", "checkpoints"
SUPPORT = "support.safetensors"
FORMAT = "hmmlm-run-1"


def is_unfinished(folder: Path) -> bool:
    """Whether a training has begun in a folder and not come to its end."""
    return (folder / RUN).exists()


def settle(folder: Path) -> bool:
    """Removes what a process that was killed at its very end left beside a model: was there any?

    The last file of a model to be written is its config.json: where that is, all of it is.
    """
    found = [*_temporaries(folder), *(path for path in _leftovers(folder) if path.exists())]
    if found:
        with _locked(folder / LOCK):
            _remove(folder)
    return bool(found)


def _leftovers(folder: Path) -> list[Path]:
    """What only an unfinished run needs, its description last: as long as it is there, so is it."""
    return [folder / name for name in (CHECKPOINTS, SUPPORT, LOCK, RUN)]


def _temporaries(folder: Path) -> list[Path]:
    """Files that were being written, each under a name of its own, when a process was killed."""
    names = ("model.safetensors", "tokenizer.json", "config.json", METRICS, SUPPORT)
    return [path for name in names for path in folder.glob(f".{name}.*")]


def _remove(folder: Path) -> None:
    for path in [*_temporaries(folder), *_leftovers(folder)]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def read_run(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """What the run in a folder is, and where its text is, as when it began; it must not be over."""
    try:
        held = json.loads((folder / RUN).read_bytes())
        found, about, source = held["format"], held["about"], held["source"]
        if found == FORMAT:
            _check(about["config"], source)
    except FileNotFoundError:
        if not folder.exists():
            raise InputError(
                f"{folder} does not exist; give the folder of a training that was stopped."
            ) from None
        raise InputError(
            f"{folder} has no {RUN}, so there is nothing to resume: either it was trained to its "
            f"end, or it is not the folder of a training."
        ) from None
    except OSError as error:
        raise InputError(f"{folder / RUN} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{folder / RUN} is damaged; train anew in another folder.") from None
    if found != FORMAT:
        raise InputError(
            f"{folder / RUN} has the format {found!r} but this version reads {FORMAT!r}; go on "
            f"with the version of hmmlm that wrote it."
        )
    return about, source


def _check(config: Any, source: Any) -> None:
    """Refuses what is not tables of settings, and files by name."""
    for held, kind in ((config, dict), (source, str)):
        if not isinstance(held, dict) or not all(isinstance(one, kind) for one in held.values()):
            raise ValueError


class Run:
    """An open run: metrics are appended to a file, checkpoints kept beside it.

    `unlocked` is why nothing keeps other processes out of the folder, where that is so.
    """

    def __init__(
        self, folder: Path, about: Mapping[str, Any], saving: Saving, unlocked: str = ""
    ) -> None:
        self.folder, self.unlocked = folder, unlocked
        self.has_lost_metrics = False
        self.checkpoints = Checkpoints(folder / CHECKPOINTS, about, saving)

    def add_metrics(self, step: Progress) -> None:
        """Appends a line, or nothing where the disk has no room for the whole of it."""
        line = json_line(step._asdict()).encode()
        with (self.folder / METRICS).open("ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            try:
                while line:  # what there is room for, then an error
                    line = line[file.write(line) :]
            except OSError:
                file.truncate(size)
                raise

    def cut_metrics(self, last: int) -> None:
        """Drops the metrics of steps after `last`, which a run that goes on from there repeats."""
        path = self.folder / METRICS
        if not path.exists():
            return
        with (
            path.open("rb") as lines,
            new_file(path) as temporary,
            temporary.open("wb") as kept,
        ):
            kept.writelines(line.rstrip(b"\n") + b"\n" for line in lines if _step(line) <= last)

    def finish(self) -> None:
        """Removes what only an unfinished run needs."""
        _remove(self.folder)

    def keep_support(self, support: Support, dtype: torch.dtype) -> None:
        """Writes down the shape of the model that training starts from, which may go away."""
        tensors = {"rows": support.rows, "row_of_word": support.row_of_word}
        tensors["none"] = torch.empty(0, dtype=dtype)
        tensors["num_states"] = torch.tensor(support.num_states)
        with new_file(self.folder / SUPPORT) as temporary:
            save_file({name: part.cpu().contiguous() for name, part in tensors.items()}, temporary)


def read_support(folder: Path) -> tuple[Support, torch.dtype] | None:
    """What `Run.keep_support` wrote; None without it, or without a checkpoint."""
    if not any((folder / CHECKPOINTS).glob("step-*")) or not (folder / SUPPORT).exists():
        return None
    try:
        held = load_file(folder / SUPPORT)
        support = Support(held["rows"], held["row_of_word"], int(held["num_states"]))
        return support.validate(), held["none"].dtype
    except (OSError, KeyError, SafetensorError) as error:
        raise InputError(f"{folder / SUPPORT} is damaged ({error}); train anew.") from None


def _step(line: bytes) -> int | float:
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):  # half written
        return math.inf
    return step if type(step) is int else math.inf


@contextmanager
def open_run(
    folder: Path,
    about: Mapping[str, Any],
    saving: Saving,
    *,
    source: Mapping[str, str],
    resume: bool = False,
) -> Iterator[Run]:
    """A new run in a folder that is not there yet, or with `resume` one that was begun.

    `about` describes it in plain values, `source` says where its text is. Nobody else can have it
    open at the same time. A new one that ends before its first step or checkpoint leaves nothing.
    """
    about = json.loads(json.dumps(about))
    if resume:
        made, (begun, _) = [], read_run(folder)
        if begun != about:
            raise InputError(
                f"The run in {folder} is another one: {describe_difference(begun, about)}. Go on "
                f"with what it was begun with, or train anew in another folder."
            )
    else:
        made = _make(folder, {"format": FORMAT, "about": about, "source": dict(source)})
    try:
        with _locked(folder / LOCK) as unlocked:
            run = Run(folder, about, saving, unlocked)
            run.checkpoints.sweep()
            for path in _temporaries(folder):
                path.unlink(missing_ok=True)
            yield run
    except BaseException:
        if made and not any((folder / name).exists() for name in (METRICS, CHECKPOINTS)):
            shutil.rmtree(folder, ignore_errors=True)
            for parent in made[1:]:
                if not any(parent.iterdir()):
                    parent.rmdir()
        raise


def _make(folder: Path, description: Mapping[str, Any]) -> list[Path]:
    """Makes the folder with its description; returns it and the parents that were made for it."""
    made = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
    with new_folder(folder) as temporary:
        (temporary / RUN).write_text(json.dumps(description, indent=1) + "\n")
    return made


@contextmanager
def _locked(path: Path) -> Iterator[str]:
    """Holds a lock; gives the reason where the disk has none, which some of clusters do not."""
    reason = ""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read().strip() or "unknown"
            raise InputError(
                f"{path.parent} is being trained by another process (number {who}); wait for it "
                f"or choose another folder."
            ) from None
        except OSError as error:
            reason = error.strerror or str(error)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield reason


class Interrupts:
    """Within it the first SIGINT (Ctrl-C) or SIGTERM only sets `asked`, to the signal's number.

    `notice` is called then, within the handler, if it was SIGINT. A second one interrupts at once.
    """

    asked: int | None = None

    def __init__(self, notice: Callable[[], None] | None = None) -> None:
        self.notice = notice

    def __enter__(self) -> "Interrupts":
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = number
        if self.notice is not None and number == signal.SIGINT:
            self.notice()

    def __exit__(self, *error: Any) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
