"""What tantivy and the local disk do when they fail, as typed errors: damaged files, or a machine that lacks something.

Tantivy raises `ValueError` for whatever happens to it, and its panics are no `Exception` but a `BaseException`; both
are caught here, where it is called, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from storage_core.errors import Corrupt, TidemarkError, Unavailable
from storage_core.headroom import require_headroom
from storage_core.index.damage import REBUILD
from storage_core.system_errors import panicked, refusal_in


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise `Corrupt` for files that tantivy cannot read, and `Unavailable` for what the machine lacks meanwhile."""
    try:
        with require_headroom(what):
            yield
    except BaseException as error:
        if not _of_tantivy(error):
            raise
        if refusal_in(str(error)):
            raise _unavailable(what, error) from error
        raise Corrupt(f"{what}: tantivy cannot read the files: {error}", advice=REBUILD) from error


@contextmanager
def writing(what: str, *, room_bytes: int) -> Iterator[None]:
    """Raise `Unavailable` for whatever fails while files are made: what goes in is sound, so it is the machine."""
    try:
        with require_headroom(what, size=room_bytes):
            yield
    except BaseException as error:
        if not _of_tantivy(error):
            raise
        raise _unavailable(what, error) from error


def _of_tantivy(error: BaseException) -> bool:
    if isinstance(error, TidemarkError):
        return False
    return isinstance(error, ValueError) or panicked(error)


def _unavailable(what: str, error: BaseException) -> Unavailable:
    reason = f"{type(error).__name__}: {error}"
    return Unavailable(
        f"{what}: local files or memory fail it ({reason}); "
        "see that temporary and cache folders can be written and have room, then try again"
    )


@contextmanager
def as_query_error() -> Iterator[None]:
    """Raise `ValueError` where tantivy panics over a query, which is of somebody else."""
    try:
        yield
    except BaseException as error:
        if not panicked(error):
            raise
        raise ValueError("it cannot be read as a query") from error
