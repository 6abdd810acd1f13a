"""The split files that DuckDB may read, and the translation of DuckDB's errors.

`VerifiedFiles` remembers the local files that were verified. `query_errors` converts the errors of DuckDB and of its
sandbox to Tidemark's errors.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import xxhash

from storage_core.base.errors import (
    Corrupt,
    InvalidInput,
    TidemarkError,
    Unavailable,
    out_of_memory,
    typed,
    unavailable,
)
from storage_core.base.limits import QueryLimits
from storage_core.base.text import did_you_mean, names_of, quoted, shortened, unknown_names
from storage_core.engine.faults import fault_of
from storage_core.engine.sandbox.process import OutOfTime, SandboxEnded
from storage_core.engine.statement import TABLE, shown, unknown_table
from storage_core.log.actions import Add
from storage_core.store.contract import ObjectStore
from storage_core.store.pieces import NOT_CACHED, CachedPieces, KeptValues

if TYPE_CHECKING:
    from storage_core.index.segment_reader import BitmapParts
    from storage_core.split.fetch import Footers


_HASH_BLOCK_BYTES = 4 * 2**20
_VECTOR_BYTES = 64 * 2**20
_TAIL = 8
"""The bytes after the footer of a Parquet file: the length of the footer and the magic number."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The columns of some splits, according to their footers. `VerifiedFiles` creates one instance per distinct schema.

    `schema` is the Arrow schema, or None if it cannot be determined.
    """

    schema: pa.Schema | None


UNKNOWN: Final = Columns(None)
"""The columns of splits for which the schema cannot be determined. Splits with unknown columns may have different
columns.
"""


@dataclass(frozen=True, slots=True)
class _Sound:
    path: Path
    identity: tuple[int, ...]
    columns: Columns


class VerifiedFiles:
    """The verified splits of one store. Splits are immutable, so it is sufficient to verify the whole file once.

    DuckDB does not check the length or the checksums of files. Therefore a flipped bit can change a value without an
    error (lesson 61). For this reason, each file is hashed before DuckDB reads it for the first time. The object stores
    the device, the inode, the size and the change times of the file. Before each use of the file, the object compares
    these stored values with the current values. If one of these values differs, the file is hashed again.

    For splits that are not local files, an instance caches recently read footers and columns of bitmap indexes. Footers
    and columns are fetched through `cached`.
    """

    def __init__(self, cached: CachedPieces = NOT_CACHED) -> None:
        self.cached = cached
        self._files: dict[str, _Sound] = {}
        self._columns: dict[bytes, Columns] = {}

    @cached_property
    def footers(self) -> Footers:
        """The cache of the footers of splits."""
        from storage_core.split.fetch import Footers  # it imports Parquet

        return Footers(self.cached)

    @cached_property
    def vectors(self) -> KeptValues:
        """The cache of deletion vectors, and of values that are computed from them."""
        return KeptValues(_VECTOR_BYTES)

    @cached_property
    def bitmaps(self) -> BitmapParts:
        """The cache for columns of the splits' bitmap indexes."""
        from storage_core.index.segment_reader import BitmapParts

        return BitmapParts(self.footers.cached)

    def path(self, store: ObjectStore, add: Add) -> Path | None:
        """Return the verified local file of a split, or None if the store has no file of the split."""
        known = self._files.get(add.path)
        if known is not None and _is(known):
            return known.path
        path = store.local_path(add.path)
        if path is None:
            return path
        try:
            found = _identity(path)
            verify_file(path, add)
            self._files[add.path] = _Sound(path, found, self._columns_in(path))
        except FileNotFoundError:  # the file was just removed, and the read raises the same error as for other stores
            return None
        except OSError as error:
            raise Unavailable(f"{add.path}: {error.strerror}. Try again later", key=add.path) from error
        return path

    def is_known(self, add: Add) -> bool:
        """Return whether the whole local file of a split was already read."""
        return add.path in self._files

    def columns(self, add: Add) -> Columns:
        """Return the columns of a split according to its footer.

        An earlier call of `path` must have returned the split's file.
        """
        return self._files[add.path].columns

    def recheck(self, store: ObjectStore, splits: Iterable[tuple[Add, Path]]) -> None:
        """Raise `Corrupt` if a file that was just read differs from what was written."""
        for add, _ in splits:
            self.path(store, add)

    def _columns_in(self, path: Path) -> Columns:
        """Return the columns of a verified file.

        Arrow parses the footer only if no earlier footer started with the same schema.
        """
        import pyarrow.parquet as pq  # opening a table does not need this import

        from storage_core.data.formats.parquet_footer import schema_bytes

        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            length = int.from_bytes(file.read(_TAIL)[:4], "little")
            file.seek(max(0, file.tell() - _TAIL - length))
            footer = file.read(length)
        seen = self._columns.copy()  # an atomic copy: another thread may add entries at any time
        known = next((columns for start, columns in seen.items() if footer.startswith(start)), None)
        if known is not None:
            return known
        start = schema_bytes(footer)
        if start is None:
            return UNKNOWN
        try:
            return self._columns.setdefault(start, Columns(pq.read_schema(path).remove_metadata()))
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            return UNKNOWN


def verify_file(path: Path, add: Add) -> None:
    """Raise `Corrupt` if the length or the checksum of the file is wrong. Also raises the errors of the file system."""
    size = path.stat().st_size
    if size != add.size:
        raise Corrupt(f"{add.path}: expected {add.size} bytes, found {size}", key=add.path)
    if add.xxh3 is None:  # another writer recorded no checksum
        return
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    if digest.hexdigest() != add.xxh3:
        raise Corrupt(f"{add.path}: expected xxh3-64 {add.xxh3}, found {digest.hexdigest()}", key=add.path)


def _is(known: _Sound) -> bool:
    """Return whether the file is still the file that was verified.

    If the identity of the file cannot be read, the file is verified again.
    """
    try:
        return _identity(known.path) == known.identity
    except OSError:
        return False


def _identity(path: Path) -> tuple[int, ...]:
    found = os.stat(path)  # noqa: PTH116  # half the time of its like in pathlib, for each split of each query
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


_UNKNOWN_TABLE = re.compile(r"Catalog Error: Table with name (.+?) does not exist")
_OUT_OF_REACH = "IO Error:"
_NO_FILES = "Too many open files"
_DENIED = "Permission denied"
# Errors of DuckDB about the query and its names.
_ABOUT_THE_QUERY = ("Binder Error:", "Catalog Error:", "Conversion Error:", "Parser Error:", "Permission Error:")
# These errors quote the query or a part of it, so their text does not contain details of the machine.
_QUOTING = (*_ABOUT_THE_QUERY, "Invalid Input Error:")
_UNKNOWN_COLUMN = re.compile(
    r'Binder Error: (?:Referenced column "(.+)" not found in FROM clause!|.* does not have a column named "(.+)")'
)
_CANDIDATES = "Candidate bindings:"


@contextmanager
def query_errors(
    query: str,
    splits: Sequence[Add] = (),
    limits: QueryLimits | None = None,
    *,
    files: Iterable[tuple[Add, Path]] = (),
    columns: Sequence[str] = (),
    tables: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[None]:
    """Convert DuckDB's errors in the block to Tidemark's errors.

    Args:
        query: The query, or its purpose if `columns` are given. Messages contain it.
        splits: The splits that the query reads.
        limits: The limits of the query.
        files: The local files of the splits.
        columns: The columns of the table, for a statement that was made from a condition or from expressions. Messages
            then name columns of the table and do not contain the purpose.
        tables: The columns of the tables that a query reads, by the name of the table.

    Raises:
        SnapshotExpired: The error names the file of a split, and the file no longer exists.
        Unavailable: The query exceeds a limit, memory is exhausted, or a file cannot be opened.
        Corrupt: The error names a split, and the file differs from the written file.
        InvalidInput: Any other error.
    """
    import duckdb

    with typed(shortened(query, 500)):
        try:
            yield
        except OutOfTime as error:
            raise _out_of_time(query, limits or QueryLimits()) from error
        except SandboxEnded as error:
            raise _process_ended(query, limits or QueryLimits(), str(error)) from error
        except (duckdb.Error, OSError) as error:  # a stream of batches keeps only the text of DuckDB and OS errors
            # If a file was removed, DuckDB assumes that the path is a folder and reports that folders are forbidden.
            named = [(add, path) for add, path in files if add.path in str(error)]
            lost = next((add for add, path in named if not path.exists()), None)
            if lost is not None:
                from storage_core.split.verification import expired_split  # only needed if a file is removed

                raise expired_split(lost) from error
            found: TidemarkError | None = _unknown_column(str(error), query, columns, tables or {})
            if found is None:
                found = _typed(error, query, splits, limits, columns=columns, tables=tables or {})
            if isinstance(found, Corrupt) and any(add.xxh3 is not None for add, _ in named):
                for add, path in named:  # an error may also contain the path as a value
                    verify_file(path, add)
                found = _about_the_query(str(error), query, columns)
            raise found from error


def _out_of_time(query: str, limits: QueryLimits) -> Unavailable:
    advice = "Query less data, or raise `seconds` (--seconds)"
    found = f"{shown(query)}: the query took longer than {limits.seconds:g} seconds. {advice}"
    return Unavailable(found, query=query, seconds=limits.seconds)


def _process_ended(query: str, limits: QueryLimits, how: str) -> Unavailable:
    found = (
        f"the process of the query ended ({how}). Probably it needed much more than `memory_bytes` = "
        f"{limits.memory_bytes}"
    )
    return Unavailable(f"{shown(query)}: {found}. Query less data, or raise the limit (--memory-mib)", query=query)


def _unknown_column(
    text: str, query: str, columns: Sequence[str], tables: Mapping[str, Sequence[str]]
) -> InvalidInput | None:
    unknown = _UNKNOWN_COLUMN.match(text)
    if unknown is None:
        return None
    name = unknown[1] or unknown[2]
    known = columns or (next(iter(tables.values())) if len(tables) == 1 else ())
    if known:
        found = unknown_names("column", [name], known)
    else:
        has = "".join(f". The table {each} has {names_of(names)}" for each, names in tables.items())
        candidates = re.findall(r'"([^"]+)"', text.partition(_CANDIDATES)[2])
        found = f"unknown column {quoted(name)}{has}{did_you_mean(name, candidates)}"
    return InvalidInput(found, query=query, columns=[name])


def _about_the_query(text: str, query: str, columns: Sequence[str]) -> InvalidInput:
    """Return the error for a fault in a query, or in a condition or expression of a statement."""
    fault = fault_of(text, is_condition=bool(columns))
    return InvalidInput(fault if columns else f"the query {shown(query)} cannot be run: {fault}", query=query)


def _typed(
    error: Exception,
    query: str,
    splits: Sequence[Add],
    limits: QueryLimits | None,
    *,
    columns: Sequence[str],
    tables: Mapping[str, Sequence[str]],
) -> TidemarkError:
    text, shown_query = str(error), shown(query)
    quotes = text.startswith(_QUOTING)
    if out_of_memory(error) and limits is not None:
        found = (
            f"the query needs more than `memory_bytes` = {limits.memory_bytes} and `spill_bytes` = {limits.spill_bytes}"
        )
        advice = "Query less data, or raise them (--memory-mib, --spill-mib), or try again later"
        return Unavailable(f"{shown_query}: {found}. {advice}", query=query)
    if _NO_FILES in text and not quotes:
        return unavailable(shown_query, OSError(errno.EMFILE, text))
    # These errors do not mean that a split is damaged, because the bytes of the split were just verified.
    if out_of_memory(error) or text.startswith(_OUT_OF_REACH) or (_DENIED in text and not quotes):
        why = "the memory is exhausted" if out_of_memory(error) else "a file cannot be read"
        return Unavailable(f"{shown_query}: {why}. Try again later, or query less data", query=query)
    broken = None if text.startswith(_ABOUT_THE_QUERY) else _named(text, query, splits)
    if broken is not None:
        return Corrupt(f"{broken}: the file is not a valid Parquet file", key=broken)
    unknown = _UNKNOWN_TABLE.match(text)
    if unknown is not None:  # DuckDB's error would suggest tables that DuckDB uses internally
        return unknown_table(unknown[1], [*tables] or [TABLE], query)
    return _about_the_query(text, query, columns)


def _named(text: str, query: str, splits: Sequence[Add]) -> str | None:
    """Return the path of the split whose path occurs in the text of an error.

    Return None if the query itself contains the path.
    """
    return next((add.path for add in splits if add.path in text and add.path not in query), None)
