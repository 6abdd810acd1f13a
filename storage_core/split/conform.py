"""The rows of a split under the schema of its table, whichever earlier one they were written under."""

from __future__ import annotations

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.rows.columns import defaults, is_of_earlier, stored_name
from storage_core.rows.vectors import is_vector, listed, require_dimensions, type_text


def conform_split(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of `schema` in its order: dictionaries decoded, unknown ones left out.

    A column that the split lacks has its default, or is null; one that was narrower when the split was written is
    widened. Raises `InvalidInput` for a column of any other type than the schema's.
    """
    columns = dict(zip(table.column_names, table.columns, strict=True))
    found = (columns.get(stored_name(field)) for field in schema)
    return pa.table([_conformed(*each, table.num_rows) for each in zip(found, schema, strict=True)], schema=schema)


def _conformed(column: pa.ChunkedArray | None, field: pa.Field, rows: int) -> pa.ChunkedArray:
    if column is None:
        return pa.chunked_array([defaults(field, rows)])
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if is_vector(field.type) and column.type == listed(field.type):  # of a file that others wrote
        require_dimensions(column, field)
        column = column.cast(field.type)
    if column.type == field.type:
        return column
    if not is_of_earlier(column.type, field):
        raise InvalidInput(
            f"column {field.name!r} is {type_text(column.type)} in the split and {type_text(field.type)} in the table; "
            "the split was written under another schema",
            column=field.name,
        )
    return column.cast(field.type)
