"""Splits of a snapshot as a DuckDB relation named `t`, with the table's columns whatever a split holds.

DuckDB streams the Parquet files of a local store by itself, projecting and filtering inside them; objects of other
stores are read first. A session may read the given splits and nothing else: no other file, no network, no extension.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import xxhash

from storage_core.errors import SEE_CORRUPT, Corrupt, InvalidInput, Unavailable, Unsupported
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.split.read import conform_split, read_split

TABLE = "t"
_OUT_OF_REACH = ("Out of Memory Error:", "IO Error:")
_HASH_BLOCK_BYTES = 4 * 2**20
# Bounds in Parquet leave NaN out (the format says so), and DuckDB believes them unless told: rows with NaN, which it
# sorts above all numbers like us, would vanish from `f > 100` and appear in `f < 100`.
_SPLITS = "FROM read_parquet(getvariable('tidemark_paths'), union_by_name = true, can_have_nan = true)"


class Verified:
    """Remembers which splits were read whole and found to be what was written; splits are immutable, so once is enough.

    DuckDB checks neither length nor checksums of what it reads, and a flipped bit may come back as another value
    (lesson 61). So each file is hashed before DuckDB sees it for the first time.
    """

    def __init__(self) -> None:
        self._paths: set[str] = set()

    def path(self, store: ObjectStore, add: Add) -> Path | None:
        """Return the local file of a split that is sound, or None when the store has no file of it."""
        if add.rows_gone is not None:
            raise Unsupported(
                f"{add.path}: has a deletion vector, which this release cannot apply; upgrade", key=add.path
            )
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
    not what was written, `SnapshotExpired` when it is gone, `Unsupported` when rows of it are deleted by a vector.
    """
    template = connection.from_arrow(schema.empty_table())
    paths = [path for add in splits if (path := verified.path(store, add)) is not None]
    if not splits:
        relation = template
    elif len(paths) == len(splits):
        template.create_view("tidemark_template")
        connection.execute("SET VARIABLE tidemark_paths = ?", [[_literally(path) for path in paths]])
        connection.sql(_SPLITS).create_view("tidemark_splits")
        relation = connection.sql("FROM tidemark_template UNION ALL BY NAME FROM tidemark_splits")
    else:
        rows = [conform_split(read_split(store, add), schema) for add in splits]
        relation = connection.from_arrow(pa.concat_tables(rows))
    relation.create_view(TABLE)
    _confine(connection, paths)
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
            raise Corrupt(f"{broken}: cannot be read: {text}; {SEE_CORRUPT}", key=broken) from error
        raise InvalidInput(f"{query!r}: {text}", query=query) from error


def _require_sound(path: Path, add: Add) -> None:
    size = path.stat().st_size
    if size != add.size:
        raise Corrupt(f"{add.path}: {size} bytes, expected {add.size}; {SEE_CORRUPT}", key=add.path)
    if add.xxh3 is None:  # written by somebody else, who recorded none
        return
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    if digest.hexdigest() != add.xxh3:
        raise Corrupt(f"{add.path}: checksum {digest.hexdigest()}, expected {add.xxh3}; {SEE_CORRUPT}", key=add.path)


def _literally(path: Path) -> str:
    """The path as a pattern that matches nothing else: DuckDB expands `*`, `?` and `[` in file names."""
    return re.sub(r"[*?[]", r"[\g<0>]", str(path))


def _confine(connection: duckdb.DuckDBPyConnection, paths: Sequence[Path]) -> None:
    connection.execute("SET allowed_paths = ?", [[text for path in paths for text in {str(path), _literally(path)}]])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
