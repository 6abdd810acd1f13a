"""What an error of the operating system means to the caller: what failed, why, and what to do about it."""

from __future__ import annotations

import errno
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

_NO_MEMORY = OSError(errno.ENOMEM, "Cannot allocate memory")


def cause(error: OSError) -> str:
    """Return what the system says, and what to do about it."""
    advice = _ADVICE.get(error.errno or 0, "look at the disk, then try again")
    return f"{error.strerror or type(error).__name__}; {advice}"


def unavailable(subject: str, error: OSError | MemoryError) -> Unavailable:
    """Return the error of something that could not be read, or of a file that nobody but this process knows."""
    failure = _failure(error)
    return Unavailable(f"{subject}: {cause(failure)}", key=subject, errno=failure.errno)


def not_written(subject: str, error: OSError | MemoryError) -> NotWritten:
    """Return the error of a write that certainly changed nothing."""
    failure = _failure(error)
    message = f"{subject}: nothing was written: {cause(failure)}"
    return NotWritten(message, key=subject, errno=failure.errno)


@contextmanager
def typed(subject: str) -> Iterator[None]:
    """Raise what the system refuses inside the block as `Unavailable` that names `subject`."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise unavailable(subject, error) from error


def _failure(error: OSError | MemoryError) -> OSError:
    return error if isinstance(error, OSError) else _NO_MEMORY
