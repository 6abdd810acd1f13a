"""Check one live split against TW-1, TW-2 and SS-1 to SS-6 (docs/architecture/compaction.md, "Invariants").

Memory: the encoded file, the sort columns of one row group, and one other column at a time. If a split contains values
that cannot be read, all of its columns are in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput
from storage_core.base.text import counted, shortened
from storage_core.compact.invariants import Fault
from storage_core.data.rows import statistics
from storage_core.data.rows.columns import is_of_earlier, stored_schema
from storage_core.data.rows.schema import from_schema_string, to_schema_string
from storage_core.data.rows.sort_order import SortOrder, bind, is_sorted, nameless, recorded_order
from storage_core.data.rows.times import row_text
from storage_core.data.rows.values import examined, is_valid, with_bytes
from storage_core.data.rows.windows import by_partition, validate_duration, window_starts
from storage_core.data.settings.layout import is_coarse
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add, Metadata
from storage_core.log.codec import schema_hash
from storage_core.log.snapshot import Snapshot
from storage_core.split.metadata import PREFIX, differences, read_origin
from storage_core.split.read import OpenSplit, open_split
from storage_core.split.writer import LONGEST_KEY_TEXT, UNCUT, row_key
from storage_core.store.contract import ObjectStore

VALUES = "SS-6"
"""The invariant that every value is valid for its type."""

_MOST_SHOWN = 5

# The entries `sort_schema` and `nulls` never change after the split is written, so each of these entries has its own
# invariant. For any other entry, a difference between the file and the log violates the invariant SS-5.
_ENTRIES: Mapping[str, str] = {PREFIX + "sort_schema": "SS-4", PREFIX + "nulls": "SS-2"}


@dataclass(frozen=True, slots=True)
class AuditedTable:
    """The parts of a table that the check of a split needs: id, settings and columns."""

    table_id: str
    config: TableConfig
    schema: pa.Schema

    @staticmethod
    def of(snapshot: Snapshot) -> AuditedTable:
        """Return the parts from a snapshot."""
        return AuditedTable(snapshot.table_id, snapshot.config, snapshot.schema)

    @staticmethod
    def from_metadata(metadata: Metadata) -> AuditedTable:
        """Return the id, the settings and the columns of the table from a `metaData` action."""
        config = TableConfig.from_configuration(metadata.configuration)
        return AuditedTable(metadata.id, config, from_schema_string(metadata.schemaString))

    def order_of(self, add: Add) -> SortOrder | None:
        """Return the recorded order of the split.

        Return None if no order is recorded or if the order does not fit the columns.
        """
        return None if add.sortSchema is None else recorded_order(add.sortSchema, self.config, self.schema)


def audit_split(store: ObjectStore, add: Add, table: AuditedTable) -> list[Fault]:
    """Return every violation of TW-1, TW-2 and SS-1 to SS-6 in a split.

    The check covers all rows of the file, including deleted rows. The check uses the columns and settings in the file.
    If the file does not contain the columns and settings, the check uses the columns and settings of the table.

    Cost:
        One GET. Raises the errors of `open_split`.
    """
    split = open_split(store, add.as_written)
    origin = read_origin(split.metadata, add.path)
    if origin is None:
        return list(_faults(split, table, table, joined=False))
    written = AuditedTable(
        table.table_id,
        TableConfig.from_configuration(origin.configuration),
        from_schema_string(origin.table_schema),
    )
    compacted = origin.lineage.operation == "compact"
    kept = [] if compacted else _resorted(add, written)
    return [*_faults(split, table, written, joined=compacted), *kept]


def _faults(split: OpenSplit, table: AuditedTable, written: AuditedTable, *, joined: bool) -> Iterator[Fault]:
    add = split.add
    differing: list[Fault] = []
    for name in split.schema.names:
        column = split.read([name])
        if not is_valid(column):  # the other checks need values that Python can represent
            yield from _value_faults(split)
            return
        differing += _statistics_faults(column, add, written.config.string_cut)
    yield from _window_faults(split, written.config)
    yield from _partition_faults(split, written.config)
    if add.windowSeconds is None or not (joined and is_coarse(add.windowSeconds)):
        yield from _duration_faults(add, coarse=written.config.coarse_window or table.config.coarse_window)
    order = written.order_of(add)
    if order is not None:
        yield from _order_faults(split, order)
        yield from _missing_column_faults(split, order)
        yield from _row_key_faults(split, order)
    yield from _metadata_faults(split, table.table_id)
    yield from _type_faults(split, stored_schema(table.schema))
    yield from differing
    yield from _bounds_of_nothing(split, order)


def _value_faults(split: OpenSplit) -> Iterator[Fault]:
    """Yield the columns with unreadable values, and the readable values of the first affected rows.

    A statement can select the affected rows by a condition on their readable values.
    """
    rows = split.read()
    try:
        _, faults = examined(rows)
    except InvalidInput as error:
        yield Fault(VALUES, error.found)
        return
    shown = with_bytes(rows, faults)
    for each in faults:
        places = np.flatnonzero(each.rows)
        first = ", ".join(shortened(row_text(shown, int(place)), 300) for place in places[:_MOST_SHOWN])
        yield Fault(VALUES, f"column {each.column!r}: {each.reason} in {counted(len(places), 'row')}, first {first}")


def _window_faults(split: OpenSplit, config: TableConfig) -> Iterator[Fault]:
    add, column = split.add, config.time_column
    if add.windowSeconds is None and config.window_seconds is not None:
        yield Fault("TW-1", f"the split has no window, in a table with windows of {config.window_seconds} s")
    if add.windowSeconds is None or column is None:
        return
    starts: set[int | None] = {None} if column not in split.schema.names and split.rows else set()
    for batch in split.batches([column]):
        if column in batch.column_names:
            starts.update(pc.unique(window_starts(batch.column(column), add.windowSeconds)).to_pylist())
    if starts - {add.windowStart}:
        shown = sorted(starts, key=lambda start: (start is None, start))[:_MOST_SHOWN]
        yield Fault("TW-1", f"expected rows of the window {add.windowStart} only, found {shown}")


def _partition_faults(split: OpenSplit, config: TableConfig) -> Iterator[Fault]:
    fields = config.partition_fields
    if not fields or not split.rows:
        return
    found = [dict(values) for values, _ in by_partition(split.read({each.column for each in fields}), fields)]
    if found != [dict(split.add.partitionValues)]:
        wanted = dict(split.add.partitionValues)
        expected, shown = (shortened(str(each), 1000) for each in (wanted, found[:_MOST_SHOWN]))
        yield Fault("SS-5", f"expected rows of the partition {expected} only, found {shown}")


def _duration_faults(add: Add, *, coarse: bool) -> Iterator[Fault]:
    if add.windowSeconds is None:
        return
    try:
        validate_duration(add.windowSeconds, coarse=coarse)
    except InvalidInput as error:
        yield Fault("TW-2", str(error))


def _order_faults(split: OpenSplit, order: SortOrder) -> Iterator[Fault]:
    keys = order.present(split.schema.names)
    if not is_split_sorted(split, keys):
        other = replace(keys, columns=tuple(replace(each, nulls_first=not each.nulls_first) for each in keys.columns))
        if is_split_sorted(split, other):
            nulls = "first" if any(each.nulls_first for each in keys.columns) else "last"
            yield Fault(
                "SS-2",
                f"nulls are not {nulls}, but the sort schema {order.text!r} requires this order. Apart from "
                "nulls, the rows are sorted",
            )
        else:
            yield Fault("SS-1", f"the rows are not sorted by {order.text!r}")
    native = list(keys.columns)
    if split.row_groups and split.native_sorting() != native:
        yield Fault("SS-5", f"expected the native sorting columns {native}, found {split.native_sorting()}")


def is_split_sorted(split: OpenSplit, keys: SortOrder) -> bool:
    """Return whether the rows of a split are sorted by its columns `keys`. Memory: one row group of `keys`."""
    names = [each.name for each in keys.columns]
    last: pa.Table | None = None
    for batch in split.batches(names) if names else ():
        rows = batch if last is None else pa.concat_tables([last, batch])
        if not is_sorted(rows, keys):
            return False
        last = rows.slice(max(0, rows.num_rows - 1))
    return True


def _missing_column_faults(split: OpenSplit, order: SortOrder) -> Iterator[Fault]:
    """Yield sort columns that have recorded values but are not in the file. A missing column is null in every row."""
    add = split.add
    places = {each.name: place for place, each in enumerate(order.columns)}
    for name in sorted(order.described - set(split.schema.names)):
        named = {"minimum": add.minValues, "maximum": add.maxValues, "expression": add.columnRegexes}
        found = [f"a {what} {values[name]!r}" for what, values in named.items() if values and name in values]
        for what, key in (("first", add.minRowKey), ("last", add.maxRowKey)):
            value = _at(key, places.get(name))
            found += [] if value is None else [f"{value!r} in the {what} row key"]
        if (add.nullCounts or {}).get(name, split.rows) != split.rows:
            found.append(f"{(add.nullCounts or {})[name]} nulls in {split.rows} rows")
        if found:
            yield Fault(
                "SS-3", f"the file has no column {name!r}, so the column is null. The log contains: {', '.join(found)}"
            )


def _row_key_faults(split: OpenSplit, order: SortOrder) -> Iterator[Fault]:
    if not split.rows:
        return
    names = order.present(split.schema.names)
    columns = [each.name for each in names.columns]
    ends = (("first", split.add.minRowKey, 0), ("last", split.add.maxRowKey, split.row_groups - 1))
    for what, recorded, group in ends:
        if recorded is None:
            continue
        rows = next(split.batches(columns, groups=[group]))
        is_first = what == "first"
        row = rows.slice(0 if is_first else max(0, rows.num_rows - 1), 1)
        # Early 0.1 releases did not shorten long text in row keys.
        keys = [row_key(row, order, is_first=is_first, longest=longest) for longest in (LONGEST_KEY_TEXT, UNCUT)]
        sound = [_of_columns(key, order, columns) for key in keys if key is not None]
        if _of_columns(recorded, order, columns) not in sound:
            yield Fault("SS-5", f"{what} row key: the log has {shortened(recorded, 1000)}, the rows have {keys[0]}")


def _of_columns(key: str, order: SortOrder, names: Sequence[str]) -> object:
    """Return the parts of a row key that have a column in the file. The invariant SS-3 covers the parts of a row key
    whose columns are not in the file.
    """
    try:
        values = json.loads(key)
    except ValueError:
        return key
    if not isinstance(values, list) or len(values) != len(order.columns):
        return key
    return [value for value, each in zip(values, order.columns, strict=True) if each.name in names]


def _at(key: str | None, place: int | None) -> object:
    try:
        values = json.loads(key or "[]")
    except ValueError:
        return None
    return values[place] if place is not None and isinstance(values, list) and place < len(values) else None


def _metadata_faults(split: OpenSplit, table_id: str) -> Iterator[Fault]:
    for message in differences(split.metadata, split.add):
        yield Fault(_ENTRIES.get(message.partition(":")[0], "SS-5"), message)
    expected = {"table_id": table_id, "schema_hash": schema_hash(to_schema_string(split.schema))}
    for name, value in expected.items():
        if split.metadata.get(PREFIX + name) != value:
            found = split.metadata.get(PREFIX + name)
            yield Fault("SS-5", f"{PREFIX + name}: expected {value!r}, the file has {found!r}")


def _type_faults(split: OpenSplit, schema: pa.Schema) -> Iterator[Fault]:
    for field in split.schema:
        if field.name not in schema.names or is_of_earlier(field.type, schema.field(field.name)):
            continue
        if field.type != (expected := schema.field(field.name).type):
            yield Fault("SS-5", f"column {field.name!r} is {field.type} in the file and {expected} in the table")


def _statistics_faults(column: pa.Table, add: Add, string_cut: int) -> Iterator[Fault]:
    (name,) = column.column_names
    metrics = statistics.compute(column, string_cut)
    checks = (
        ("minimum values", add.minValues, metrics.min_values),
        ("maximum values", add.maxValues, metrics.max_values),
        ("null counts", add.nullCounts, metrics.null_counts),
    )
    for what, recorded, actual in checks:
        if recorded is not None and recorded.get(name) != actual.get(name):
            yield Fault(
                "SS-5", f"{what}: the log has {recorded.get(name)!r} of {name!r}, the rows have {actual.get(name)!r}"
            )
    expression = (add.columnRegexes or {}).get(name)
    if expression is not None:
        for message in statistics.mismatches(column, {name: expression}):
            yield Fault("SS-5", message)


def _bounds_of_nothing(split: OpenSplit, order: SortOrder | None) -> Iterator[Fault]:
    """Yield recorded statistics of columns that are not in the file. SS-3 covers the sort columns."""
    known = {*split.schema.names, *(() if order is None else order.described)}
    add = split.add
    for what, recorded in (
        ("minimum values", add.minValues),
        ("maximum values", add.maxValues),
        ("null counts", add.nullCounts),
        ("column expressions", add.columnRegexes),
    ):
        if strange := sorted({*(recorded or {})} - known):
            yield Fault(
                "SS-5", f"{what}: the log has entries for the columns {', '.join(strange)}, which are not in the file"
            )


def _resorted(add: Add, written: AuditedTable) -> list[Fault]:
    """Check a split that no merge wrote.

    The split must have the sort schema that the table had at the time of the write.
    """
    try:
        expected = bind(written.config, written.schema).text
    except InvalidInput as error:
        return [Fault("SS-4", f"the settings in the file do not fit the columns of the file: {error}")]
    if add.sortSchema is None or nameless(add.sortSchema) == nameless(expected):
        return []
    return [
        Fault(
            "SS-4",
            f"the split has the sort schema {add.sortSchema!r}, but the table had {expected!r} when the split was "
            "written",
        )
    ]
