"""Rows to splits: each split is one immutable, sorted, self-describing Parquet file in exactly one window.

Design page 04. Nothing here commits: a split that no version names is an orphan, which the collector removes later.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from storage_core.errors import CommitConflict, InvalidInput
from storage_core.formats.keys import split_key
from storage_core.ids import Ids
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_once
from storage_core.rows import statistics
from storage_core.rows.column_regex import column_regexes
from storage_core.rows.order import sort_indices
from storage_core.rows.schema import from_schema_string, to_schema_string
from storage_core.rows.sort_order import OrderColumn, SortOrder, bind
from storage_core.rows.timeseries_id import with_series
from storage_core.rows.windows import split_by_window, window_starts
from storage_core.split import row_groups
from storage_core.split.encode import cut, decoded, encode, present_order
from storage_core.split.lineage import APPENDED, Lineage, Origin, write_origin
from storage_core.split.metadata import describe, sealed

_logger = logging.getLogger(__name__)

_UNCUT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitContext:
    """Everything a task needs to write splits of one table, without opening the table again; travels as JSON.

    `window_seconds` None means a table without windows. `source_id` and `partition_id` are empty where there is none.
    `schema_ref` names the family of union-compatible schemas (`add.docMappingRef`); None is the table's first family.
    `configuration` and `planned_version` are those of the snapshot that the work was planned on: files carry them, so
    that a lost log can be made again.
    """

    table_id: str
    schema: pa.Schema
    order: SortOrder
    time_column: str | None = None
    window_seconds: int | None = None
    target_bytes: int = 256 * 2**20
    source_id: str = ""
    partition_id: str = ""
    schema_ref: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    planned_version: int = 0

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal context."""
        body = {
            "tableId": self.table_id,
            "schema": to_schema_string(self.schema),
            "order": self.order.text,
            "orderColumns": [[each.name, each.descending, each.nulls_first] for each in self.order.columns],
            "orderStatistics": list(self.order.statistics),
            "timeColumn": self.time_column,
            "windowSeconds": self.window_seconds,
            "targetBytes": self.target_bytes,
            "sourceId": self.source_id,
            "partitionId": self.partition_id,
            "schemaRef": self.schema_ref,
            "configuration": dict(self.configuration),
            "plannedVersion": self.planned_version,
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> SplitContext:
        """Return the context that `to_json` wrote."""
        body: Mapping[str, Any] = json.loads(text)
        columns = tuple(OrderColumn(*each) for each in body["orderColumns"])
        return SplitContext(
            table_id=body["tableId"],
            schema=from_schema_string(body["schema"]),
            order=SortOrder(columns=columns, text=body["order"], statistics=tuple(body["orderStatistics"])),
            time_column=body["timeColumn"],
            window_seconds=body["windowSeconds"],
            target_bytes=body["targetBytes"],
            source_id=body["sourceId"],
            partition_id=body["partitionId"],
            schema_ref=body["schemaRef"],
            configuration=body["configuration"],
            planned_version=body["plannedVersion"],
        )


def context_of(snapshot: Snapshot) -> SplitContext:
    """Return the context in which new splits of the table are written, as of the snapshot."""
    config, schema = snapshot.config, snapshot.schema
    return SplitContext(
        table_id=snapshot.table_id,
        schema=schema,
        order=bind(config, schema),
        time_column=config.time_column,
        window_seconds=config.window_seconds,
        target_bytes=config.target_split_bytes,
        configuration=snapshot.metadata.configuration,
        planned_version=snapshot.version,
    )


def sort_and_write(
    store: ObjectStore,
    rows: pa.Table,
    *,
    context: SplitContext,
    ids: Ids,
    now_ms: int,
    lineage: Lineage = APPENDED,
) -> list[Add]:
    """Write rows in any order as sorted splits: one window each, about the target size each, ids fresh.

    Rows that arrive get the `timeseries_id` that they lack (`rows.timeseries_id`); rows of a merge have it or not.
    A batch that straddles window boundaries is split before anything is written. No rows, no splits. One PUT per split;
    when one fails the earlier ones are orphans. Raises what `write_split` raises.
    """
    adds: list[Add] = []
    arrived = with_series(rows, context.order) if lineage.operation == APPENDED.operation else rows
    for window, part in _by_window(arrived, context):
        for piece in cut(_ordered(part, context.order), context.order, context.target_bytes):
            split_id = ids.uuid()
            adds.append(
                write_split(
                    store,
                    piece,
                    context=context,
                    window=window,
                    num_merge_ops=0,
                    split_id=split_id,
                    now_ms=now_ms,
                    lineage=lineage,
                )
            )
    return adds


def write_split(
    store: ObjectStore,
    rows: pa.Table,
    *,
    context: SplitContext,
    window: int | None,
    num_merge_ops: int,
    split_id: str,
    now_ms: int,
    lineage: Lineage = APPENDED,
) -> Add:
    """Write sorted `rows` as one split and return the action that adds it; the file is durable when this returns.

    `rows` must be sorted by `context.order` and lie in `window` (None: the bucket of null timestamps, or a table
    without windows); the file holds the columns of `rows`, which may be fewer than the table's. One PUT. Writing the
    same rows under the same id again succeeds; other rows under it raise `CommitConflict`. Raises `InvalidInput` when a
    row lies outside the window (TW-1), `CommitUnknown` when the store did not say whether it kept the file.
    """
    if rows.num_rows == 0:
        raise InvalidInput(f"split {split_id} would be empty; write no split instead", split_id=split_id)
    _require_window(rows, context, window)
    key = split_key(window, context.window_seconds is not None, split_id)
    bare = Add(path=key, size=0, modificationTime=now_ms, numMergeOps=num_merge_ops, windowStart=window)
    described = _describe_rows(rows, context, bare)
    schema_string = to_schema_string(decoded(rows.slice(0, 0)).schema)
    metadata = describe(described, table_id=context.table_id, schema_string=schema_string)
    metadata |= write_origin(_origin(context, lineage))
    for first in context.order.columns[:1]:
        metadata |= row_groups.bounds(rows, first.name)
    data = encode(rows, context.order, sealed(metadata))
    _create(store, key, data)
    _logger.info("wrote split %s: %d rows, %d bytes", key, rows.num_rows, data.size)
    return with_file_figures(described, data)


def row_key(rows: pa.Table, order: SortOrder, position: int) -> str:
    """Return the sort key of one row as a JSON array of text forms of `rows.statistics`, uncut; null for no value."""
    names = [each.name for each in order.columns]
    present = [name for name in names if name in rows.column_names]
    values = statistics.compute(decoded(rows.select(present).slice(position, 1)), _UNCUT).min_values
    return json.dumps([values.get(name) for name in names], ensure_ascii=False, separators=(",", ":"))


def _origin(context: SplitContext, lineage: Lineage) -> Origin:
    return Origin(
        table_id=context.table_id,
        table_schema=to_schema_string(context.schema),
        configuration=context.configuration,
        planned_version=context.planned_version,
        lineage=lineage,
    )


def _by_window(rows: pa.Table, context: SplitContext) -> list[tuple[int | None, pa.Table]]:
    if rows.num_rows == 0:
        return []
    if context.window_seconds is None or context.time_column is None:
        return [(None, rows)]
    return split_by_window(rows, context.time_column, context.window_seconds)


def _ordered(rows: pa.Table, order: SortOrder) -> pa.Table:
    indices = sort_indices(rows, present_order(order, rows.column_names))
    if not np.any(indices[1:] < indices[:-1]):
        return rows  # as a merge hands them over: to take every row would copy them all
    return rows.take(pa.array(indices))


def _require_window(rows: pa.Table, context: SplitContext, window: int | None) -> None:
    if context.window_seconds is None or context.time_column is None:
        return
    times = rows.column(context.time_column)
    if window is None:
        outside = len(times) - times.null_count
    else:
        starts = window_starts(times, context.window_seconds)
        outside = len(times) - int(pc.sum(pc.equal(starts, window)).as_py() or 0)
    if outside:
        raise InvalidInput(
            f"{outside} of {len(times)} rows lie outside the window {window} of {context.window_seconds} s by "
            f"{context.time_column!r}; split the batch by window before writing",
            window=window,
            rows=outside,
        )


def _describe_rows(rows: pa.Table, context: SplitContext, add: Add) -> Add:
    figures = statistics.compute(rows)
    return replace(
        add,
        numRecords=rows.num_rows,
        minValues=figures.min_values,
        maxValues=figures.max_values,
        nullCounts=figures.null_counts,
        columnRegexes=column_regexes(rows, context.order.described) or None,
        minRowKey=row_key(rows, context.order, 0),
        maxRowKey=row_key(rows, context.order, rows.num_rows - 1),
        windowSeconds=context.window_seconds,
        sortSchema=context.order.text,
        sourceId=context.source_id or None,
        partitionId=context.partition_id or None,
        docMappingRef=context.schema_ref,
    )


def with_file_figures(add: Add, data: pa.Buffer) -> Add:
    """Return the action completed with what only the whole file tells: size, checksum, footer, uncompressed bytes.

    The footer of a Parquet file is its last 8 bytes (length, magic) and as many bytes before them as they say.
    """
    view = _bytes_view(data)
    footer_start = len(view) - 8 - int.from_bytes(view[-8:-4], "little")
    metadata = pq.read_metadata(pa.BufferReader(data))
    groups = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
    return replace(
        add,
        size=len(view),
        xxh3=xxhash.xxh3_64_hexdigest(view),
        hasFooterOffsets=True,
        footerStartOffset=footer_start,
        footerEndOffset=len(view),
        uncompressedSizeBytes=sum(groups),
    )


def _create(store: ObjectStore, key: str, data: pa.Buffer) -> None:
    if not create_once(store, key, _bytes_view(data), advice="write the split again under a fresh id"):
        raise CommitConflict(f"{key}: the split id is taken by other bytes; write under a fresh id", key=key)


def _bytes_view(data: pa.Buffer) -> memoryview:
    """Arrow's own view is of signed bytes, which compare unequal to unsigned ones."""
    return memoryview(data).cast("B")
