"""The splits of a page that a scan would read, by what the catalogue knows of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from storage_core.catalog.answers import FoundSplit, record
from storage_core.catalog.known import Known
from storage_core.catalog.rows import files_of, texts_of
from storage_core.read.column_names import in_columns
from storage_core.read.predicate import And, Compare, Comparison, Predicate
from storage_core.read.pruning import prune_table
from storage_core.rows.schema import from_schema_string

if TYPE_CHECKING:
    from storage_core.read.predicate import Filter

Times = tuple[dt.datetime | None, dt.datetime | None]


def pruned(
    rows: Sequence[Mapping[str, Any]], known: Known, times: Times, given: Filter | str | None
) -> Iterator[FoundSplit]:
    """Yield those of the rows of `splits` that may hold a row of these times and of the filter."""
    schema, config, columns = from_schema_string(known.schema_string), known.config, known.columns
    conditions = [*_within(schema, config.time_column, times), *_filtered(given, schema)]
    predicate = And(tuple(conditions)) if conditions else None
    files = files_of(rows, columns)
    kept = prune_table(
        files, predicate, schema=schema, time_column=config.time_column, partition_by=config.partition_fields
    )
    names = columns.names
    for row, keep in zip(rows, kept.keep.to_pylist(), strict=True):
        if keep:
            bounds = {name: texts_of(row[name], names) for name in ("min_values", "max_values")}
            yield record(FoundSplit, row, **bounds)


def _filtered(given: Filter | str | None, schema: pa.Schema) -> list[Predicate]:
    if given is None:
        return []
    from storage_core.read.scan import require_sound, wanted_filter  # and DuckDB, which a range of times does not need

    wanted = wanted_filter(given)
    if wanted is None:
        return []
    require_sound(wanted, schema)
    found = in_columns(wanted.predicate, schema.names)
    return [] if found is None else [found]


def _within(schema: pa.Schema, time_column: str | None, times: Times) -> Iterator[Predicate]:
    if time_column is None:
        return
    naive = schema.field(time_column).type.tz is None
    for comparison, time in zip((Comparison.GE, Comparison.LT), times, strict=True):
        if time is not None:
            yield Compare(time_column, comparison, time.replace(tzinfo=None) if naive else time)
