"""Writing files and folders so that a reader never sees half of one."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hmmlm.errors import InputError


def refuse_existing(path: str | os.PathLike[str]) -> Path:
    """The path, when nothing is there yet and its parent can be written to."""
    path = Path(path)
    if path.exists() or path.is_symlink():
        raise InputError(
            f"{path} already exists and is never overwritten; choose another name or remove it first."
        )
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written: no permission to write in {parent}.")
    return path


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` when the block ends without an error."""
    path = refuse_existing(path)
    with _explained(path):
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.absolute().parent))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            os.rename(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


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


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns what a full disk or a missing permission raises into a sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        code = getattr(error, "errno", None)
        # safetensors reports the system's error only in words.
        if code in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            raise InputError(
                f"The disk is full while writing {path}; nothing was kept. Free some space or "
                f"choose another disk."
            ) from error
        if code in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise InputError(f"{path} cannot be written: {os.strerror(code)}.") from error
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
