"""Which splits may ever be merged with each other: the six-part compatibility scope (design page 04, CS-1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from storage_core.config import TableConfig
from storage_core.errors import InvalidInput
from storage_core.log.actions import Add
from storage_core.rows import sort_schema
from storage_core.rows.sort_order import SortOrder, bind


@dataclass(frozen=True, slots=True)
class Scope:
    """Two splits are compatible exactly when their scopes are equal; whether they meet is then up to their windows.

    `schema_ref` names a family of union-compatible schemas, not the exact columns: a split that lacks a new column is
    compatible (MC-4). `sort_schema` is the recorded text without its name, which means nothing to the order.
    """

    table_id: str
    source_id: str
    partition_id: str
    schema_ref: str
    sort_schema: str
    window_seconds: int | None


def scope_of(table_id: str, add: Add) -> Scope | None:
    """Return the scope of a split; None for one without a recorded sort schema, which is never compacted (CS-1)."""
    if add.sortSchema is None:
        return None
    return Scope(
        table_id=table_id,
        source_id=add.sourceId or "",
        partition_id=add.partitionId or "",
        schema_ref=add.docMappingRef or "",
        sort_schema=nameless(add.sortSchema),
        window_seconds=add.windowSeconds,
    )


def nameless(text: str) -> str:
    """Return a recorded sort schema without its name; orders by key, or none at all, have no name."""
    try:
        return replace(sort_schema.parse(text), name=None).text
    except InvalidInput:
        return text


def recorded_order(text: str, config: TableConfig, schema: pa.Schema) -> SortOrder | None:
    """Return the order that a split was written in, whatever the table's is now; None when it no longer binds.

    Splits keep the sort schema they were written with, but a column it names may have left the table since.
    """
    current = bind(config, schema)
    if nameless(current.text) == nameless(text):
        return current
    try:
        order = bind(replace(config, sort_schema=nameless(text)), schema)
    except InvalidInput:
        return None
    return order if nameless(order.text) == nameless(text) else None
