"""What of a Delta table is in a table that lands from it, as the transaction log records it (decision 0158).

| appId | version | says |
|---|---|---|
| `delta:<id>` | number of a version | every change of the versions below it is in, or in a gap |
| `delta-gap:<id>@<first>-<last>` | `last` | what these versions changed could not be read any more |

`<id>` is the id that the Delta table has in its own log. The first record is of the next version, not of the last one:
so nothing and version 0 are told apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.log.actions import Txn
from storage_core.log.transactions import Transactions

_KIND = "delta"
_GAP_KIND = "delta-gap"


@dataclass(frozen=True, slots=True, order=True)
class DeltaGap:
    """Versions of a Delta table, `last` included, of which the log or files were gone before they were read."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaProgress:
    """The Delta table whose rows are in, the first of its versions that is not, and its gaps in order."""

    table_id: str
    next_version: int
    gaps: tuple[DeltaGap, ...] = ()


def delta_progress(txns: Transactions) -> DeltaProgress | None:
    """Return how far a table has read its Delta table; None where it has read none. One GET per object, once."""
    found = {app: txn.version for app, txn in txns.every(_KIND).items()}
    if not found:
        return None
    app, version = max(found.items(), key=lambda each: each[1])  # a table lands from one for ever
    table_id = app.removeprefix(f"{_KIND}:")
    gaps = sorted(_gap(each) for each in txns.every(_GAP_KIND) if each.startswith(f"{_GAP_KIND}:{table_id}@"))
    return DeltaProgress(table_id=table_id, next_version=version, gaps=tuple(gaps))


def progress_app(table_id: str) -> str:
    """Return the appId under which the next version of this Delta table is recorded."""
    return f"{_KIND}:{table_id}"


def progress_txns(reached: DeltaProgress, now_ms: int) -> list[Txn]:
    """Return what a commit records that carries the rows up to there; `reached.gaps` are those that are new."""
    gaps = [
        Txn(appId=f"{_GAP_KIND}:{reached.table_id}@{each.first}-{each.last}", version=each.last, lastUpdated=now_ms)
        for each in reached.gaps
    ]
    return [Txn(appId=progress_app(reached.table_id), version=reached.next_version, lastUpdated=now_ms), *gaps]


def _gap(app_id: str) -> DeltaGap:
    first, _, last = app_id.rpartition("@")[2].partition("-")
    return DeltaGap(int(first), int(last))
