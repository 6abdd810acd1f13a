"""The position of an open table, and the three forms to select a version.

`snapshot_at` returns the snapshot for a version number, a point in time or a tag name. The name of a tag starts with a
letter. Numbers and times start with a digit, so the three forms cannot be confused. A version that is no longer
retained raises `NotFound`, and the message lists the retained versions. A damaged log still raises `Corrupt`.

`View` is the position of an open table. A view contains a snapshot, and `refresh` and commits replace this snapshot by
a newer snapshot. `Consistency` selects the unmerged data that a read includes in addition to the base table.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa

from storage_core.base.errors import Corrupt, InvalidInput, NotFound
from storage_core.base.text import choice_of, quoted
from storage_core.data.formats.keys import version_key
from storage_core.log.listing import first_version, list_log
from storage_core.log.log import TransactionLog, read_tags, tagged
from storage_core.log.snapshot import Snapshot
from storage_core.log.versions import entries
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import under_way
from storage_core.store.pieces import KeptValues, is_near
from storage_core.store.resolve import open_store

if TYPE_CHECKING:
    from storage_core.read.plan import RawPart
    from storage_core.read.unmerged_records import WithRawLogs
    from storage_core.write.region.captured_regions import Captured, Regions


At: TypeAlias = int | str | dt.datetime

_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


def snapshot_at(log: TransactionLog, at: At) -> Snapshot:
    """Return the snapshot of a version, of a tag or of a point in time.

    If `at` is a time, the result is the newest snapshot committed at or before this time.

    Args:
        log: The transaction log of the table.
        at: A version number, the name of a tag, or a time as a datetime or ISO text. A time has millisecond precision,
            and is in UTC if it has no zone. A time in the future selects the newest version.

    Raises:
        NotFound: The version is not retained. The message lists the retained versions.
        InvalidInput: The text is not a number, a time or the name of a tag.

    Cost:
        The requests of opening a version, and one GET for a tag.
    """
    if isinstance(at, bool) or not isinstance(at, int | str | dt.datetime):
        raise InvalidInput(
            f"{quoted(at)} is not a version. Give a version number, a time such as 2015-05-17T10:00 or a tag", at=at
        )
    if isinstance(at, str) and at[:1].isalpha():
        return _version(log, tagged(log, at).version)
    if isinstance(at, str) and _NUMBER.fullmatch(at):
        return _version(log, int(at))
    return _version(log, at) if isinstance(at, int) else _instant(log, at)


def _version(log: TransactionLog, version: int) -> Snapshot:
    try:
        return log.snapshot(version=version)
    except (Corrupt, NotFound):
        # A version file may be missing below the collector's boundary. A missing version file is damage only if a tag
        # retains the version. The tags are read only if the version cannot be opened.
        kept = {tag.version for tag in read_tags(log.store).live(log.clock.now_ms())}
        if version >= first_version(log.store) or version in kept:
            raise
        raise NotFound(
            f"version {version} is no longer retained. {_retained(log)}. Give one of these versions",
            version=version,
            uri=log.store.uri,
        ) from None


def _instant(log: TransactionLog, at: str | dt.datetime) -> Snapshot:
    instant = _parsed(at)
    try:
        return log.snapshot(timestamp_ms=(instant - _EPOCH) // _MILLISECOND)
    except NotFound:
        if not log.exists():
            raise  # the table does not exist
        raise NotFound(
            f"no version from {instant.isoformat()} or before is retained. {_retained(log)}{_of_the_future(log)}",
            at=instant,
            uri=log.store.uri,
        ) from None


def _parsed(at: str | dt.datetime) -> dt.datetime:
    try:
        instant = dt.datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError as error:
        raise InvalidInput(
            f"{quoted(at)} is not a version. Give a version number, a time such as 2015-05-17T10:00 or a tag", at=at
        ) from error
    return instant if instant.tzinfo else instant.replace(tzinfo=dt.UTC)


def _of_the_future(log: TransactionLog) -> str:
    """Return advice for an error message. If the newest version has a time in the future, the advice explains this."""
    head = log.snapshot()
    if head.timestamp <= log.clock.now_ms():
        return ". Give a later time, or one of these versions"
    return (
        f". Version {head.version} has the time {_shown(head.timestamp)}, which the clock of this machine has not "
        "reached. A machine with a wrong clock made a commit. Name a version by its number"
    )


def _shown(timestamp_ms: int) -> str:
    return (_EPOCH + timestamp_ms * _MILLISECOND).isoformat(timespec="milliseconds")


def _retained(log: TransactionLog) -> str:
    """Return text for an error message: the range of retained versions, the time of the first version, and the tags."""
    first = first_version(log.store)
    listed = list_log(log.store)
    versions = [version for version in listed.versions if version >= first]
    tags = read_tags(log.store).live(log.clock.now_ms())
    named = ", and by tag " + ", ".join(f"{tag.name} ({tag.version})" for tag in tags) if tags else ""
    if not versions:
        return f"the newest of {log.store.uri} is {listed.newest}{named}"
    since = next((entry.timestamp for entry in entries(log.store, versions[0])), 0)
    return f"{log.store.uri} retains versions {versions[0]} (committed {_shown(since)}) to {listed.newest}{named}"


PAGE_BYTES = 5_000_000
"""The default size of a page of the history, in bytes."""

_Captured = TypeVar("_Captured")
_Answer = TypeVar("_Answer")


class Consistency(StrEnum):
    """The data that a read includes.

    - `snapshot`: the base table.
    - `committed`: the base table and the flushed generations.
    - `latest`: all of `committed`, the durable tail of the WAL, and the rows of raw logs.
    """

    SNAPSHOT = "snapshot"
    COMMITTED = "committed"
    LATEST = "latest"


class View:
    """The position of an open table.

    Unless the view is pinned, `refresh` and the commits of the table object move `snapshot` to a newer version. `kept`
    caches values of immutable objects for later reads. `open_raw` opens the store of a raw log by its URI.
    """

    def __init__(
        self,
        log: TransactionLog,
        snapshot: Snapshot,
        *,
        pinned: bool = False,
        open_raw: Callable[[str], ObjectStore] = open_store,
    ) -> None:
        self.log = log
        self.snapshot = snapshot
        self.pinned = pinned
        self.kept = KeptValues(cached=log.cached)
        self.open_raw = open_raw
        self._opened: dict[str, ObjectStore] = {}

    def copy(self) -> View:
        """Return a view at the same snapshot. The new view moves independently and has its own cache."""
        other = View(self.log, self.snapshot, pinned=self.pinned, open_raw=self.raw_store)
        other.kept = self.kept.copy()
        return other

    @property
    def store(self) -> ObjectStore:
        """The store of the table."""
        return self.log.store

    def raw_store(self, uri: str) -> ObjectStore:
        """Return the store of a raw log that the table reads.

        The function opens each store only once. Makes no request.
        """
        if uri not in self._opened:
            self._opened[uri] = self.open_raw(uri)
        return self._opened[uri]

    def refresh(self) -> Snapshot:
        """Move to the newest version.

        The search starts at the current version. Makes the requests of `TransactionLog.refresh`.
        """
        if not self.pinned:
            self.snapshot = self.log.refresh(self.snapshot)
        return self.snapshot

    def level(self, consistency: str | None, at: At | None = None, *, usual: Consistency) -> str:
        """Return the consistency of a read: the given level, or `usual` if no level is given.

        A read of an older version always has the level `snapshot`.

        Raises:
            InvalidInput: The level is unknown, or an older version cannot be read with it.
        """
        older = self.pinned or at is not None
        if consistency is None:
            return Consistency.SNAPSHOT if older else usual
        if consistency not in [*Consistency]:
            raise InvalidInput(choice_of("consistency", consistency, [*Consistency]))
        if older and consistency != Consistency.SNAPSHOT:
            raise InvalidInput(
                "consistency does not apply to a read of an older version (at), which returns only merged rows. "
                "Leave consistency out"
            )
        return consistency

    def at_version(self, version: int) -> Snapshot:
        """Return the snapshot of a version. The current version needs no request."""
        return self.snapshot if version == self.snapshot.version else snapshot_at(self.log, version)

    def records(
        self, at: At | None, consistency: str, regions: Regions | None = None
    ) -> tuple[Snapshot, pa.Table | None, tuple[RawPart, ...]]:
        """Return the snapshot to read, the unmerged records above it, and the raw logs from which some records come.

        The records come from `regions`, or from all regions. They are None if only the base is read. Requests and
        errors are those of `captured` and of `Captured.above`.
        """
        snapshot, captured = self.captured(at, consistency, regions)
        if captured is None:
            return snapshot, None, ()
        return snapshot, captured.above(snapshot), captured.raw_parts

    def captured(
        self, at: At | None, consistency: str, regions: Regions | None = None
    ) -> tuple[Snapshot, Captured | WithRawLogs | None]:
        """Return the snapshot to read, and the state of the regions that was captured before the snapshot.

        The state is None if only the base is read. At any level but `snapshot`, the view moves to the newest version.
        At `latest` the state also contains the rows of raw logs that are not distributed to the table yet. Errors are
        those of `level`, of `RawLogListing.load` and of `PendingChunks.records`.

        Cost:
            The requests of `captured_regions.capture` and of `refresh`. Raw logs add the requests of
            `unmerged_records.undistributed_over`.
        """
        consistency = self.level(consistency, at, usual=Consistency.SNAPSHOT)
        if at is not None:
            return snapshot_at(self.log, at), None
        if consistency == Consistency.SNAPSHOT:
            return self.snapshot, None
        while True:
            if self._has_raw_logs(consistency):
                from storage_core.read.unmerged_records import (
                    captured_with,  # tables without raw logs do not need this import
                )

                return captured_with(self, partial(self.capture, Consistency.LATEST), regions)
            if self.snapshot.config.kind == "append":
                snapshot, captured = self.refresh(), None
            else:
                snapshot, captured = self.after(partial(self.capture, consistency, regions))
            if not self._has_raw_logs(consistency):
                return snapshot, captured

    def answered(
        self,
        at: At | None,
        consistency: str,
        regions: Regions,
        answer: Callable[[Snapshot, Captured | WithRawLogs | None], _Answer],
    ) -> _Answer:
        """Call `answer` with the values that `captured` returns, and return its result.

        `answer` must read immutable objects only. Usually the current version is still the newest version. `answer`
        therefore runs for the current version while the view searches for a newer version. If a newer version exists,
        the first result or error is discarded, and `answer` runs again.

        If the table reads raw logs, `answer` runs only after the newest version was found.
        """
        is_of_the_base = at is not None or consistency == Consistency.SNAPSHOT
        while not is_of_the_base and not self._has_raw_logs(consistency) and self.snapshot.config.kind != "append":
            before = self.snapshot
            captured = self.capture(consistency, regions, before)
            near = is_near(self.store, version_key(before.version), self.kept)
            with under_way(partial(answer, before, captured), near=near) as early:
                snapshot = self.refresh()
            if snapshot.version == before.version:
                return early()
            is_settled = snapshot.config.dividing == before.config.dividing
            if is_settled and not self._has_raw_logs(consistency):
                return answer(snapshot, captured)
        return answer(*self.captured(at, consistency, regions))

    def _has_raw_logs(self, consistency: str) -> bool:
        return consistency == Consistency.LATEST and bool(self.snapshot.config.raw_logs)

    def capture(self, consistency: str, regions: Regions | None, before: Snapshot) -> Captured:
        """Return the current state of the given regions, or of all regions. See `captured_regions.capture`."""
        from storage_core.write.region import captured_regions  # reads of only the base do not need this import

        include_wal = consistency == Consistency.LATEST
        return captured_regions.capture(
            self.store,
            before,
            include_wal=include_wal,
            regions=None if regions is None else regions(before),
            kept=self.kept,
        )

    def after(self, capture: Callable[[Snapshot], _Captured]) -> tuple[Snapshot, _Captured]:
        """Return the newest snapshot, and the state of the regions that was captured before it.

        The view moves to this snapshot.

        The regions are captured before the newest version is read. If a merge runs in between, some records are read
        twice, and the fold removes the duplicates. No record is missed. If the region spec changed in between, the
        regions are captured again. Requests: those of `capture` and of `refresh`.
        """
        while True:
            before = self.snapshot
            captured = capture(before)
            snapshot = self.refresh()
            if snapshot.config.dividing == before.config.dividing:
                return snapshot, captured
            # The region spec changed. All captured records are merged, and new rows may be in regions that were not
            # captured.
