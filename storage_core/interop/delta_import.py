"""Read a Delta table with delta-rs. Rows in the table's deletion vectors are omitted."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from storage_core.base.errors import (
    DELTA,
    Corrupt,
    InvalidInput,
    NotFound,
    TidemarkError,
    needs,
    raise_refused,
    refusal_in,
)
from storage_core.data.formats.keys import DELTA_PREFIX
from storage_core.data.rows.incoming import reader_of
from storage_core.interop.import_files import Stream
from storage_core.store.contract import ObjectStore
from storage_core.store.resolve import check_location, open_store, scheme_of
from storage_core.store.s3_location import parse_s3_uri

if TYPE_CHECKING:
    from deltalake import DeltaTable

# delta-rs misreads a character above U+FFFF if the JSON of a Delta log contains two `\u` escapes for it.
#
# In every second Unicode plane, the JSON decoder of delta-rs joins the two `\u` escapes of a character to a wrong
# character. Python's `json.dumps` writes these escapes. Characters in UTF-8 and checkpoints in Parquet are read
# correctly.


_WIDE = re.compile("[\U00010000-\U0010ffff]")
_ESCAPED_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_FILE = re.compile(
    r"(?:[0-9]{20}\.)?(?P<version>[0-9]{20})"
    r"(?P<kind>\.json|\.compacted\.json|\.checkpoint(?:\.(?P<part>[0-9]{10})\.(?P<parts>[0-9]{10})|\.[0-9a-f-]{36})?"
    r"\.(?:parquet|json))",
    re.ASCII,
)
_OWN_JSON = ("stats", "tags")
"""Fields of an action that do not describe rows or file locations.

A read of all rows does not need these fields.
"""


def is_wide(text: str) -> bool:
    """Return whether the text has a character above U+FFFF."""
    return _WIDE.search(text) is not None


def log_actions(store: ObjectStore, version: int) -> Iterator[list[bytes]]:
    """Yield the lines of each JSON file of a Delta log up to a version, newest first.

    Files before the newest checkpoint are omitted. One LIST, and one GET per file when it is needed.
    """
    found = [(each, _FILE.fullmatch(each.removeprefix(DELTA_PREFIX))) for each in _names(store)]
    files = [(key, each, int(each["version"])) for key, each in found if each is not None]
    files = [(key, each, number) for key, each, number in files if number <= version]
    checkpoints = [(each, number) for _, each, number in files if each["kind"].startswith(".checkpoint")]
    parts: dict[tuple[int, str], int] = {}
    for each, number in checkpoints:
        given = each["parts"] or f"{1:010}"
        parts[number, given] = parts.get((number, given), 0) + 1
    base = max((number for (number, given), count in parts.items() if count >= int(given)), default=-1)
    for key, each, number in sorted(files, key=lambda file: file[2], reverse=True):
        if key.endswith(".json") and (number > base or (number == base and each["kind"].startswith(".checkpoint"))):
            yield [line for line in store.get(key).data.splitlines() if line.strip()]


def has_misread_action(store: ObjectStore, version: int) -> bool:
    """Return whether delta-rs misreads the columns, a partition or a file of the table at a version."""
    return any(is_misread(line) for lines in log_actions(store, version) for line in lines)


def is_misread(line: bytes) -> bool:
    """Return whether delta-rs decodes an action to other text than its JSON line contains."""
    if _ESCAPED_PAIR.search(line) is None:
        return False
    return _action(line) != _action(_as_delta_rs_reads(line))


def _names(store: ObjectStore) -> Iterator[str]:
    return (info.key for info in store.list(DELTA_PREFIX))


def _action(line: bytes) -> dict[str, Any]:
    action: dict[str, Any] = json.loads(line, strict=False)
    action.pop("commitInfo", None)
    for each in action.values():
        if isinstance(each, dict):
            for name in _OWN_JSON:
                each.pop(name, None)
    return action


def _as_delta_rs_reads(line: bytes) -> bytes:
    r"""Replace each escaped surrogate pair in a line by the character that delta-rs reads, and return the line.

    A pair whose first backslash is itself escaped by a backslash is not changed.
    """

    def read(found: re.Match[bytes]) -> bytes:
        if found[1] is None:
            return found[0]
        high, low = int(found[1][2:6], 16), int(found[1][8:12], 16)
        return chr(0x10000 | (high - 0xD800) << 10 | (low - 0xDC00)).encode()

    return re.sub(rb"(" + _ESCAPED_PAIR.pattern + rb")|\\.", read, line)


_UNREAD = frozenset({"typeWidening", "typeWidening-preview", "vacuumProtocolCheck"})
"""Reader features of Delta that Spark supports and delta-rs does not."""

_VECTOR_FILE = re.compile(r"deletion_vector_[0-9a-f-]{36}\.bin")
_RESTORE = "Restore the file, or import another version with --version"

_SESSION = {"datafusion.execution.parquet.coerce_int96": "us"}
"""The unit of INT96 times. Delta uses microseconds. The default, nanoseconds, overflows before 1677 and after 2262."""


def is_delta(uri: str) -> bool:
    """Return whether a location is the folder of a Delta table. One LIST."""
    return next(iter(open_store(uri).list(DELTA_PREFIX)), None) is not None


def delta_table(uri: str, version: int | None = None) -> Stream:
    """Return the rows of a Delta table at a version.

    Deletion vectors, column mapping and partitions are read as Delta defines them. Times are read in microseconds.
    Credentials of S3 come from the environment.

    Args:
        uri: Location of the Delta table.
        version: Version to read. None means the newest version.

    Raises:
        NotFound: There is no such table or version. If a data file is missing, the stream raises this error.
        InvalidInput: delta-rs cannot read the table or misreads it, or a type is not supported.
        Unavailable: The package is missing.
    """
    check_location(uri)
    place, options = to_deltalake_location(uri)
    with needs(DELTA, "reading a Delta table"):
        from deltalake import DeltaTable, QueryBuilder
        from deltalake.exceptions import DeltaError, TableNotFoundError
    table = None
    try:
        table = DeltaTable(place, version=version, storage_options=options)
        _require_read_rightly(table, uri)
        stream: Any = QueryBuilder(_SESSION).register("source", table).execute("SELECT * FROM source")
        columns = pa.schema(table.schema())
    except TableNotFoundError as error:
        raise NotFound(f"{place}: there is no Delta table here. Check the location") from error
    except InvalidInput:
        raise
    except (DeltaError, OSError, ValueError) as error:
        needed = () if table is None else table.protocol().reader_features or ()
        if unread := sorted(_UNREAD.intersection(needed)):
            landing = f"{{uri: {open_store(uri).uri}, format: delta}}"
            raise InvalidInput(
                f"{place}: an import does not read a Delta table with the reader feature {' or '.join(unread)}. "
                f"Spark can read this table. Declare the table with `landing: {landing}`, then ingest.",
                uri=place,
                features=unread,
            ) from error
        at = "" if version is None else f" at version {version}"
        raise InvalidInput(f"{place}: the Delta table cannot be read{at}: {_fault_of_log(error, version)}") from error
    reader = reader_of(stream)
    stream = pa.RecordBatchReader.from_batches(reader.schema, _batches(reader, table, place))
    found = Stream.of(stream, f"{place} at version {table.version()}", identity=f"delta:{place}")
    required = {each.name for each in columns if not each.nullable}
    schema = pa.schema([each.with_nullable(each.name not in required) for each in found.schema])
    return Stream(found.name, found.identity, f"{table.metadata().id}@{table.version()}", schema, found.reader)


def _fault_of_log(error: Exception, version: int | None) -> str:
    """Return the fault of a Delta log that delta-rs cannot open, and how to fix it.

    The text of the delta-rs error is not shown.
    """
    if refused := refusal_in(str(error)):
        return f"{refused.strerror}. Check the location and its permissions"
    if version is not None and "version" in str(error).lower():
        return "the Delta log does not have this version. Give a version in the log, or leave --version out"
    return "a file of the Delta log is missing or damaged. Restore the log, or import another version with --version"


def _batches(reader: pa.RecordBatchReader, table: DeltaTable, place: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of the reader. Raises `NotFound` for a missing file, and `Corrupt` for a damaged file."""
    try:
        yield from reader
    except Exception as error:  # delta-rs may raise any error
        if (name := _missing_file(table, place)) is not None:
            raise NotFound(
                f"{place}: the data file {name} is missing. {_RESTORE}",
                uri=place,
                file=name,
            ) from error
        vector = _VECTOR_FILE.search(str(error))
        if vector is not None:
            raise NotFound(
                f"{place}: the deletion vector {vector[0]} is missing or damaged. {_RESTORE}", uri=place, file=vector[0]
            ) from error
        raise_refused(place, error)
        raise Corrupt(
            f"{place}: a data file or a deletion vector of the Delta table is damaged", advice=_RESTORE, uri=place
        ) from error


def _missing_file(table: DeltaTable, place: str) -> str | None:
    """Return the path of a data file that does not exist, or None. Files outside the table are not checked.

    One HEAD per file, up to the first file that does not exist.
    """
    store, root = open_store(place), table.table_uri.removeprefix("file://").rstrip("/")
    roots = (f"{root}/", f"{unquote(root)}/")  # delta-rs escapes a local table's location, but not its files
    for uri in sorted(each.removeprefix("file://") for each in table.file_uris()):
        name = next((uri.removeprefix(each) for each in roots if uri.startswith(each)), None)
        try:
            if name is not None:
                store.head(name)
        except NotFound:
            return name
        except TidemarkError:  # the error of the later read is more precise than the error of this HEAD
            continue
    return None


def _require_read_rightly(table: DeltaTable, uri: str) -> None:
    r"""Raise `InvalidInput` if the log has text that delta-rs misreads.

    Makes requests only if a text has a character above U+FFFF.
    """
    if not _has_wide_text(table):
        return
    store = open_store(uri)
    if has_misread_action(store, table.version()):
        raise InvalidInput(
            f"{store.uri}: the Delta log has escaped characters above U+FFFF, which the Delta reader cannot read "
            "correctly. Write a checkpoint of the Delta table with Spark, and import again.",
            uri=store.uri,
        )


def _has_wide_text(table: DeltaTable) -> bool:
    """Return whether a column name, a partition value or a path of the read table has a character above U+FFFF."""
    values = (value for each in table.partitions() for value in each.values())
    texts = chain((table.schema().to_json(),), table.metadata().partition_columns, values, table.file_uris())
    return any(is_wide(str(each)) for each in texts)


def to_deltalake_location(uri: str) -> tuple[str, dict[str, str]]:
    """Return a location in the form that delta-rs accepts, and the storage options for delta-rs."""
    if scheme_of(uri) != "s3":
        return open_store(uri).uri, {}
    location = parse_s3_uri(uri, os.environ)
    given = {"aws_endpoint": location.endpoint, "aws_region": location.region}
    options = {name: value for name, value in given.items() if value is not None}
    if location.endpoint is not None and location.endpoint.startswith("http:"):
        options["allow_http"] = "true"
    options["aws_virtual_hosted_style_request"] = str(not location.path_style).lower()
    return f"s3://{location.bucket}/{location.prefix}".rstrip("/"), options
