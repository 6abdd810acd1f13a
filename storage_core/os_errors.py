"""What an error of the operating system means to the caller: what failed, why, and what to do about it."""

from __future__ import annotations

import errno
import fcntl
import functools
import glob
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from storage_core.errors import NotWritten, Unavailable

_ADVICE: Final = {
    errno.ENOSPC: "free some space there, then try again",
    errno.EDQUOT: "free some space of this user's quota, then try again",
    errno.EACCES: "give this user the right to read and write there",
    errno.EPERM: "give this user the right to read and write there",
    errno.EROFS: "mount the file system writable",
    errno.EMFILE: "raise the number of files that the process may open (ulimit -n), or run less at a time",
    errno.ENFILE: "the machine has too many open files: close some",
    errno.ENOMEM: "give the process more memory (ulimit -v), or run less at a time",
    errno.EFBIG: "raise the size that a file may have (ulimit -f)",
}

REFUSED: Final = frozenset({*_ADVICE, errno.ENAMETOOLONG, errno.EMLINK, errno.EXDEV, errno.ENOENT, errno.ENOTDIR})
"""Errors that say that a call changed nothing. After any other the call may have taken effect, as over a network."""

_OF_DUCKDB = "Out of Memory Error"
# Of DataFusion and Rust, and of Python's threads and libraries: no class of theirs says what the system said.
_NUMBERED = re.compile(r"os error (\d+)|code: (\d+), kind")
_LACKS_MEMORY = re.compile(
    r"^(Resources exhausted|can't start new thread)|failed to spawn thread|memory allocation"
    r"|failed to map segment from shared object"
)
_ONLY_TEXT: Final = (Exception, RuntimeError, ImportError)
_NO_MEMORY = OSError(errno.ENOMEM, "Cannot allocate memory")
_FILES = 8
_LOCKED = ".locked"
_SIZE = 256 * 2**20
QUERY_BYTES: Final = 512 * 2**20
"""The address space that a query takes beside what every use of native code takes: its threads, and their heaps."""


def cause(error: OSError) -> str:
    """Return what the system says, and what to do about it."""
    advice = _ADVICE.get(error.errno or 0, "look at the disk, then try again")
    return f"{error.strerror or str(error) or type(error).__name__}; {advice}"


def unavailable(subject: str, error: BaseException) -> Unavailable:
    """Return the error of something that could not be read, or of a file that nobody but this process knows."""
    failure = _failure(error)
    return Unavailable(f"{subject}: {cause(failure)}", key=subject, errno=failure.errno)


def not_written(subject: str, error: OSError | MemoryError) -> NotWritten:
    """Return the error of a write that certainly changed nothing."""
    failure = _failure(error)
    message = f"{subject}: nothing was written: {cause(failure)}"
    return NotWritten(message, key=subject, errno=failure.errno)


def of_the_system(error: BaseException) -> bool:
    """Whether the system refused something, and not the bytes: of those Arrow's errors have no number.

    Never of an error of ours, which says by its class what it is.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return True
    if type(error) in _ONLY_TEXT:
        return refusal_in(str(error)) is not None
    return out_of_memory(error) or type(error).__name__ == "ArrowException"  # which Arrow raises for a thread


def raise_refused(subject: str, error: BaseException) -> None:
    """Raise `Unavailable` that names `subject` where the system refused something; return for every other error."""
    if of_the_system(error):
        raise unavailable(subject, error) from error


def refusal_in(text: str) -> OSError | None:
    """Return what the system refused, by the text of a library whose errors have no class for it."""
    if found := _NUMBERED.search(text):
        number = int(found[1] or found[2])
        return OSError(number, os.strerror(number))
    return _NO_MEMORY if _LACKS_MEMORY.search(text) else None


def out_of_memory(error: BaseException) -> bool:
    """Whether memory was lacking, whoever says so: Python, Arrow, DuckDB, the system, Rust, a thread for its stack.

    Texts may quote a query or a value, so a class that has a say of its own is asked first: text counts of an error
    that has no other, and of an `OSError` without a number only DuckDB's prefix, all that a stream of Arrow keeps.
    """
    match error:
        case MemoryError():
            return True
        case OSError():
            return error.errno == errno.ENOMEM or (error.errno is None and str(error).startswith(_OF_DUCKDB))
        case _ if type(error) in _ONLY_TEXT:
            refused = refusal_in(str(error))
            return refused is not None and refused.errno == errno.ENOMEM
    return type(error).__name__ == "OutOfMemoryException"  # DuckDB's, which is not imported for it


@contextmanager
def typed(subject: str) -> Iterator[None]:
    """Raise what the system refuses inside the block, threads too, as `Unavailable` that names `subject`."""
    with _typed(subject, with_file=False):
        yield


@contextmanager
def _typed(subject: str, *, with_file: bool) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and not of_the_system(error):
            raise
        refused = unavailable(subject, error)
        raise refused.reworded(refused.found + (_named(error) if with_file else "")) from error


@contextmanager
def scratch(what: str) -> Iterator[None]:
    """Raise as `Unavailable` what the system refuses of temporary files, naming their folder and how to choose it."""
    try:
        yield
    except (OSError, MemoryError) as error:
        failure = _failure(error)
        found = f"{what} among the temporary files: {cause(failure)}; another folder for them is named by TMPDIR"
        raise Unavailable(found + _named(failure), errno=failure.errno) from error


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
    try:
        yield path
    finally:
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


@contextmanager
def room(subject: str, *, size: int = 0) -> Iterator[None]:
    """Do as `typed` does, and refuse before native code meets what the system will refuse it.

    DuckDB, Arrow and tantivy end the process where they get no file, thread or address space. So as much as they take
    to work is asked for first, with `size` bytes more for the data, and given back; no page of it is used. The files of
    the data are not among it: those they open by themselves, and report.
    """
    with _typed(subject, with_file=True):
        _require(files=_FILES, size=_SIZE + size)
        yield


def _require(*, files: int, size: int) -> None:
    mmap.mmap(-1, size, access=mmap.ACCESS_COPY).close()
    held: list[int] = []
    try:
        held.extend(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(files))
    finally:
        for each in held:
            os.close(each)


def _named(error: Exception) -> str:
    return f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""


def _failure(error: BaseException) -> OSError:
    return error if isinstance(error, OSError) else refusal_in(str(error)) or _NO_MEMORY
