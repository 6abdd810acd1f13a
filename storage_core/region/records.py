"""What callers hand to a writer, as checked records (docs/architecture/ingestion.md, "Records").

Everything is refused before a byte is written, nothing after.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.rows.calendar import within_calendar
from storage_core.rows.fold import FIELDS, Operation, merging, record_schema
from storage_core.rows.incoming import InMemory, Rows, is_stream, read_whole, table_of
from storage_core.rows.key_limit import require_short_keys
from storage_core.rows.schema import conform
from storage_core.rows.vectors import require_sound

Keys: TypeAlias = Rows | Sequence[object] | str | int


def require_keys(table: pa.Table, key: Sequence[str]) -> None:
    """Return when every row has a value in every key column, nullable or not; else raise `InvalidInput`."""
    for name in key:
        if table.column(name).null_count:
            raise InvalidInput(
                f"the key column {name!r} has rows without a value; every row needs its key", column=name
            )


@dataclass(frozen=True, slots=True)
class RecordBuilder:
    """Builds records for one table: its row schema, the columns of its primary key in order, and its merged maps.

    `nonzero` are the vectors that must not be zero.

    Every method returns a table with `rows.fold.record_schema` in the order of the input, or raises `InvalidInput` that
    names the column (and the first row, counted from 0) and changes nothing.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    merged_maps: tuple[str, ...] = ()
    nonzero: Collection[str] = ()

    def puts(self, rows: Rows) -> pa.Table:
        """Return one put per row. Nullable columns that are not given become null: a put is the whole row."""
        return self._whole(rows, Operation.PUT)

    def resets(self, rows: Rows) -> pa.Table:
        """Return one reset per row, a delete and then a put of the whole row."""
        return self._whole(rows, Operation.RESET)

    def patches(self, rows: Rows) -> pa.Table:
        """Return one patch per row of the fields that the row gives; a field given as null becomes null.

        Entries of a merged map are laid over those that are there; given as null it becomes null like any field. A
        patch may be the first record of its key and then makes the row, so it has to give every required column.
        """
        held = read_whole(rows)
        is_read_twice = isinstance(held, Iterable) and not isinstance(held, Mapping | pa.Table | pa.RecordBatch)
        held = [*held] if is_read_twice else held
        table = table_of(held, self.schema)
        self._require_key(table, "patch")
        missing = [each.name for each in self.schema if not each.nullable and each.name not in table.column_names]
        if missing:
            raise InvalidInput(
                f"a patch may create its row, so it must give the required columns {missing}; "
                "give them, or put the row",
                columns=missing,
            )
        given = conform(table, pa.schema([each for each in self.schema if each.name in table.column_names]))
        return self._records(self._widened(given), Operation.PATCH, self._given_fields(held, given))

    def deletes(self, keys: Keys) -> pa.Table:
        """Return one delete per key: a value, a tuple of values in key order, a mapping, or a row of a table.

        A key may be longer than rows may have it now: early 0.1 may have taken it.
        """
        table = table_of(self._key_rows(keys), self.schema)
        self._require_key(table, "delete")
        extra = sorted(set(table.column_names) - set(self.key))
        if extra and table.num_rows:
            raise InvalidInput(f"delete takes the key columns {list(self.key)} only, found also {extra}", columns=extra)
        given = conform(table.select(self.key), pa.schema([self.schema.field(name) for name in self.key]))
        return self._records(self._widened(given), Operation.DELETE, self._no_fields(given))

    def _whole(self, rows: Rows, operation: Operation) -> pa.Table:
        table = conform(table_of(rows, self.schema), self.schema)
        return self._records(table, operation, self._no_fields(table))

    def _records(self, table: pa.Table, operation: Operation, fields: pa.Array) -> pa.Table:
        require_keys(table, self.key)
        if operation is not Operation.DELETE:
            require_short_keys(table, self.key)
        operations = pa.array(np.full(table.num_rows, operation, dtype=np.int8))
        columns = require_sound(within_calendar(table), self.nonzero).columns
        return pa.Table.from_arrays([operations, fields, *columns], schema=record_schema(self.schema))

    def _require_key(self, table: pa.Table, verb: str) -> None:
        missing = [name for name in self.key if name not in table.column_names]
        if missing:
            raise InvalidInput(
                f"{verb} needs the key columns {list(self.key)}; {missing} are not given", columns=missing
            )

    def _widened(self, table: pa.Table) -> pa.Table:
        present = set(table.column_names)
        columns = [
            table.column(each.name) if each.name in present else pa.nulls(table.num_rows, each.type)
            for each in self.schema
        ]
        return pa.Table.from_arrays(columns, names=self.schema.names)

    @property
    def _fields_type(self) -> pa.DataType:
        return record_schema(self.schema).field(FIELDS).type

    def _no_fields(self, table: pa.Table) -> pa.Array:
        return pa.nulls(table.num_rows, self._fields_type)

    def _given_fields(self, rows: InMemory, table: pa.Table) -> pa.Array:
        kind = self._fields_type
        if isinstance(rows, Mapping | pa.Table | pa.RecordBatch):
            return self._same_fields(table).cast(kind)
        # Dictionaries may each give other fields. They are Python objects already: reading them costs the same.
        return pa.array([[self._field(name, row[name]) for name in row if name not in self.key] for row in rows], kind)

    def _same_fields(self, table: pa.Table) -> pa.Array:
        """The fields of rows that all give the same columns; they differ in which of their merged maps are null."""
        names = [name for name in table.column_names if name not in self.key]
        both = pa.array([*names, *map(merging, names)])
        codes = np.tile(np.arange(len(names)), (table.num_rows, 1))
        for position, name in enumerate(names):
            if name in self.merged_maps:
                codes[table.column(name).is_valid().to_numpy(), position] += len(names)
        offsets = np.arange(table.num_rows + 1, dtype=np.int32) * len(names)
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), both.cast(pa.string()).take(pa.array(codes.ravel()))
        )

    def _field(self, name: str, value: object) -> str:
        return merging(name) if name in self.merged_maps and value is not None else name

    def _key_rows(self, keys: Keys) -> Rows:
        if isinstance(keys, Mapping | pa.Table | pa.RecordBatch) or is_stream(keys):
            return keys
        listed = keys if isinstance(keys, list) else [keys]
        return [each if isinstance(each, Mapping) else self._key_row(each) for each in listed]

    def _key_row(self, key: object) -> Mapping[str, object]:
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(self.key):
            raise InvalidInput(f"the key {key!r} does not name a value for each of {list(self.key)}", key=key)
        return dict(zip(self.key, values, strict=True))
