"""Splits of a snapshot as a DuckDB relation named `t`, with the table's columns whatever a split holds.

DuckDB streams the Parquet files of a local store by itself, projecting and filtering inside them; objects of other
stores are read first. A session may read the given splits and nothing else: no other file, no network, no extension.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from storage_core.errors import Corrupt, InvalidInput, Unavailable
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.split.read import conform_split, read_split
from storage_core.split.vectors import positions, rows_gone

TABLE = "t"
_UNKNOWN_TABLE = "Catalog Error: Table with name"
_OUT_OF_REACH = ("Out of Memory Error:", "IO Error:")
_HASH_BLOCK_BYTES = 4 * 2**20
# Bounds in Parquet leave NaN out (the format says so), and DuckDB believes them unless told: rows with NaN, which it
# sorts above all numbers like us, would vanish from `f > 100` and appear in `f < 100`.
_OPTIONS = "union_by_name = true, can_have_nan = true"
_SPLITS = f"FROM read_parquet(getvariable('tidemark_paths'), {_OPTIONS})"
# Of every file DuckDB knows its place in the list and the place of each row in it, whatever it skips of them.
_MARKED = (
    f"FROM read_parquet(getvariable('tidemark_marked_paths'), {_OPTIONS}) AS split ANTI JOIN tidemark_gone AS gone "
    "ON split.file_index = gone.file AND split.file_row_number = gone.row"
)
_PLACES = frozenset({"file_index", "file_row_number"})
_GONE = pa.schema([("file", pa.uint64()), ("row", pa.int64())])


class Verified:
    """Remembers which splits were read whole and found to be what was written; splits are immutable, so once is enough.

    DuckDB checks neither length nor checksums of what it reads, and a flipped bit may come back as another value
    (lesson 61). So each file is hashed before DuckDB sees it for the first time.
    """

    def __init__(self) -> None:
        self._paths: set[str] = set()

    def path(self, store: ObjectStore, add: Add) -> Path | None:
        """Return the local file of a split that is sound, or None when the store has no file of it."""
        path = store.local_path(add.path)
        if path is None or add.path in self._paths:
            return path
        try:
            _require_sound(path, add)
        except FileNotFoundError:  # it went just now; reading it says so like for every other store
            return None
        except OSError as error:
            raise Unavailable(f"{add.path}: {error.strerror}; try again later", key=add.path) from error
        self._paths.add(add.path)
        return path


def session() -> duckdb.DuckDBPyConnection:
    """Return an in-memory DuckDB in UTC that installs and loads nothing on its own."""
    connection = duckdb.connect(
        config={"autoinstall_known_extensions": False, "autoload_known_extensions": False, "threads": 2}
    )
    connection.execute("LOAD icu")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def splits_relation(
    connection: duckdb.DuckDBPyConnection,
    store: ObjectStore,
    splits: Sequence[Add],
    schema: pa.Schema,
    *,
    verified: Verified,
) -> duckdb.DuckDBPyRelation:
    """Create the view `t` over the splits and return it. Columns come in schema order; missing ones are null.

    Every split is verified against its action before it is used, once per `verified`, which remembers: its length and
    checksum. One read of the file on a local store, one GET per split elsewhere. Raises `Corrupt` for a split that is
    not what was written, `SnapshotExpired` when it is gone, `InvalidInput` where a column has another type than in the
    table. Rows that a deletion vector hides are never among the view's; one GET per vector that is stored.
    """
    template = connection.from_arrow(schema.empty_table())
    paths = {add.path: path for add in splits if (path := verified.path(store, add)) is not None}
    if not splits:
        relation = template
    elif len(paths) == len(splits) and _can_stream(splits, schema):
        template.create_view("tidemark_template")
        views = ["tidemark_template", *_stream(connection, store, splits, paths)]
        relation = connection.sql(" UNION ALL BY NAME ".join(f"FROM {view}" for view in views))
        if relation.types[: len(template.types)] != template.types:
            _require_types([(add, paths[add.path]) for add in splits], schema)
    else:
        rows = [conform_split(read_split(store, add), schema) for add in splits]
        relation = connection.from_arrow(pa.concat_tables(rows))
    relation.create_view(TABLE)
    _confine(connection, [*paths.values()])
    return connection.view(TABLE)


def rows_relation(connection: duckdb.DuckDBPyConnection, rows: pa.Table) -> duckdb.DuckDBPyRelation:
    """Create the view `t` over rows in memory and return it."""
    relation = connection.from_arrow(rows)
    relation.create_view(TABLE)
    _confine(connection, [])
    return connection.view(TABLE)


@contextmanager
def query_errors(query: str, splits: Sequence[Add] = ()) -> Iterator[None]:
    """Turn DuckDB's errors into Tidemark's.

    `Unavailable` where memory or a file is out of reach, `Corrupt` where a split is named, else `InvalidInput`.
    """
    try:
        yield
    except (duckdb.Error, OSError) as error:  # a stream of batches wraps each of them, and keeps the text only
        text = str(error)
        if text.startswith(_OUT_OF_REACH):  # also of a split: its bytes were sound a moment ago
            raise Unavailable(f"{query!r}: {text}; try again later, or ask for less", query=query) from error
        broken = next((add.path for add in splits if add.path in text), None)
        if broken is not None:
            raise Corrupt(f"{broken}: cannot be read: {text}", key=broken) from error
        if text.startswith(_UNKNOWN_TABLE):  # DuckDB would offer tables of its own
            text = f"{text.partition(chr(10))[0]} A query calls the table {TABLE}, and reads no other"
        raise InvalidInput(f"{query!r}: {text}", query=query) from error


def _can_stream(splits: Sequence[Add], schema: pa.Schema) -> bool:
    """A column called like one of DuckDB's own hides it, and with it the places of rows in their files."""
    return _PLACES.isdisjoint(map(str.lower, schema.names)) or all(add.rows_gone is None for add in splits)


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


def _stream(
    connection: duckdb.DuckDBPyConnection, store: ObjectStore, splits: Sequence[Add], paths: Mapping[str, Path]
) -> Iterator[str]:
    """Create the views over the files and yield their names: one of files without deleted rows, one of the others."""
    whole = [add for add in splits if add.rows_gone is None]
    marked = [add for add in splits if add.rows_gone is not None]
    if whole:
        connection.execute("SET VARIABLE tidemark_paths = ?", [[_literally(paths[add.path]) for add in whole]])
        connection.sql(_SPLITS).create_view("tidemark_splits")
        yield "tidemark_splits"
    if marked:
        connection.execute("SET VARIABLE tidemark_marked_paths = ?", [[_literally(paths[add.path]) for add in marked]])
        connection.from_arrow(_gone(store, marked)).create_view("tidemark_gone")
        connection.sql(_MARKED).create_view("tidemark_marked")
        yield "tidemark_marked"


def _gone(store: ObjectStore, marked: Sequence[Add]) -> pa.Table:
    """The deleted rows of every file, which is given by its place in the list."""
    rows = [positions(rows_gone(store, add)) for add in marked]
    files = np.repeat(np.arange(len(rows), dtype=np.uint64), [len(each) for each in rows])
    return pa.table([pa.array(files), pa.array(np.concatenate(rows))], schema=_GONE)


def _require_sound(path: Path, add: Add) -> None:
    size = path.stat().st_size
    if size != add.size:
        raise Corrupt(f"{add.path}: {size} bytes, expected {add.size}", key=add.path)
    if add.xxh3 is None:  # written by somebody else, who recorded none
        return
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    if digest.hexdigest() != add.xxh3:
        raise Corrupt(f"{add.path}: checksum {digest.hexdigest()}, expected {add.xxh3}", key=add.path)


def _literally(path: Path) -> str:
    """The path as a pattern that matches nothing else: DuckDB expands `*`, `?` and `[` in file names."""
    return re.sub(r"[*?[]", r"[\g<0>]", str(path))


def _confine(connection: duckdb.DuckDBPyConnection, paths: Sequence[Path]) -> None:
    connection.execute("SET allowed_paths = ?", [[text for path in paths for text in {str(path), _literally(path)}]])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
