"""What columns were when the table lost them: a restore that brings one back makes it as wide as rows of it were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from storage_core.rows.columns import COLUMN_ID, column_id, stored_name, with_entries
from storage_core.rows.schema import from_schema_string, to_schema_string

DROPPED: Final = "tidemark.droppedColumns"
"""The setting of a changed table that has the columns which are no more, by their stored names, as a schema string."""


def dropped_columns(configuration: Mapping[str, str]) -> dict[int, pa.Field]:
    """Return the columns that the table lost, as they were last, by their ids. Raises `InvalidInput`."""
    text = configuration.get(DROPPED)
    fields = () if text is None else from_schema_string(text)
    return {number: field for field in fields if (number := column_id(field)) is not None}


def with_dropped(configuration: Mapping[str, str], before: pa.Schema, after: pa.Schema) -> dict[str, str]:
    """Return the settings with the columns that the table loses from one schema, which has ids, to the other."""
    kept = {column_id(field) for field in after}
    lost: dict[int | None, pa.Field] = dict(dropped_columns(configuration).items())
    lost |= {column_id(field): _as_stored(field) for field in before}
    gone = [field for number, field in lost.items() if number not in kept]
    others = {name: value for name, value in configuration.items() if name != DROPPED}
    return others | ({DROPPED: to_schema_string(pa.schema(gone))} if gone else {})


def _as_stored(field: pa.Field) -> pa.Field:
    return with_entries(field.with_name(stored_name(field)), {COLUMN_ID: str(column_id(field))})
