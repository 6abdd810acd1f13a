"""Splits of a snapshot as a view of DuckDB, with the table's columns whatever a split holds.

DuckDB streams the Parquet files of a local store by itself, projecting and filtering inside them; objects of other
stores are fetched while it reads. A session may read the given splits and nothing else: no other file, no network, no
extension.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.engine.sandbox.query import Query, Relation, Rows, TypesDiffer, joined
from storage_core.engine.sandbox.result import Result
from storage_core.engine.session import literally, session
from storage_core.engine.statement import TABLE
from storage_core.engine.types import sql_type
from storage_core.errors import InvalidInput
from storage_core.log.actions import Add
from storage_core.read.deleted_rows import DeletedRows
from storage_core.read.verified import UNKNOWN, Columns
from storage_core.rows.columns import default_of, has_changed, is_of_earlier, stored_name
from storage_core.rows.vectors import is_vector, listed
from storage_core.settings.query import QueryLimits
from storage_core.split.conform import conform_split

if TYPE_CHECKING:
    import duckdb

_BATCH_ROWS = 8_192  # of rows of 5 kB 40 MB, and of narrow ones no slower than more
_TEMPLATE = "tidemark_template_"
_DELETED = "tidemark_deleted_"
_FETCHED = "tidemark_fetched_"
_ENDS = "tidemark_ends_"
# Bounds in Parquet leave NaN out (the format says so), and DuckDB believes them unless told: rows with NaN, which it
# sorts above all numbers like us, would vanish from `f > 100` and appear in `f < 100`.
# And a folder on the way to a table may be called `year=2026`, which is no column of it.
_OPTIONS = "can_have_nan = true, hive_partitioning = false"
# Files whose columns are known to be alike are bound by opening one of them; of all others each has to be opened.
_UNLIKE = ", union_by_name = true"
# Of every file DuckDB knows its place in the list and the place of each row in it, whatever it skips of them.
_WITHOUT_DELETED = (
    "AS split ANTI JOIN {deleted} AS gone ON split.file_index + {first}::UBIGINT = gone.file "
    "AND split.file_row_number = gone.row"
)
PLACES = frozenset({"file_index", "file_row_number"})


@dataclass(frozen=True, slots=True)
class Source:
    """What a view is made of: rows in memory, or files of splits, of which some have rows that are deleted.

    Or `fetched` rows, or `unread` ones of which only the number matters: their columns are null. So are those of the
    table that the fetched rows lack. `rows` have all of them.
    """

    rows: pa.Table
    fetched: Rows | None = None
    splits: tuple[tuple[Add, Path], ...] = ()
    columns: tuple[Columns, ...] = ()
    """Of each split; those with the same, and deleted rows or none, follow one another."""
    deleted: DeletedRows | None = None
    """The places of deleted rows: of a split in `splits`, and of the row in it."""
    unread: int = 0
    ends: pa.Table | None = None
    """Of unread rows: two, with the least and the greatest value of columns, of which so many have one: `values`."""
    values: Mapping[str, int] = field(default_factory=dict)

    def relation(self, name: str = TABLE) -> Relation:
        """Return the view of this name: the columns of the table in its order, null where a split has none."""
        if self.fetched is not None:
            template, rows = f"{_TEMPLATE}{name}", f"{_FETCHED}{name}"
            both = f"FROM {_quoted(template)} UNION ALL BY NAME FROM {_quoted(rows)}"
            view = f"CREATE VIEW {_quoted(name)} AS {both}"
            return Relation(rows={template: self.rows}, streams={rows: self.fetched}, views=(view,))
        if not self.splits and not self.unread:
            return Relation(rows={name: self.rows})
        return self._relation(name, has_template=not self._are_the_table_s)

    def cast(self, name: str = TABLE) -> Relation:
        """Return the view, whose columns DuckDB may cast. Raises `InvalidInput` where a split has one of another type.

        Where columns have several types DuckDB casts all of them to one that holds each, and says nothing. Of a split
        that others wrote the types are theirs: Parquet has several for some of the table's.
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
        """Whether the splits have the columns of the table, in its order: then a view is what is in the files."""
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
        if vectors:  # which are lists in the files
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
        """Of places that may be kept the name tells which they are."""
        return f"{_DELETED}{name}{'' if self.deleted is None else self.deleted.digest}"

    def _unread(self, name: str) -> str:
        """Rows as a table of SQL: of a column first its least value, then the greatest as often as it has another."""
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
        """The rows of the splits, as tables of SQL: of those with the same columns at a time."""
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
        """Return the answer of a SELECT over `t`: see `answer`."""
        return answer({TABLE: self}, text, limits, spill_bytes=spill_bytes, batch_rows=batch_rows)

    def opened(self) -> duckdb.DuckDBPyConnection:
        """Return a session of this process, with the view `t`, for what holds no text from outside.

        Raises what `answer` raises of types.
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
    """Return the answer of a SELECT over views that was checked, from a process that can do nothing else.

    See `Result`. Raises `InvalidInput` where a column of a split has another type than in its table.
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
    """Files as a table of SQL. Their names are quoted texts of it, for a variable could be read by the query."""
    return f"read_parquet([{', '.join(map(_path, paths))}], {_OPTIONS}{'' if are_alike else _UNLIKE})"


@functools.lru_cache(maxsize=4096)
def _path(path: Path) -> str:
    return _text(literally(path))


def _as_of_now(found: pa.Schema, schema: pa.Schema) -> str:
    """The columns of a table as they come of files with those of an earlier schema of it; see `conform_split`."""
    columns = [(each, _column(found, each)) for each in schema]
    made = [f"{column} AS {_quoted(each.name)}" for each, column in columns if column is not None]
    return ", ".join(made) or f"NULL AS {_quoted(schema.names[0])}"  # the others are null


def _column(found: pa.Schema, field: pa.Field) -> str | None:
    stored = stored_name(field)
    if stored not in found.names:
        text = default_of(field)
        return None if text is None else f"CAST({_text(text)} AS {sql_type(field.type)})"
    name, type_ = _quoted(stored), found.field(stored).type
    if not is_of_earlier(type_, field):
        return name
    if pa.types.is_date(type_):  # to an instant it would be midnight where the session is
        at_utc = " AT TIME ZONE 'UTC'" if field.type.tz else ""
        return f"CAST({name} AS TIMESTAMP){at_utc}"
    return f"CAST({name} AS {sql_type(field.type)})"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _null(column: str) -> str:
    return f"SELECT NULL AS {_quoted(column)}"


def _quoted(name: str) -> str:
    """A name as DuckDB writes it."""
    import duckdb

    return str(duckdb.ColumnExpression(name))
