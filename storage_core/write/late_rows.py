"""Quarantine, and the filter for late rows.

The quarantine of a table contains incoming rows and lines that were not added to the table. Each row or line has a
reason (rule 7). The key of an object is derived from its content, so a second write creates no second object. The
entries of a batch of landed files share objects (`SharedEntries`). Two runs may divide the same files into different
batches, so two objects may have the same line. Each line has an identity: the file, the content of the file, and the
number of the line. `storage_core.maintain.quarantine` reads lines with the same identity as one line, and removes
entries.

A `LateRowFilter` accepts, quarantines or drops late rows. The table's rule determines how the filter treats late rows
(docs/architecture/ingestion.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.data.formats import arrow_files
from storage_core.data.formats.arrow_files import Entry, QuarantinedRows, RejectedLines
from storage_core.data.formats.keys import QUARANTINE_PREFIX, parse, quarantine_key
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.rows.fold import OPERATION, Operation
from storage_core.data.rows.windows import Arrival, LateMetrics, LateRule, split_by_window
from storage_core.store.contract import ObjectStore, create_derived

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QuarantineResult:
    """An entry in quarantine: its key, and whether this call wrote it.

    `is_new` is False for an entry that already existed.
    """

    key: str
    is_new: bool


def write_quarantine_entry(store: ObjectStore, entry: Entry) -> QuarantineResult:
    """Write an entry to the quarantine and return its key. The entry is durable when this returns. One PUT.

    The call is idempotent, because equal entries always have the same object. Raises `CommitUnknown` if the store did
    not report the outcome and the object cannot be found.
    """
    data = arrow_files.encode_quarantine(entry)
    key = quarantine_key(entry.source, arrow_files.id_of(data))
    is_new = create_derived(store, key, data, advice="write or ingest again")
    if is_new:
        _logger.info("quarantined %d of %s as %s", sum(entry.reasons.values()), entry.source, key)
    return QuarantineResult(key, is_new)


SHARED = "_landed"
"""The `source` part of the key of a shared object, which contains entries of several landed files."""

REWRITTEN = "_again"
"""The `source` part of the key of an object with older entries. A dot and a number follow `_again`.
"""

_MOST_SHARED_BYTES = 16 * 2**20
"""Maximum size of an object in bytes of lines or rows. Further entries go into another object."""

_ENTRY_BYTES = 200
"""Approximate size in bytes of a line in an object, without the text of the line."""


class SharedEntries:
    """Collected entries of many files that share objects.

    An entry is in memory until `write_all`, or until all entries take more than 16 MiB. `keys` contains the keys of the
    objects.
    """

    def __init__(self, store: ObjectStore, source: str = SHARED) -> None:
        self._store = store
        self._source = source
        self._entries: list[Entry] = []
        self._bytes = 0
        self.keys: list[str] = []

    def add(self, entry: Entry) -> None:
        """Collect an entry, and write an object if the entries take too much memory."""
        self._entries.append(entry)
        self._bytes += entry_bytes(entry)
        if self._bytes > _MOST_SHARED_BYTES:
            self.write_all()

    def write_all(self) -> None:
        """Write the entries that are still in memory. The entries are durable when the function returns.

        One PUT for all lines, and one PUT for all rows of one schema. The same entries are the same objects. Raises the
        errors of `write_quarantine_entry`.
        """
        lines = [each for each in self._entries if isinstance(each, RejectedLines)]
        groups: list[list[Entry]] = [[*lines]] if lines else []
        by_schema: dict[str, list[Entry]] = {}
        for each in self._entries:
            if isinstance(each, QuarantinedRows):
                by_schema.setdefault(each.rows.schema.to_string(), []).append(each)
        for group in (*groups, *by_schema.values()):
            data = arrow_files.encode_shared(group)
            key = quarantine_key(self._source, arrow_files.id_of(data))
            if create_derived(self._store, key, data, advice="ingest again"):
                count = sum(sum(each.reasons.values()) for each in group)
                _logger.info("quarantined %d of %d entries as %s", count, len(group), key)
            self.keys.append(key)
        self._entries.clear()
        self._bytes = 0


RECEIPTS = "_receipts"
"""The `source` part of the key of a receipt. A receipt contains the lines and rows that left the quarantine."""


def is_receipt(key: str) -> bool:
    """Return whether a key of the quarantine belongs to a receipt."""
    parsed = parse(key)
    return parsed is not None and parsed.source == RECEIPTS


def commit_app(key: str) -> str | None:
    """Return the appId of a quarantine object in a commit, or None for an object that needs no appId.

    The objects of a batch of landed files need an appId. If the run ends before its commit, the next run reads the
    files again, perhaps with another declaration. The quarantine must then ignore the objects of the first run.
    """
    parsed = parse(key)
    return f"quarantined:{parsed.id}" if parsed is not None and parsed.source == SHARED else None


def rewrite_object(store: ObjectStore, key: str, entries: Sequence[Entry]) -> None:
    """Write these entries of a valid object to a new object. At most one PUT. No PUT if `entries` is empty."""
    parsed = parse(key)
    if not entries or parsed is None or parsed.source is None:
        return
    if any(each.content is None for each in entries):  # an object of format 1 or 2 has one entry
        write_quarantine_entry(store, entries[0])
        return
    shared = SharedEntries(store, f"{REWRITTEN}.0" if parsed.source == SHARED else parsed.source)
    for each in entries:
        shared.add(each)
    shared.write_all()


def entry_bytes(entry: Entry) -> int:
    """Return the approximate bytes that an entry takes in an object."""
    if isinstance(entry, RejectedLines):
        return sum(_ENTRY_BYTES + len(str(each.get("text", ""))) for each in entry.rejected)
    return int(entry.rows.nbytes)


def entry_keys(store: ObjectStore) -> list[str]:
    """Return the keys of all entries, sorted. One LIST per 1,000 objects."""
    found = sorted(info.key for info in store.list(QUARANTINE_PREFIX))
    return [key for key in found if (parsed := parse(key)) is not None and parsed.kind is KeyKind.QUARANTINE]


def read_object(store: ObjectStore, key: str) -> tuple[Entry, ...]:
    """Return the entries of one object. One GET. Raise `NotFound`, or `Corrupt` if the content has changed."""
    parsed = parse(key)
    return arrow_files.decode_quarantine(store.get(key).data, key, parsed.id if parsed else None)


def read_entries(store: ObjectStore) -> Iterator[tuple[str, Entry]]:
    """Yield every stored entry with the key of its object, in key order.

    Entries of different objects may have the same lines. One LIST per 1,000 objects and one GET per object.
    """
    for key in entry_keys(store):
        for entry in read_object(store, key):
            yield key, entry


LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrigin:
    """The source of rows, and the process that delivers the rows (see `QuarantinedRows`)."""

    source: str
    by: str
    size: int | None = None


def late_records(rule: LateRule, records: pa.Table, arrived_ms: Arrival) -> pa.BooleanArray:
    """Return, for each record (`rows.fold.record_schema`), whether it is late. A delete is never late."""
    late = rule.is_late(records, arrived_ms)
    deletes = np.asarray(pc.equal(records.column(OPERATION), int(Operation.DELETE)))
    return pa.array(np.asarray(late) & ~deletes)


def in_time(rule: LateRule | None, rows: pa.Table, arrived_ms: Arrival, *, are_records: bool) -> pa.Table:
    """Return the rows or records that a `LateRowFilter` of this rule admits.

    This function does not quarantine the other rows.
    """
    if rule is None or rule.late_data.policy == "accept" or not rows.num_rows:
        return rows
    late = late_records(rule, rows, arrived_ms) if are_records else rule.is_late(rows, arrived_ms)
    return rows.filter(pc.invert(late))


class LateRowFilter:
    """A filter for late rows of one input, which accepts, quarantines or drops late rows.

    The filter runs before the rows are acknowledged.

    `metrics` counts the late rows so far, and `keys` contains the keys of the quarantine entries. With
    `window_seconds`, each entry has only rows of one window. With `hold`, the filter writes nothing. The filter calls
    `hold` with the arrival time and a mask of the rows to quarantine. The caller must write these rows before it
    acknowledges any row. A filter is not safe for concurrent use, so callers must hold a lock.
    """

    def __init__(
        self,
        store: ObjectStore,
        rule: LateRule | None,
        origin: RowOrigin,
        *,
        window_seconds: int | None = None,
        hold: Callable[[pa.BooleanArray, int], None] | None = None,
    ) -> None:
        self._store = store
        self._rule = rule
        self._origin = origin
        self._window_seconds = window_seconds
        self._hold = hold
        self.metrics = LateMetrics()
        self.keys: list[str] = []

    def admit(self, rows: pa.Table, arrived_ms: Arrival) -> pa.Table:
        """Return the rows to write, in order. The quarantined rows are durable when the function returns.

        Raises the errors of `write_quarantine_entry`. After an error nothing may be acknowledged. A second attempt may
        quarantine the same late rows again. No request if no row is late. Otherwise one PUT per entry.
        """
        if self._rule is None or rows.num_rows == 0:
            return rows
        return self._judged(rows, self._rule.is_late(rows, arrived_ms), arrived_ms)

    def admit_records(self, records: pa.Table, arrived_ms: Arrival) -> pa.Table:
        """Return the records to write: see `admit`. A delete is never late."""
        if self._rule is None or records.num_rows == 0:
            return records
        return self._judged(records, late_records(self._rule, records, arrived_ms), arrived_ms)

    def _judged(self, rows: pa.Table, is_late: pa.BooleanArray, arrived_ms: Arrival) -> pa.Table:
        late = int(pc.sum(is_late).as_py() or 0)
        if late == 0 or self._rule is None:
            return rows
        match self._rule.late_data.policy:
            case "accept":
                self.metrics += LateMetrics(accepted=late)
                return rows
            case "drop":
                self.metrics += LateMetrics(dropped=late)
            case "quarantine":
                arrived = arrived_ms if isinstance(arrived_ms, int) else int(pc.max(arrived_ms.filter(is_late)).as_py())
                if self._hold is None:
                    self._keep(rows.filter(is_late), arrived)
                else:
                    self._hold(is_late, arrived)
                self.metrics += LateMetrics(quarantined=late)
            case _:
                assert_never(self._rule.late_data.policy)
        _logger.info("%d late rows of %s: %s", late, self._origin.source, self._rule.late_data.policy)
        return rows.filter(pc.invert(is_late))

    def _keep(self, late: pa.Table, arrived_ms: int) -> None:
        parts = [late]
        if self._window_seconds is not None and self._rule is not None:
            parts = [part for _, part in split_by_window(late, self._rule.time_column, self._window_seconds)]
        for part in parts:
            origin = self._origin
            entry = QuarantinedRows(
                source=origin.source,
                size=origin.size,
                reason=LATE,
                by=origin.by,
                arrived_ms=arrived_ms,
                rows=part,
            )
            self.keys.append(write_quarantine_entry(self._store, entry).key)
