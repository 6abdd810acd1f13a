"""Whether a file is the split that the log names: its bytes, its format, and what its footer says of itself."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from storage_core.errors import Corrupt, InvalidInput, Unsupported
from storage_core.log.actions import Add
from storage_core.log.schema_registry import schema_hash
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.columns import stored_name
from storage_core.rows.schema import from_schema_string, to_schema_string
from storage_core.rows.vectors import VECTOR, is_vector, listed
from storage_core.split.metadata import FORMAT, PREFIX


def whole_file(store: ObjectStore, add: Add) -> bytes:
    """Return the bytes of a split. One GET. Raises `Corrupt` when size or xxh3-64 are not those of the log."""
    data = store.get(add.path).data
    if len(data) != add.size:
        raise Corrupt(f"{add.path}: expected {add.size} bytes, found {len(data)}", key=add.path)
    found = xxhash.xxh3_64_hexdigest(data)
    if add.xxh3 is not None and found != add.xxh3:
        raise Corrupt(f"{add.path}: expected xxh3-64 {add.xxh3}, found {found}", key=add.path)
    return data


def require_known_format(add: Add, metadata: Mapping[str, str]) -> None:
    """Raise `Unsupported` for a split of a newer format."""
    written = metadata.get(PREFIX + "format", FORMAT)
    if written != FORMAT:
        raise Unsupported(f"{add.path}: split format {written!r}, this release reads {FORMAT}; upgrade", key=add.path)


def columns_of(add: Add, columns: pa.Schema, metadata: Mapping[str, str]) -> pa.Schema:
    """Return the columns of a file, those as vectors that are some in the schema that it records of its table."""
    columns = columns.remove_metadata()
    text = metadata.get(PREFIX + "table_schema", "")
    if VECTOR not in text:
        return columns
    try:
        recorded = from_schema_string(text)
    except InvalidInput as error:
        raise Corrupt(f"{add.path}: the schema that it records cannot be read: {error}", key=add.path) from error
    types = {stored_name(field): field.type for field in recorded if is_vector(field.type)}
    return pa.schema(
        [
            field.with_type(types[field.name]) if field.type == listed(types.get(field.name, pa.null())) else field
            for field in columns
        ]
    )


def require_itself(add: Add, metadata: Mapping[str, str], schema: pa.Schema, footer: pq.FileMetaData) -> None:
    """Raise `Corrupt` unless the footer agrees with the log, and with itself, in columns, path and rows.

    Where the log has no checksum of it, what it says twice must agree: a damaged name would lose a column.
    """
    recorded = metadata.get(PREFIX + "schema_hash")
    if recorded is not None and recorded != _schema_hash(add, schema):
        raise Corrupt(f"{add.path}: the columns {schema.names} are not those that were written", key=add.path)
    claimed = metadata.get(PREFIX + "path")
    if claimed is not None and claimed != add.path:
        raise Corrupt(f"{add.path}: the object there says that it is {claimed}", key=add.path)
    rows = sum(footer.row_group(index).num_rows for index in range(footer.num_row_groups))
    expected = footer.num_rows if add.numRecords is None else add.numRecords
    if not rows == footer.num_rows == expected:
        raise Corrupt(f"{add.path}: expected {expected} rows, the file has {rows}", key=add.path)


def _schema_hash(add: Add, schema: pa.Schema) -> str:
    try:
        return schema_hash(to_schema_string(schema))
    except InvalidInput as error:
        raise Corrupt(f"{add.path}: no table can have its columns: {error}", key=add.path) from error
