"""Every error that Tidemark raises, grouped by what the caller does next.

    TidemarkError
    ├── InvalidInput        fix the call or the data (also a ValueError)
    ├── NotFound            name something that exists
    ├── CommitConflict      plan again from a fresh snapshot
    ├── Fenced              stop: somebody else holds the resource
    │   ├── WriterFenced    stop: another writer claimed the region
    │   ├── CopiedProcess   use what this process opened itself: a copy by fork() holds nothing
    │   └── RegionClosed    open the table again: its rows go into other regions now
    ├── Held                another maintainer is at work: try again later
    ├── CommitUnknown       read back before doing anything else
    ├── Unavailable         try again later
    │   ├── Overloaded      write less, or slower: nothing of the call was written
    │   └── NotWritten      do what it says about the disk: nothing was written
    ├── Corrupt             stop and look: tidemark fsck, and `Corrupt` in docs/operations.md
    ├── Unsupported         upgrade: the format is newer than this reader
    ├── SnapshotExpired     open a newer version
    └── Interrupted         somebody stopped it: run it again, when they want it to

The tree is append-only. `exit_code` is what a job or command ends with (docs/architecture/orchestration.md).
"""

from __future__ import annotations

from copy import copy
from typing import ClassVar, Self

SEE_CORRUPT = "run: tidemark fsck, and see `Corrupt` in docs/operations.md"
"""What to do about damage: the advice of a `Corrupt` that has none of its own."""

SEE_FILE = "write the file again, or leave it out"
"""What to do about a damaged file that is not of a table: `fsck` knows nothing of it."""


class TidemarkError(Exception):
    """The root. `str(error)` says what happened, where, and what to do; `context` carries the same as fields."""

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **context: object) -> None:
        super().__init__(message)
        self.context = context

    @property
    def found(self) -> str:
        """What happened and where, without the advice of a `Corrupt`: for callers that say themselves what to do."""
        return str(self.args[0])

    def reworded(self, found: str, **more: object) -> Self:
        """Return the error with another text for what was found; class, advice and context stay, but for `more`."""
        said = copy(self)
        said.args, said.context = (found,), {**self.context, **more}
        return said


class InvalidInput(TidemarkError, ValueError):
    """The call or the data is wrong; the same call will fail again."""

    kind = "invalid_input"
    exit_code = 2


class NotFound(TidemarkError):
    """The named table, version, object or index does not exist."""

    kind = "not_found"
    exit_code = 2


class CommitConflict(TidemarkError):
    """Another commit invalidated this one; nothing was written. Plan again from a fresh snapshot."""

    kind = "conflict"
    exit_code = 3


class Fenced(TidemarkError):
    """Somebody with a higher token owns the resource; this process must stop working on it."""

    kind = "fenced"
    exit_code = 6


class WriterFenced(Fenced):
    """Another writer claimed the region; no later row of this writer was or will be acknowledged."""

    kind = "writer_fenced"


class CopiedProcess(Fenced):
    """A writer or lease of another process, of which this one is a copy by fork(). Nothing was done; open another."""

    kind = "copied_process"


class Held(TidemarkError):
    """A live maintainer holds the lease; nothing was done. Try again later."""

    kind = "held"
    exit_code = 3


class RegionClosed(Fenced):
    """The region takes no more rows: the table's region spec was changed. Open the table again and write there."""

    kind = "region_closed"


class CommitUnknown(TidemarkError):
    """The store did not say whether a write took effect. Read back by id; clean nothing up."""

    kind = "outcome_unknown"
    exit_code = 5


class Unavailable(TidemarkError):
    """The store, or something else this needs, cannot be reached now. Try again later."""

    kind = "unavailable"
    exit_code = 5


class Overloaded(Unavailable):
    """More is given to a writer than it may hold; nothing of the call was written. Try again when less waits."""

    kind = "overloaded"


class NotWritten(Unavailable):
    """The store cannot take a write now, such as on a full or read-only disk; nothing of it was written."""


class Corrupt(TidemarkError):
    """Stored bytes are not what was written. Stop and inspect; no row was returned from them.

    `str(error)` is what was found and then the advice, once: a text that takes up another error's has its `found`, and
    so no advice but its own. The advice is None where the text comes from elsewhere and ends with one.
    """

    kind = "corrupt"
    exit_code = 4

    def __init__(self, found: str, *, advice: str | None = SEE_CORRUPT, **context: object) -> None:
        super().__init__(found, **context)
        self.advice = advice

    def __str__(self) -> str:
        return self.found if self.advice is None else f"{self.found}; {self.advice}"


def unsound(found: str, **context: object) -> Corrupt:
    """Return the error about a file that others wrote and that is given to a table."""
    return Corrupt(found, advice=SEE_FILE, **context)


class Unsupported(TidemarkError):
    """The table uses a feature or format version that this release does not know."""

    kind = "unsupported"
    exit_code = 2


class SnapshotExpired(TidemarkError):
    """Objects of the snapshot were collected while it was being read. Open a newer version."""

    kind = "snapshot_expired"
    exit_code = 3


class Interrupted(TidemarkError):
    """A signal ended the command before its work was done. What it committed stays; run it again for the rest."""

    kind = "interrupted"
    exit_code = 130


def as_tidemark_error(error: Exception) -> TidemarkError:
    """Return the error itself, or for one that Tidemark has no name for a plain error that says its class and text."""
    return error if isinstance(error, TidemarkError) else TidemarkError(f"{type(error).__name__}: {error}")


def error_of(kind: str, message: str) -> TidemarkError:
    """Return the error of this kind, by its `str` in another process; an unknown kind is a plain error."""
    if kind == Corrupt.kind:
        found = message.removesuffix(f"; {SEE_CORRUPT}")
        return Corrupt(found, advice=None if found == message else SEE_CORRUPT)
    classes = [TidemarkError]
    for each in classes:
        classes += each.__subclasses__()
    return next((each for each in classes if each.kind == kind), TidemarkError)(message)
