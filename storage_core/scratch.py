"""Temporary files: private folders for them, and what the system refuses of them."""

from __future__ import annotations

import fcntl
import functools
import glob
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
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Yield a new folder among the temporary files that only this user can enter; it is gone at the end.

    A process that is killed leaves its folders behind. The next process of the user that makes one of the same prefix
    removes them: each is locked as long as its process runs, which the kernel knows. Raises `Unavailable` where none
    can be made. What cannot be removed is left behind: its user is done.
    """
    with scratch("a folder"):
        _remove_abandoned(os.getpid(), tempfile.gettempdir(), prefix)
        path, lock = _locked_folder(prefix)
    home = HomeProcess()
    try:
        yield path
    finally:
        if home.is_here:  # and not a copy of it by fork()
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _locked_folder(prefix: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, suffix=_LOCKED))  # 0700
        lock = _lock(path)
        if lock is not None:
            if path.exists():
                return path, lock
            os.close(lock)  # another took it for abandoned, just before it was locked


@functools.lru_cache(maxsize=64)
def _remove_abandoned(process: int, folder: str, prefix: str) -> None:  # noqa: ARG001  # once per process
    with suppress(OSError):
        for path in Path(folder).glob(f"{glob.escape(prefix)}????????{_LOCKED}"):
            with suppress(OSError):
                if path.lstat().st_uid == os.geteuid() and (lock := _lock(path)) is not None:
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(lock)


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
