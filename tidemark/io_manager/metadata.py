"""What Dagster itself shows of a table, by the names that it has for it."""

from __future__ import annotations

from typing import Any

from dagster import MetadataValue, TableColumn, TableColumnConstraints, TableSchema

from storage_core.rows.vectors import type_text
from storage_core.table import Table

TABLE_METADATA = frozenset({"dagster/uri", "dagster/table_name", "dagster/column_schema", "dagster/row_count"})
"""Its keys; of a keyed table without the last one."""


def table_metadata(table: Table, name: str) -> dict[str, MetadataValue[Any]]:
    """Return the place, name and columns of a table, and of an append table the number of its rows.

    How many rows a keyed table has only a read of its keys tells. No request.
    """
    columns = [
        TableColumn(each.name, type_text(each.type), constraints=TableColumnConstraints(nullable=each.nullable))
        for each in table.schema
    ]
    rows = {} if table.config.primary_key else {"dagster/row_count": MetadataValue.int(table.snapshot.rows)}
    return {
        "dagster/uri": MetadataValue.text(table.uri),
        "dagster/table_name": MetadataValue.text(name),
        "dagster/column_schema": MetadataValue.table_schema(TableSchema(columns)),
        **rows,
    }
