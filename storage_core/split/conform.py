"""The rows of a split under the schema of its table."""

from __future__ import annotations

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.rows.vectors import is_vector, listed, require_dimensions, type_text


def conform_split(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of `schema` in its order: missing ones all null, dictionaries decoded, unknown ones left out.

    Raises `InvalidInput` for a column whose type is another one than the schema's.
    """
    columns = dict(zip(table.column_names, table.columns, strict=True))
    return pa.table([_conformed(columns.get(field.name), field, table.num_rows) for field in schema], schema=schema)


def _conformed(column: pa.ChunkedArray | None, field: pa.Field, rows: int) -> pa.ChunkedArray:
    if column is None:
        return pa.chunked_array([pa.nulls(rows, field.type)])
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if is_vector(field.type) and column.type == listed(field.type):  # of a file that others wrote
        require_dimensions(column, field)
        column = column.cast(field.type)
    if column.type != field.type:
        raise InvalidInput(
            f"column {field.name!r} is {type_text(column.type)} in the split and {type_text(field.type)} in the table; "
            "the split was written under another schema",
            column=field.name,
        )
    return column
