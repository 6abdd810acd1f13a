"""Splits of a snapshot as a DuckDB view, without their deleted rows.

For a local store, DuckDB itself streams the Parquet files, and applies projections and filters in the files. If the
store is not local, objects are fetched while DuckDB reads the rows. A session can read only the splits that it was
given. A session cannot open another file, use the network or load an extension.

DuckDB receives the positions of deleted rows as a table (`SCHEMA`). A position consists of the index of the file in the
list of files, and the row number in the file.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from storage_core.base.errors import InvalidInput
from storage_core.base.limits import QueryLimits
from storage_core.data.rows.columns import default_of, has_changed, is_of_earlier, stored_name
from storage_core.data.rows.keys import positions
from storage_core.data.rows.vectors import is_vector, listed
from storage_core.engine.sandbox.process import Query, Relation, Rows, TypesDiffer, joined
from storage_core.engine.sandbox.result import Result
from storage_core.engine.session import literally, session, sql_type
from storage_core.engine.statement import TABLE
from storage_core.log.actions import Add
from storage_core.read.verified_files import UNKNOWN, Columns
from storage_core.split.deletion_vectors import deleted_rows
from storage_core.split.read import conform_split
from storage_core.store.contract import ObjectStore
from storage_core.store.pieces import KeptValues

if TYPE_CHECKING:
    import duckdb


SCHEMA: Final = pa.schema([("file", pa.uint64()), ("row", pa.int64())])
_LASTING_BYTES: Final = 32 * 2**20
"""The maximum size in bytes of positions that are cached in a session. Two million positions take this number of bytes.

If a set of positions exceeds this size, the set is sent again with each query. A set in the session cache would stay in
the sandbox for the whole session.
"""


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """The positions of deleted rows as a table of `SCHEMA`.

    Two sets with the same `digest` are equal. If a set has no digest, it must not be cached.
    """

    rows: pa.Table
    digest: str = ""

    @property
    def files(self) -> frozenset[int]:
        """The indexes of the files that have deleted rows."""
        return frozenset(self.rows.column("file").unique().to_pylist())


def hidden_rows(store: ObjectStore, splits: Sequence[Add], kept: KeptValues) -> dict[str, BitMap]:
    """Return the rows that deletion vectors hide in each split, by the path of the split.

    The result omits splits without a deletion vector. Makes one GET for each stored deletion vector that is not in
    `kept`. Raises the errors of `deleted_rows`.
    """
    marked = [add for add in splits if add.deleted_rows is not None]
    names = [_name(add) for add in marked]
    found = kept.made_all(names, BitMap, lambda place: deleted_rows(store, marked[place]), lambda rows: 2 * len(rows))
    return {add.path: rows for add, rows in zip(marked, found, strict=True)}


def requests_for_hidden(add: Add, kept: KeptValues | None) -> int:
    """Return the number of GETs for a split's deletion vector.

    The number is 1 if the vector is stored and not in `kept`, else 0.
    """
    is_stored = add.deleted_rows is not None and add.deleted_rows.path is not None
    return int(is_stored and (kept is None or kept.get(_name(add)) is None))


def places_of(splits: Sequence[Add], hidden: Mapping[str, BitMap], kept: KeptValues | None) -> DeletedRows | None:
    """Return the positions of the `hidden` rows. None if no row is hidden. The keys of `hidden` are paths of splits.

    If `kept` is given, `hidden` must come from the deletion vectors of the splits. `kept` then caches the positions.
    """
    of_each = {place: hidden[add.path] for place, add in enumerate(splits) if hidden.get(add.path)}
    if not of_each:
        return None
    if kept is None:
        return DeletedRows(_table(of_each))
    name = ("places", *((place, *_name(splits[place])) for place in of_each))
    return kept.made(name, DeletedRows, lambda: _lasting(_table(of_each)), lambda found: found.rows.nbytes)


def _name(add: Add) -> tuple[object, ...]:
    """Return the cache key for the rows that a split's deletion vector hides."""
    return ("vector", add.path, add.deleted_rows)


def _table(hidden: Mapping[int, BitMap]) -> pa.Table:
    rows = [positions(each) for each in hidden.values()]
    files = np.repeat(np.array([*hidden], np.uint64), [len(each) for each in rows])
    return pa.table([pa.array(files), pa.array(np.concatenate(rows))], schema=SCHEMA)


def _lasting(rows: pa.Table) -> DeletedRows:
    if rows.nbytes > _LASTING_BYTES:
        return DeletedRows(rows)
    digest = hashlib.blake2b(digest_size=16)
    for column in rows.columns:
        digest.update(column.combine_chunks().to_numpy())
    return DeletedRows(rows, digest.hexdigest())


_BATCH_ROWS = 8_192  # A batch of 5 kB rows takes 40 MB. For narrow rows, larger batches are not faster
_TEMPLATE = "tidemark_template_"
_DELETED = "tidemark_deleted_"
_FETCHED = "tidemark_fetched_"
_ENDS = "tidemark_ends_"
# The Parquet format requires that bounds exclude NaN, and DuckDB trusts the bounds by default. DuckDB and Tidemark sort
# NaN above all numbers. If DuckDB trusted the bounds, rows with NaN would be missing from `f > 100` and could appear in
# `f < 100`. The second option is needed because the path of a table may contain a folder `year=2026`. The name of this
# folder must not become a column of the table.
_OPTIONS = "can_have_nan = true, hive_partitioning = false"
# If several files have equal columns, DuckDB opens only one of these files to bind the query. Otherwise, DuckDB opens
# each file.
_UNLIKE = ", union_by_name = true"
# For each row, DuckDB returns the index of the file and the row number in the file. The row number is correct even if
# DuckDB skips rows.
_WITHOUT_DELETED = (
    "AS split ANTI JOIN {deleted} AS gone ON split.file_index + {first}::UBIGINT = gone.file "
    "AND split.file_row_number = gone.row"
)
PLACES = frozenset({"file_index", "file_row_number"})


@dataclass(frozen=True, slots=True)
class Source:
    """The content of a view: rows in memory, fetched rows or files of splits. The splits may have deleted rows.

    - `rows` are in memory and have all columns of the table.
    - `fetched` contains rows that were fetched from a store, and may lack columns of the table. The missing columns are
      null.
    - `unread` is a number of rows. The query needs none of the values in these rows. All columns of these rows are
      null.
    """

    rows: pa.Table
    fetched: Rows | None = None
    splits: tuple[tuple[Add, Path], ...] = ()
    columns: tuple[Columns, ...] = ()
    """The columns of each split.

    Splits with equal columns are adjacent if all of the splits have deleted rows, or if no split has deleted rows.
    """
    deleted: DeletedRows | None = None
    """The positions of the deleted rows: the index of the split in `splits`, and the row in the split."""
    unread: int = 0
    ends: pa.Table | None = None
    """Two of the `unread` rows. For some columns, the two rows contain the smallest and the greatest value.

    `values` contains the number of values of each column.
    """
    values: Mapping[str, int] = field(default_factory=dict)

    def relation(self, name: str = TABLE) -> Relation:
        """Return the view with this name.

        The view has the columns of the table in the table's order. A column is null in rows of splits without this
        column.
        """
        if self.fetched is not None:
            template, rows = f"{_TEMPLATE}{name}", f"{_FETCHED}{name}"
            both = f"FROM {_quoted(template)} UNION ALL BY NAME FROM {_quoted(rows)}"
            view = f"CREATE VIEW {_quoted(name)} AS {both}"
            return Relation(rows={template: self.rows}, streams={rows: self.fetched}, views=(view,))
        if not self.splits and not self.unread:
            return Relation(rows={name: self.rows})
        return self._relation(name, has_template=not self._are_the_table_s)

    def cast(self, name: str = TABLE) -> Relation:
        """Return the view with casts to the table's types.

        Raises `InvalidInput` if a column of a split has another type. DuckDB itself would silently cast such a column
        to a common type. The types of a split from another writer are not checked, because several Parquet types are
        valid for some types of the table.
        """
        if not self.splits:
            return replace(self.relation(name), same_types=())
        for add, path in self.splits:
            if add.xxh3 is not None:
                try:
                    conform_split(pq.read_schema(path).remove_metadata().empty_table(), self.rows.schema)
                except InvalidInput as error:
                    raise InvalidInput(f"{add.path}: {error}", **error.context) from error
        return replace(self._relation(name, has_template=True), same_types=())

    @property
    def _are_the_table_s(self) -> bool:
        """Whether the splits have exactly the columns of the table, in the table's order.

        In this case the content of the files is the view.
        """
        names, types = [stored_name(field) for field in self.rows.schema], self.rows.schema.types
        schemas = [columns.schema for columns in set(self.columns)]
        types = [listed(each) for each in types]
        return (
            not self.unread
            and not self.rows.num_rows
            and all(schema is not None and (schema.names, schema.types) == (names, types) for schema in schemas)
        )

    def _relation(self, name: str, *, has_template: bool) -> Relation:
        template, deleted = f"{_TEMPLATE}{name}", self._deleted_name(name)
        parts = [f"FROM {_quoted(template)}"] if has_template else []
        parts += [self._unread(name)] if self.unread else []
        parts += self._files(_quoted(deleted))
        rows = " UNION ALL BY NAME ".join(parts)
        vectors = [field for field in self.rows.schema if is_vector(field.type)]
        if vectors:  # the files store embeddings as lists
            casts = (f"{_quoted(each.name)}::FLOAT[{each.type.list_size}] AS {_quoted(each.name)}" for each in vectors)
            rows = f"SELECT * REPLACE ({', '.join(casts)}) FROM ({rows})"  # noqa: S608  # names are quoted
        return Relation(
            rows={template: self.rows}
            | ({} if self.deleted is None else {deleted: self.deleted.rows})
            | ({} if self.ends is None else {f"{_ENDS}{name}{at}": self.ends.slice(at, 1) for at in (0, 1)}),
            files=tuple(path for _, path in self.splits),
            views=(f"CREATE VIEW {_quoted(name)} AS {rows}",),
            same_types=((name, template),),
            lasting=(deleted,) if self.deleted is not None and self.deleted.digest else (),
        )

    def _deleted_name(self, name: str) -> str:
        """Return the name of the table that contains the deleted rows.

        If the set of deleted rows can be cached, its digest is part of the name.
        """
        return f"{_DELETED}{name}{'' if self.deleted is None else self.deleted.digest}"

    def _unread(self, name: str) -> str:
        """Return SQL for the unread rows.

        The first row has the smallest value of each column. The next rows have the greatest value, until the column has
        the recorded number of values. In the remaining rows the column is null.
        """
        if self.ends is None:
            return f"{_null(self.rows.schema.names[0])} FROM range({self.unread})"
        low, high = (_quoted(f"{_ENDS}{name}{at}") for at in (0, 1))
        columns = (
            f"CASE WHEN numbers.place < {min(count, 1)} THEN low.{column} "
            f"WHEN numbers.place < {count} THEN high.{column} END AS {column}"
            for column, count in zip(map(_quoted, self.values), self.values.values(), strict=True)
        )
        rows = f"range({self.unread}) AS numbers(place), {low} AS low, {high} AS high"
        return f"SELECT {', '.join(columns)} FROM {rows}"  # noqa: S608  # names are quoted, the others are numbers

    def _files(self, deleted: str) -> Iterator[str]:
        """Yield SQL for the rows of the splits. Each group of adjacent splits with equal columns is one table."""
        first, schema = 0, self.rows.schema if has_changed(self.rows.schema) else None
        marked = frozenset[int]() if self.deleted is None else self.deleted.files
        each_split = zip(range(len(self.splits)), self.splits, self.columns, strict=True)
        for (is_marked, columns), found in groupby(each_split, lambda each: (each[0] in marked, each[2])):
            paths = [path for _, (_, path), _ in found]
            table = f"FROM {_parquet(paths, are_alike=columns is not UNKNOWN)}"
            if is_marked:
                table = f"{table} {_WITHOUT_DELETED.format(deleted=deleted, first=first)}"
            yield f"SELECT {_as_of_now(columns.schema, schema)} {table}" if schema and columns.schema else table
            first += len(paths)

    def answer(self, text: str, limits: QueryLimits, *, spill_bytes: int = 0, batch_rows: int = _BATCH_ROWS) -> Result:
        """Return the result of a SELECT over `t` (see `answer`)."""
        return answer({TABLE: self}, text, limits, spill_bytes=spill_bytes, batch_rows=batch_rows)

    def opened(self) -> duckdb.DuckDBPyConnection:
        """Return a DuckDB session in this process that has the view `t`.

        Never run untrusted SQL text in this session.

        Raises `InvalidInput` if a column of a split has another type, as `answer` does.
        """
        relation = self.relation()
        connection = session(files=relation.files)
        try:
            relation.bind(connection)
        except TypesDiffer:
            connection.close()
            connection = session(files=relation.files)
            self.cast().bind(connection)
        return connection


def answer(
    sources: Mapping[str, Source],
    text: str,
    limits: QueryLimits,
    *,
    spill_bytes: int = 0,
    batch_rows: int = _BATCH_ROWS,
) -> Result:
    """Execute a checked SELECT over views in a process with restricted rights, and return the result.

    See `Result`. Raises `InvalidInput` if a column of a split and the column of the table have different types.
    """
    relation = joined(source.relation(name) for name, source in sources.items())
    query = Query(
        text=text,
        relation=relation,
        seconds=limits.seconds,
        memory_bytes=limits.memory_bytes,
        spill_bytes=spill_bytes,
        batch_rows=batch_rows,
    )
    try:
        return Result(query)
    except TypesDiffer:
        cast = joined(source.cast(name) for name, source in sources.items())
        return Result(replace(query, relation=cast))


def _parquet(paths: Sequence[Path], *, are_alike: bool) -> str:
    """Return an SQL expression for a table that consists of files.

    The file names are quoted literals, because a query could read a variable.
    """
    return f"read_parquet([{', '.join(map(_path, paths))}], {_OPTIONS}{'' if are_alike else _UNLIKE})"


@functools.lru_cache(maxsize=4096)
def _path(path: Path) -> str:
    return _text(literally(path))


def _as_of_now(found: pa.Schema, schema: pa.Schema) -> str:
    """Return the select list that converts files of an earlier schema to the table's columns (`conform_split`)."""
    columns = [(each, _column(found, each)) for each in schema]
    made = [f"{column} AS {_quoted(each.name)}" for each, column in columns if column is not None]
    return ", ".join(made) or f"NULL AS {_quoted(schema.names[0])}"  # the other columns are null


def _column(found: pa.Schema, field: pa.Field) -> str | None:
    stored = stored_name(field)
    if stored not in found.names:
        text = default_of(field)
        return None if text is None else f"CAST({_text(text)} AS {sql_type(field.type)})"
    name, type_ = _quoted(stored), found.field(stored).type
    if not is_of_earlier(type_, field):
        return name
    if pa.types.is_date(type_):  # a direct cast to a time with zone returns midnight in the zone of the session
        at_utc = " AT TIME ZONE 'UTC'" if field.type.tz else ""
        return f"CAST({name} AS TIMESTAMP){at_utc}"
    return f"CAST({name} AS {sql_type(field.type)})"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _null(column: str) -> str:
    return f"SELECT NULL AS {_quoted(column)}"


def _quoted(name: str) -> str:
    """Return a name in the quotes that DuckDB uses."""
    import duckdb

    return str(duckdb.ColumnExpression(name))
