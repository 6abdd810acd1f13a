"""Columns and rows of a table that follows a Delta table (docs/architecture/ingestion.md).

Columns: if the Delta table adds or widens a column, the table does the same. The table adds or widens each column in a
separate commit, before the commit with the rows of the Delta version. A repeated change does nothing. If the table
cannot follow a change, the run raises an error that explains how to fix this.

Rows of an append table: for each row that the Delta table removed, `hide_equal_rows` deletes one equal row.

Rows of a keyed table: the rows are written as generations of the regions, together with an offset. The distribution of
raw logs also writes generations of the regions together with an offset. The PUT that adds the last generation of a
group also advances the offset in the manifest of the region. If a run ended before its commit, the next run writes only
the remaining regions. If two runs write the same rows, the slower run fails. Therefore it cannot restore old rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.base.errors import InvalidInput
from storage_core.change.creation import ColumnChange, add_column, change_column, widen_column
from storage_core.change.row_finder import Part, read_row_groups
from storage_core.data.rows.codes import Unsigned
from storage_core.data.rows.columns import may_widen, stored_rows
from storage_core.data.rows.keys import Positions, bitmap_of, with_room
from storage_core.data.rows.schema import from_schema_string
from storage_core.data.rows.statistics import row_hashes
from storage_core.data.rows.vectors import is_vector, type_text
from storage_core.data.settings.layout import Region
from storage_core.interop.column_union import as_held, require_fits
from storage_core.interop.delta_source import DeltaGroup, DeltaSchema
from storage_core.log.actions import Action, Add
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.read.key_splits import bounds_of_keys
from storage_core.read.verified_files import VerifiedFiles
from storage_core.split.context import context_of
from storage_core.split.deletion_vectors import PARALLEL_READS, deleted_rows_of_each, hide_rows
from storage_core.split.metadata import admitting
from storage_core.split.read import OpenSplit
from storage_core.store.meter import all_of
from storage_core.write.distribution.work import FillPart, FillWork
from storage_core.write.region import router
from storage_core.write.region.router import ChunkRange


def columns_of(schema: DeltaSchema, where: str) -> pa.Schema:
    """Return the columns of a Delta table as columns of a table. Raises `InvalidInput` for an unsupported type."""
    try:
        found = from_schema_string(_without_metadata(schema.text))
    except InvalidInput as error:
        raise error.reworded(f"{where}: {error.found}. Leave the column out of the Delta table that lands") from error
    return as_held(found, where)


def follow(log: TransactionLog, snapshot: Snapshot, group: DeltaGroup, where: str) -> Snapshot:
    """Commit the new columns and the wider types of the group to the table, and return the newest version.

    Raises:
        InvalidInput: A column was renamed or dropped in the Delta table, but not in the table. Or the type in the table
            cannot become the type in the Delta table.

    Cost:
        Two requests and the requests of a commit per change. No request if there is no change.
    """
    if group.before is not None:
        _require_no_renames(snapshot.schema, group.before.schema, group.table.schema, f"{where}, {group.name}")
    columns = columns_of(group.table.schema, where)
    for change in _changes(snapshot.schema, columns, f"{where}, {group.name}"):
        snapshot = change_column(log, snapshot, change)
    require_fits(columns, snapshot.schema, f"{where}, {group.name}")
    return snapshot


def _changes(own: pa.Schema, columns: pa.Schema, where: str) -> Iterator[ColumnChange]:
    names = {each.name.casefold(): each for each in own}
    for field in columns:
        held = names.get(field.name.casefold())
        if held is None:
            yield add_column(field.name, field.type)
        elif held.type != field.type and not may_widen(field.type, held.type) and not _is_list_of(held, field):
            if not may_widen(held.type, field.type):
                raise InvalidInput(
                    f"{where}: column {field.name!r} is {type_text(field.type)} in the Delta table and "
                    f"{type_text(held.type)} here, and cannot be widened to that type. Rename the column in the "
                    "Delta table, or land the Delta table in a new table",
                    column=field.name,
                )
            yield widen_column(held.name, field.type)


def _is_list_of(held: pa.Field, field: pa.Field) -> bool:
    """Return whether the column contains embeddings, and the Delta column contains lists with the same number type."""
    return is_vector(held.type) and pa.types.is_list(field.type) and field.type.value_type == held.type.value_type


def _require_no_renames(own: pa.Schema, before: DeltaSchema, after: DeltaSchema, where: str) -> None:
    """Raise `InvalidInput` for a column of the table that was renamed or dropped in the Delta table."""
    now = after.physical_names()
    for physical, name in before.physical_names().items():
        if now.get(physical) == name or name not in own.names:
            continue
        if name in now.values():  # The column was dropped, and a new column has its name.
            raise InvalidInput(
                f"{where}: the Delta table has a new column {name!r} in place of the dropped one. First rename or "
                f"drop the column here: `tidemark alter NAME rename-column {name} …` or `drop-column {name}`",
                column=name,
            )
        new = now.get(physical)
        did, do = ("was dropped", f"drop-column {name}") if new is None else (f"was renamed to {new!r}", "")
        raise InvalidInput(
            f"{where}: column {name!r} of the Delta table {did}. Make the same change here, then run this again: "
            f"`tidemark alter NAME {do or f'rename-column {name} {new}'}`",
            column=name,
        )


def _without_metadata(text: str) -> str:
    """Return the schema without the column metadata of Delta and Spark. This metadata has no meaning here."""
    schema = json.loads(text)
    for each in schema["fields"]:
        each["metadata"] = {}
    return json.dumps(schema)


# Deletion of rows of an append table. For each given row, one row with equal values in all columns is deleted.
#
# Any of several equal rows may be deleted. Two rows count as equal if the 128-bit hashes of all their columns are equal
# (`data.rows.statistics`).


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """The actions that hide rows, and the number of hidden rows."""

    actions: Sequence[Action] = ()
    rows: int = 0


def hide_equal_rows(log: TransactionLog, head: Snapshot, rows: pa.Table) -> HiddenRows:
    """Return the actions that delete, for each row of `rows`, one equal live row. `rows` has the table's columns.

    A given row is ignored if no live row is equal. Nothing is committed. The actions are valid only on this head.

    Cost:
        The requests of `read_row_groups` for the splits that may contain a row. One GET per stored deletion vector of
        these splits, and one PUT per new stored vector. Memory: the rows, and the memory of
        `change.row_finder.read_row_groups`.
    """
    if not rows.num_rows:
        return HiddenRows()
    narrow = rows.select(_bounded(head, rows))
    splits = _candidates(head, narrow)
    hidden = dict(zip([add.path for add in splits], deleted_rows_of_each(log.store, splits), strict=True))
    wanted = _Wanted(rows)
    found: dict[str, BitMap] = {}
    for part in _parts(log, head, splits, narrow):
        places = np.flatnonzero(part.live(hidden[part.split.path]))
        taken = wanted.take(part.rows.select(rows.column_names), places)
        if len(taken):
            found[part.split.path] = found.get(part.split.path, BitMap()) | bitmap_of(part.first + taken)

    def entry(add: Add) -> Action:
        deleted, now_ms = hidden[add.path] | found[add.path], log.clock.now_ms()
        return hide_rows(log.store, add, deleted, rows=add.numRecords or 0, ids=log.ids, now_ms=now_ms)

    actions = all_of(entry, [add for add in splits if add.path in found], PARALLEL_READS)
    return HiddenRows(actions, sum(map(len, found.values())))


class _Wanted:
    """The distinct rows to delete, and how many copies of each row must still be deleted."""

    def __init__(self, rows: pa.Table) -> None:
        hashes = np.stack(_hashes(rows), axis=1)
        distinct, self._left = np.unique(hashes, axis=0, return_counts=True)
        self._first, self._second = distinct[:, 0].copy(), distinct[:, 1].copy()

    def take(self, rows: pa.Table, places: Positions) -> Positions:
        """Return the positions of rows to delete, and reduce the number of copies that must still be deleted."""
        first, second = (hashes[places] for hashes in _hashes(rows))
        number = np.minimum(np.searchsorted(self._first, first), len(self._first) - 1)
        alike = (self._first[number] == first) & (self._second[number] == second)
        number, places = number[alike], places[alike]
        order = np.argsort(number, kind="stable")
        ordered = number[order]
        again = np.arange(len(order)) - np.searchsorted(ordered, ordered)  # number of earlier rows with equal values
        kept = order[again < self._left[ordered]]
        np.subtract.at(self._left, number[kept], 1)
        taken: Positions = places[kept]
        return taken


def _candidates(head: Snapshot, narrow: pa.Table) -> Sequence[Add]:
    """Return the live splits that may contain one of the rows according to the bounds."""
    files = head.splits.table()
    if not narrow.num_columns:
        return head.splits.records_at(files, np.arange(files.num_rows))
    fields = pa.schema([head.schema.field(name) for name in narrow.column_names])
    return head.splits.records_at(files, np.flatnonzero(with_room(bounds_of_keys(files, fields), narrow)))


def _bounded(head: Snapshot, rows: pa.Table) -> list[str]:
    """Return the columns for pruning splits: the time column, else up to two columns without nulls in the rows."""
    kinds, time = pa.types, head.config.time_column
    plain: list[str] = [
        str(each.name)
        for each in head.schema
        if not rows.column(each.name).null_count
        and (kinds.is_integer(each.type) or kinds.is_string(each.type) or kinds.is_timestamp(each.type))
    ]
    return [time] if time is not None and time in plain else plain[:2]


def _parts(log: TransactionLog, head: Snapshot, splits: Sequence[Add], narrow: pa.Table) -> Iterator[Part]:
    """Yield the complete row groups that may contain one of the rows."""
    stored = stored_rows(narrow, head.schema)

    def groups(split: OpenSplit) -> Sequence[int]:
        return admitting(split.bounds, split.row_groups, stored)

    footers = VerifiedFiles().footers.of_a_read()
    read = read_row_groups(
        lambda part: part, log.store, splits, head.schema, whole=head.schema, groups=groups, footers=footers
    )
    with closing(read):
        yield from read


def _hashes(rows: pa.Table) -> tuple[Unsigned, Unsigned]:
    """Return two hashes of each row.

    The hash function uses the column names as seeds. Renamed columns produce a second hash that is independent of the
    first hash.
    """
    renamed = rows.rename_columns([f"{name} again" for name in rows.column_names])
    return row_hashes(rows), row_hashes(renamed)


ROWS_OF_A_GENERATION: Final = 500_000
"""The approximate number of rows in one generation.

The rows of one generation are in memory. A merge takes all rows of a generation at once.
"""


@dataclass(frozen=True, slots=True)
class Filling:
    """A generation to write. The last generation of a region also has the new offset."""

    work: FillWork
    chunk_ranges: tuple[ChunkRange, ...] = ()


def fillings(
    log: TransactionLog, snapshot: Snapshot, parts: Sequence[tuple[Region, FillPart]], *, writer: str, last: int
) -> Iterator[Filling]:
    """Claim the regions of the parts, and yield the generations to write, region by region.

    `last` is the offset up to which the rows of `writer` are stored after this call. A region that already has this
    offset is skipped.

    Cost:
        The requests of `router.claim_region` per region.
    """
    regions = {region.id: region for region, _ in parts}
    context = context_of(snapshot)
    for region in regions.values():
        turn = router.claim_region(log.store, snapshot, region, clock=log.clock, ids=log.ids)
        after = router.offsets(log.store, region.id).get(writer, 0)
        if after >= last:
            continue
        chunks = list(_chunks([part for each, part in parts if each.id == region.id]))
        for number, chunk in enumerate(chunks):
            work = FillWork(
                uri=log.store.uri,
                key=snapshot.config.primary_key,
                parts=chunk,
                claim=replace(turn, generation=turn.generation + number),
                context=context,
            )
            is_last = number + 1 == len(chunks)
            yield Filling(work, (ChunkRange(writer=writer, after=after, last=last),) if is_last else ())


def finish(log: TransactionLog, filling: Filling, path: str) -> None:
    """Add a written generation to its region. Raises the errors of `router.finish`."""
    router.finish(log.store, filling.work.claim, path, filling.chunk_ranges, clock=log.clock, writer_id=log.ids.uuid())


def _chunks(parts: Sequence[FillPart]) -> Iterator[tuple[FillPart, ...]]:
    held: list[FillPart] = []
    rows = 0
    for part in parts:
        if held and rows + part.rows > ROWS_OF_A_GENERATION:
            yield tuple(held)
            held, rows = [], 0
        held.append(part)
        rows += part.rows
    if held:
        yield tuple(held)
