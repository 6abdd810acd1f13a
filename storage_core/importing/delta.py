"""A Delta table, read by delta-rs: its rows without those that its deletion vectors hide."""

from __future__ import annotations

import os
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from storage_core.errors import InvalidInput, NotFound
from storage_core.extras import DELTA, needs
from storage_core.formats.keys import DELTA_PREFIX
from storage_core.importing.delta_escapes import has_misread_action, is_wide
from storage_core.importing.source import Stream
from storage_core.objectstore.resolve import check_location, open_store, scheme_of
from storage_core.objectstore.s3_location import parse_s3_uri

if TYPE_CHECKING:
    from deltalake import DeltaTable

_UNREAD = frozenset({"typeWidening", "typeWidening-preview", "vacuumProtocolCheck"})
"""Features of Delta's readers that delta-rs lacks and Spark has."""

_SESSION = {"datafusion.execution.parquet.coerce_int96": "us"}
"""Delta's times have microseconds. INT96 read in nanoseconds, as by default, overflows before 1677 and after 2262."""


def is_delta(uri: str) -> bool:
    """Return whether a place is the folder of a Delta table. One LIST."""
    return next(iter(open_store(uri).list(DELTA_PREFIX)), None) is not None


def delta_table(uri: str, version: int | None = None) -> Stream:
    """Return the rows of a Delta table at its newest version, or at another one.

    Deletion vectors, column mapping and partitions are read as Delta says, and times in microseconds. Credentials of S3
    are those of the environment. Raises `NotFound` for no such table or version, `InvalidInput` for a table that
    delta-rs does not read or misreads and for a type that no table has, `Unavailable` without the package.
    """
    check_location(uri)
    place, options = as_delta_has_it(uri)
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
        raise NotFound(f"{place}: there is no Delta table ({error})") from error
    except InvalidInput:
        raise
    except (DeltaError, OSError, ValueError) as error:
        needed = () if table is None else table.protocol().reader_features or ()
        if unread := sorted(_UNREAD.intersection(needed)):
            landing = f"{{uri: {open_store(uri).uri}, format: delta}}"
            raise InvalidInput(
                f"{place}: an import does not read a Delta table with the reader feature {' or '.join(unread)}. Spark "
                f"reads it: declare the table with `landing: {landing}` and ingest it.",
                uri=place,
                features=unread,
            ) from error
        at = "" if version is None else f" at version {version}"
        raise InvalidInput(f"{place}: the Delta table cannot be read{at}: {error}") from error
    found = Stream.of(stream, f"{place} at version {table.version()}", identity=f"delta:{place}")
    required = {each.name for each in columns if not each.nullable}
    schema = pa.schema([each.with_nullable(each.name not in required) for each in found.schema])
    return Stream(found.name, found.identity, f"{table.metadata().id}@{table.version()}", schema, found.reader)


def _require_read_rightly(table: DeltaTable, uri: str) -> None:
    r"""Raise `InvalidInput` if the log has text that delta-rs misreads. No request unless text is above U+FFFF."""
    if not _has_wide_text(table):
        return
    store = open_store(uri)
    if has_misread_action(store, table.version()):
        raise InvalidInput(
            f"{store.uri}: the Delta log has characters above U+FFFF as \\u escapes, which delta-rs misreads. Write a "
            "checkpoint of the Delta table with Spark, and import again.",
            uri=store.uri,
        )


def _has_wide_text(table: DeltaTable) -> bool:
    """Whether a name of a column, a value of a partition or a path has a character above U+FFFF, as it was read."""
    values = (value for each in table.partitions() for value in each.values())
    texts = chain((table.schema().to_json(),), table.metadata().partition_columns, values, table.file_uris())
    return any(is_wide(str(each)) for each in texts)


def as_delta_has_it(uri: str) -> tuple[str, dict[str, str]]:
    """Return a place as delta-rs takes it, and how to reach it."""
    if scheme_of(uri) != "s3":
        return open_store(uri).uri, {}
    location = parse_s3_uri(uri, os.environ)
    given = {"aws_endpoint": location.endpoint, "aws_region": location.region}
    options = {name: value for name, value in given.items() if value is not None}
    if location.endpoint is not None and location.endpoint.startswith("http:"):
        options["allow_http"] = "true"
    options["aws_virtual_hosted_style_request"] = str(not location.path_style).lower()
    return f"s3://{location.bucket}/{location.prefix}".rstrip("/"), options
