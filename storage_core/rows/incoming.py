"""Rows as callers hand them over: objects of Python, or Arrow data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.rows.exact import exact_array

Rows: TypeAlias = Mapping[str, object] | Sequence[Mapping[str, object]] | pa.Table | pa.RecordBatch


def table_of(rows: Rows, schema: pa.Schema) -> pa.Table:
    """Return the rows as an Arrow table; one mapping is one row.

    Mappings become columns of the table's types, in its order; columns that no row gives are left out, and a row that
    does not give a column has null. Arrow data stays as it is: `rows.schema.conform` checks it. Raises `InvalidInput`
    naming a column that the table does not have, or whose values would not be kept exactly (`rows.exact`).
    """
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    listed = [rows] if isinstance(rows, Mapping) else _listed(rows)
    if not listed:
        return schema.empty_table()
    names: set[str] = set().union(*listed)
    unknown = sorted(names - set(schema.names))
    if unknown:
        raise InvalidInput(f"unknown columns {unknown}; the table has {schema.names}", columns=unknown)
    fields = [each for each in schema if each.name in names]
    return pa.Table.from_arrays([_column(listed, each) for each in fields], names=[each.name for each in fields])


def require_each_once(names: Sequence[str]) -> None:
    """Raise `InvalidInput` naming the columns that occur more than once, of which all but one would be lost."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidInput(f"the columns {repeated} occur more than once; pass each column once", columns=repeated)


def _listed(rows: object) -> list[Mapping[str, object]]:
    listed = list(rows) if isinstance(rows, Iterable) else []
    if isinstance(rows, Iterable) and all(isinstance(each, Mapping) for each in listed):
        return listed
    raise InvalidInput(
        f"rows are mappings of column to value, or Arrow data, found {type(rows).__name__}; "
        "make Arrow data of a data frame by pa.Table.from_pandas(frame, preserve_index=False)"
    )


def _column(rows: Sequence[Mapping[str, object]], field: pa.Field) -> pa.Array:
    try:
        return exact_array([row.get(field.name) for row in rows], field.type)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(
            f"column {field.name!r}: a value does not fit the type {field.type}: {error}", column=field.name
        ) from error
