"""Version files as others write them: plain text, gzip behind the bytes `01 01`, and nothing about the commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from storage_core.log.actions import Action, Add, Metadata, Remove

GZIP_MAGIC = b"\x1f\x8b"
DOUBLED_MAGIC = b"\x01\x01"


def gzip_in(data: bytes) -> bytes | None:
    """Return the gzip that a file holds, told by its first bytes; None for one of plain text."""
    if data.startswith(DOUBLED_MAGIC + GZIP_MAGIC):
        return data[len(DOUBLED_MAGIC) :]
    return data if data.startswith(GZIP_MAGIC) else None


def time_of_unnamed_commit(actions: Iterable[Action], previous: int) -> int:
    """Return the time (ms) of a version without `commitInfo`: the newest that its actions name, beyond `previous`."""
    return max([previous + 1, *_named_times(actions)])


def _named_times(actions: Iterable[Action]) -> Iterator[int]:
    for action in actions:
        match action:
            case Add():
                yield action.modificationTime
            case Remove():
                yield action.deletionTimestamp or 0
            case Metadata():
                yield action.createdTime or 0
            case _:
                pass
