"""Splits of a snapshot as a DuckDB relation named `t`, with the table's columns whatever a split holds.

DuckDB streams the Parquet files of a local store by itself, projecting and filtering inside them; objects of other
stores are read first. A session may read the given splits and nothing else: no other file, no network, no extension.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.engine.confinement import STILL_RUNNING
from storage_core.engine.session import literally
from storage_core.engine.tree import shown
from storage_core.errors import Corrupt, InvalidInput, TidemarkError, Unavailable
from storage_core.foreign_text import shortened
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.verified import Verified
from storage_core.settings.query import QueryLimits
from storage_core.split.read import conform_split, expired_split, read_split
from storage_core.split.vectors import deleted_rows, positions
from storage_core.system_errors import out_of_memory, typed, unavailable

if TYPE_CHECKING:
    import duckdb

TABLE = "t"
_UNKNOWN_TABLE = "Catalog Error: Table with name"
_OUT_OF_TIME = "exceeded maximum execution time"
_INTERRUPTED = "INTERRUPT Error"
_OUT_OF_REACH = "IO Error:"
_NO_FILES = "Too many open files"
_DENIED = "Permission denied"
# What DuckDB says about the question, whatever names are in it.
_ABOUT_THE_QUERY = ("Binder Error:", "Catalog Error:", "Conversion Error:", "Parser Error:", "Permission Error:")
# These words quote a query or what is in it, and so say nothing of the machine.
_QUOTING = (*_ABOUT_THE_QUERY, "Invalid Input Error:")
# Bounds in Parquet leave NaN out (the format says so), and DuckDB believes them unless told: rows with NaN, which it
# sorts above all numbers like us, would vanish from `f > 100` and appear in `f < 100`.
_OPTIONS = "union_by_name = true, can_have_nan = true"
# Of every file DuckDB knows its place in the list and the place of each row in it, whatever it skips of them.
_WITHOUT_DELETED = (
    "AS split ANTI JOIN tidemark_deleted AS gone ON split.file_index = gone.file AND split.file_row_number = gone.row"
)
# As the catalogue has them: asked of the view itself, they would be read from every file once more.
_TYPES = "SELECT data_type FROM duckdb_columns() WHERE table_name = ? AND NOT internal ORDER BY column_index"
_PLACES = frozenset({"file_index", "file_row_number"})
_DELETED = pa.schema([("file", pa.uint64()), ("row", pa.int64())])


@dataclass(frozen=True, slots=True)
class Source:
    """What `t` is made of: rows in memory, or files of splits, of which some have rows that are deleted."""

    rows: pa.Table
    splits: tuple[tuple[Add, Path], ...] = ()
    deleted: pa.Table | None = None

    @property
    def files(self) -> list[Path]:
        """The files that the session may open."""
        return [path for _, path in self.splits]

    def bind(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Create the view `t`: the columns of the table in its order, null where a split has none.

        Raises `InvalidInput` where a column of a split has another type than in the table.
        """
        template = connection.from_arrow(self.rows)
        if not self.splits:
            template.create_view(TABLE)
            return
        template.create_view("tidemark_template")
        sources = " UNION ALL BY NAME ".join(["FROM tidemark_template", *self._parts(connection)])
        connection.execute(f"CREATE VIEW {TABLE} AS {sources}")
        types = [each for (each,) in connection.execute(_TYPES, [TABLE]).fetchall()]
        if types[: len(template.types)] != [str(each) for each in template.types]:
            _require_types(self.splits, self.rows.schema)

    def _parts(self, connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
        """What to select from: the files without deleted rows, and the others."""
        whole = [path for add, path in self.splits if add.deleted_rows is None]
        marked = [path for add, path in self.splits if add.deleted_rows is not None]
        if whole:
            yield f"FROM {_parquet(whole)}"
        if marked:
            connection.from_arrow(self.deleted).create_view("tidemark_deleted")
            yield f"FROM {_parquet(marked)} {_WITHOUT_DELETED}"


def splits_source(store: ObjectStore, splits: Sequence[Add], schema: pa.Schema, *, verified: Verified) -> Source:
    """Return the splits as a source of rows.

    Every split is verified against its action before it is used, and again when its file is another than the one that
    `verified` remembers: its length and checksum. One read of the file on a local store, one GET per split elsewhere.
    Raises `Corrupt` for a split that is not what was written, `SnapshotExpired` when it is gone. Rows that a deletion
    vector hides are never among the source's; one GET per vector that is stored.
    """
    paths = {add.path: path for add in splits if (path := verified.path(store, add)) is not None}
    if splits and not (len(paths) == len(splits) and _can_stream(splits, schema)):
        return Source(pa.concat_tables(conform_split(read_split(store, add), schema) for add in splits))
    marked = [add for add in splits if add.deleted_rows is not None]
    found = tuple((add, paths[add.path]) for add in splits)
    return Source(schema.empty_table(), found, _deleted(store, marked) if marked else None)


@contextmanager
def query_errors(
    query: str,
    splits: Sequence[Add] = (),
    limits: QueryLimits | None = None,
    *,
    files: Iterable[tuple[Add, Path]] = (),
) -> Iterator[None]:
    """Turn DuckDB's errors into Tidemark's.

    `SnapshotExpired` where one of the files of splits is named and gone, `Unavailable` where a limit, memory or a file
    is out of reach, `Corrupt` where a split is named, else `InvalidInput`.
    """
    import duckdb

    with typed(shortened(query, 500)):
        try:
            yield
        except (duckdb.Error, OSError) as error:  # a stream of batches wraps each of them, and keeps the text only
            # DuckDB takes a path that is gone for a folder, in which it may read nothing.
            lost = next((add for add, path in files if add.path in str(error) and not path.exists()), None)
            raise _typed(error, query, splits, limits) if lost is None else expired_split(lost) from error


def _typed(error: Exception, query: str, splits: Sequence[Add], limits: QueryLimits | None) -> TidemarkError:
    text, shown_query = str(error), shown(query)
    quotes = text.startswith(_QUOTING)
    if ((_OUT_OF_TIME in text and not quotes) or text.startswith(_INTERRUPTED)) and limits is not None:
        left = f"; {STILL_RUNNING}, and its memory and spill come free when it ends" if STILL_RUNNING in text else ""
        advice = "ask for less, or raise `seconds` (--seconds)"
        found = f"{shown_query}: it took longer than {limits.seconds:g} seconds{left}; {advice}"
        return Unavailable(found, query=query, seconds=limits.seconds)
    if out_of_memory(error) and limits is not None:
        found = f"it needs more than `memory_bytes` = {limits.memory_bytes} and `spill_bytes` = {limits.spill_bytes}"
        advice = "ask for less, or raise them (--memory-mib, --spill-mib), or try again later"
        return Unavailable(f"{shown_query}: {found}: {text}; {advice}", query=query)
    if _NO_FILES in text and not quotes:
        return unavailable(shown_query, OSError(errno.EMFILE, text))
    # Also of a split: its bytes were sound a moment ago.
    if out_of_memory(error) or text.startswith(_OUT_OF_REACH) or (_DENIED in text and not quotes):
        return Unavailable(f"{shown_query}: {text}; try again later, or ask for less", query=query)
    broken = None if text.startswith(_ABOUT_THE_QUERY) else _named(text, query, splits)
    if broken is not None:
        return Corrupt(f"{broken}: cannot be read: {text}", key=broken)
    if text.startswith(_UNKNOWN_TABLE):  # DuckDB would offer tables of its own
        text = f"{text.partition(chr(10))[0]} A query calls the table {TABLE}, and reads no other"
    return InvalidInput(f"{shown_query}: {text}", query=query)


def _named(text: str, query: str, splits: Sequence[Add]) -> str | None:
    """The split that an error names, other than because the query does."""
    return next((add.path for add in splits if add.path in text and add.path not in query), None)


def _can_stream(splits: Sequence[Add], schema: pa.Schema) -> bool:
    """A column called like one of DuckDB's own hides it, and with it the places of rows in their files."""
    return _PLACES.isdisjoint(map(str.lower, schema.names)) or all(add.deleted_rows is None for add in splits)


def _require_types(splits: Sequence[tuple[Add, Path]], schema: pa.Schema) -> None:
    """Where columns have several types DuckDB casts all of them to one that holds each, and says nothing.

    Of a split that others wrote the types are theirs: Parquet has several for some of the table's.
    """
    for add, path in splits:
        if add.xxh3 is not None:
            try:
                conform_split(pq.read_schema(path).remove_metadata().empty_table(), schema)
            except InvalidInput as error:
                raise InvalidInput(f"{add.path}: {error}", **error.context) from error


def _deleted(store: ObjectStore, marked: Sequence[Add]) -> pa.Table:
    """The deleted rows of every file, which is given by its place in the list."""
    rows = [positions(deleted_rows(store, add)) for add in marked]
    files = np.repeat(np.arange(len(rows), dtype=np.uint64), [len(each) for each in rows])
    return pa.table([pa.array(files), pa.array(np.concatenate(rows))], schema=_DELETED)


def _parquet(paths: Sequence[Path]) -> str:
    """Files as a table of SQL. Their names are quoted texts of it, for a variable could be read by the query."""
    names = ", ".join("'" + literally(path).replace("'", "''") + "'" for path in paths)
    return f"read_parquet([{names}], {_OPTIONS})"
