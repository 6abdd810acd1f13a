"""One split as it is written: an immutable, sorted, self-describing Parquet file in one window.

Nothing here commits: a split that no version names is an orphan, which the collector removes later.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from storage_core.errors import CommitConflict, InvalidInput
from storage_core.formats.keys import split_key
from storage_core.formats.parquet_footer import footer_start
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_once
from storage_core.rows import statistics
from storage_core.rows.column_regex import ColumnRegexes
from storage_core.rows.schema import to_schema_string
from storage_core.rows.sort_order import SortOrder
from storage_core.rows.windows import window_starts
from storage_core.split import chunk_checksums, group_bounds, row_groups
from storage_core.split.context import SplitContext
from storage_core.split.encode import BloomFilters, FileWriter, decoded, plain_schema
from storage_core.split.encodings import Encodings, record
from storage_core.split.lineage import APPENDED, Lineage, Origin, write_origin
from storage_core.split.metadata import describe
from storage_core.split.packed_metadata import entries_of

_logger = logging.getLogger(__name__)

LONGEST_KEY_TEXT = 128
"""Code points of a value in a row key: the log keeps two of them per split, in a line that has a greatest length."""

UNCUT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitHead:
    """What the splits of one operation have in common. `window` as of `write_split`."""

    context: SplitContext
    window: int | None
    now_ms: int
    num_merge_ops: int = 0
    lineage: Lineage = APPENDED


class SplitWriter:
    """One split as it is written: sorted rows go in piece by piece, and what it says about itself is counted meanwhile.

    In memory are the rows of one row group, what was added last, and unless they are `on_disk` the encoded bytes.
    """

    def __init__(
        self,
        head: SplitHead,
        split_id: str,
        schema: pa.Schema,
        encodings: Encodings,
        *,
        rows: int,
        may_hold_nan: Collection[str] = (),
        on_disk: bool = False,
    ) -> None:
        """`rows` is about how many will be added."""
        self._head, self._id, self._schema, self._encodings = head, split_id, schema, encodings
        order = head.context.order
        bloom_filters = BloomFilters(head.context.bloom_filters, min(rows, row_groups.ROWS_PER_GROUP))
        self._file = FileWriter(
            schema,
            order,
            encodings,
            may_hold_nan=may_hold_nan,
            bloom_filters=bloom_filters,
            field_ids=head.context.field_ids,
            codec=head.context.codec,
            packed_metadata=head.context.packed_metadata,
            on_disk=on_disk,
        )
        self._statistics = statistics.Running()
        self._bounds = group_bounds.Bounds(next((each.name for each in order.columns), None))
        self._regexes = ColumnRegexes(order.described)
        self._rows = 0
        self._ends: tuple[pa.Table, pa.Table] | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0

    @property
    def rows(self) -> int:
        """The rows that were added."""
        return self._rows

    @property
    def written(self) -> tuple[int, int]:
        """The rows that are encoded by now, and the bytes they take; the rows of the last row group still wait."""
        return self._rows - sum(rows.num_rows for rows in self._waiting), self._file.size

    def add(self, rows: pa.Table) -> None:
        """Append rows, which must be sorted and come after all before; raises `InvalidInput` outside the window."""
        if rows.num_rows == 0:
            return
        _require_window(rows, self._head.context, self._head.window)
        self._statistics.add(rows)
        self._regexes.add(rows)
        # taken, not sliced: a slice would keep all the rows
        last = rows.take(pa.array([rows.num_rows - 1]))
        self._ends = (rows.take(pa.array([0])) if self._ends is None else self._ends[0], last)
        self._rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_bytes += row_groups.decoded_bytes(rows)
        self._encode(is_all=False)

    def _encode(self, *, is_all: bool) -> None:
        """Move the waiting rows into the file, as row groups: `is_all` of them, or those that fill one."""
        waiting = sum(rows.num_rows for rows in self._waiting)
        size = row_groups.rows_per_group(waiting, self._waiting_bytes)
        rows = waiting if is_all else waiting - waiting % size
        if not rows:
            return
        # a row group that comes as one is written as it is; the writer wants one dictionary for all of it
        several = len(self._waiting) > 1
        found = pa.concat_tables(self._waiting).unify_dictionaries() if several else self._waiting[0]
        for start in range(0, rows, size):
            for group in row_groups.divided(found.slice(start, min(size, rows - start))):
                self._bounds.add(group)
                self._file.add(group)
        left = found.slice(rows)
        self._waiting = [left] if left.num_rows else []
        self._waiting_bytes = row_groups.decoded_bytes(left)

    def finish(self, store: ObjectStore) -> Add:
        """Write the file and return the action that adds it; durable when this returns. One PUT.

        Raises what `write_split` raises; `InvalidInput` without rows.
        """
        head, context = self._head, self._head.context
        _require_partition(context)
        if self._ends is None:
            raise InvalidInput(f"split {self._id} would be empty; write no split instead", split_id=self._id)
        self._encode(is_all=True)
        key = split_key(head.window, context.window_seconds is not None, self._id, context.partition_folder)
        add = self._described(key, *self._ends)
        schema_string = to_schema_string(plain_schema(self._schema))
        metadata = describe(add, table_id=context.table_id, schema_string=schema_string)
        metadata |= write_origin(_origin(context, head.lineage)) | record(self._encodings, self._rows)
        data = self._file.finish(metadata | self._bounds.metadata())
        _create(store, add.path, data)
        _logger.info("wrote split %s: %d rows, %d bytes", add.path, self._rows, data.size)
        return with_file_metrics(add, data)

    def _described(self, key: str, first: pa.Table, last: pa.Table) -> Add:
        head, context = self._head, self._head.context
        metrics = self._statistics.result(context.string_cut)
        return Add(
            path=key,
            size=0,
            modificationTime=head.now_ms,
            partitionValues=dict(context.partition_values),
            numMergeOps=head.num_merge_ops,
            windowStart=head.window,
            numRecords=self._rows,
            minValues=metrics.min_values,
            maxValues=metrics.max_values,
            nullCounts=metrics.null_counts,
            columnRegexes=self._regexes.result() or None,
            minRowKey=row_key(first, context.order, is_first=True),
            maxRowKey=row_key(last, context.order, is_first=False),
            windowSeconds=context.window_seconds,
            sortSchema=context.order.text,
            sourceId=context.source_id or None,
            partitionId=context.partition_id or None,
            docMappingRef=context.schema_ref,
        )


def row_key(row: pa.Table, order: SortOrder, *, is_first: bool, longest: int = LONGEST_KEY_TEXT) -> str | None:
    """Return the sort key of the first or last row as a JSON array of text forms of `rows.bound_text`, null for none.

    A text above `longest` code points is cut so that in the order the key stays at or before the first row, or at or
    after the last. None where no such text is known.
    """
    names = [each.name for each in order.columns]
    metrics = statistics.compute(decoded(row.select([each for each in names if each in row.column_names])), longest)
    texts = [
        (metrics.max_values if is_first == each.descending else metrics.min_values).get(each.name)
        for each in order.columns
    ]
    if any(text is None and name in metrics.min_values for name, text in zip(names, texts, strict=True)):
        return None
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


def _origin(context: SplitContext, lineage: Lineage) -> Origin:
    return Origin(
        table_id=context.table_id,
        table_schema=to_schema_string(context.schema),
        configuration=context.configuration,
        planned_version=context.planned_version,
        lineage=lineage,
    )


def _require_partition(context: SplitContext) -> None:
    """A split of a table with partitions is of one, and in its scope. Which rows it has is for `split.arrangement`."""
    own = context.of_partition(context.partition_values) if context.partition_by else context
    if (own.source_id, own.partition_id) != (context.source_id, context.partition_id):
        raise InvalidInput(
            f"a split of the partition {dict(context.partition_values)} has the scope {context.source_id!r}, "
            f"{context.partition_id!r}; expected {own.source_id!r}, {own.partition_id!r}: divide the rows by partition "
            "before writing"
        )


def _require_window(rows: pa.Table, context: SplitContext, window: int | None) -> None:
    if context.window_seconds is None or context.time_column is None:
        return
    times = rows.column(context.time_column)
    if window is None:
        outside = len(times) - times.null_count
    else:
        bounds = pc.min_max(times)
        ends = window_starts(pa.chunked_array([pa.array([bounds["min"], bounds["max"]])]), context.window_seconds)
        if not times.null_count and ends.to_pylist() == [window, window]:
            return  # what lies between lies in the window too
        starts = window_starts(times, context.window_seconds)
        outside = len(times) - int(pc.sum(pc.equal(starts, window)).as_py() or 0)
    if outside:
        raise InvalidInput(
            f"{outside} of {len(times)} rows lie outside the window {window} of {context.window_seconds} s by "
            f"{context.time_column!r}; split the batch by window before writing",
            window=window,
            rows=outside,
        )


def with_file_metrics(add: Add, data: pa.Buffer) -> Add:
    """Return the action completed with what only the whole file tells: size, checksums, footer, uncompressed bytes.

    The checksum of the footer is left out where the footer has none of the column chunks, for nothing would hang on it.
    """
    view, start = _bytes_view(data), footer_start(data)
    metadata = pq.read_metadata(pa.BufferReader(data))
    has_chunks = chunk_checksums.KEY in entries_of(metadata, add.path)
    groups = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
    return replace(
        add,
        size=len(view),
        xxh3=xxhash.xxh3_64_hexdigest(view),
        hasFooterOffsets=True,
        footerXxh3=xxhash.xxh3_64_hexdigest(view[start:]) if has_chunks else None,
        footerStartOffset=start,
        footerEndOffset=len(view),
        uncompressedSizeBytes=sum(groups),
    )


def _create(store: ObjectStore, key: str, data: pa.Buffer) -> None:
    if not create_once(store, key, _bytes_view(data), advice="write the split again under a fresh id"):
        raise CommitConflict(f"{key}: the split id is taken by other bytes; write under a fresh id", key=key)


def _bytes_view(data: pa.Buffer) -> memoryview:
    """Arrow's own view is of signed bytes, which compare unequal to unsigned ones."""
    return memoryview(data).cast("B")
