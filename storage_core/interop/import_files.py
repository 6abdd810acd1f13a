"""Folders of Parquet files as a source for imports, and streams of Arrow data.

`folder_files` lists a folder, local or on S3. The function determines the files to import, and reports all other files.
`folder_of` reads all footers before the first row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from storage_core.base.errors import InvalidInput, NotFound, TidemarkError, damaged_file_error, unavailable
from storage_core.data.formats.keys import DELTA_PREFIX, short_hash
from storage_core.data.rows.incoming import ArrowStream, pieces_of, reader_of
from storage_core.interop.column_union import Union, as_held, fitted, require_fits
from storage_core.store.contract import ObjectInfo, Unnamed
from storage_core.store.meter import prefetch
from storage_core.store.resolve import is_missing, open_store
from storage_core.write.ingest.landing import MOST_NAMES, LandedFile, open_bytes, printable_name
from storage_core.write.ingest.parquet_files import Int96Columns, footer_of, valid_batches

SUFFIXES = (".parquet", ".parq", ".pq")
"""Endings of the names of Parquet files, in upper or lower case."""

_ICEBERG = re.compile(r"metadata/[^/]*\.metadata\.json")
_TIDEMARK = re.compile(r"(?:.*/)?_transaction_log/[0-9]{20}\.json", re.DOTALL)


@dataclass(frozen=True, slots=True)
class NotRead:
    """Files that are not read: their number, and the first names with the reasons. The names are printable."""

    count: int = 0
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The Parquet files by path, and the other files of the folder."""

    files: Sequence[LandedFile]
    not_read: NotRead


def folder_files(uri: str) -> FolderFiles:
    """Return the files in a folder, at any depth.

    Empty files and files with other names are omitted. Parquet files are also omitted if the name or the folder starts
    with `.` or `_`. Unfinished files have names that start with `.` or `_`. Other files whose names start with `.` or
    `_`, for example `_SUCCESS`, are not counted.

    Raises:
        InvalidInput: The name of a Parquet file cannot be read, or the folder contains an Iceberg or Tidemark table.

    Cost:
        One LIST per 1,000 objects.
    """
    store = open_store(uri)
    files: list[LandedFile] = []
    count, names = 0, dict[str, str]()
    for each in store.browse():
        name = each.key if isinstance(each, ObjectInfo) else each.name
        if _ICEBERG.fullmatch(name):
            raise InvalidInput(
                f"{store.uri}: the folder is an Iceberg table, and its files can contain deleted rows. Import a "
                "query that reads the table",
                uri=store.uri,
            )
        if _TIDEMARK.fullmatch(name):
            raise InvalidInput(
                f"{store.uri}: the folder contains a Tidemark table, and its files can contain deleted rows. Copy the "
                "table with `tidemark clone --deep`",
                uri=store.uri,
            )
        reason = _why_not_read(each, name, store.uri)
        if reason is None and isinstance(each, ObjectInfo):
            files.append(LandedFile(name, each.size, store.uri, each.last_modified_ms, each.etag))
        elif reason:
            count += 1
            if count <= MOST_NAMES:
                names[printable_name(name)] = reason
    return FolderFiles(sorted(files, key=lambda file: file.path), NotRead(count, names))


def _why_not_read(found: ObjectInfo | Unnamed, name: str, uri: str) -> str | None:
    """Return None for a file to read, and the reason for a file that is not read.

    The reason is empty for a file that is not counted.
    """
    is_parquet = name.casefold().endswith(SUFFIXES)
    if any(part.startswith((".", "_")) for part in name.split("/")):
        return "its name, or the name of a folder above it, begins with . or _" if is_parquet else ""
    if isinstance(found, Unnamed):
        if is_parquet and not found.may_hold_more:
            raise InvalidInput(
                f"{uri}/{printable_name(name)}: {found.reason}. Rename the file.", file=printable_name(name)
            )
        return found.reason
    if not is_parquet:
        return f"the file name does not end in {', '.join(SUFFIXES)}"
    return None if found.size else "the file is empty"


_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Footer:
    """One file with the columns and the number of rows in its footer."""

    file: LandedFile
    found: Int96Columns
    rows: int

    @property
    def columns(self) -> pa.Schema:
        """The columns of a new table with these rows."""
        return self.found.columns


@dataclass(frozen=True, slots=True)
class Folder:
    """Parquet files, which may have different columns. See `folder_of`."""

    name: str
    footers: Sequence[Footer]
    not_read: NotRead

    @property
    def schema(self) -> pa.Schema:
        """The union of the columns of all files. Raises `InvalidInput` with the file, the column and the types."""
        union = Union()
        for each in self.footers:
            union.add(each.columns, _where(each.file))
        return union.schema()

    @property
    def identity(self) -> str:
        """The location as text."""
        return f"parquet:{self.name}"

    @property
    def content(self) -> str:
        """A hash of the names, sizes and ETags of the files."""
        return short_hash(json.dumps([[each.file.path, each.file.size, each.file.etag] for each in self.footers]))

    @property
    def files(self) -> int:
        """The number of files."""
        return len(self.footers)

    def require_fits(self, schema: pa.Schema) -> None:
        """Raise `InvalidInput` unless the columns of each file can become the columns of a table.

        The error contains the file.
        """
        for each in self.footers:
            require_fits(each.found.fitting(schema), schema, _where(each.file))

    def rows(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows file by file and batch by batch. Raises `Corrupt` for a changed or damaged file."""
        for each in self.footers:
            yield from _rows(each, schema)


def folder_of(uri: str) -> Folder:
    """Return the Parquet files below a location, with their footers.

    Raises:
        InvalidInput: The folder has no Parquet file, or is the folder of a Delta table. Or the name of a folder has a
            column (`day=2024-01-01`) that its files lack. Also raises the errors of `folder_files`.
        Corrupt: A file is damaged. The error names the file.

    Cost:
        One LIST per 1,000 objects. One HEAD and one or two GETs per file, eight files at a time.
    """
    store = open_store(uri)
    if is_missing(uri):
        raise NotFound(f"{store.uri}: there is no such file or folder. Correct the location")
    if next(iter(store.list(DELTA_PREFIX)), None) is not None:
        raise InvalidInput(
            f"{store.uri}: the folder is a Delta table, and its files can contain deleted rows. Import the "
            "folder as a Delta table"
        )
    landed = folder_files(uri)
    if not landed.files:
        raise InvalidInput(
            f"{store.uri}: no file below it has a name that ends in {', '.join(SUFFIXES)}. "
            "Correct the location, or rename the files"
        )
    known: dict[Int96Columns, Int96Columns] = {}  # most files have equal columns and share one object
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
        raise unavailable(_where(file), error) from error
    except TidemarkError as error:
        text = f"{_where(file)}: {error.found}"
        if "logical_type" in error.context:  # the file is valid
            raise InvalidInput(f"{text}.", **{**error.context, "file": file.path}) from error
        raise error.reworded(text, file=file.path) from error
    return Footer(file, found, rows)


def _require_columns_of_folders(footer: Footer) -> None:
    known = {name.casefold() for name in footer.columns.names}
    for part in footer.file.path.split("/")[:-1]:
        name, equals, _ = part.partition("=")
        if equals and name.casefold() not in known:
            raise InvalidInput(
                f"{_where(footer.file)}: the folder is {part!r}, but the file has no column {name!r}. Import a "
                "DuckDB query that reads the folder names and the files: read_parquet('…/**/*.parquet', "
                "hive_partitioning = true)",
                file=_where(footer.file),
                column=name,
            )


def _rows(footer: Footer, schema: pa.Schema) -> Iterator[pa.Table]:
    where, read = _where(footer.file), 0
    try:
        with open_bytes(footer.file) as stream:
            check = partial(_require_same, footer.found.fitting(schema))
            for batch in valid_batches(footer.file.path, stream, check, schema):
                yield fitted(pa.Table.from_batches([batch]), schema)
                read += batch.num_rows
    except OSError as error:
        raise unavailable(where, error) from error
    except TidemarkError as error:
        if isinstance(error, InvalidInput):  # the error is about one row of the batch
            raise error.reworded(f"{where}: {error.found} (add {read} to the row number)", file=where) from error
        raise error.reworded(f"{where}: {error.found}", file=where) from error
    if read != footer.rows:
        raise damaged_file_error(f"{where}: {read} rows were read, but its footer has {footer.rows}", file=where)


def _require_same(columns: pa.Schema, found: pa.Schema) -> None:
    if not found.equals(columns):
        raise damaged_file_error("changed while it was being imported")


@dataclass(frozen=True, slots=True)
class Stream:
    """Arrow data, or an object with a stream of Arrow data, such as a DuckDB relation.

    The stream can be read only once.
    """

    name: str
    identity: str
    content: str
    schema: pa.Schema
    reader: pa.RecordBatchReader
    files: int = 0
    not_read: NotRead = NotRead()  # `NotRead` is frozen

    @staticmethod
    def of(rows: ArrowStream, name: str, *, identity: str, content: str = "") -> Stream:
        """Return the source. Raises `InvalidInput` for a column with an unsupported type."""
        reader = reader_of(rows)
        return Stream(name, identity, content, as_held(reader.schema, name), reader)

    def require_fits(self, schema: pa.Schema) -> None:
        """Raise `InvalidInput` unless the columns can become the columns of a table."""
        require_fits(self.reader.schema, schema, self.name)

    def rows(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows in pieces of about 64 MiB."""
        first = 0
        for piece in pieces_of(self.reader):
            try:
                yield fitted(piece, schema)
            except TidemarkError as error:
                raise error.reworded(f"{self.name}: {error.found} (add {first} to the row number)") from error
            first += piece.num_rows
