"""The one home of temporary files: private, locked folders for them, and what the system refuses of them.

No other module of the product makes temporary files, so that nothing of a killed process stays.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from storage_core.errors import Unavailable
from storage_core.process import HomeProcess
from storage_core.system_errors import cause, failure_of, named_file

_LOCKED = ".locked"
_OURS = "tidemark-"
"""How the names of all such folders begin."""


@contextmanager
def scratch(what: str) -> Iterator[None]:
    """Raise as `Unavailable` what the system refuses of temporary files, naming their folder and how to choose it."""
    try:
        yield
    except (OSError, MemoryError) as error:
        failure = failure_of(error)
        found = f"{what} among the temporary files: {cause(failure)}; another folder for them is named by TMPDIR"
        raise Unavailable(found + named_file(failure), errno=failure.errno) from error


@contextmanager
def scratch_folder(what: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder among the temporary files, or in `parent`, for this user alone; it is gone at the end.

    `what` is a part of its name. A process that is killed leaves its folders behind. The next process of the user that
    makes one beside them removes all: each is locked as long as its process runs, which the kernel knows. Raises
    `Unavailable` where none can be made. A folder that cannot be removed is left behind, because its user is done.
    """
    path, lock = locked_folder(what, parent)
    home = HomeProcess()
    try:
        yield path
    finally:
        if home.is_here:  # and not a copy of it by fork()
            _remove(path)
        os.close(lock)


def locked_folder(what: str, parent: Path | None = None) -> tuple[Path, int]:
    """Return a new folder as that of `scratch_folder`, and its lock.

    The lock is a descriptor. The next process removes the folder once each process that has the descriptor has ended.
    """
    with scratch("a folder"):
        place = tempfile.gettempdir() if parent is None else str(parent)
        _remove_abandoned_once(os.getpid(), place)
        return _made(f"{_OURS}{what}-", place)


def remove_abandoned(parent: Path | None = None) -> None:
    """Remove what killed processes of this user have left among the temporary files, or in `parent`."""
    with suppress(OSError):
        _remove_abandoned(tempfile.gettempdir() if parent is None else str(parent))


def _made(prefix: str, place: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, suffix=_LOCKED, dir=place))  # 0700
        lock = _lock(path)
        if lock is not None:
            if path.exists():
                return path, lock
            os.close(lock)  # another took it for abandoned, just before it was locked


@functools.lru_cache(maxsize=64)
def _remove_abandoned_once(process: int, folder: str) -> None:  # noqa: ARG001  # once per process
    with suppress(OSError):
        _remove_abandoned(folder)


def _remove_abandoned(folder: str) -> None:
    for path in Path(folder).glob(f"{_OURS}*????????{_LOCKED}"):
        with suppress(OSError):
            if path.lstat().st_uid == os.geteuid() and (lock := _lock(path)) is not None:
                _remove(path)
                os.close(lock)


def _remove(path: Path) -> None:
    """Remove it, and once more where a thread of a library has made a file in it meanwhile.

    An index that tantivy has just opened reloads once in a thread of its own, which touches a lock file.
    """
    for _ in range(2):
        if path.exists():
            shutil.rmtree(path, ignore_errors=True)


def _lock(folder: Path) -> int | None:
    """The lock of the folder, kept until it is closed; None where another process has it, or the folder is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor
