"""Writing files and folders so that a reader never sees half of one."""

import errno
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from hmmlm.errors import InputError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def refuse_existing(path: str | os.PathLike[str]) -> Path:
    """The path, when nothing is there yet and its folder can be written to; nothing stays there."""
    path = Path(path)
    try:
        if path.exists() or path.is_symlink():
            raise InputError(
                f"{path} already exists and is never overwritten; choose another name or remove "
                f"it first."
            )
        parent = _nearest_parent(path)
        if not parent.is_dir():
            raise InputError(
                f"{path} cannot be written: {parent} is a file, not a folder; choose another name."
            )
        # Asking whether one may write is not enough: root always may, but not on every disk.
        os.rmdir(tempfile.mkdtemp(prefix=f".{path.name}.", dir=parent))
    except OSError as error:
        raise _cannot_write(path, error) from error
    return path


def check_space(path: str | os.PathLike[str], size: int) -> None:
    """Refuses a path on a disk with less than `size` bytes left, before the work is done."""
    free = shutil.disk_usage(_nearest_parent(Path(path))).free
    if free < size:
        raise InputError(
            f"{path} needs about {size:,} bytes but its disk has {free:,} left; free some space or "
            f"choose another disk."
        )


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` when the block ends without an error.

    After an error nothing is left, nor are the parents that were made for it.
    """
    path = refuse_existing(path)
    parent = path.absolute().parent
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    with _explained(path):
        temporary = None
        try:
            parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=parent))
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            for file in temporary.iterdir():  # safetensors writes for the owner's eyes only
                if file.is_file():
                    file.chmod(0o666 & ~_umask())
            os.rename(temporary, path)
        except BaseException:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()
            raise


@contextmanager
def work_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The folder `.NAME.unfinished` beside `path`, for work that can go on after a stop.

    One process has it at a time. When the block ends well it is removed, and after an `InputError`
    with the parents that were made for it. After any other end it stays, and whoever asks next
    finds what is in it; a full disk is such an end.
    """
    path = refuse_existing(path)
    parent = path.absolute().parent
    folder = parent / f".{path.name}.unfinished"
    made = [place for place in (parent, *parent.parents) if not place.exists()]
    with _explained(path, kept=True):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            _lock(lock, path)
            try:
                refuse_existing(path)  # again: whoever had the lock may have made it
                yield folder
                shutil.rmtree(folder)
            except InputError:
                shutil.rmtree(folder, ignore_errors=True)
                for place in made:
                    with suppress(OSError):
                        place.rmdir()
                raise


def _lock(file: IO[str], path: Path) -> None:
    import fcntl  # not on every system

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had the lock may have removed the file since it was opened here.
        ours = os.path.samestat(os.fstat(file.fileno()), os.stat(file.name))
    except (BlockingIOError, FileNotFoundError):
        ours = False
    except OSError as error:  # not every disk has locks
        raise InputError(
            f"{path} cannot be written: its disk cannot lock files ({error.strerror}), and two "
            f"processes could write there at once; choose another disk."
        ) from error
    if not ours:
        raise InputError(
            f"{path} is being made by another process; wait for that one or choose another name."
        )


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary name beside `path` that replaces `path` when the block ends without an error."""
    path = Path(path)
    with _explained(path):
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        os.close(descriptor)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def json_line(value: Any) -> str:
    """One line of JSON; numbers that JSON does not have become null."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def _explained(path: Path, *, kept: bool = False) -> Iterator[None]:
    """Turns what a full disk or a missing permission raises into a sentence.

    Errors of other files, such as one that is read meanwhile, pass as they are.
    """
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        temporary = str(path.absolute().parent / f".{path.name}.")
        ours = str(error.filename or "").startswith(temporary)
        if ours or error.errno in (*_FULL, errno.EROFS):
            raise _cannot_write(path, error, kept=kept) from error
        raise
    except Exception as error:
        # safetensors reports the system's error only in words.
        for code in (*_FULL, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO):
            if os.strerror(code) in str(error):
                failed = OSError(code, os.strerror(code))
                raise _cannot_write(path, failed, kept=kept) from error
        raise


def _cannot_write(path: Path, error: OSError, *, kept: bool = False) -> InputError:
    if error.errno in _FULL and kept:
        return InputError(
            f"The disk is full while writing {path} ({error.strerror}); what was done is kept: "
            "free some space, and the same command goes on from there."
        )
    if error.errno in _FULL:
        return InputError(
            f"The disk is full while writing {path} ({error.strerror}), and nothing of it was "
            f"kept; free some space or choose another disk."
        )
    return InputError(
        f"{path} cannot be written: {error.strerror}; choose another place or ask for permission."
    )


def _nearest_parent(path: Path) -> Path:
    """The first of its parents that is there."""
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    return parent


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def signature(path: Path) -> list[Any]:
    """What is another if the file is another; a pipe is another every time."""
    if not path.is_file():
        return [str(path), os.urandom(8).hex()]
    return [str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns]
