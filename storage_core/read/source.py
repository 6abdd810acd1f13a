"""Splits of a snapshot as a DuckDB relation named `t`, with the table's columns whatever a split holds.

DuckDB streams the Parquet files of a local store by itself, projecting and filtering inside them; objects of other
stores are read first. A session may read the given splits and nothing else: no other file, no network, no extension.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.engine.sandbox.query import Query, Relation, TypesDiffer
from storage_core.engine.sandbox.result import Result
from storage_core.engine.session import literally, session
from storage_core.errors import InvalidInput
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.fetching import fetched
from storage_core.read.predicate import Predicate
from storage_core.read.pruning import prune
from storage_core.read.query_errors import TABLE, query_errors
from storage_core.read.verified import Verified
from storage_core.rows import fold
from storage_core.settings.query import QueryLimits
from storage_core.split.conform import conform_split
from storage_core.split.vectors import deleted_rows, positions

if TYPE_CHECKING:
    import duckdb

_BATCH_ROWS = 122_880  # DuckDB's own unit of rows
_TEMPLATE = "tidemark_template"
_DELETED = "tidemark_deleted"
_FETCHED = "tidemark_fetched"
# Bounds in Parquet leave NaN out (the format says so), and DuckDB believes them unless told: rows with NaN, which it
# sorts above all numbers like us, would vanish from `f > 100` and appear in `f < 100`.
# And a folder on the way to a table may be called `year=2026`, which is no column of it.
_OPTIONS = "union_by_name = true, can_have_nan = true, hive_partitioning = false"
# Of every file DuckDB knows its place in the list and the place of each row in it, whatever it skips of them.
_WITHOUT_DELETED = (
    f"AS split ANTI JOIN {_DELETED} AS gone ON split.file_index = gone.file AND split.file_row_number = gone.row"
)
_PLACES = frozenset({"file_index", "file_row_number"})
_DELETED_SCHEMA = pa.schema([("file", pa.uint64()), ("row", pa.int64())])


@dataclass(frozen=True, slots=True)
class Source:
    """What `t` is made of: rows in memory, or files of splits, of which some have rows that are deleted.

    Or `unread` rows of which only the number matters: their columns are null. So are those of `schema`, the table's,
    that the rows in memory lack.
    """

    rows: pa.Table
    schema: pa.Schema | None = None
    splits: tuple[tuple[Add, Path], ...] = ()
    deleted: pa.Table | None = None
    unread: int = 0

    @property
    def relation(self) -> Relation:
        """The view `t`: the columns of the table in its order, null where a split has none."""
        if self.schema is not None:
            both = f"CREATE VIEW {TABLE} AS FROM {_TEMPLATE} UNION ALL BY NAME FROM {_FETCHED}"
            return Relation(rows={_TEMPLATE: self.schema.empty_table(), _FETCHED: self.rows}, views=(both,))
        if not self.splits and not self.unread:
            return Relation(rows={TABLE: self.rows})
        whole = [path for add, path in self.splits if add.deleted_rows is None]
        marked = [path for add, path in self.splits if add.deleted_rows is not None]
        parts = [f"FROM {_TEMPLATE}"]
        parts += [f"{_null(self.rows.schema.names[0])} FROM range({self.unread})"] if self.unread else []
        parts += [f"FROM {_parquet(whole)}"] if whole else []
        parts += [f"FROM {_parquet(marked)} {_WITHOUT_DELETED}"] if marked else []
        return Relation(
            rows={_TEMPLATE: self.rows} | ({} if self.deleted is None else {_DELETED: self.deleted}),
            files=tuple(path for _, path in self.splits),
            views=(f"CREATE VIEW {TABLE} AS {' UNION ALL BY NAME '.join(parts)}",),
            same_types=(TABLE, _TEMPLATE),
        )

    def answer(self, text: str, limits: QueryLimits, *, spill_bytes: int = 0, stream_rows: int | None = None) -> Result:
        """Return the answer of a SELECT that was checked, from a process that can do nothing else: see `Result`.

        With `stream_rows` it comes in batches of at most so many rows, and `seconds` is the time from one to the next.
        Raises `InvalidInput` where a column of a split has another type than in the table.
        """
        query = Query(
            text=text,
            relation=self.relation,
            seconds=limits.seconds,
            memory_bytes=limits.memory_bytes,
            spill_bytes=spill_bytes,
            batch_rows=_BATCH_ROWS if stream_rows is None else stream_rows,
            is_streamed=stream_rows is not None,
        )
        try:
            return Result(query)
        except TypesDiffer:
            self._require_types()
            return Result(replace(query, relation=replace(query.relation, same_types=None)))

    def opened(self) -> duckdb.DuckDBPyConnection:
        """Return a session of this process, with the view `t`, for what holds no text from outside.

        Raises what `answer` raises of types.
        """
        relation = self.relation
        connection = session(files=relation.files)
        try:
            relation.bind(connection)
        except TypesDiffer:
            self._require_types()
        return connection

    def _require_types(self) -> None:
        """Return where DuckDB may cast the columns of splits. Raises `InvalidInput` where one has another type.

        Where columns have several types DuckDB casts all of them to one that holds each, and says nothing. Of a split
        that others wrote the types are theirs: Parquet has several for some of the table's.
        """
        for add, path in self.splits:
            if add.xxh3 is not None:
                try:
                    conform_split(pq.read_schema(path).remove_metadata().empty_table(), self.rows.schema)
                except InvalidInput as error:
                    raise InvalidInput(f"{add.path}: {error}", **error.context) from error


def splits_source(
    store: ObjectStore,
    splits: Sequence[Add],
    schema: pa.Schema,
    *,
    verified: Verified,
    columns: Collection[str] | None = None,
    predicate: Predicate | None = None,
) -> Source:
    """Return the splits as a source of rows; of columns other than `columns` the values may be null.

    Rows that cannot make `predicate` true may be left out. What is used of a split is verified before: on a local store
    its file, against its length and checksum, and again when it is another than the one that `verified` remembers;
    elsewhere what `fetched` says, with its requests.
    Raises `Corrupt` for a split that is not what was written, `SnapshotExpired` when it is gone. Rows that a deletion
    vector hides are never among the source's; one GET per vector that is stored.
    """
    paths = {add.path: path for add in splits if (path := verified.path(store, add)) is not None}
    if splits and not (len(paths) == len(splits) and _can_stream(splits, schema)):
        wanted = schema if not columns else pa.schema([each for each in schema if each.name in columns])
        rows = fetched(store, splits, wanted, footers=verified.footers, predicate=predicate)
        return Source(pa.concat_tables([*rows, wanted.empty_table()]), schema=schema)
    marked = [add for add in splits if add.deleted_rows is not None]
    found = tuple((add, paths[add.path]) for add in splits)
    return Source(schema.empty_table(), splits=found, deleted=_deleted(store, marked) if marked else None)


def source_of(
    store: ObjectStore,
    snapshot: Snapshot,
    predicate: Predicate | None,
    *,
    verified: Verified,
    records: pa.Table | None,
    columns: Collection[str] | None,
    query: str,
) -> tuple[Sequence[Add], Source]:
    """Return the splits whose rows a query may need, which errors name, and the rows.

    Of columns other than `columns` the values may be null; where none is read, no split is. With `records`, they are
    folded over the base first and nothing is pruned. Raises what `splits_source` raises.
    """
    if records is not None:
        return (), Source(merged_rows(store, snapshot, records, verified))
    if is_counted(snapshot, columns):
        return (), Source(snapshot.schema.empty_table(), unread=snapshot.rows)
    splits = prune(snapshot, predicate)
    with query_errors(query, splits):
        source = splits_source(store, splits, snapshot.schema, verified=verified, columns=columns, predicate=predicate)
        return splits, source


def is_counted(snapshot: Snapshot, columns: Collection[str] | None) -> bool:
    """Return whether the log tells all that is read of the rows: how many they are. Reads every manifest."""
    return columns is not None and not columns and snapshot.has_all_counts


def merged_rows(store: ObjectStore, snapshot: Snapshot, records: pa.Table, verified: Verified) -> pa.Table:
    """Return the base rows with the records folded over them, newest wins per key."""
    key, schema = snapshot.config.primary_key, snapshot.schema
    rows = fetched(store, tuple(snapshot.splits.values()), schema, footers=verified.footers)
    return fold.apply(pa.concat_tables([*rows, schema.empty_table()]), fold.fold(records, key), key)


def _can_stream(splits: Sequence[Add], schema: pa.Schema) -> bool:
    """A column called like one of DuckDB's own hides it, and with it the places of rows in their files."""
    return _PLACES.isdisjoint(map(str.lower, schema.names)) or all(add.deleted_rows is None for add in splits)


def _deleted(store: ObjectStore, marked: Sequence[Add]) -> pa.Table:
    """The deleted rows of every file, which is given by its place in the list."""
    rows = [positions(deleted_rows(store, add)) for add in marked]
    files = np.repeat(np.arange(len(rows), dtype=np.uint64), [len(each) for each in rows])
    return pa.table([pa.array(files), pa.array(np.concatenate(rows))], schema=_DELETED_SCHEMA)


def _parquet(paths: Sequence[Path]) -> str:
    """Files as a table of SQL. Their names are quoted texts of it, for a variable could be read by the query."""
    names = ", ".join("'" + literally(path).replace("'", "''") + "'" for path in paths)
    return f"read_parquet([{names}], {_OPTIONS})"


def _null(column: str) -> str:
    import duckdb

    return f"SELECT NULL AS {duckdb.ColumnExpression(column)}"
