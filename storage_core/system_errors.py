"""What an error of the operating system means to the caller: what failed, why, and what to do about it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
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
_NUMBERED = re.compile(r"os error (\d{1,4})\b|code: (\d{1,4}), kind")
_LACKS_MEMORY = re.compile(
    r"^(Resources exhausted|can't start new thread)|failed to spawn thread|memory allocation"
    r"|failed to map segment from shared object"
)
_ONLY_TEXT: Final = (Exception, RuntimeError, ImportError)
_NO_MEMORY = OSError(errno.ENOMEM, "Cannot allocate memory")


def cause(error: OSError) -> str:
    """Return what the system says, and what to do about it."""
    advice = _ADVICE.get(error.errno or 0, "look at the disk, then try again")
    return f"{error.strerror or str(error) or type(error).__name__}; {advice}"


def unavailable(subject: str, error: BaseException) -> Unavailable:
    """Return the error of something that could not be read, or of a file that nobody but this process knows."""
    failure = failure_of(error)
    return Unavailable(f"{subject}: {cause(failure)}", key=subject, errno=failure.errno)


def not_written(subject: str, error: OSError | MemoryError) -> NotWritten:
    """Return the error of a write that certainly changed nothing."""
    failure = failure_of(error)
    message = f"{subject}: nothing was written: {cause(failure)}"
    return NotWritten(message, key=subject, errno=failure.errno)


def of_the_system(error: BaseException) -> bool:
    """Whether the system refused something, and not the bytes: of those Arrow's errors have no number.

    Never of an error of ours, which says by its class what it is.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return True
    if type(error) in _ONLY_TEXT or panicked(error):
        return refusal_in(str(error)) is not None
    return out_of_memory(error) or type(error).__name__ == "ArrowException"  # which Arrow raises for a thread


def raise_refused(subject: str, error: BaseException) -> None:
    """Raise `Unavailable` that names `subject` where the system refused something; return for every other error."""
    if of_the_system(error):
        raise unavailable(subject, error) from error


def panicked(error: BaseException) -> bool:
    """Whether a library of Rust gave up: no `Exception`, and of a class of its own in each of them."""
    return type(error).__name__ == "PanicException"


def refusal_in(text: str) -> OSError | None:
    """Return what the system refused, by the text of a library whose errors have no class for it."""
    if found := _NUMBERED.search(text):
        number = int(found[1] or found[2])
        return OSError(number, os.strerror(number))
    return _NO_MEMORY if _LACKS_MEMORY.search(text) else None


def out_of_memory(error: BaseException) -> bool:
    """Whether memory was lacking, whatever says so: Python, Arrow, DuckDB, the system, Rust, a thread for its stack.

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
def typed(subject: str, *, with_file: bool = False) -> Iterator[None]:
    """Raise what the system refuses inside the block, threads too, as `Unavailable` that names `subject`.

    `with_file` names the file too, where the system does: for code that opens files of its own.
    """
    try:
        yield
    except Exception as error:  # Python, Arrow, DuckDB and DataFusion share no class; what is none of these goes on
        if not isinstance(error, OSError) and not of_the_system(error):
            raise
        refused = unavailable(subject, error)
        raise refused.reworded(refused.found + (named_file(error) if with_file else "")) from error


def named_file(error: Exception) -> str:
    """Return the file that an error of the system names, in brackets behind a blank; nothing where it names none."""
    return f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""


def failure_of(error: BaseException) -> OSError:
    """Return an error that says that the system refused something as one of the system."""
    return error if isinstance(error, OSError) else refusal_in(str(error)) or _NO_MEMORY
