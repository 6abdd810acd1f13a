"""What a caller gives to import: the source in any of its forms, and what the table is to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from storage_core.definition import key_columns
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.importing.source import Source, Stream
from storage_core.rows import sort_schema as sort_schemas
from storage_core.rows.incoming import is_stream
from storage_core.rows.sort_order import TIME_ONLY
from storage_core.rows.windows import parse_duration
from storage_core.settings.table import TableConfig


def source_of(given: object, *, name: str | None, version: int | None) -> Source:
    """Return the source that is given: the place of a Delta table or of a folder of Parquet files, or Arrow data.

    A place is a Delta table where it has a `_delta_log`. Raises `InvalidInput` for what is none of these, for Arrow
    data without a `name`, and for a `version` of what has none; and what the source raises.
    """
    if isinstance(given, Stream):
        _refuse_version(version, given.name)
        return given
    if isinstance(given, str | Path):
        return _at(str(given), version)
    if not is_stream(given) and not isinstance(given, pa.Table | pa.RecordBatch):
        raise InvalidInput(
            "an import takes the place of a folder or a Delta table, or a stream of Arrow data such as a relation of "
            f"DuckDB; found {type(given).__name__}: append rows of other kinds"
        )
    if name is None:
        raise InvalidInput(
            "Arrow data does not say what it is: give the import a name, by which it is known when it runs again"
        )
    _refuse_version(version, "Arrow data")
    rows = pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else given
    return Stream.of(rows, f"the rows of {quoted(name)}", identity=name)


def _at(place: str, version: int | None) -> Source:
    from storage_core.importing.delta import delta_table, is_delta
    from storage_core.importing.folder import folder_of

    if is_delta(place):
        return delta_table(place, version)
    _refuse_version(version, "a folder of Parquet files")
    return folder_of(place)


def _refuse_version(version: int | None, what: str) -> None:
    if version is not None:
        raise InvalidInput(f"version {version}: {what} has no versions; a Delta table has, with its _delta_log")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """What the table is to be; None is what it is, or what `Table.create` makes of None."""

    time_column: str | None = None
    window: str | int | None = None
    sort_schema: str | None = None
    primary_key: str | Sequence[str] | None = None

    def require_same(self, config: TableConfig, uri: str) -> None:
        """Return when a table that exists is that. Raises `InvalidInput` naming the first thing that it is not."""
        for what, wanted, found in self._compared(config):
            if wanted is not None and wanted != found:
                raise InvalidInput(
                    f"{uri}: the table exists, and its {what} is {found!r}, not {wanted!r}; leave it out, or import "
                    "into a new table",
                    uri=uri,
                )

    def _compared(self, config: TableConfig) -> list[tuple[str, object, object]]:
        key = None if self.primary_key is None else key_columns(self.primary_key)
        order, found = self.sort_schema, config.sort_schema
        if order is not None:
            ours = sort_schemas.parse(order, config.time_column)
            if sort_schemas.equivalent(ours, sort_schemas.parse(found or TIME_ONLY)):
                order = None
        return [
            ("time_column", self.time_column, config.time_column),
            ("window", None if self.window is None else parse_duration(self.window), config.window_seconds),
            ("sort_schema", order, found),
            ("primary_key", key, config.primary_key),
        ]


AS_IT_IS = TableOptions()
