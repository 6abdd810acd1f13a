"""Which splits may ever be merged with each other: the six-part compatibility scope (CS-1)."""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.log.actions import Add
from storage_core.rows.sort_order import nameless


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
