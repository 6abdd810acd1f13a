"""Dagster failures for typed errors, and Dagster metadata for tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dagster import Failure, MetadataValue, TableColumn, TableColumnConstraints, TableSchema

from storage_core.base.errors import TidemarkError
from storage_core.data.rows.vectors import type_text
from storage_core.table import Table

# After one of these errors, a later run of the same step may succeed. Other kinds of errors occur in every run until a
# person fixes the cause of the error.
_WORTH_A_RETRY = frozenset({"conflict", "held", "unavailable", "outcome_unknown", "snapshot_expired"})


def failure_arguments(kind: str, message: str) -> dict[str, Any]:
    """Return the arguments of a Dagster `Failure` for an error of this kind.

    The argument `allow_retries` affects only assets with a `RetryPolicy`. The assets of users can have a `RetryPolicy`,
    but Tidemark's assets have no `RetryPolicy`. With a policy, Dagster would also retry a step after a person
    interrupts it (docs/architecture/orchestration.md).
    """
    return {
        "description": f"{kind}: {message}",
        "metadata": {"kind": kind, "message": message},
        "allow_retries": kind in _WORTH_A_RETRY,
    }


@contextmanager
def typed_failures() -> Iterator[None]:
    """Convert a `TidemarkError` inside the block into a `Failure`.

    The event log then shows the kind and message of the error.
    """
    try:
        yield
    except TidemarkError as error:
        raise Failure(**failure_arguments(error.kind, str(error))) from error


# Metadata of tables.


TABLE_METADATA = frozenset({"dagster/uri", "dagster/table_name", "dagster/column_schema", "dagster/row_count"})
"""The keys of `table_metadata`. A keyed table does not have the key `dagster/row_count`."""


def table_metadata(table: Table, name: str) -> dict[str, MetadataValue[Any]]:
    """Return the location, name and columns of a table.

    For an append table, also return the number of rows. Cost: no request.

    For a keyed table, return no number of rows. Only a read of all keys can count the rows of a keyed table.
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
