"""Writing of splits.

A split is an immutable, sorted Parquet file of one partition and window. The file contains its own metadata.

`sort_and_write` writes rows in any order. `write_split` writes sorted rows as one split. `RollingWriter` divides sorted
rows into splits of the target size. `Rewrite` is the result of a task that replaces splits. The task sends the result
to the driver as JSON.

The functions of this module do not commit. If no version refers to a split, the split is an orphan. The collector
removes orphans later.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from storage_core.base.clock import Ids
from storage_core.base.errors import CommitConflict, InvalidInput
from storage_core.data.formats.keys import split_key
from storage_core.data.formats.parquet_footer import footer_start
from storage_core.data.rows import statistics
from storage_core.data.rows.columns import stored_rows
from storage_core.data.rows.keys import Positions
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.rows.sort_order import SortOrder, with_series
from storage_core.data.rows.statistics import ColumnRegexes
from storage_core.data.rows.windows import window_starts
from storage_core.log.actions import Action, Add, IndexSegment, Remove, Translation, read_actions, write_actions
from storage_core.split import metadata, verification
from storage_core.split.context import PLACE, SplitContext, arranged, with_places
from storage_core.split.encode import (
    LEAST_ROWS,
    BloomFilters,
    Encodings,
    FileWriter,
    choose,
    decoded,
    encoded_bytes_per_row,
    nan_columns,
    next_key_change,
    plain_schema,
    record,
)
from storage_core.split.metadata import (
    APPENDED,
    Bounds,
    FileOrigin,
    Lineage,
    decoded_bytes,
    describe,
    divided,
    rows_per_group,
    write_origin,
)
from storage_core.split.verification import entries_of
from storage_core.store.contract import ObjectStore, create_once


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """The result of a task: new splits, and the splits that they replace.

    The result is not committed yet. The result is serialized as JSON.

    Attributes:
        rows_in: The number of rows that were read.
        translations: The moves of rows, for indexes.
        segments: The segments that cover moved rows.
    """

    adds: tuple[Add, ...]
    removes: tuple[Remove, ...]
    rows_in: int
    translations: tuple[Translation, ...] = ()
    segments: tuple[IndexSegment, ...] = ()

    @property
    def actions(self) -> list[Action]:
        """The actions, which must be committed together."""
        return [*self.removes, *self.adds, *self.translations, *self.segments]

    @property
    def rows_out(self) -> int:
        """The number of rows written."""
        return sum(add.numRecords or 0 for add in self.adds)

    @property
    def bytes_in(self) -> int:
        """The encoded bytes of the replaced splits."""
        return sum(remove.size or 0 for remove in self.removes)

    @property
    def bytes_out(self) -> int:
        """The encoded bytes of the written splits."""
        return sum(add.size for add in self.adds)

    def to_json(self) -> str:
        """Return the record as text. `from_json` converts the text back to a record."""
        return json.dumps(self.to_object(), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Rewrite:
        """Return the record that `to_json` wrote."""
        return Rewrite.from_object(json.loads(text))

    def to_object(self) -> dict[str, Any]:
        """Return the record as a JSON object. `from_object` converts the object back to a record."""
        return {
            "adds": write_actions(self.adds),
            "removes": write_actions(self.removes),
            "rowsIn": self.rows_in,
            "translations": write_actions(self.translations),
            "segments": write_actions(self.segments),
        }

    @staticmethod
    def from_object(body: Mapping[str, Any]) -> Rewrite:
        """Return the record that `to_object` wrote."""
        return Rewrite(
            adds=read_actions(body["adds"], Add, "rewrite"),
            removes=read_actions(body["removes"], Remove, "rewrite"),
            rows_in=body["rowsIn"],
            translations=read_actions(body["translations"], Translation, "rewrite"),
            segments=read_actions(body["segments"], IndexSegment, "rewrite"),
        )


_logger = logging.getLogger(__name__)

LONGEST_KEY_TEXT = 128
"""The maximum number of code points of a value in a row key.

The log stores two row keys per split, in a line of limited length.
"""

UNCUT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitHead:
    """The properties that all splits of one operation have in common.

    `window` has the same meaning as in `write_split`.
    """

    context: SplitContext
    window: int | None
    now_ms: int
    num_merge_ops: int = 0
    lineage: Lineage = APPENDED


class SplitWriter:
    """The writer of one split. Sorted rows are added in pieces, and the split's statistics are updated with each piece.

    The memory holds the rows of one row group and the last added piece. Unless `on_disk` is True, the memory also holds
    the encoded bytes.
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
        """Start the split.

        Args:
            rows: The approximate number of rows that will be added.
        """
        self._head, self._id, self._schema, self._encodings = head, split_id, schema, encodings
        order = head.context.order
        bloom_filters = BloomFilters(head.context.bloom_filters, min(rows, metadata.ROWS_PER_GROUP))
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
        self._bounds = Bounds(next((each.name for each in order.columns), None))
        self._regexes = ColumnRegexes(order.described)
        self._rows = 0
        self._ends: tuple[pa.Table, pa.Table] | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0

    @property
    def rows(self) -> int:
        """The number of rows that were added."""
        return self._rows

    @property
    def written(self) -> tuple[int, int]:
        """The number of rows that are already encoded, and the number of their encoded bytes.

        If a row group is incomplete, its rows are not encoded yet.
        """
        return self._rows - sum(rows.num_rows for rows in self._waiting), self._file.size

    def add(self, rows: pa.Table) -> None:
        """Append rows. The rows must be sorted and must come after all earlier rows.

        Raises `InvalidInput` for rows outside the window.
        """
        if rows.num_rows == 0:
            return
        _require_window(rows, self._head.context, self._head.window)
        self._statistics.add(rows)
        self._regexes.add(rows)
        # `take` is used instead of `slice`, because a slice would keep all rows in memory.
        last = rows.take(pa.array([rows.num_rows - 1]))
        self._ends = (rows.take(pa.array([0])) if self._ends is None else self._ends[0], last)
        self._rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_bytes += decoded_bytes(rows)
        self._encode(is_all=False)

    def _encode(self, *, is_all: bool) -> None:
        """Write waiting rows to the file as row groups.

        If `is_all` is True, write all rows, otherwise only full row groups.
        """
        waiting = sum(rows.num_rows for rows in self._waiting)
        size = rows_per_group(waiting, self._waiting_bytes)
        rows = waiting if is_all else waiting - waiting % size
        if not rows:
            return
        # If a row group has only one piece, it is written unchanged. If a row group has several pieces, the pieces need
        # a common dictionary.
        several = len(self._waiting) > 1
        found = pa.concat_tables(self._waiting).unify_dictionaries() if several else self._waiting[0]
        for start in range(0, rows, size):
            for group in divided(found.slice(start, min(size, rows - start))):
                self._bounds.add(group)
                self._file.add(group)
        left = found.slice(rows)
        self._waiting = [left] if left.num_rows else []
        self._waiting_bytes = decoded_bytes(left)

    def finish(self, store: ObjectStore) -> Add:
        """Write the file and return the action that adds it. The file is durable when the function returns. One PUT.

        Raises the errors of `write_split`, and `InvalidInput` if there are no rows.
        """
        head, context = self._head, self._head.context
        _require_partition(context)
        if self._ends is None:
            raise InvalidInput(f"split {self._id} has no rows. Write only splits with rows", split_id=self._id)
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
    """Return the sort key of the first or last row as a JSON array.

    The elements of the array are the text forms of `data.rows.codes`.

    A null value becomes null in the array. A text of more than `longest` code points is shortened. The shortened key of
    the first row sorts at or before the first row. The shortened key of the last row sorts at or after the last row. If
    no text with this property exists, the result is None.
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


def _origin(context: SplitContext, lineage: Lineage) -> FileOrigin:
    return FileOrigin(
        table_id=context.table_id,
        table_schema=to_schema_string(context.schema),
        configuration=context.configuration,
        planned_version=context.planned_version,
        lineage=lineage,
    )


def _require_partition(context: SplitContext) -> None:
    """Raise `InvalidInput` if the scope of a split does not match its partition. `split.context` assigns rows to
    partitions.
    """
    own = context.of_partition(context.partition_values) if context.partition_by else context
    if (own.source_id, own.partition_id) != (context.source_id, context.partition_id):
        raise InvalidInput(
            f"a split of the partition {dict(context.partition_values)} has the scope {context.source_id!r}, "
            f"{context.partition_id!r}, expected {own.source_id!r}, {own.partition_id!r}. Divide the rows by "
            "partition before writing"
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
            return  # All other times are between these two times, so they are also in the window.
        starts = window_starts(times, context.window_seconds)
        outside = len(times) - int(pc.sum(pc.equal(starts, window)).as_py() or 0)
    if outside:
        raise InvalidInput(
            f"{outside} of {len(times)} rows lie outside the window {window} of {context.window_seconds} s by "
            f"{context.time_column!r}. Split the batch by window before writing",
            window=window,
            rows=outside,
        )


def with_file_metrics(add: Add, data: pa.Buffer) -> Add:
    """Return the action with the values that need the whole file: size, checksums, footer offsets, uncompressed bytes.

    If the footer contains no checksums of column chunks, the checksum of the footer is omitted. The checksum of the
    footer would verify nothing in this case.
    """
    view, start = _bytes_view(data), footer_start(data)
    metadata = pq.read_metadata(pa.BufferReader(data))
    has_chunks = verification.CHECKSUMS_KEY in entries_of(metadata, add.path)
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
    if not create_once(store, key, _bytes_view(data), advice="write the split again with a new id"):
        raise CommitConflict(f"{key}: another object has this id. Write with a new id", key=key)


def _bytes_view(data: pa.Buffer) -> memoryview:
    """Return unsigned bytes.

    Arrow's own view has signed bytes, and signed bytes do not compare as equal to unsigned bytes.
    """
    return memoryview(data).cast("B")


# Division of sorted rows into splits of the target size (step 3).


IN_MEMORY_BYTES: Final = 32 * 2**20
"""The maximum of encoded bytes in memory. Above this size, bytes are written to disk, which costs 0.1 seconds per 100
MB.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The properties of the rows that are known before the rows arrive.

    Attributes:
        rows: The number of rows.
        most_bytes: The approximate maximum of their bytes.
        may_hold_nan: The columns that may contain NaN.
        next_key: A function that takes a row number, counted over all rows. From this row on, it returns the first row
            whose key differs from the previous row's key, or `rows` if no key differs.
        encodings: The encodings to use. If None, they are chosen from the first piece. If empty, Parquet's defaults are
            used.
    """

    rows: int
    most_bytes: int
    may_hold_nan: Collection[str]
    next_key: Callable[[int], int]
    encodings: Encodings | None = None


class RollingWriter:
    """A writer of splits of about the target size. The rows are sorted and arrive in pieces.

    The rows are divided only at a change of the key, so the row keys of the splits do not overlap. Rows with equal keys
    are never divided, even if they exceed the target size. The number of splits is the total size divided by the target
    size, rounded to the nearest integer. If there are several splits, each has at least about three quarters of the
    target size. Therefore the planner does not merge these splits again as small splits. After each piece, the writer
    computes the end of the current split again. The writer uses the actual size of the rows that it has written.

    Makes one PUT per split. If a PUT fails, the earlier splits are orphans.
    """

    def __init__(self, store: ObjectStore, head: SplitHead, expected: Expected, ids: Ids) -> None:
        self._store, self._head, self._expected, self._ids = store, head, expected, ids
        self._encodings: Encodings = {} if expected.encodings is None else expected.encodings
        self._bytes_per_row = 0.0
        self._writer: SplitWriter | None = None
        self._first = 0
        self._done = 0
        self._closed = (0, 0)
        self._adds: list[Add] = []

    def add(self, rows: pa.Table) -> None:
        """Write the next rows. Raises the errors of `write_split`."""
        if self._done == 0:
            self._prepare(rows)
        while rows.num_rows:
            cut = self._cut()
            piece = rows.slice(0, cut - self._done)
            self._write(piece)
            rows = rows.slice(piece.num_rows)
            if self._done == cut:
                self._close()

    def finish(self) -> list[Add]:
        """Return the actions that add the splits, in the order of the rows.

        If there are no rows, the result is empty.
        """
        self._close()
        return self._adds

    def _prepare(self, rows: pa.Table) -> None:
        expected, context = self._expected, self._head.context
        if expected.encodings is None:
            self._encodings = choose(rows, expected.rows, context.codec)
        if expected.most_bytes > context.target_bytes:
            self._bytes_per_row = encoded_bytes_per_row(rows, context.order, self._encodings, context.codec)

    def _write(self, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            return
        if self._writer is None:
            self._first = self._done
            self._writer = SplitWriter(
                self._head,
                self._ids.uuid(),
                rows.schema,
                self._encodings,
                rows=self._expected.rows - self._done,
                may_hold_nan=self._expected.may_hold_nan,
                on_disk=self._expected.most_bytes > IN_MEMORY_BYTES,
            )
        self._writer.add(rows)
        self._done += rows.num_rows
        self._measure(*self._writer.written)

    def _close(self) -> None:
        if self._writer is not None:
            add = self._writer.finish(self._store)
            self._measure(self._writer.rows, add.size)
            self._closed = (self._closed[0] + self._writer.rows, self._closed[1] + add.size)
            self._adds.append(add)
            self._writer = None

    def _measure(self, rows: int, size: int) -> None:
        """Update the bytes per row. The actual size of the written rows is more exact than the first sample."""
        if self._bytes_per_row and rows:
            self._bytes_per_row = (self._closed[1] + size) / (self._closed[0] + rows)

    def _cut(self) -> int:
        """Return the row before which the current split ends, according to the current estimate."""
        rows, written = (0, 0) if self._writer is None else self._writer.written
        first = self._done if self._writer is None else self._first
        total = written + (self._expected.rows - first - rows) * self._bytes_per_row
        splits = round(total / self._head.context.target_bytes)
        if splits <= 1:
            return self._expected.rows
        wanted = first + rows + int(max(0.0, total / splits - written) / self._bytes_per_row)
        return self._expected.next_key(max(wanted, first + 1, self._done))


# Sorting of rows by partition and window, to write them as splits (docs/architecture/compaction.md).


def sort_and_write(
    store: ObjectStore,
    rows: pa.Table,
    *,
    context: SplitContext,
    ids: Ids,
    now_ms: int,
    lineage: Lineage = APPENDED,
    placed: list[Positions] | None = None,
    encodings: Encodings | None = None,
) -> list[Add]:
    """Write rows in any order as sorted splits of about the target size, with fresh ids.

    Each split has one partition and window. All rows are divided by partition and window before anything is written.
    New rows without a `timeseries_id` get a `timeseries_id` (`data.rows.sort_order`). Rows of a merge are not changed.
    If there are no rows, no split is written. Raises the errors of `write_split`.

    Args:
        placed: A list. For each split, in order, the positions of its rows in `rows` are appended.
        encodings: The encodings to use if there are enough rows for a choice. None to measure.

    Cost:
        One PUT per split. If a PUT fails, the earlier splits are orphans.
    """
    adds: list[Add] = []
    arrived = with_series(rows, context.order) if lineage.operation == APPENDED.operation else rows
    if placed is not None:
        arrived = with_places(arrived)
    for own, window, part in arranged(arrived, context):
        ordered = part
        if placed is not None:
            placed.append(part.column(PLACE).to_numpy())
            ordered = part.drop_columns([PLACE])
        ordered = stored_rows(ordered, context.schema)
        head = SplitHead(context=own, window=window, now_ms=now_ms, lineage=lineage)
        expected = Expected(
            rows=ordered.num_rows,
            most_bytes=ordered.nbytes,
            may_hold_nan=nan_columns(ordered),
            next_key=partial(next_key_change, ordered, context.order),
            encodings=_choice(ordered, context, encodings),
        )
        rolling = RollingWriter(store, head, expected, ids)
        rolling.add(ordered)
        adds.extend(rolling.finish())
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
    """Write sorted `rows` as one split, and return the action that adds it.

    The file is durable when the function returns. One PUT.

    If the same rows are written again under the same id, the second write succeeds. The file contains the columns of
    `rows`, which may be fewer than the table's columns.

    Args:
        rows: Must be sorted by `context.order` and be in `window`.
        window: None for the bucket of null timestamps, or for a table without windows.

    Raises:
        CommitConflict: The id is already used for other rows.
        InvalidInput: A row is outside the window (TW-1).
        CommitUnknown: The store did not report whether it has stored the file.
    """
    rows = stored_rows(rows, context.schema)
    head = SplitHead(context=context, window=window, num_merge_ops=num_merge_ops, now_ms=now_ms, lineage=lineage)
    may_hold_nan = nan_columns(rows)
    writer = SplitWriter(
        head, split_id, rows.schema, _choice(rows, context), rows=rows.num_rows, may_hold_nan=may_hold_nan
    )
    writer.add(rows)
    return writer.finish(store)


def _choice(rows: pa.Table, context: SplitContext, known: Encodings | None = None) -> Encodings:
    if rows.num_rows < LEAST_ROWS:
        return {}
    return choose(rows, rows.num_rows, context.codec) if known is None else known
