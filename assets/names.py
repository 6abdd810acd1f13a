"""Names that Dagster, but not Tidemark, restricts. Free of Dagster, so that reading declarations does not load it."""

from __future__ import annotations


def identifier(table: str) -> str:
    """Return the table's name as Dagster's names may be, without dashes."""
    return table.replace("-", "_")
