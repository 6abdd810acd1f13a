"""What tantivy and the local disk do when they fail, as typed errors: damaged files, or a machine that lacks something.

Tantivy raises `ValueError` for whatever happens to it, and its panics are no `Exception` but a `BaseException`; both
are caught here, where it is called, and nowhere else.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from storage_core.errors import Corrupt, TidemarkError, Unavailable

REBUILD = "drop the index segment and catch up again"
_ROOM_BYTES = 256 * 2**20
_OF_THE_SYSTEM = re.compile(r"os error \d+|Os \{ code: \d+|failed to spawn thread|memory allocation")


@contextmanager
def local(what: str, *, room_bytes: int = 0) -> Iterator[None]:
    """Raise `Unavailable` with its cause for what the local disk or memory cannot do: full, read-only, out of files.

    Native code ends the process when it gets no address space. So as much as it takes, and `room_bytes` more for the
    data, is asked for first; no page of it is used.
    """
    try:
        mmap.mmap(-1, _ROOM_BYTES + room_bytes, access=mmap.ACCESS_COPY).close()
        yield
    except (OSError, MemoryError) as error:
        raise _unavailable(what, error) from error
    except pa.ArrowException as error:
        if type(error) is not pa.ArrowException:  # that class itself is for a thread that does not start
            raise
        raise _unavailable(what, error) from error


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise `Corrupt` for files that tantivy cannot read, and `Unavailable` for what the machine lacks meanwhile."""
    try:
        with local(what):
            yield
    except BaseException as error:
        if not _of_tantivy(error):
            raise
        if _OF_THE_SYSTEM.search(str(error)):
            raise _unavailable(what, error) from error
        raise Corrupt(f"{what}: tantivy cannot read the files: {error}", advice=REBUILD) from error


@contextmanager
def writing(what: str, *, room_bytes: int) -> Iterator[None]:
    """Raise `Unavailable` for whatever fails while files are made: what goes in is sound, so it is the machine."""
    try:
        with local(what, room_bytes=room_bytes):
            yield
    except BaseException as error:
        if not _of_tantivy(error):
            raise
        raise _unavailable(what, error) from error


def _of_tantivy(error: BaseException) -> bool:
    if isinstance(error, TidemarkError):
        return False
    return isinstance(error, ValueError) or type(error).__name__ == "PanicException"


def _unavailable(what: str, error: BaseException) -> Unavailable:
    reason = f"{type(error).__name__}: {error}"
    return Unavailable(
        f"{what}: local files or memory fail it ({reason}); "
        "see that temporary and cache folders can be written and have room, then try again"
    )
