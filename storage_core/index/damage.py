"""Typed errors for damaged segments and failures of tantivy, with messages that contain a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from storage_core.base.errors import Corrupt, TidemarkError, Unavailable, panicked, refusal_in
from storage_core.base.process import check_free_resources

REBUILD: Final = "drop the index segment and run catch-up again"


def damaged(where: str, what: str) -> Corrupt:
    """Return the error for a damaged object of an index. `what` describes the damage."""
    return Corrupt(f"{where}: {what}", advice=REBUILD, key=where)


# Failures of tantivy and of the local disk: damaged files, or a missing resource of the machine.
#
# Tantivy raises `ValueError` for every failure. If tantivy panics, the exception is a `BaseException` and not an
# `Exception`. Only this module catches the exceptions of tantivy, around the calls of tantivy.


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise `Corrupt` if tantivy cannot read the files, and `Unavailable` if the machine lacks a resource."""
    try:
        with check_free_resources(what):
            yield
    except BaseException as error:
        if not _of_tantivy(error):
            raise
        if refusal_in(str(error)):
            raise _unavailable(what, error) from error
        raise Corrupt(f"{what}: the files of the segment cannot be read", advice=REBUILD) from error


@contextmanager
def writing(what: str, *, room_bytes: int) -> Iterator[None]:
    """Raise `Unavailable` for every failure while files are built. Because the input is valid, the failure must come
    from the machine, for example from a full disk.
    """
    try:
        with check_free_resources(what, size=room_bytes):
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
        f"{what}: a local file or memory failed ({reason}). Check that temporary and cache folders are writable and "
        "have space, then try again"
    )


@contextmanager
def as_query_error() -> Iterator[None]:
    """Raise `ValueError` if tantivy panics while it parses a query, because the query comes from outside."""
    try:
        yield
    except BaseException as error:
        if not panicked(error):
            raise
        raise ValueError("the text cannot be read as a query") from error
