"""Whether an index of vectors can be built, and what its options say."""

from __future__ import annotations

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.rows.vectors import is_vector, type_text
from storage_core.settings.index import IndexDefinition
from storage_core.settings.vector_options import VectorOptions


def validate(definition: IndexDefinition, schema: pa.Schema) -> None:
    """Return only when the index can be built over tables of `schema`; raises `InvalidInput`.

    It covers one column, of vectors.
    """
    options_of(definition)
    if len(definition.columns) != 1:
        raise InvalidInput(
            f"index {definition.name!r}: vectors are indexed by one column, found {list(definition.columns)}; "
            "define an index for each"
        )
    (column,) = definition.columns
    kind = schema.field(column).type
    if not is_vector(kind):
        raise InvalidInput(
            f"index {definition.name!r}: column {column!r} holds no vectors, it is {type_text(kind)}; a vector "
            "column is pa.list_(pa.float32(), d) in Arrow, vector(d) in a declaration"
        )


def options_of(definition: IndexDefinition) -> VectorOptions:
    """Return the options of the index. Raises `InvalidInput`."""
    return VectorOptions.of(definition.name, definition.options)
