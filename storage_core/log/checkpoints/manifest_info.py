"""What the root of a state says about a manifest, from the entries that it lists."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.formats.avro_state import ManifestInfo
from storage_core.log.files.columns import ManifestBounds
from storage_core.log.snapshot import Snapshot
from storage_core.rows.map_lookup import map_column
from storage_core.rows.partitions import value_schema
from storage_core.rows.sortable import bound_keys


def manifest_info(path: str, table: pa.Table, snapshot: Snapshot) -> ManifestInfo:
    """Return the root's line about one manifest of these entries of the snapshot: versions, windows, partitions."""
    versions = pc.min_max(table.column("addedAtVersion"))
    schema = partition_schema(snapshot)
    is_exact = bool(snapshot.config.partition_by)
    bounds = bounds_of(table, schema=schema, partition_columns=schema.names, is_exact=is_exact)
    return ManifestInfo(
        path=path,
        num_entries=table.num_rows,
        min_added_at_version=versions["min"].as_py(),
        max_added_at_version=versions["max"].as_py(),
        partition_bounds=bounds.partitions or None,
        windows=bounds.windows,
        window_seconds=bounds.window_seconds,
        without_window=table.column("windowStart").null_count,
    )


def partition_schema(snapshot: Snapshot) -> pa.Schema:
    """Return the partition fields of the table, or the partition columns of one of others, with their types."""
    fields, schema = snapshot.config.partition_fields, snapshot.schema
    if fields:
        return value_schema(fields, schema)
    return pa.schema([schema.field(name) for name in snapshot.metadata.partitionColumns if name in schema.names])


def bounds_of(
    files: pa.Table, *, schema: pa.Schema, partition_columns: Iterable[str], is_exact: bool = False
) -> ManifestBounds:
    """Return the bounds of a table of splits that becomes one manifest; `schema` types the partition values.

    An empty text may stand for null unless they are `is_exact`.
    """
    typed = [schema.field(name) for name in partition_columns if name in schema.names]
    partitions = {each.name: _partition_bounds(files, each, is_exact=is_exact) for each in typed}
    windowed = files.select(["windowStart", "windowSeconds"]).filter(files.column("windowStart").is_valid())
    start, seconds = (pc.min_max(windowed.column(name)) for name in ("windowStart", "windowSeconds"))
    return ManifestBounds(
        partitions={name: bounds for name, bounds in partitions.items() if bounds is not None},
        in_order_of_type=True,
        windows=(start["min"].as_py(), start["max"].as_py()) if windowed.num_rows else None,
        window_seconds=None if windowed.column("windowSeconds").null_count else seconds["max"].as_py(),
        has_null_window=windowed.num_rows < files.num_rows,
    )


def _partition_bounds(files: pa.Table, column: pa.Field, *, is_exact: bool) -> tuple[str, str] | None:
    """The texts of the least and greatest value; None when a split has none, or one that is not of the type."""
    chunks = [map_column(chunk).lookup(column.name) for chunk in files.column("partitionValues").chunks]
    texts = pa.concat_arrays([pa.array([], pa.string()), *chunks]).unique()
    keys = bound_keys(texts, column.type)
    if keys.null_count or not len(keys) or (not is_exact and "" in texts.to_pylist()):
        return None
    order = pc.sort_indices(keys)
    return texts[order[0].as_py()].as_py(), texts[order[-1].as_py()].as_py()
