"""The statements delete, update, overwrite and upsert, for append tables and for keyed tables.

On an append table, a statement is one commit (`change.statement`). On a keyed table, a statement writes one record for
the key of each matching row, into the logs of the regions.

`group_by_region` determines the region of a record (docs/architecture/ingestion.md). Usually the region spec determines
the region. If a manual region has an unmerged record of the key, the new record is written to this manual region. A key
therefore never has unmerged records in two regions.

Rows of a keyed table are read at `latest`. The records are written only if no other writer wrote to the region after
this read. For this check, the statement reads the manifest of the region before it reads the rows. The statement then
claims the region in the same way as a merge, and the claim requires that the manifest has not changed. The log of the
region must have received no entry since the statement read the manifest. So the statement never uses old values of a
row that another process changed. A live writer is not fenced. The writer claims the region again and continues
(decision 0013).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from storage_core.base.clock import random_pause_ms
from storage_core.base.errors import CommitConflict, InvalidInput, WriterFenced
from storage_core.base.limits import QueryLimits
from storage_core.base.text import counted, listed, names_of, quoted, unknown_names
from storage_core.change.row_finder import ByCondition, ByKeys
from storage_core.change.statement import Assignments, Changed, Rewriter, Statement
from storage_core.data.formats.region_manifest import RegionManifest
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.fold import record_schema
from storage_core.data.rows.incoming import Rows, read_whole
from storage_core.data.rows.keys import key_codes, key_order
from storage_core.data.settings.layout import Region
from storage_core.engine.statement import require_repeatable
from storage_core.log.actions import Add
from storage_core.log.log import TransactionLog, once
from storage_core.log.snapshot import Snapshot
from storage_core.read.predicate import Filter
from storage_core.read.row_filter import RowFilter
from storage_core.read.scan import require_condition, wanted_filter
from storage_core.read.verified_files import VerifiedFiles
from storage_core.split.context import context_of
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import ObjectStore
from storage_core.write.append import fitting, put
from storage_core.write.region import wal
from storage_core.write.region.captured_regions import capture
from storage_core.write.region.records import Following, Memtable, RecordBuilder, WriterOptions, WriterSnapshot
from storage_core.write.region.router import groups_of
from storage_core.write.region.spec import closed_region, hand_regions, known_manifests, route
from storage_core.write.region.writer import Claim, RegionLog, claim, claim_idle, require_unmerged


def group_by_region(store: ObjectStore, snapshot: Snapshot, rows: pa.Table) -> Iterator[tuple[Region, pa.Table]]:
    """Yield each region with the rows whose records belong to this region.

    `rows` has the key columns, and contains each key once.

    If several manual regions have unmerged records of a key, the record belongs to the region that readers use.

    Cost:
        No request if there are no manual regions. Otherwise one GET of the registry, and the requests of
        `captured_regions.capture` and `CapturedRegion.of_keys` for all of them. Raises the errors of these functions.
    """
    key = snapshot.config.primary_key
    by_hand = hand_regions(store, snapshot) if rows.num_rows else []
    captured = capture(store, snapshot, include_wal=True, regions=by_hand).regions if by_hand else ()
    for region, each in reversed([*zip(by_hand, captured, strict=True)]):
        if rows.num_rows:
            held = held_in(each.of_keys(snapshot, rows.select(key)), rows, key)
            if held.any():
                yield region, rows.filter(pa.array(held))
                rows = rows.filter(pa.array(~held))
    if rows.num_rows:
        for region, places in groups_of(route(snapshot.table_id, snapshot.config.region_spec, rows)):
            yield region, rows.take(places)


def held_in(parts: Sequence[pa.Table], rows: pa.Table, key: Sequence[str]) -> Mask:
    """Return a mask of the rows whose key is also in one of the tables."""
    own, *others = key_codes([each.select(key) for each in (rows, *parts)], key)
    return np.isin(own, np.concatenate([own[:0], *others]))


_logger = logging.getLogger(__name__)

MOST_ATTEMPTS: Final = 10
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 50, 5_000

Matching = Callable[[], tuple[Snapshot, pa.Table]]
"""A function that reads the matching rows at `latest`.

The function also returns the snapshot to which the unmerged records apply.
"""

Records = Callable[[Snapshot, pa.Table], pa.Table]
"""A function that creates the records to write for the matching rows, one record per row."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """The state of a region before rows are read: its manifest, and the number of its last WAL entry."""

    manifest: RegionManifest
    tail: int


def change(log: TransactionLog, snapshot: Snapshot, matching: Matching, records: Records) -> Changed:
    """Write the records of all matching rows: one WAL entry and one generation per region.

    The records are durable after the call.

    The change of one region is atomic. The regions are changed one after the other. With manual regions, a merge
    between two attempts can change the region of a key (`group_by_region`). The function therefore remembers completed
    keys instead of completed regions.

    Raises:
        CommitConflict: In each of `MOST_ATTEMPTS` attempts, another writer wrote to a region. The earlier regions are
            changed. It is safe to call the function again, because it evaluates the condition on the current values.

    Cost:
        For each attempt, the requests of `known_manifests` and of `matching`. For each region with a matching row, the
        requests of a claim and a flush. Memory: the matching rows.
    """
    done: dict[str, int] = {}
    keys: list[pa.Table] = []
    left: list[str] = []
    for attempt in range(MOST_ATTEMPTS):
        if attempt:
            log.clock.sleep_ms(
                random_pause_ms(log.ids, attempt, first_ms=_FIRST_PAUSE_MS, longest_ms=_LONGEST_PAUSE_MS)
            )
        looked = {each.manifest.region_id: each for each in _look(log, snapshot)}
        snapshot, rows = matching()
        by_hand, key = snapshot.config.regions_by_hand, snapshot.config.primary_key
        if by_hand and keys:
            rows = rows.filter(pa.array(~held_in(keys, rows, key)))
        left = []
        for region, part in group_by_region(log.store, snapshot, rows):
            if region.id in done and not by_hand:
                continue
            if _Attempt(log, snapshot, region, looked.get(region.id)).wrote(records(snapshot, part)):
                done[region.id] = done.get(region.id, 0) + part.num_rows
                keys += [part.select(key)] if by_hand else []
            else:
                left.append(region.id)
        if not left:
            return Changed(version=snapshot.version, rows=sum(done.values()))
    raise CommitConflict(
        f"{log.store.uri}: other writers wrote to {len(left)} regions during each of {MOST_ATTEMPTS} attempts. "
        f"{len(done)} regions are done. Try again when there are fewer writes, or let the writers delete and patch by "
        "key",
        regions=left,
    )


def _look(log: TransactionLog, snapshot: Snapshot) -> Iterator[_Looked]:
    for manifest in known_manifests(log.store, log.refresh(snapshot)):
        after, seed = manifest.replay_after_wal_id, manifest.wal_id_last_seen
        yield _Looked(manifest, wal.find_tail(log.store, manifest.region_id, after=after, seed=seed))


@dataclass(frozen=True, slots=True)
class _Attempt:
    """An attempt to write records to a region after its rows were read."""

    log: TransactionLog
    snapshot: Snapshot
    region: Region
    looked: _Looked | None

    def wrote(self, records: pa.Table) -> bool:
        """Write and flush the records, and return True.

        If another writer has written, write nothing and return False.
        """
        log, snapshot = self.log, self.snapshot
        try:
            claimed = self._claimed()
            if claimed is None:
                return False
            require_unmerged(claimed.manifest, snapshot)
            memtable = Memtable(record_schema(snapshot.schema), snapshot.config.primary_key)
            following = Following(None, log.clock, WriterSnapshot.of(snapshot))
            own = RegionLog(claimed, memtable, options=WriterOptions(), ids=log.ids, following=following)
            own.append(records)
        except WriterFenced as fenced:
            _logger.info("region %s is read again: %s", self.region.id, fenced.found)
            return False
        with suppress(WriterFenced):  # The records are durable, and the other writer took them over.
            own.flush()
        return True

    def _claimed(self) -> Claim | None:
        """Claim the region if its state has not changed, else return None. Raises the same errors as a claim."""
        store, clock, ids, region, looked = self.log.store, self.log.clock, self.log.ids, self.region, self.looked
        records = record_schema(self.snapshot.schema)
        if looked is None:
            claimed = claim(store, region, record_schema=records, clock=clock, ids=ids)
            return claimed if claimed.manifest.version == 1 else None
        if looked.manifest.closed_by:
            raise closed_region(region.id, region.spec_id, looked.manifest.closed_by)
        claimed = claim_idle(store, looked.manifest, record_schema=records, clock=clock, ids=ids)
        return claimed if claimed.appender.next_id == looked.tail + 2 else None  # the claim itself adds one entry


@dataclass(frozen=True, slots=True)
class Target:
    """The table of a statement at its newest version, with the limits of the statement."""

    log: TransactionLog
    head: Snapshot
    verified: VerifiedFiles
    limits: QueryLimits


def delete(target: Target, condition: object) -> tuple[Changed, Snapshot]:
    """Delete the rows that match a condition, in one commit with deletion vectors.

    If all rows of a split are deleted, the split is removed from the table. See `Statement.run`.
    """
    return Statement(target.log, operation="DELETE", finder=_finder(target, condition, "delete")).run(target.head)


def update(
    target: Target, given: object, condition: object, application: tuple[str, int] | None
) -> tuple[Changed, Snapshot]:
    """Set columns of the rows that match a condition.

    One commit hides the old rows and adds the changed rows in new splits.
    """
    txn, is_done = once(target.log, target.head, application)
    if is_done:
        return Changed(version=target.head.version), target.head
    finder = _finder(target, condition, "update")
    rewriter = Rewriter(target.log, given, finder, target.limits, target.verified)
    rewriter.require_valid(target.head)
    return Statement(target.log, operation="UPDATE", finder=finder, rewrite=rewriter, txn=txn).run(target.head)


def overwrite(
    target: Target, rows: Rows, condition: object, application: tuple[str, int] | None
) -> tuple[Changed, Snapshot]:
    """Replace the rows that match a condition in one commit. The new rows must match the condition as well.

    Raises `InvalidInput` if a given row does not match the condition. The message contains the first of these rows, and
    nothing is committed.
    """
    txn, is_done = once(target.log, target.head, application)
    if is_done:
        return Changed(version=target.head.version), target.head
    finder = _finder(target, condition, "overwrite")
    adds = _written(target, _meeting(target, finder.wanted, fitting(rows, *_fitted(target))))
    return Statement(target.log, operation="OVERWRITE", finder=finder, adds=adds, txn=txn).run(target.head)


def upsert(target: Target, rows: Rows, on: Sequence[str]) -> tuple[Changed, Snapshot]:
    """Add rows, and replace the rows that have the same values in the columns `on`, in one commit.

    Raises `InvalidInput` if two given rows have the same values in `on`. Also raises `InvalidInput` if a given row has
    no value in `on`.
    """
    keys = _key_columns(target.head, on)
    (given,) = fitting(read_whole(rows), *_fitted(target))
    if not given.num_rows:
        return Changed(version=target.head.version), target.head
    _require_distinct(given, keys)
    adds = _written(target, [given])
    finder = ByKeys(target.log.store, given.select(keys), target.verified)
    return Statement(target.log, operation="UPSERT", finder=finder, adds=adds).run(target.head)


def _on_text(on: object) -> str:
    names = [on] if isinstance(on, str) else on
    return listed(list(names)) if isinstance(names, Sequence) else quoted(on)


def put_by_key(log: TransactionLog, snapshot: Snapshot, rows: Rows, on: object) -> Changed:
    """Put rows into a keyed table. The key determines which row is replaced. See `append.put`."""
    key = list(snapshot.config.primary_key)
    if sorted(_key_columns(snapshot, on)) != sorted(key):
        raise InvalidInput(
            f"on is {_on_text(on)}, but the primary key of this table is {', '.join(key)}. Give on={','.join(key)}",
            uri=log.store.uri,
        )
    done = put(log, snapshot, rows)
    return Changed(version=done.version, rows_added=done.rows)


def delete_by_key(log: TransactionLog, snapshot: Snapshot, matching: Matching) -> Changed:
    """Delete the matching rows of a keyed table. See `statements.change`."""
    builder = _builder(snapshot)
    return change(log, snapshot, matching, lambda _, rows: builder.deletes(rows.select(builder.key)))


def update_by_key(
    log: TransactionLog, snapshot: Snapshot, given: object, matching: Matching, *, limits: QueryLimits
) -> Changed:
    """Patch the matching rows of a keyed table with the given values. See `statements.change`.

    Raises `InvalidInput` for a column of the key.
    """
    key = snapshot.config.primary_key
    assignments = Assignments.of(given, snapshot.schema)
    keys = sorted({*key}.intersection(assignments.columns))
    if keys:
        raise InvalidInput(
            f"an update cannot change {names_of(keys)}, which is part of the primary key. Delete the rows, then put "
            "the rows with their new keys",
            columns=keys,
        )
    assignments.applied(snapshot.schema.empty_table(), limits, snapshot.config.nonzero_vectors)

    def records(head: Snapshot, rows: pa.Table) -> pa.Table:
        required = [each.name for each in head.schema if not each.nullable]
        set_ = assignments.applied(rows, limits, head.config.nonzero_vectors)
        return _builder(head).patches(set_.select(list(dict.fromkeys([*key, *required, *assignments.columns]))))

    return change(log, snapshot, matching, records)


def _builder(snapshot: Snapshot) -> RecordBuilder:
    """Return the record builder.

    An update of a map replaces the whole map, even if patches of the column merge map entries.
    """
    return RecordBuilder(snapshot.schema, snapshot.config.primary_key, nonzero=snapshot.config.nonzero_vectors)


def require_append_table(snapshot: Snapshot, uri: str) -> None:
    """Raise `InvalidInput` for a keyed table. The message names the operation to use instead."""
    if snapshot.config.kind == "keyed":
        raise InvalidInput(
            f"{uri}: a keyed table cannot be overwritten, because unmerged rows would replace the new rows. Delete by "
            "a condition and put the rows by key, with upsert or a `writer()`",
            uri=uri,
        )


def required_filter(condition: object, verb: str, schema: pa.Schema) -> Filter:
    """Return the required filter of a statement, for a table with this schema.

    Raises `InvalidInput` if there is no condition, or the condition is not a boolean. Also raises `InvalidInput` if a
    second evaluation of the condition could give another result.
    """
    found = None if isinstance(condition, str) and not condition.strip() else wanted_filter(condition)
    if found is None:
        raise InvalidInput(f"{verb} needs a condition. Give a condition. The condition `true` matches every row")
    if isinstance(condition, str):  # only text is checked, because a condition made with `col` calls no function
        require_repeatable(condition, schema.names, f"condition of {verb}")
    require_condition(found, schema)
    return found


def _finder(target: Target, condition: object, verb: str) -> ByCondition:
    wanted = required_filter(condition, verb, target.head.schema)
    return ByCondition(target.log.store, wanted, verb, target.limits, target.verified)


def _fitted(target: Target) -> tuple[pa.Schema, Collection[str]]:
    return target.head.schema, target.head.config.nonzero_vectors


def _written(target: Target, pieces: Iterator[pa.Table] | Sequence[pa.Table]) -> list[Add]:
    """Write rows as splits of the table, piece by piece.

    If the write is interrupted, the written splits become orphans.
    """
    log, context = target.log, context_of(target.head)
    return [
        add
        for rows in pieces
        for add in sort_and_write(log.store, rows, context=context, ids=log.ids, now_ms=log.clock.now_ms())
    ]


def _meeting(target: Target, wanted: Filter, pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows, and raise `InvalidInput` at the first row that does not match the condition."""
    judge = RowFilter(
        target.log.store,
        target.head,
        wanted,
        limits=target.limits,
        parts=target.verified.bitmaps,
        query="overwrite",
    )
    first = 0
    for rows in pieces:
        misses = np.flatnonzero(~judge.mask(rows, rows.num_rows))
        if len(misses):
            raise InvalidInput(
                f"row {first + int(misses[0])} does not meet the condition {quoted(str(wanted.expression))} "
                f"({counted(len(misses), 'row')} in all). An overwrite replaces the rows that meet the condition. "
                "Give a condition that all rows meet, or append the other rows",
                row=first + int(misses[0]),
            )
        yield rows
        first += rows.num_rows


def _key_columns(head: Snapshot, on: object) -> list[str]:
    names = [on] if isinstance(on, str) else list(on) if isinstance(on, Sequence) else []
    unknown = [name for name in names if name not in head.schema.names]
    if unknown:
        raise InvalidInput(unknown_names("column", unknown, head.schema.names, where="on"), columns=unknown)
    if not names or len({*names}) < len(names):
        found = ", ".join(map(quoted, names)) or quoted(on)
        raise InvalidInput(
            f"upsert cannot identify rows by {found}. Give names of {head.schema.names}, each once",
            columns=names,
        )
    nested = [name for name in names if pa.types.is_nested(head.schema.field(name).type)]
    if nested:
        raise InvalidInput(
            f"rows cannot be identified by {nested}: lists, maps and structs have no order. Name other columns"
        )
    return names


def _require_distinct(rows: pa.Table, keys: Sequence[str]) -> None:
    order, begins = key_order(rows, keys)  # raises an error if a key column is null
    again = order[~begins]
    if len(again):
        row = int(again.min())
        value = rows.select(keys).slice(row, 1).to_pylist()[0]
        shown = ", ".join(f"{name} {quoted(each)}" for name, each in value.items())
        raise InvalidInput(
            f"row {row} has the same {shown} as an earlier row. Keep only one of these rows",
            row=row,
        )
