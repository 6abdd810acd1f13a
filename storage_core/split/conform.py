"""The rows of a split under the schema of its table."""

from __future__ import annotations

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.rows.vectors import is_vector, listed, require_dimensions, type_text


def conform_split(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of `schema` in its order: missing ones all null, dictionaries decoded, unknown ones left out.

    Raises `InvalidInput` for a column whose type is another one than the schema's.
    """
    return pa.table([_conform_column(table, field) for field in schema], schema=schema)


def _conform_column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    column = table.column(field.name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if is_vector(field.type) and column.type == listed(field.type):  # of a file that others wrote
        require_dimensions(column, field)
        column = column.cast(field.type)
    if column.type != field.type:
        raise InvalidInput(
            f"column {field.name!r} is {type_text(column.type)} in the split and {type_text(field.type)} in the "
            "table; "
            "the split was written under another schema",
            column=field.name,
        )
    return column
