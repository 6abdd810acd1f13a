"""From what a person calls a version to its snapshot: a number, a moment, or the name of a tag.

A tag's name starts with a letter, which no number and no time does, so one text never means two things. What is asked
for and no longer retained is `NotFound` that says what is; damage stays `Corrupt`.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TypeAlias

from storage_core.errors import Corrupt, InvalidInput, NotFound
from storage_core.log.boundary import first_version
from storage_core.log.history import entries
from storage_core.log.listing import list_log
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.log.tags import read_tags, tagged

At: TypeAlias = int | str | dt.datetime

_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


def snapshot_at(log: TransactionLog, at: At) -> Snapshot:
    """Return the snapshot at a version, of a tag, or the newest committed at or before a moment.

    A moment is a datetime or ISO text, to the millisecond, in UTC where it names no zone; one in the future is the
    newest version. Raises `NotFound` naming what is retained, `InvalidInput` for text that is nothing of the three.
    Requests: those of opening a version, and one GET for a tag.
    """
    if isinstance(at, bool) or not isinstance(at, int | str | dt.datetime):
        raise InvalidInput(f"at={at!r} is no version number, no ISO timestamp or datetime, and no tag's name", at=at)
    if isinstance(at, str) and at[:1].isalpha():
        return _version(log, tagged(log, at).version)
    if isinstance(at, str) and _NUMBER.fullmatch(at):
        return _version(log, int(at))
    return _version(log, at) if isinstance(at, int) else _instant(log, at)


def _version(log: TransactionLog, version: int) -> Snapshot:
    try:
        return log.snapshot(version=version)
    except (Corrupt, NotFound):
        # Below the collector's boundary, where no tag is, a missing file is no damage. Asked only when opening failed.
        kept = {tag.version for tag in read_tags(log.store).live(log.clock.now_ms())}
        if version >= first_version(log.store) or version in kept:
            raise
        raise NotFound(
            f"version {version} is no longer retained; {_retained(log)}", version=version, uri=log.store.uri
        ) from None


def _instant(log: TransactionLog, at: str | dt.datetime) -> Snapshot:
    instant = _parsed(at)
    try:
        return log.snapshot(timestamp_ms=(instant - _EPOCH) // _MILLISECOND)
    except NotFound:
        if not log.exists():
            raise  # there is no table at all
        raise NotFound(
            f"nothing is retained from {instant.isoformat()} or before; {_retained(log)}{_of_the_future(log)}",
            at=instant,
            uri=log.store.uri,
        ) from None


def _parsed(at: str | dt.datetime) -> dt.datetime:
    try:
        instant = dt.datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError as error:
        raise InvalidInput(f"at={at!r} is no version number, no ISO timestamp and no tag's name", at=at) from error
    return instant if instant.tzinfo else instant.replace(tzinfo=dt.UTC)


def _of_the_future(log: TransactionLog) -> str:
    """What to do where the versions are later than now, for a message; nothing where they are not."""
    head = log.snapshot()
    if head.timestamp <= log.clock.now_ms():
        return ""
    return (
        f"; version {head.version} says it was committed at {_shown(head.timestamp)}, which this machine's clock has "
        "not reached: a commit was made under a wrong clock, and versions after it are never earlier; name a version "
        "by its number"
    )


def _shown(timestamp_ms: int) -> str:
    return (_EPOCH + timestamp_ms * _MILLISECOND).isoformat(timespec="milliseconds")


def _retained(log: TransactionLog) -> str:
    """What can be read, for a message: the range of versions with its first moment, and the tags."""
    first = first_version(log.store)
    listed = list_log(log.store)
    versions = [version for version in listed.versions if version >= first]
    tags = read_tags(log.store).live(log.clock.now_ms())
    named = ", and by tag " + ", ".join(f"{tag.name} ({tag.version})" for tag in tags) if tags else ""
    if not versions:
        return f"the newest of {log.store.uri} is {listed.newest}{named}"
    since = next((entry.timestamp for entry in entries(log.store, versions[0])), 0)
    return f"{log.store.uri} retains versions {versions[0]} (of {_shown(since)}) to {listed.newest}{named}"
