"""A folder of Parquet files, local or on S3: every footer is looked at before a row is read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from storage_core.errors import InvalidInput, TidemarkError, Unavailable, unsound
from storage_core.formats.keys import DELTA_PREFIX
from storage_core.formats.short_hash import short_hash
from storage_core.importing.folder_files import SUFFIXES, NotRead, folder_files
from storage_core.importing.union import Union, fitted, require_fits
from storage_core.ingest.int96 import Int96Columns
from storage_core.ingest.landing import LandedFile, open_bytes
from storage_core.ingest.parquet_files import footer_of, sound_batches
from storage_core.objectstore.prefetch import prefetch
from storage_core.objectstore.resolve import open_store

_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Footer:
    """One file, and what its footer says: its columns and how many rows it has."""

    file: LandedFile
    found: Int96Columns
    rows: int

    @property
    def columns(self) -> pa.Schema:
        """The columns as a new table has them."""
        return self.found.columns


@dataclass(frozen=True, slots=True)
class Folder:
    """Parquet files, which need not have the same columns. See `folder_of`."""

    name: str
    footers: Sequence[Footer]
    not_read: NotRead

    @property
    def schema(self) -> pa.Schema:
        """The columns that all files have together. Raises `InvalidInput` naming file, column and types."""
        union = Union()
        for each in self.footers:
            union.add(each.columns, _where(each.file))
        return union.schema()

    @property
    def identity(self) -> str:
        """The place."""
        return f"parquet:{self.name}"

    @property
    def content(self) -> str:
        """Names, sizes and ETags of the files."""
        return short_hash(json.dumps([[each.file.path, each.file.size, each.file.etag] for each in self.footers]))

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(self.footers)

    def require_fits(self, schema: pa.Schema) -> None:
        """Return when the columns of each file can become those of a table. Raises `InvalidInput` naming the file."""
        for each in self.footers:
            require_fits(each.found.fitting(schema), schema, _where(each.file))

    def rows(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows file by file, a batch at a time. Raises `Corrupt` for a file that changed or is damaged."""
        for each in self.footers:
            yield from _rows(each, schema)


def folder_of(uri: str) -> Folder:
    """Return the Parquet files below a place, of which the footers were read.

    Raises `InvalidInput` for a folder without such a file, for files in folders that are named after a column
    (`day=2024-01-01`), which the files lack, for the folder of a Delta table, and as `folder_files` does; `Corrupt`
    naming a damaged file. One LIST per 1,000 objects, and a HEAD and a GET or two per file, eight at a time.
    """
    store = open_store(uri)
    if next(iter(store.list(DELTA_PREFIX)), None) is not None:
        raise InvalidInput(
            f"{store.uri}: is a Delta table. Import it as a Delta table, because the files alone do not show which "
            "rows are live"
        )
    landed = folder_files(uri)
    if not landed.files:
        raise InvalidInput(f"{store.uri}: no file below it has a name that ends in {', '.join(SUFFIXES)}")
    known: dict[Int96Columns, Int96Columns] = {}  # most files have one of a few
    footers = []
    for each in prefetch(_footer, landed.files, _AT_ONCE):
        _require_columns_of_folders(each)
        footers.append(replace(each, found=known.setdefault(each.found, each.found)))
    return Folder(store.uri, footers, landed.not_read)


def _where(file: LandedFile) -> str:
    return f"{file.uri.partition('?')[0]}/{file.path}"


def _footer(file: LandedFile) -> Footer:
    try:
        with open_bytes(file) as stream:
            found, rows = footer_of(file.path, stream)
    except OSError as error:
        raise Unavailable(f"{_where(file)}: {error}", file=file.path) from error
    except TidemarkError as error:
        text = f"{_where(file)}: {error.found}"
        if "logical_type" in error.context:  # the file is not damaged
            raise InvalidInput(f"{text}.", **{**error.context, "file": file.path}) from error
        raise error.reworded(text, file=file.path) from error
    return Footer(file, found, rows)


def _require_columns_of_folders(footer: Footer) -> None:
    known = {name.casefold() for name in footer.columns.names}
    for part in footer.file.path.split("/")[:-1]:
        name, equals, _ = part.partition("=")
        if equals and name.casefold() not in known:
            raise InvalidInput(
                f"{_where(footer.file)}: its folder says {part!r}, and the file has no column {name!r}; import a query "
                "of DuckDB that reads both: read_parquet('…/**/*.parquet', hive_partitioning = true)",
                file=_where(footer.file),
                column=name,
            )


def _rows(footer: Footer, schema: pa.Schema) -> Iterator[pa.Table]:
    where, read = _where(footer.file), 0
    try:
        with open_bytes(footer.file) as stream:
            check = partial(_require_same, footer.found.fitting(schema))
            for batch in sound_batches(footer.file.path, stream, check, schema):
                yield fitted(pa.Table.from_batches([batch]), schema)
                read += batch.num_rows
    except OSError as error:
        raise Unavailable(f"{where}: {error}", file=where) from error
    except TidemarkError as error:
        if isinstance(error, InvalidInput):  # of one row of the batch
            raise error.reworded(f"{where}: {error.found} (rows are counted from row {read})", file=where) from error
        raise error.reworded(f"{where}: {error.found}", file=where) from error
    if read != footer.rows:
        raise unsound(f"{where}: {read} rows were read, its footer says {footer.rows}", file=where)


def _require_same(columns: pa.Schema, found: pa.Schema) -> None:
    if not found.equals(columns):
        raise unsound("changed while it was being imported")
