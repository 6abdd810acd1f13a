"""The errors that Tidemark raises, grouped by the action that the caller must take.

    TidemarkError
    ├── InvalidInput        correct the call or the data (also a ValueError)
    ├── NotFound            name something that exists
    ├── CommitConflict      plan again from a fresh snapshot
    ├── Fenced              stop: somebody else holds the resource
    │   ├── WriterFenced    stop: another writer claimed the region
    │   ├── CopiedProcess   open the resource again: this process is a copy by fork() and holds nothing
    │   └── RegionClosed    open the table again: its rows now go into other regions
    ├── Held                try again later: another maintainer is at work
    ├── CommitUnknown       read back before doing anything else
    ├── Unavailable         try again later
    │   ├── Overloaded      write less or more slowly: nothing of the call was written
    │   └── NotWritten      correct the disk as the error describes: nothing was written
    ├── Corrupt             stop and inspect: tidemark fsck, and `Corrupt` in docs/operations.md
    ├── Unsupported         upgrade: the format is newer than this reader
    ├── SnapshotExpired     open a newer version
    └── Interrupted         run again if wanted: somebody stopped the command

Later releases may add classes to the tree, but do not remove any. A job or command ends with the `exit_code` of its
error (docs/architecture/orchestration.md).

The module also contains the names of the "extras" (decision 0042). An extra is a group of optional packages that
`pip install tidemark` does not install. The last part of the module converts errors of the operating system into
Tidemark errors. Such an error states what failed, why it failed, and what to do.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import ClassVar, Final, Self

from storage_core.base.text import capitalized

SEE_CORRUPT = "Run: tidemark fsck, and see `Corrupt` in docs/operations.md"
"""The default advice for damaged data. The text of a `Corrupt` error without its own advice ends with this advice."""

SEE_FILE = "Write the file again, or leave it out"
"""The advice for a damaged file outside a table. `fsck` does not check such a file."""


class TidemarkError(Exception):
    """The root of all errors.

    `str(error)` describes the fault, its place and the remedy. `context` contains, as separate fields, the same facts
    as the text of the error.
    """

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **context: object) -> None:
        super().__init__(message)
        self.context = context

    @property
    def found(self) -> str:
        """The message of a `Corrupt` error without the advice. Callers use this text to add their own advice."""
        return str(self.args[0])

    def reworded(self, found: str, **more: object) -> Self:
        """Return a copy of the error with another text.

        The copy has the same class and advice. The fields in `more` are added to the context, or replace fields.
        """
        said = copy(self)
        said.args, said.context = (found,), {**self.context, **more}
        return said


class InvalidInput(TidemarkError, ValueError):
    """The call or the data is wrong. The same call will fail again."""

    kind = "invalid_input"
    exit_code = 2


class NotFound(TidemarkError):
    """The named table, version, object or index does not exist."""

    kind = "not_found"
    exit_code = 2


class CommitConflict(TidemarkError):
    """Another commit invalidated this commit. Nothing was written. Plan again from a fresh snapshot."""

    kind = "conflict"
    exit_code = 3


class Fenced(TidemarkError):
    """A holder with a higher token owns the resource. This process must stop working on the resource."""

    kind = "fenced"
    exit_code = 6


class WriterFenced(Fenced):
    """Another writer claimed the region. Rows that this writer writes after that claim are never acknowledged."""

    kind = "writer_fenced"


class CopiedProcess(Fenced):
    """The writer or lease belongs to another process. This process is a copy of the owner process, made by fork().

    Nothing was done. Open a new writer or lease in this process.
    """

    kind = "copied_process"


class Held(TidemarkError):
    """A live maintainer holds the lease. Nothing was done. Try again later."""

    kind = "held"
    exit_code = 3


class RegionClosed(Fenced):
    """The region accepts no more rows, because the table's region spec was changed.

    Open the table again and write the rows to the opened table.
    """

    kind = "region_closed"


class CommitUnknown(TidemarkError):
    """The store did not report whether a write took effect.

    Check by id whether the write took effect, and do not clean up anything.
    """

    kind = "outcome_unknown"
    exit_code = 5


class Unavailable(TidemarkError):
    """The store or another resource cannot be reached now. Try again later."""

    kind = "unavailable"
    exit_code = 5


class Overloaded(Unavailable):
    """A writer received more rows than it may keep in memory.

    The call wrote no row. Try again when fewer rows wait in the writer's memory.
    """

    kind = "overloaded"


class NotWritten(Unavailable):
    """The store cannot accept a write now, for example on a full or read-only disk. Nothing was written."""


class Corrupt(TidemarkError):
    """The stored bytes differ from the bytes that were written. Stop and inspect. No row was returned from these bytes.

    `str(error)` consists of the finding and the advice. To quote another `Corrupt` error in a message, use the `found`
    of that error. Then the message contains the advice only once. `advice` is None if the finding already ends with
    advice.
    """

    kind = "corrupt"
    exit_code = 4

    def __init__(self, found: str, *, advice: str | None = SEE_CORRUPT, **context: object) -> None:
        super().__init__(found, **context)
        self.advice = advice

    def __str__(self) -> str:
        return self.found if self.advice is None else f"{self.found}. {capitalized(self.advice)}"


def damaged_file_error(found: str, **context: object) -> Corrupt:
    """Return the error for a damaged file that a caller passes to a table. Tidemark did not write the file."""
    return Corrupt(found, advice=SEE_FILE, **context)


class Unsupported(TidemarkError):
    """The table uses a feature or format version that this release does not support."""

    kind = "unsupported"
    exit_code = 2


class SnapshotExpired(TidemarkError):
    """The collector deleted objects of the snapshot while a reader used the snapshot. Open a newer version."""

    kind = "snapshot_expired"
    exit_code = 3


class Interrupted(TidemarkError):
    """A signal ended the command before its work was complete.

    Its commits remain. Run the command again to do the rest.
    """

    kind = "interrupted"
    exit_code = 130


def as_tidemark_error(error: Exception) -> TidemarkError:
    """Return a `TidemarkError` unchanged.

    For any other error, return a `TidemarkError` with the class name and the text of that error.
    """
    return error if isinstance(error, TidemarkError) else TidemarkError(f"{type(error).__name__}: {error}")


def error_of(kind: str, message: str) -> TidemarkError:
    """Return an error with the kind and the text that another process sent.

    For an unknown kind, return a plain `TidemarkError`.
    """
    if kind == Corrupt.kind:
        found = message.removesuffix(f". {SEE_CORRUPT}")
        return Corrupt(found, advice=None if found == message else SEE_CORRUPT)
    classes = [TidemarkError]
    for each in classes:
        classes += each.__subclasses__()
    return next((each for each in classes if each.kind == kind), TidemarkError)(message)


# Optional packages.

PIPELINE = "pipeline"
"""The extra with Dagster, PySpark and pandas."""
CONNECT = "connect"
"""The extra with PySpark as a client of a Spark Connect server."""
POLARS = "polars"
DELTA = "delta"
"""delta-rs."""
ICEBERG = "iceberg"
"""pyiceberg."""
CATALOG = "catalog"
"""The extra with SQLAlchemy, and with psycopg for PostgreSQL."""
POSTGRES = "postgres"
"""The extra for Dagster's run history in PostgreSQL."""


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Raise `Unavailable` with the name of the extra if the block imports a missing package."""
    try:
        yield
    except ImportError as error:
        raise Unavailable(
            f"{what} needs packages: pip install '.[{extra}]' in the folder of Tidemark's source ({error})", extra=extra
        ) from error


# Errors of the operating system.

_ADVICE: Final = {
    errno.ENOSPC: "free some space there, then try again",
    errno.EDQUOT: "free some space of this user's quota, then try again",
    errno.EACCES: "give this user the right to read and write the file or folder",
    errno.EPERM: "give this user the right to read and write the file or folder",
    errno.ENOENT: "create the folder, or correct the path",
    errno.ENOTDIR: "correct the path, because a part of it is not a folder",
    errno.EROFS: "mount the file system writable",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or run fewer tasks at a time",
    errno.ENFILE: "the machine has too many open files: close some",
    errno.ENOMEM: "give the process more memory (ulimit -v), or run fewer tasks at a time",
    errno.EFBIG: "raise the limit of the file size (ulimit -f)",
}

REFUSED: Final = frozenset({*_ADVICE, errno.ENAMETOOLONG, errno.EMLINK, errno.EXDEV, errno.ENOENT, errno.ENOTDIR})
"""The `errno` codes of refusals. After an error with one of these codes, the call has certainly changed nothing.

After any other error, for example a network error, the call may have taken effect.
"""

_OF_DUCKDB = "Out of Memory Error"
# Patterns for error texts of DataFusion, Rust, Python's threads and Python's libraries. These errors have no error
# number of the system.
_NUMBERED = re.compile(r"os error (\d{1,4})\b|code: (\d{1,4}), kind")
_LACKS_MEMORY = re.compile(
    r"^(Resources exhausted|can't start new thread)|failed to spawn thread|memory allocation"
    r"|failed to map segment from shared object"
)
_ONLY_TEXT: Final = (Exception, RuntimeError, ImportError)
_NO_MEMORY = OSError(errno.ENOMEM, "Cannot allocate memory")


def cause(error: OSError) -> str:
    """Return the system's description of the error, and what to do about it."""
    advice = _ADVICE.get(error.errno or 0, "look at the disk, then try again")
    return f"{error.strerror or str(error) or type(error).__name__}. {capitalized(advice)}"


def unavailable(subject: str, error: BaseException) -> Unavailable:
    """Return the error for a failed read, or for a failed write of a file that only this process uses."""
    failure = failure_of(error)
    return Unavailable(f"{subject}: {cause(failure)}", key=subject, errno=failure.errno)


def not_written(subject: str, error: OSError | MemoryError) -> NotWritten:
    """Return the error for a write that certainly changed nothing."""
    failure = failure_of(error)
    message = f"{subject}: nothing was written: {cause(failure)}"
    return NotWritten(message, key=subject, errno=failure.errno)


def of_the_system(error: BaseException) -> bool:
    """Return True if the error means that the system refused a request.

    Return False if the error is about invalid bytes.

    The result is False for every Tidemark error, because the class of a Tidemark error already has a meaning.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return True
    if type(error) in _ONLY_TEXT or panicked(error):
        return refusal_in(str(error)) is not None
    return out_of_memory(error) or type(error).__name__ == "ArrowException"  # raised by Arrow if it gets no thread


def raise_refused(subject: str, error: BaseException) -> None:
    """Raise `Unavailable` for `subject` if the error means that the system refused a request.

    The function does nothing if the error does not mean that the system refused a request.
    """
    if of_the_system(error):
        raise unavailable(subject, error) from error


def panicked(error: BaseException) -> bool:
    """Return whether a Rust library panicked.

    A panic is not an `Exception`, and each library has its own class for it.
    """
    return type(error).__name__ == "PanicException"


def refusal_in(text: str) -> OSError | None:
    """Return an `OSError` if the text of an error describes a refusal by the system.

    Use this function for an error whose class does not show whether the system refused a request.

    Return None if the text does not describe a refusal.
    """
    if found := _NUMBERED.search(text):
        number = int(found[1] or found[2])
        return OSError(number, os.strerror(number))
    return _NO_MEMORY if _LACKS_MEMORY.search(text) else None


def out_of_memory(error: BaseException) -> bool:
    """Return True if the error means that there was not enough memory.

    The error may come from Python, Arrow, DuckDB, the system, Rust or a thread.

    The function checks the class of the error first, because the text may quote a query or a value. The function reads
    the text of an error only if the class alone does not show the cause of the error. For an `OSError` without a
    number, the result is True only if the text has DuckDB's prefix. Arrow streams raise an `OSError` without a number,
    because the streams keep only the text of an error.
    """
    match error:
        case MemoryError():
            return True
        case OSError():
            return error.errno == errno.ENOMEM or (error.errno is None and str(error).startswith(_OF_DUCKDB))
        case _ if type(error) in _ONLY_TEXT:
            refused = refusal_in(str(error))
            return refused is not None and refused.errno == errno.ENOMEM
    return type(error).__name__ == "OutOfMemoryException"  # DuckDB's class, compared by name to avoid an import


@contextmanager
def typed(subject: str, *, with_file: bool = False) -> Iterator[None]:
    """Raise `Unavailable` with the name `subject` if the system refuses something inside the block.

    The function also raises `Unavailable` if the system refuses to start a thread.

    Args:
        subject: The name of the object that the block works on.
        with_file: True to add the name of the file if the system's error contains a name. Use it for code that opens
            files.
    """
    try:
        yield
    except Exception as error:  # Python, Arrow, DuckDB and DataFusion have no common base class
        if not isinstance(error, OSError) and not of_the_system(error):
            raise
        refused = unavailable(subject, error)
        raise refused.reworded(refused.found + (named_file(error) if with_file else "")) from error


def named_file(error: Exception) -> str:
    """Return the file name in a system error, as ` (file)`. Return an empty text if the error has no file name."""
    return f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""


def failure_of(error: BaseException) -> OSError:
    """Return the error as an `OSError`. If the error contains no other reason, the reason is ENOMEM."""
    return error if isinstance(error, OSError) else refusal_in(str(error)) or _NO_MEMORY
