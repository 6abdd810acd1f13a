"""Input of a region writer: its options, the checked records, and the records in memory.

A record is a row with an operation: put, patch, reset or delete (docs/architecture/ingestion.md, "Records").
`RecordBuilder` checks every value before the first write, so no later step refuses a value. `WriterOptions` contains
the rules for grouping, limiting and flushing records (docs/architecture/ingestion.md). `Following` contains the newest
known columns of the table and can read newer columns. `Memtable` holds the records of the next generation. These
records can be read immediately.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from storage_core.base.arguments import checked_fields
from storage_core.base.clock import Clock
from storage_core.base.errors import InvalidInput, TidemarkError
from storage_core.base.text import names_of, quoted
from storage_core.data.formats.key_hashes import Hashes, key_hashes, within
from storage_core.data.rows import fold
from storage_core.data.rows.conform import conform
from storage_core.data.rows.fold import FIELDS, Operation, conformed, merging, record_schema
from storage_core.data.rows.incoming import InMemory, Rows, is_stream, read_whole, table_of
from storage_core.data.rows.keys import Positions, key_codes, require_short_keys
from storage_core.data.rows.times import within_calendar
from storage_core.data.rows.vectors import require_valid_embeddings
from storage_core.log.replay import open_head
from storage_core.log.snapshot import Snapshot
from storage_core.log.versions import advance
from storage_core.split.context import SplitContext, context_of
from storage_core.store.contract import ObjectStore

MB = 2**20
SEGMENT_ROWS = 10_000
"""Minimum number of records of a generation with index segments.

For fewer rows than `SEGMENT_ROWS`, a reader builds the index about as fast as it reads a segment of these rows. The
flush would have to wait until the segment is written.
"""


@checked_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """The settings of one writer. Sizes in bytes are sizes of records in memory. Durations are milliseconds.

    - `durable`: the default for calls that do not set `durable`. If `durable` is True, a call returns only when its
      rows are durable.
    - `entry_bytes`, `linger_ms`: rows given with `durable=False` are written when they reach this number of bytes or
      this age. A WAL entry contains the rows of several calls, up to `entry_bytes`. A call with more bytes than
      `entry_bytes` becomes a separate entry.
    - `flush_rows`, `flush_bytes`, `flush_entries`: a memtable with this many records, bytes or WAL entries is flushed
      before the next entry.
    - `flush_age_ms`: a memtable is flushed when its oldest record has this age, even without a further call. None means
      no maximum age. A `latest` read makes one GET per unflushed entry.
    - `segment_rows`: a generation of at least this many records gets a segment of each index of the table. For
      generations with fewer records, each search builds the index of the rows.
    - `wait_rows`, `wait_bytes`: the limits for rows and bytes that are not durable yet. Above a limit, further calls
      wait for at most `wait_ms`.
    - `refuse_rows`, `refuse_bytes`: the limits for all rows and bytes that are not durable yet, including the rows of
      waiting calls. A call above a limit raises `Overloaded`.

    An empty writer always accepts one call, even a call above the limits. So a writer holds at most `refuse_bytes`,
    `flush_bytes` and one entry in memory. During a flush a writer also holds the key index of the memtable. For a table
    with indexes, a flushing writer also holds a folded copy of the memtable and the new index data.
    """

    durable: bool = True
    entry_bytes: int = 10 * MB
    linger_ms: int = 100
    flush_rows: int = 100_000
    flush_bytes: int = 256 * MB
    flush_entries: int = 512
    flush_age_ms: int | None = None
    segment_rows: int = SEGMENT_ROWS
    wait_rows: int = 200_000
    wait_bytes: int = 64 * MB
    wait_ms: int = 30_000
    refuse_rows: int = 1_000_000
    refuse_bytes: int = 256 * MB

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for a negative option, or for two options that contradict each other."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and value < 0:
                raise InvalidInput(f"writer option {each.name} is {value}. Give 0 or more")
        if self.refuse_rows < self.wait_rows or self.refuse_bytes < self.wait_bytes:
            raise InvalidInput(
                "writer options: refuse_rows or refuse_bytes is less than wait_rows or wait_bytes. Raise the refuse "
                "limit"
            )


Keys: TypeAlias = Rows | Sequence[object] | str | int


def require_keys(table: pa.Table, key: Sequence[str]) -> None:
    """Raise `InvalidInput` unless every row has a value in every key column, nullable or not."""
    for name in key:
        if table.column(name).null_count:
            raise InvalidInput(f"the key column {name!r} has rows without a value. Every row needs a key", column=name)


@dataclass(frozen=True, slots=True)
class RecordBuilder:
    """Builder of the records of one table.

    `schema` is the row schema. `key` has the columns of the primary key in order. `merged_maps` has the merged map
    columns. `nonzero` has the embedding columns that must not contain zero embeddings.

    Every method returns a table with `rows.fold.record_schema` in the order of the input. An invalid value raises
    `InvalidInput` with the column and the first row with an invalid value, counted from 0. In this case, nothing is
    changed.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    merged_maps: tuple[str, ...] = ()
    nonzero: Collection[str] = ()

    def puts(self, rows: Rows) -> pa.Table:
        """Return one put per row. Nullable columns that are not given become null, because a put is a whole row."""
        return self._whole(rows, Operation.PUT)

    def resets(self, rows: Rows) -> pa.Table:
        """Return one reset per row. A reset is a delete followed by a put of the whole row."""
        return self._whole(rows, Operation.RESET)

    def patches(self, rows: Rows) -> pa.Table:
        """Return one patch per row, with the fields of the row. A field given as null becomes null.

        Entries of a merged map are added to the existing entries and replace entries of the same key. A merged map
        given as null becomes null like any other field. If a patch is the first record of its key, it creates the row.
        So a patch must give every required column.
        """
        held = read_whole(rows)
        is_read_twice = isinstance(held, Iterable) and not isinstance(held, Mapping | pa.Table | pa.RecordBatch)
        held = [*held] if is_read_twice else held
        table = table_of(held, self.schema)
        self._require_key(table, "patch")
        missing = [each.name for each in self.schema if not each.nullable and each.name not in table.column_names]
        if missing:
            raise InvalidInput(
                f"a patch may create its row, so it must have the required columns {missing}. Add these "
                "columns, or write the whole row with put",
                columns=missing,
            )
        given = conform(table, pa.schema([each for each in self.schema if each.name in table.column_names]))
        return self._records(self._widened(given), Operation.PATCH, self._given_fields(held, given))

    def deletes(self, keys: Keys) -> pa.Table:
        """Return one delete per key. A key is a value, a tuple of values in key order, a mapping, or a row of a table.

        A key may be longer than the current limit for rows, because early 0.1 stored longer keys.
        """
        table = table_of(self._key_rows(keys), self.schema)
        self._require_key(table, "delete")
        extra = sorted(set(table.column_names) - set(self.key))
        if extra and table.num_rows:
            raise InvalidInput(
                f"delete takes only the key columns {names_of(self.key)}. Leave out {names_of(extra)}",
                columns=extra,
            )
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
        columns = require_valid_embeddings(within_calendar(table), self.nonzero).columns
        return pa.Table.from_arrays([operations, fields, *columns], schema=record_schema(self.schema))

    def _require_key(self, table: pa.Table, verb: str) -> None:
        missing = [name for name in self.key if name not in table.column_names]
        if missing:
            raise InvalidInput(
                f"{verb} needs the key columns {names_of(self.key)}, but has no {names_of(missing)}. Give a value for "
                "each key column",
                columns=missing,
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
        # Each dictionary may have different fields. Dictionaries are Python objects already, so this adds no cost.
        return pa.array([[self._field(name, row[name]) for name in row if name not in self.key] for row in rows], kind)

    def _same_fields(self, table: pa.Table) -> pa.Array:
        """Return the fields of the rows in a table whose rows all have the same columns.

        The rows differ only in which merged maps are null.
        """
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
            raise InvalidInput(
                f"the key {quoted(key)} does not have one value for each key column. Give {', '.join(self.key)}",
                key=key,
            )
        return dict(zip(self.key, values, strict=True))


# The table schema as the writer knows it.


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriterSnapshot:
    """The parts of one snapshot that a writer uses."""

    snapshot: Snapshot
    builder: RecordBuilder
    schema: pa.Schema
    """The schema of records."""
    context: SplitContext

    @staticmethod
    def of(snapshot: Snapshot) -> WriterSnapshot:
        """Return the parts of the snapshot of a keyed table."""
        config = snapshot.config
        builder = RecordBuilder(
            snapshot.schema, config.primary_key, merged_maps=config.merged_maps, nonzero=config.nonzero_vectors
        )
        return WriterSnapshot(snapshot, builder, record_schema(snapshot.schema), context_of(snapshot))


@dataclass(slots=True)
class Following:
    """The newest columns of a table that a writer has read.

    Writers of several regions share one object. Any thread can renew this object.

    A writer reads the columns at its start and after each flush.
    """

    store: ObjectStore | None
    clock: Clock
    known: WriterSnapshot
    _head: Snapshot = field(init=False)
    _seen_ms: int = field(init=False)

    def __post_init__(self) -> None:
        """Start at the given snapshot."""
        self._head, self._seen_ms = self.known.snapshot, self.clock.now_ms()

    def renew(self) -> None:
        """Read the newest columns of the table.

        If the log cannot be read, the known columns are kept until the next flush.

        Cost:
            One GET per new version, and one GET that finds no further version. After half of the retention period of
            versions, the table is opened again instead, because the next version may be collected. Without a store, no
            request.
        """
        if self.store is None:
            return
        try:
            self._head, self._seen_ms = self._newest(self.store), self.clock.now_ms()
        except TidemarkError as error:
            _logger.warning(
                "the columns of %s cannot be read, so the writer keeps the known columns: %s", self.store.uri, error
            )
            return
        if self._head.metadata.schemaString != self.known.snapshot.metadata.schemaString:
            self.known = WriterSnapshot.of(self._head)

    def _newest(self, store: ObjectStore) -> Snapshot:
        if self.clock.now_ms() - self._seen_ms > self._head.config.version_retention_ms // 2:
            return open_head(store)
        return advance(store, self._head) or self._head


# Sorted runs of key hashes. A search in the runs finds the rows that may have a key, without a scan of all rows.


@dataclass(slots=True)
class KeyRuns:
    """The positions of all added rows, counted from 0, by the hash of their key.

    If a run is not longer than the next run, the two runs become one run. The new run and the run before it may also
    become one run, by the same rule. So n additions leave about log2(n) runs, and each row is sorted about log2(n)
    times.
    """

    _runs: list[tuple[Hashes, Positions]] = field(default_factory=list)
    _rows: int = 0

    def add(self, rows: pa.Table, key: Sequence[str]) -> None:
        """Add rows after the existing rows."""
        hashes = key_hashes(rows, key)
        positions = np.arange(self._rows, self._rows + len(hashes), dtype=np.int64)
        self._rows += len(hashes)
        while self._runs and len(self._runs[-1][0]) <= len(hashes):
            older, older_positions = self._runs.pop()
            hashes, positions = np.concatenate([older, hashes]), np.concatenate([older_positions, positions])
        order = np.argsort(hashes, kind="stable")
        self._runs.append((hashes[order], positions[order]))

    def find(self, wanted: pa.Table, key: Sequence[str]) -> Positions:
        """Return the ascending positions of all rows with the hash of a wanted key.

        In rare cases, the result includes rows of other keys.
        """
        hashes = np.unique(key_hashes(wanted, key))
        parts = [positions[within(hashes, run)] for run, positions in self._runs]
        return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


@dataclass(slots=True)
class Memtable:
    """Durable records outside all generations, in the order of their acknowledgement.

    `schema` is the record schema, and `key` is the primary key. A memtable grows by whole WAL entries. The writer
    flushes a large memtable and starts another memtable. One thread can add records while another thread reads. Only
    one thread can read at a time.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    _entries: list[int] = field(default_factory=list)
    _parts: list[pa.Table] = field(default_factory=list)
    _rows: int = 0
    _size_bytes: int = 0
    _runs: KeyRuns = field(default_factory=KeyRuns)
    _indexed: int = 0

    @property
    def entries(self) -> tuple[int, ...]:
        """The numbers of the WAL entries that contain these records, ascending."""
        return tuple(self._entries)

    @property
    def rows(self) -> int:
        """The number of records. Several records can have the same key."""
        return self._rows

    @property
    def size_bytes(self) -> int:
        """Bytes of the records in memory."""
        return self._size_bytes

    def add(self, entry: int, records: pa.Table) -> None:
        """Add the records of a durable WAL entry, of any schema. Entries must be added in ascending order."""
        records = conformed(records, self.schema)
        self._entries.append(entry)
        self._parts.append(records)
        self._rows += records.num_rows
        self._size_bytes += records.nbytes

    def become(self, schema: pa.Schema) -> None:
        """Convert the records to a later schema of the table, and use this schema from now on."""
        if self.schema.equals(schema, check_metadata=True):
            return
        self.schema = schema
        self._parts = [conformed(part, schema) for part in self._parts]
        self._runs, self._indexed = KeyRuns(), 0

    def parts(self) -> tuple[pa.Table, ...]:
        """Return the records of each entry, in order. No copy is made."""
        return tuple(self._parts)

    def records(self) -> pa.Table:
        """Return the records in order. No copy is made."""
        return pa.concat_tables([self.schema.empty_table(), *self._parts])

    def folded(self) -> pa.Table:
        """Return one record per key, sorted by key. The newest record wins."""
        return fold.fold(self.records(), self.key)

    def find(self, wanted: pa.Table) -> pa.Table:
        """Return all records of the wanted keys, in order. `wanted` is a table of the key columns.

        The call hashes and sorts the records since the last call. A binary search in about log2(entries) sorted runs
        then finds the rows. Only these rows are read.
        """
        for part in self._parts[self._indexed :]:
            self._runs.add(part, self.key)
            self._indexed += 1
        found = pa.concat_tables([self.schema.empty_table(), *self._rows_at(self._runs.find(wanted, self.key))])
        return matching(found, wanted, self.key)

    def get(self, wanted: pa.Table) -> pa.Table:
        """Return one record for each wanted key that exists. The record combines all records of the key in order."""
        return fold.fold(self.find(wanted), self.key)

    def _rows_at(self, positions: Positions) -> Iterator[pa.Table]:
        ends = np.cumsum([part.num_rows for part in self._parts])
        parts = np.searchsorted(ends, positions, side="right")
        for number in np.unique(parts):
            part = self._parts[number]
            yield part.take(pa.array(positions[parts == number] - (ends[number] - part.num_rows)))


def matching(records: pa.Table, wanted: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the records of the wanted keys, in order. One pass over the records."""
    held, requested = key_codes([records.select(key).combine_chunks(), wanted], key)
    return records.filter(pa.array(np.isin(held, requested)))
