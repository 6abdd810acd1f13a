"""Reading a table's records page by page, with tokens to go on from (docs/architecture/reads.md).

One moment of the table is captured when a history begins: what raw logs list, the log tails and manifests of the
regions, then the head of the log. All pages are of that moment. What they hold, one after the other, are the records of
the base as puts, of the generations that are not merged, of the log tails, and of the raw logs; those of one key in the
order in which they count. So folding them (`rows.fold`) gives the table at that moment, and they are the same records
however they are cut into pages.

A token names the moment and holds nothing back from the collector. While the version is retained
(`version_retention_ms`, or a tag), so is what the moment needs, but for what a sort replaced: that stays for the
collector's horizon only (`gc_horizon_ms`), and no tag keeps it. A history that lost a source begins anew from the
newest base, once, and says so: decision 0058.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from storage_core.errors import Corrupt, InvalidInput, NotFound, SnapshotExpired
from storage_core.foreign_text import quoted
from storage_core.formats.history_token import HistoryToken, Place, RawPosition, RegionPosition, decode, encode
from storage_core.log.snapshot import Snapshot
from storage_core.read.history_sources import Piece, ReadPosition
from storage_core.read.view import PAGE_BYTES, Consistency, View
from storage_core.region.read_position import region_positions, was_collected
from storage_core.rows.columns import without_metadata
from storage_core.rows.fold import record_schema
from storage_core.rows.record_bytes import row_bytes

_RESTARTS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """Some records, and the token of the next page; None when this is the last one.

    `records` has the columns of `rows.fold.record_schema`. `version` is that of the base. With `restarted` the history
    begins anew with this page: what was read before is of another moment, and is to be thrown away.
    """

    records: pa.Table
    token: str | None
    version: int
    restarted: bool = False


def read_pages(
    view: View, *, token: str | None = None, page_bytes: int = PAGE_BYTES, consistency: str | None = None
) -> Iterator[HistoryPage]:
    """Return the pages from the token on, or from the beginning; there is at least one, and there is an end.

    A page takes as many records as `page_bytes` allow (`rows.record_bytes`), at least one: it is larger only when that
    one is. Each source is read once, and no more of it than the page needs; memory is a page and a piece of a source.
    A token is good in any process, as often as it is wanted. `consistency` is `latest` unless given, later that of
    the token. See `ReadPosition.pieces` for the requests.

    Raises `InvalidInput` for a token that is damaged or of another table, `Unsupported` for one of a newer release,
    `SnapshotExpired` when the moment is collected and the history began anew before; `Corrupt` for damage.
    """
    if type(page_bytes) is not int or page_bytes < 1:
        raise InvalidInput(
            f"page_bytes is a number of bytes, at least 1; found {quoted(page_bytes)}", page_bytes=page_bytes
        )
    level = view.level(consistency, usual=Consistency.LATEST)
    if token is not None:
        requested = level if view.pinned else consistency
        return _read(view, _resumed(view, token, requested), page_bytes)
    return _read(view, _begin(view, level), page_bytes)


def _read(view: View, reading: HistoryToken, page_bytes: int) -> Iterator[HistoryPage]:
    restarted = False
    while True:
        try:
            for page in _pages(view, reading, page_bytes):
                yield replace(page, restarted=restarted)
                restarted = False
        except (NotFound, SnapshotExpired, Corrupt) as error:
            _require_restart(view, reading, error)
        else:
            return
        reading, restarted = _begin(view, reading.consistency, restarts=reading.restarts + 1), True


def _pages(view: View, reading: HistoryToken, page_bytes: int) -> Iterator[HistoryPage]:
    snapshot = view.at_version(reading.version)
    raw: list[Callable[[], Iterable[pa.Table]]] = []
    if reading.raw:
        from storage_core.read.history_raw import records  # which tables without raw logs do not need

        raw = [partial(records, view, snapshot, each) for each in reading.raw]
    position = ReadPosition(store=view.store, snapshot=snapshot, regions=reading.regions, raw=raw)
    empty = without_metadata(record_schema(snapshot.schema)).empty_table()
    for parts, place in _cut(position.pieces(reading.place), page_bytes):
        following = None if place is None else encode(replace(reading, place=place))
        # Laid out anew: slices would keep all that they were cut from.
        records = pa.concat_tables([empty, *parts]).combine_chunks()
        yield HistoryPage(records=records, token=following, version=snapshot.version)


def _cut(pieces: Iterator[Piece], page_bytes: int) -> Iterator[tuple[list[pa.Table], Place | None]]:
    """Yield the records of each page, and the place behind it; None behind the last one."""
    parts: list[pa.Table] = []
    used = 0
    for piece in pieces:
        ends = np.cumsum(row_bytes(piece.records))
        start, before = 0, 0
        while start < len(ends):
            stop = max(start, int(np.searchsorted(ends, before + page_bytes - used, side="right")))
            if stop == start and parts:
                yield parts, piece.before(start)
                parts, used = [], 0
                continue
            stop = max(stop, start + 1)  # a record that is larger than a page is one
            parts.append(piece.records.slice(start, stop - start))
            used += int(ends[stop - 1]) - before
            start, before = stop, int(ends[stop - 1])
    yield parts, None


def _begin(view: View, consistency: str, *, restarts: int = 0) -> HistoryToken:
    """Capture this moment. What a merge moves meanwhile is read once: from the base, whose head comes last."""
    snapshot = view.refresh() if restarts else view.snapshot
    positions: list[RegionPosition] = []
    raw: tuple[RawPosition, ...] = ()
    if consistency == Consistency.COMMITTED:
        snapshot, positions = view.after(lambda before: region_positions(view.store, before, include_wal=False))
    elif consistency == Consistency.LATEST:
        snapshot, positions, raw = _latest(view)
    merged = snapshot.merged_generations
    return HistoryToken(
        table_id=snapshot.table_id,
        version=snapshot.version,
        consistency=consistency,
        regions=tuple(
            each for each in positions if each.flushed > merged.get(each.region, 0) or each.last >= each.first
        ),
        raw=raw,
        restarts=restarts,
    )


def _latest(view: View) -> tuple[Snapshot, list[RegionPosition], tuple[RawPosition, ...]]:
    while True:
        if view.snapshot.config.raw_logs:
            from storage_core.read.history_raw import positions_with  # which tables without raw logs do not need

            found = positions_with(view)
            if found is not None:
                return found
        else:
            snapshot, positions = view.after(lambda before: region_positions(view.store, before, include_wal=True))
            if not snapshot.config.raw_logs:
                return snapshot, positions, ()


def _resumed(view: View, text: str, consistency: str | None) -> HistoryToken:
    token, table = decode(text), view.snapshot.table_id
    if token.table_id != table:
        raise InvalidInput(
            f"the history token is of table {token.table_id}, this is table {table}; begin without a token",
            table=token.table_id,
        )
    if consistency not in (None, token.consistency):
        raise InvalidInput(
            f"the history began with consistency {token.consistency!r}, so it cannot go on with {str(consistency)!r}; "
            "leave consistency out, or begin without a token"
        )
    return token


def _require_restart(view: View, reading: HistoryToken, error: NotFound | SnapshotExpired | Corrupt) -> None:
    """Return when the moment of the reading is collected and it may begin anew; else raise."""
    if isinstance(error, Corrupt) and not was_collected(view.store, view.refresh(), error):
        raise error
    if reading.restarts >= _RESTARTS:
        raise SnapshotExpired(
            f"{view.store.uri}: version {reading.version} or what was in its regions is collected, and this history "
            "began anew before; read faster, or keep for longer what is read: versions (`version_retention_ms`), and "
            f"what sorts replace, which no tag keeps (`gc_horizon_ms`); then begin without a token: {error.found}",
            version=reading.version,
        ) from error
