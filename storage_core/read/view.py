"""The moment at which an open table is read: a snapshot, and what of its regions lies over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.formats.keys import version_key
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import under_way
from storage_core.objectstore.resolve import open_store
from storage_core.read.as_of import At, snapshot_at
from storage_core.settings.region_fields import Region
from storage_core.split.kept_values import KeptValues, is_near

if TYPE_CHECKING:
    from storage_core.read.plan import RawPart
    from storage_core.read.raw_rows import WithRawLogs
    from storage_core.region.unmerged import Captured

PAGE_BYTES = 5_000_000
"""How large a page of the history is, unless it is said."""

_Captured = TypeVar("_Captured")
_Answer = TypeVar("_Answer")

Regions = Callable[[Snapshot], Sequence[Region] | None]
"""Which regions a read has to look at, at a snapshot; None for all of them (`read.regions`)."""


class Consistency(StrEnum):
    """What a read sees: the base table; plus flushed generations; plus the durable WAL tail and what raw logs have."""

    SNAPSHOT = "snapshot"
    COMMITTED = "committed"
    LATEST = "latest"


class View:
    """What an open table sees: `snapshot`, moved forward by `refresh` and by the table's commits; pinned, it stays.

    `kept` are values of what never changes, for the reads that follow; `open_raw` opens the stores of raw logs by URI.
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

    def apart(self) -> View:
        """Return a view of the same moment that is moved by itself, and keeps what it reads for itself."""
        other = View(self.log, self.snapshot, pinned=self.pinned, open_raw=self.raw_store)
        other.kept = self.kept.copy()
        return other

    @property
    def store(self) -> ObjectStore:
        """The store of the table."""
        return self.log.store

    def raw_store(self, uri: str) -> ObjectStore:
        """Return a store of a raw log that the table takes rows of; it is opened once. No request."""
        if uri not in self._opened:
            self._opened[uri] = self.open_raw(uri)
        return self._opened[uri]

    def refresh(self) -> Snapshot:
        """Move to the newest version, found from the one at hand. Requests: those of `TransactionLog.refresh`."""
        if not self.pinned:
            self.snapshot = self.log.refresh(self.snapshot)
        return self.snapshot

    def level(self, consistency: str | None, at: At | None = None, *, usual: Consistency) -> str:
        """Return the consistency of a read: the given one, else the usual one, or of an older version the base.

        Raises `InvalidInput` for an unknown one, and for one that an older version does not have.
        """
        older = self.pinned or at is not None
        if consistency is None:
            return Consistency.SNAPSHOT if older else usual
        if consistency not in [*Consistency]:
            raise InvalidInput(f"consistency {consistency!r} is not one of {[str(c) for c in Consistency]}")
        if older and consistency != Consistency.SNAPSHOT:
            raise InvalidInput("a read of an older version (at) sees the base table only; leave consistency out")
        return consistency

    def at_version(self, version: int) -> Snapshot:
        """Return the snapshot of a version. No request for the one at hand."""
        return self.snapshot if version == self.snapshot.version else snapshot_at(self.log, version)

    def records(
        self, at: At | None, consistency: str, regions: Regions | None = None
    ) -> tuple[Snapshot, pa.Table | None, tuple[RawPart, ...]]:
        """Return the snapshot to read, the records over it that `regions` may hold, and which of them raw logs have.

        None where the base alone is read. Requests and errors: those of `captured`, and of `Captured.above`.
        """
        snapshot, captured = self.captured(at, consistency, regions)
        if captured is None:
            return snapshot, None, ()
        return snapshot, captured.above(snapshot), captured.raw_parts

    def captured(
        self, at: At | None, consistency: str, regions: Regions | None = None
    ) -> tuple[Snapshot, Captured | WithRawLogs | None]:
        """Return the snapshot to read, and what was captured of these regions before it; None for the base alone.

        Above `snapshot` the view moves to the newest version. At `latest` so are the rows of raw logs that the table
        takes and does not have yet. Errors: those of `level`, of `Listed.look` and of `Waiting.records`. Requests:
        those of `unmerged.capture` and `refresh`, and for raw logs those of `raw_rows`.
        """
        consistency = self.level(consistency, at, usual=Consistency.SNAPSHOT)
        if at is not None:
            return snapshot_at(self.log, at), None
        if consistency == Consistency.SNAPSHOT:
            return self.snapshot, None
        while True:
            if self._has_raw_logs(consistency):
                from storage_core.read.raw_rows import captured_with  # which tables without raw logs do not need

                return captured_with(self, regions)
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
        """Return what `answer` makes of what `captured` returns. What it reads must never change.

        Mostly no version is newer than the one at hand. So the answer at that one is sought while the head is looked
        for; where it turns out to be another, what was found, an error too, is left, and the answer sought there. Of a
        table that takes rows of raw logs it is sought at the end only.
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
        """Return this moment of the regions, of all or of these; see `unmerged.capture`."""
        from storage_core.region import unmerged  # which reads of the base alone do not need

        include_wal = consistency == Consistency.LATEST
        return unmerged.capture(
            self.store,
            before,
            include_wal=include_wal,
            regions=None if regions is None else regions(before),
            kept=self.kept,
        )

    def after(self, capture: Callable[[Snapshot], _Captured]) -> tuple[Snapshot, _Captured]:
        """Return the newest snapshot, and what was captured of the regions before it; the view moves to it.

        Volatile first, then the head: a merge in between yields duplicates, which folding removes, never gaps. Captured
        again when the region spec was changed meanwhile. Requests: those of `capture` and of `refresh`.
        """
        while True:
            before = self.snapshot
            captured = capture(before)
            snapshot = self.refresh()
            if snapshot.config.dividing == before.config.dividing:
                return snapshot, captured
            # The region spec was changed: what was captured is merged, and new rows are in regions not looked at yet.
