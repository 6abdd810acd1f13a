"""The share of rejected rows of the last 24 hours, from the metrics of commits (docs/architecture/ingestion.md).

The commits of `INGEST` and `DISTRIBUTE` contain the number of rows that they read, wrote and rejected. The status, its
metrics, alerts, the report and the check of the asset all use these numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from typing import Any, Final

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import Corrupt, NotFound, Unsupported
from storage_core.base.text import counted, fitted, listed
from storage_core.data.formats.arrow_files import RejectedLines
from storage_core.data.formats.keys import QUARANTINE_PREFIX
from storage_core.log.codec import commit_info
from storage_core.log.snapshot import Snapshot, commit_timestamp
from storage_core.log.versions import versions_down
from storage_core.store.contract import ObjectInfo, ObjectStore
from storage_core.store.meter import all_of

DAY_MS: Final = 24 * HOUR_MS
MOST_COMMITS = 500
"""The largest number of versions that `measure_rejections` reads."""
MOST_ENTRIES_LISTED = 20_000
"""The largest number of quarantine entries that are listed to find the newest entries."""
MOST_ENTRIES_READ = 32
"""The largest number of quarantine entries that are read to find the most frequent reasons."""

MOST_DRIFTED = 100
"""The largest number of names in `Rejections.drifted`."""

_MOST_ENTRY_BYTES: Final = 8 * 2**20
_MOST_REASONS: Final = 3
_LONGEST_REASON: Final = 120
_AT_ONCE: Final = 8
_OPERATIONS: Final = frozenset({"INGEST", "DISTRIBUTE"})
_DRIFT: Final = ("fields_ignored", "fields_kept", "columns_added", "columns_widened")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejections:
    """The rows of the last 24 hours, counted from the commits of `INGEST` and `DISTRIBUTE`.

    Attributes:
        since_ms: The start of the 24 hours in ms since the epoch. If `is_partial`, the time of the oldest commit read.
        rows_in: The number of rows that were read. A commit that rejected no row counts the rows that it handled.
        rows_out: The number of rows that were written.
        rows_rejected: The number of rows that were rejected. Late rows are not included.
        rows_older: The number of landed records of a keyed table that were older than the row of their key.
        fields_ignored: The number of values of landed files that were left out, because their fields are not columns.
        fields_kept: The number of such values that were stored in the column for new fields.
        columns_added: The number of columns that landed files added.
        columns_widened: The number of columns that landed files widened.
        drifted: The fields and columns that drifted in landed files, such as `field city` and `column ms`. Fields and
            columns that caused rejected lines are included. `whole files` is included if complete files were rejected.
            The names are sorted. There are at most `MOST_DRIFTED` names.
        share: The rejected rows as a share of the rows read, from 0 to 1. 0 if no row was read.
        max_rejected: The largest share that the table allows.
        is_above: True if the share is above `max_rejected`.
        is_partial: True if older versions of the last 24 hours were not read.
        reasons: The three most frequent reasons in the newest quarantine objects, with their rows. Empty unless
            `is_above`.
    """

    since_ms: int
    rows_in: int
    rows_out: int
    rows_rejected: int
    rows_late_accepted: int
    rows_late_quarantined: int
    rows_late_dropped: int
    rows_older: int
    fields_ignored: int
    fields_kept: int
    columns_added: int
    columns_widened: int
    drifted: tuple[str, ...]
    share: float
    max_rejected: float
    is_above: bool
    is_partial: bool
    reasons: Mapping[str, int]


def measure_rejections(store: ObjectStore, snapshot: Snapshot, *, now_ms: int) -> Rejections:
    """Return the share of rows that the commits of the last 24 hours rejected.

    Cost:
        One GET for each version of the last 24 hours, at most `MOST_COMMITS`, and at most 8 GETs of older versions. If
        the share is above the limit, also one LIST per 1,000 quarantine entries, at most `MOST_ENTRIES_LISTED`, and at
        most `MOST_ENTRIES_READ` GETs of entries.
    """
    counts, drifted = Counter[str](), dict[str, None]()
    since_ms, oldest = now_ms - DAY_MS, max(snapshot.version - MOST_COMMITS + 1, 0)
    is_partial, at_ms = oldest > 0, now_ms
    with closing(versions_down(store, snapshot.version, oldest, at_once=_AT_ONCE)) as versions:
        for _, actions in versions:
            at_ms = commit_timestamp(actions, 0)
            if at_ms <= since_ms:
                is_partial = False
                break
            info = commit_info(actions)
            if info is not None and info.operation in _OPERATIONS:
                counts.update(_counts(info.metrics))
                drifted |= dict.fromkeys(_names(info.metrics))
    limit = snapshot.config.max_rejected
    share = counts["rows_rejected"] / counts["rows_in"] if counts["rows_in"] else 0.0
    return Rejections(
        since_ms=at_ms if is_partial else since_ms,
        rows_in=counts["rows_in"],
        rows_out=counts["rows_out"],
        rows_rejected=counts["rows_rejected"],
        rows_late_accepted=counts["rows_late_accepted"],
        rows_late_quarantined=counts["rows_late_quarantined"],
        rows_late_dropped=counts["rows_late_dropped"],
        rows_older=counts["rows_older"],
        **{name: counts[name] for name in _DRIFT},
        drifted=tuple(sorted(islice(drifted, MOST_DRIFTED))),
        share=share,
        max_rejected=limit,
        is_above=share > limit,
        is_partial=is_partial,
        reasons=_frequent_reasons(store, snapshot) if share > limit else {},
    )


def rejection_text(found: Rejections, table: str) -> str:
    """Return the message about a table that rejects too many rows: the counts, the share, the reasons, and a command.

    Args:
        found: The rejected rows.
        table: The name or location of the table for the command.
    """
    period = f"the newest {MOST_COMMITS:,} versions" if found.is_partial else "the last 24 hours"
    reasons = ", ".join(f"{reason} ({count:,})" for reason, count in found.reasons.items())
    share, limit = _percent(found.share), _percent(found.max_rejected)
    parts = [
        f"{counts_text(found, period)} were rejected ({share}). The limit is {limit}.",
        f"The most frequent reasons are: {reasons}." if reasons else "",
        f"Run: tidemark quarantine {table}",
    ]
    return " ".join(filter(None, parts))


def drift_text(found: Rejections, table: str) -> str:
    """Return the message about fields and columns that drifted in landed files.

    The message is empty if no field or column drifted.
    """
    added, widened = counted(found.columns_added, "column"), counted(found.columns_widened, "column")
    parts = [
        f"added {added}" if found.columns_added else "",
        f"widened {widened}" if found.columns_widened else "",
        f"had {counted(found.fields_ignored, 'value')} in ignored fields" if found.fields_ignored else "",
        f"had {counted(found.fields_kept, 'value')} in fields that are not columns" if found.fields_kept else "",
        f"had {counted(found.rows_rejected, 'rejected row')}" if found.drifted and found.rows_rejected else "",
    ]
    told = ", ".join(filter(None, parts))
    names = f" Fields and columns: {listed(found.drifted)}." if found.drifted else ""
    return f"Landed files of the last 24 hours {told}.{names} Run: tidemark history {table}" if told else ""


def counts_text(found: Rejections, period: str = "the last 24 hours") -> str:
    """Return the number of rejected rows and of rows read as text."""
    return f"{found.rows_rejected:,} of {found.rows_in:,} rows of {period}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _counts(metrics: Mapping[str, Any]) -> Counter[str]:
    """Return the counts of one commit. A missing or invalid number counts as 0."""
    without_fault = ("rows_out", "rows_late_quarantined", "rows_late_dropped", "rows_older")
    found = Counter({name: _count(metrics, name) for name in (*without_fault, "rows_late_accepted", *_DRIFT)})
    found["rows_rejected"] = _count(metrics, "rows_rejected") or _count(metrics, "rejected")
    handled = sum(found[name] for name in (*without_fault, "rows_rejected"))
    # A run that is limited to some windows reads the whole file again. Only one of these runs counts the rejected rows.
    # If each run counted all rows of the file, the computed share of rejected rows would be too small.
    found["rows_in"] = max(handled, _count(metrics, "rows_in")) if found["rows_rejected"] else handled
    return found


def _names(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of fields and columns in the metrics of one commit. Omit values that are not text."""
    found = metrics.get("drifted")
    return [fitted(each, _LONGEST_REASON) for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _count(metrics: Mapping[str, Any], name: str) -> int:
    value = metrics.get(name, 0)
    return max(value, 0) if type(value) is int else 0


def _frequent_reasons(store: ObjectStore, snapshot: Snapshot) -> Mapping[str, int]:
    from storage_core.write.late_rows import commit_app, is_receipt

    def is_valid(key: str) -> bool:
        app = commit_app(key)
        return not is_receipt(key) and (app is None or app in snapshot.txns)

    listed = islice(store.list(QUARANTINE_PREFIX), MOST_ENTRIES_LISTED)
    valid = (each for each in listed if is_valid(each.key))
    newest = nlargest(MOST_ENTRIES_READ, valid, key=lambda each: (each.last_modified_ms, each.key))
    keys = [each.key for each in _first_of_size(newest)]
    total = Counter[str]()
    for each in all_of(lambda key: _reasons(store, key), keys, _AT_ONCE):
        total.update(each)
    return dict(total.most_common(_MOST_REASONS))


def _first_of_size(entries: Sequence[ObjectInfo]) -> Iterator[ObjectInfo]:
    size = 0
    for each in entries:
        if size and size + each.size > _MOST_ENTRY_BYTES:
            return
        size += each.size
        yield each


def _reasons(store: ObjectStore, key: str) -> Counter[str]:
    """Count the rejections in one object by reason. If the object cannot be read, the result is empty."""
    from storage_core.write.late_rows import read_object

    found = Counter[str]()
    with suppress(NotFound, Corrupt, Unsupported):
        for entry in read_object(store, key):
            if isinstance(entry, RejectedLines):
                for reason, count in entry.reasons.items():
                    found[fitted(reason, _LONGEST_REASON)] += count
    return found
