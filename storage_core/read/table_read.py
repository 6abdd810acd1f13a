"""The plan of a table read. The reader executes the plan, and `explain` prints it.

A `TableRead` contains the splits that may contain a wanted row, and the columns to read. For each split, a `TableRead`
can also contain the rows that indexes selected. Unmerged records are in memory. The unmerged records replace rows of
the base with the same keys.

For two kinds of queries, the log alone can determine the result or the splits to read:

- The first rows, in the order of the table or in the order of one column (`first_splits`). A split is excluded only if
  enough other rows certainly come before all rows of this split. A split without the needed statistics is always read.
  The planner does not assume that rows of this split come first.
- Exact metrics of columns, such as the smallest value and the number of values (`exact_metrics`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from storage_core.data.rows.bound_text import decode_column
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.columns import has_changed, stored_name
from storage_core.data.rows.keys import map_column
from storage_core.engine.sandbox.process import Rows
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.read import pruning
from storage_core.read.bounds import ColumnBounds, statistics_of
from storage_core.read.duckdb_view import PLACES, Source, hidden_rows, places_of, requests_for_hidden
from storage_core.read.fetching import SPLITS_AT_ONCE, FetchPlan, SplitPlan, fetched
from storage_core.read.plan import RawPart, TablePlan
from storage_core.read.predicate import Predicate
from storage_core.read.pruning import Narrowed, Pruned, PruneStep
from storage_core.read.verified_files import UNKNOWN, Columns, VerifiedFiles, query_errors
from storage_core.split import verification
from storage_core.split.deletion_vectors import PARALLEL_READS
from storage_core.split.fetch import read_footer, requests_for
from storage_core.split.read import leaves_of
from storage_core.split.verification import corrupt_on_failure
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import all_of, prefetch

_READ = ["minValues", "maxValues", "nullCounts", "numRecords"]

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class First:
    """The first `rows` rows in the order of `column`, or in the order of the table if `column` is None."""

    rows: int
    column: str | None = None
    descending: bool = False
    nulls_first: bool = False


def first_splits(snapshot: Snapshot, first: First) -> Pruned:
    """Return the splits that may contain one of the first rows in the given order.

    The splits are in the order of their first rows. Reads every manifest.
    """
    files = snapshot.splits.table()
    rows = files.column("numRecords").fill_null(0).to_numpy()
    deleted = _deleted(snapshot, files)
    if first.column is None:
        # Keep the split that contains the last wanted row, and all splits before it.
        keep = np.cumsum(np.maximum(rows - deleted, 0)) - np.maximum(rows - deleted, 0) < first.rows
    else:
        keep = ~_behind(files, first, snapshot.schema.field(first.column), deleted)
    sizes = files.column("size").fill_null(0).to_numpy()
    step = PruneStep("limit" if first.column is None else "order", int((~keep).sum()), int(sizes[~keep].sum()))
    return Pruned(snapshot.splits.records_at(files, np.flatnonzero(keep)), (step,))


def _deleted(snapshot: Snapshot, files: pa.Table) -> Counts:
    """Return the number of deleted rows of each split."""
    marked = {add.path: add.deleted_rows.cardinality for add in snapshot.splits.marked() if add.deleted_rows}
    found: Counts = np.zeros(files.num_rows, np.int64)
    if marked:
        places = pc.index_in(files.column("path"), pa.array([*marked], pa.string())).fill_null(-1).to_numpy()
        found[places >= 0] = np.array([*marked.values()])[places[places >= 0]]
    return found


def _behind(files: pa.Table, first: First, field: pa.Field, deleted: Counts) -> Mask:
    """Return a mask of the splits that cannot contain one of the wanted first rows."""
    none: Mask = np.zeros(files.num_rows, np.bool_)
    kinds = pa.types
    if not any(each(field.type) for each in (kinds.is_integer, kinds.is_date, kinds.is_timestamp, kinds.is_decimal)):
        return none
    bounds = _bounds(files, field)
    if bounds is None:
        return none
    nulls, rows = (each.fill_null(-1).to_numpy() for each in (bounds.nulls, bounds.rows))
    surely_null = np.maximum(nulls - deleted, 0)
    wanted = first.rows
    if first.nulls_first:
        wanted -= int(surely_null.sum())
        if wanted <= 0:
            return np.asarray(nulls == 0)
    known = (nulls >= 0) & (rows >= 0)
    beyond = _beyond(bounds, np.where(known, np.maximum(rows - nulls - deleted, 0), 0), wanted, first)
    if beyond is None:
        return none
    found: Mask = beyond & (nulls == 0) if first.nulls_first else beyond | (known & (nulls == rows))
    return found


def _bounds(files: pa.Table, field: pa.Field) -> ColumnBounds | None:
    """Return the bounds of a column in all splits, or None if the bounds have different types."""
    batches = files.select(_READ).to_batches()
    parts = [each for batch in batches if (each := statistics_of(batch, pa.schema([field]))(field.name)) is not None]
    lows, highs = [each.low() for each in parts], [each.high() for each in parts]
    if len({each.type for each in (*lows, *highs)}) != 1:
        return None
    low, high = pa.concat_arrays(lows), pa.concat_arrays(highs)
    nulls, rows = (pa.concat_arrays(each) for each in ([part.nulls for part in parts], [part.rows for part in parts]))
    return ColumnBounds(field.type, lambda: low, lambda: high, nulls, rows)


def _beyond(bounds: ColumnBounds, sure: Counts, wanted: int, first: First) -> Mask | None:
    """Return a mask of the splits whose values all sort after the first `wanted` rows.

    In each split, at least `sure` rows have a value. A row with the same value as the last of the first `wanted` rows
    is not a later row. Returns None if it is not certain that enough rows have a value.
    """
    near, far = (bounds.high(), bounds.low()) if first.descending else (bounds.low(), bounds.high())
    order = pc.array_sort_indices(far, order="descending" if first.descending else "ascending").to_numpy()
    counts = np.where(far.is_valid().to_numpy(zero_copy_only=False), sure, 0)[order]
    place = int(np.searchsorted(np.cumsum(counts), max(wanted, 1)))
    if place == len(order):
        return None
    beyond = (pc.less if first.descending else pc.greater)(near, far[int(order[place])])
    mask: Mask = beyond.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    return mask


@dataclass(frozen=True, slots=True)
class ExactMetrics:
    """The number of rows of a table. For some columns, also the number of values and the extreme values.

    `ends` has two rows: the smallest and the greatest value of each of these columns. If a column has no value, both
    rows of `ends` are null in this column.
    """

    rows: int
    values: Mapping[str, int] = field(default_factory=dict)
    ends: pa.Table | None = None


def exact_metrics(snapshot: Snapshot, columns: Collection[str]) -> ExactMetrics | None:
    """Return the metrics of the columns, or None if the log does not contain all of these metrics exactly.

    Reads every manifest.

    In the log, these metrics are exact for integers, dates, timestamps, decimals and booleans. These metrics are exact
    only for splits that Tidemark wrote and that have no deleted row. The bounds of texts are truncated, the bounds of
    floats ignore NaN, and the bounds of other types may be rounded.
    """
    wanted = [snapshot.schema.field(name) for name in columns]
    if not snapshot.has_all_counts or not all(_is_exact(each.type) for each in wanted):
        return None
    if any(add.deleted_rows is not None for add in snapshot.splits.marked()):
        return None
    files = snapshot.splits.table()
    if files.column("footerXxh3").null_count:
        return None
    values, ends = {}, {}
    for each in wanted:
        found = _of_column(files, each)
        if found is None:
            return None
        values[each.name], ends[each.name] = found
    return ExactMetrics(snapshot.rows, values, pa.table(ends, schema=pa.schema(wanted)))


def _is_exact(type_: pa.DataType) -> bool:
    kinds = pa.types
    exact = (kinds.is_integer, kinds.is_date32, kinds.is_decimal128, kinds.is_boolean)
    return any(each(type_) for each in exact) or (kinds.is_timestamp(type_) and type_.unit == "us")


def _of_column(files: pa.Table, field: pa.Field) -> tuple[int, pa.Array] | None:
    """Return the number of rows with a value of the column, and the smallest and the greatest value."""
    rows, nulls = files.column("numRecords").to_numpy(), _null_counts(files, stored_name(field))
    if nulls is None or (nulls > rows).any() or (nulls < 0).any():
        return None
    ends = []
    for bounds, end in (("minValues", "min"), ("maxValues", "max")):
        texts = _looked_up(files, bounds, stored_name(field))
        try:
            known = pa.concat_arrays([decode_column(each, field.type).cast(field.type) for each in texts])
        except pa.ArrowInvalid:  # a text in the log is not a value of the column
            return None
        if known.is_null().to_numpy(zero_copy_only=False)[nulls < rows].any():
            return None
        ends.append(pc.min_max(known)[end])
    return int((rows - nulls).sum()), pa.array(ends, field.type)


def _null_counts(files: pa.Table, column: str) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    found = pa.concat_arrays(list(_looked_up(files, "nullCounts", column)))
    return None if found.null_count else found.to_numpy()


def _looked_up(files: pa.Table, name: str, column: str) -> Iterator[pa.Array]:
    """Yield the entries for the column `column` in the map column `name`, in the order of the splits."""
    for chunk in files.column(name).chunks or [pa.array([], files.schema.field(name).type)]:
        yield map_column(chunk).lookup(column)


_MOST_KINDS = 16


@dataclass(frozen=True, slots=True)
class TableView:
    """A table to read.

    The reader first merges `records` into the base. Some of the records come from the `raw` logs.
    """

    store: ObjectStore
    snapshot: Snapshot
    verified: VerifiedFiles
    records: pa.Table | None = None
    raw: tuple[RawPart, ...] = ()

    @property
    def has_records(self) -> bool:
        """Whether there are unmerged records that must be merged into the base."""
        return self.records is not None and self.records.num_rows > 0


@dataclass(frozen=True, slots=True)
class UnmergedOverlay:
    """The unmerged records that a read merges with the rows of splits.

    `rows` contains the rows of the unmerged records, which are newer than the splits. `touched` contains the paths of
    the splits that may have replaced rows. `deleted` returns the rows of a touched split that are no longer live.
    """

    rows: pa.Table
    touched: frozenset[str]
    deleted: Callable[[Add], BitMap]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """The plan of a read: the splits, the rows in these splits, and the columns.

    `narrowed` contains the splits to read, and the rows in these splits that indexes selected. If `in_order` is True,
    the splits keep their order. `steps` are the pruning steps that use the log. The steps that use the log run before
    the steps that use indexes. `fetch` is the plan for splits that are not local files.

    If the log alone answers the query, no split is read. In this case, `metrics` contains the result of the query, and
    `log_step` is the name of the pruning step.
    """

    view: TableView
    fetch: FetchPlan
    narrowed: Narrowed = field(default_factory=lambda: Narrowed(()))
    steps: tuple[PruneStep, ...] = ()
    metrics: ExactMetrics | None = None
    log_step: str = ""
    in_order: bool = False

    @property
    def splits(self) -> tuple[Add, ...]:
        """The splits to read."""
        return self.narrowed.splits


def plan(
    view: TableView,
    predicate: Predicate | None,
    *,
    columns: Collection[str] | None,
    first: First | None = None,
    asked: Collection[str] | None = None,
    query: str = "a query",
    is_explained: bool = False,
) -> TableRead:
    """Return the splits that a query will read, and the rows to read in these splits.

    A query reads no split if it needs no column values, or only metrics that the log contains. If a query needs only
    the first rows of an order, it reads only the splits that may contain one of these rows. Splits are skipped for
    these reasons only if there are no unmerged records.

    Args:
        view: The table to read.
        predicate: The condition on the rows, or None for all rows.
        columns: The columns with values that the query needs, or None for all columns.
        first: The first rows that the query needs, or None.
        asked: The columns for which the query needs only metrics, or None.
        query: The text of the query for error messages. If there is no text, the purpose of the query.
        is_explained: Read every manifest to count every split, and do not cache the results of indexes. The rest of the
            plan is the same.

    Cost:
        The requests of `pruning.pruned` and of `Bitmaps.of_split`.
    """
    snapshot = view.snapshot
    if not view.has_records and (known := _metrics_of_log(snapshot, columns, asked)) is not None:
        return TableRead(view=view, fetch=FetchPlan(snapshot.schema, ()), log_step=known[0], metrics=known[1])
    names = [name for name in snapshot.schema.names if columns is None or name in columns] or snapshot.schema.names[:1]
    if first is None or view.has_records:
        pruned = pruning.pruned(snapshot, predicate, is_counted=is_explained)
    else:
        pruned = first_splits(snapshot, first)
    with query_errors(query, pruned.splits):
        left = _narrowed(view, predicate, pruned.splits, names, is_kept=not is_explained)
    fetch = FetchPlan(snapshot.schema, names, predicate, left.rows)
    return TableRead(view=view, fetch=fetch, narrowed=left, steps=pruned.steps, in_order=first is not None)


def source_of(read: TableRead, *, query: str) -> Source:
    """Return the rows of a planned read as a source. Unmerged records are in memory, and rows of the base are not.

    The requests and errors are those of `overlay_of` and `splits_source`.
    """
    view, metrics = read.view, read.metrics
    if metrics is not None:
        return Source(view.snapshot.schema.empty_table(), unread=metrics.rows, ends=metrics.ends, values=metrics.values)
    over = overlay_of(view)
    with query_errors(query, read.splits):
        return splits_source(
            view.store, read.splits, read.fetch, verified=view.verified, over=over, in_order=read.in_order
        )


def splits_source(
    store: ObjectStore,
    splits: Sequence[Add],
    fetch: FetchPlan,
    *,
    verified: VerifiedFiles,
    over: UnmergedOverlay | None = None,
    in_order: bool = False,
) -> Source:
    """Return the splits as a source of rows.

    The source includes the newer rows of `over`. The source excludes replaced rows and rows that deletion vectors hide.
    Every byte of a split is verified before it is used:

    - The length and the checksum of a local file are verified. If the file has changed since the verification in
      `verified`, it is verified again.
    - If a split is on another store, `fetched` verifies it at each read.

    Args:
        store: The store of the table.
        splits: The splits to read.
        fetch: The columns, rows and conditions for splits that are fetched.
        verified: The cache of verified local files and of deletion vectors.
        over: The unmerged records, or None.
        in_order: Keep the order of the splits. If a split is not on a local disk, the order is always kept.

    Raises:
        Corrupt: A split differs from what was written. Reading the source can also raise this error.
        SnapshotExpired: A split was removed. Reading the source can also raise this error.

    Cost:
        One GET per stored deletion vector, except for local files in `verified`. Each read of fetched splits makes the
        requests of `fetched`.
    """
    schema = fetch.table
    newer = schema.empty_table() if over is None else pa.Table.from_arrays(over.rows.columns, schema=schema)
    paths = {add.path: path for add in splits if (path := verified.path(store, add)) is not None}
    is_local = len(paths) == len(splits)
    hidden = _hidden(store, splits, over, verified) if is_local else {}
    kinds = [verified.columns(add) for add in splits] if is_local else []
    if len(set(kinds)) > _MOST_KINDS and not has_changed(schema):
        kinds = [UNKNOWN] * len(kinds)
    if splits and not (is_local and _can_stream(hidden, kinds, schema)):
        deleted = None if over is None else over.deleted

        def read() -> Generator[pa.RecordBatch]:
            with closing(fetched(store, splits, fetch, footers=verified.footers, deleted=deleted)) as found:
                for table in found:
                    yield from table.to_batches()
            yield from newer.select(fetch.schema.names).to_batches()

        return Source(schema.empty_table(), fetched=Rows(fetch.schema, read))
    number = {each: place for place, each in enumerate(dict.fromkeys(kinds))}
    found = list(zip(splits, kinds, strict=True))
    if not in_order:
        found.sort(key=lambda each: (each[0].path in hidden, number[each[1]]))
    return Source(
        newer,
        splits=tuple((add, paths[add.path]) for add, _ in found),
        columns=tuple(each for _, each in found),
        deleted=places_of([add for add, _ in found], hidden, verified.vectors if over is None else None),
    )


def overlay_of(view: TableView) -> UnmergedOverlay | None:
    """Return the unmerged records that a read must apply to the splits, or None if there are no records.

    Requests: see `split_unmerged_records`.
    """
    if view.records is None or not view.has_records:
        return None
    from storage_core.read.unmerged_records import (
        split_unmerged_records,  # reads of only the base do not need this import
    )
    from storage_core.write.region.captured_regions import Unmerged

    unmerged = [Unmerged(generation=None, records=(view.records,))]
    overlay = split_unmerged_records(view.store, view.snapshot, unmerged, footers=view.verified.footers)
    return UnmergedOverlay(overlay.rest, overlay.touched, partial(overlay.hidden_rows, view.store, view.snapshot))


def described(read: TableRead, name: str) -> TablePlan:
    """Return a planned read in the form that `explain` prints. `name` is the name of the table in the query.

    Raises:
        Corrupt: A footer differs from what was written.
        SnapshotExpired: A split was removed.

    Cost:
        One request for each uncached footer of a split that is a local file or is read by ranges. The footers are not
        cached afterwards.
    """
    view, left = read.view, read.narrowed
    snapshot = view.snapshot
    parts = list(prefetch(partial(_part, read), read.splits, SPLITS_AT_ONCE))
    steps = [*read.steps, *_index_steps(left, parts)]
    if read.metrics is not None:
        steps = [PruneStep(read.log_step, len(snapshot.splits), snapshot.bytes)]
    if not all(each.is_whole for each in parts):
        if read.fetch.predicate is not None:
            out = (sum(each.bytes_of_groups_left_out for each in parts), sum(each.groups_left_out for each in parts))
            steps.append(PruneStep("row groups", 0, *out))
        steps.append(PruneStep("columns", 0, sum(each.bytes_of_columns_left_out for each in parts)))
    return TablePlan(
        name=name,
        version=snapshot.version,
        live_splits=len(snapshot.splits),
        live_bytes=snapshot.bytes,
        columns=tuple(read.fetch.names),
        steps=tuple(steps),
        splits=read.splits,
        whole_splits=sum(each.is_whole for each in parts),
        row_groups=sum(each.groups for each in parts),
        read_bytes=left.bytes + sum(each.bytes for each in parts),
        requests=left.requests + sum(each.requests for each in parts),
        newer_records=0 if view.records is None else view.records.num_rows,
        raw_logs=view.raw,
    )


def _metrics_of_log(
    snapshot: Snapshot, columns: Collection[str] | None, asked: Collection[str] | None
) -> tuple[str, ExactMetrics] | None:
    """Return the name of the pruning step and the answer of the log, or None if the log has no answer.

    Reads every manifest.
    """
    if columns is not None and not columns and snapshot.has_all_counts:
        return "count", ExactMetrics(snapshot.rows)
    found = None if asked is None else exact_metrics(snapshot, asked)
    return None if found is None else ("metrics", found)


def _narrowed(
    view: TableView, predicate: Predicate | None, splits: tuple[Add, ...], names: Sequence[str], *, is_kept: bool
) -> Narrowed:
    """Return the splits and rows that must still be read after the use of the table's bitmap indexes."""
    if predicate is None or not view.snapshot.segments:
        return Narrowed(splits)
    from storage_core.read.bitmap import Bitmaps, narrowed_by

    parts = view.verified.bitmaps
    bitmaps = Bitmaps(view.store, view.snapshot, predicate, columns=names, parts=parts, is_kept=is_kept)
    return narrowed_by(bitmaps, splits)


def _can_stream(hidden: Mapping[str, BitMap], kinds: Sequence[Columns], schema: pa.Schema) -> bool:
    """Return whether DuckDB can stream the local files.

    If a column has the name of one of DuckDB's own columns, DuckDB cannot return row positions in files. If the schema
    of the table has changed, the reader must convert the columns of each file. Therefore these columns must be known.
    """
    are_known = not has_changed(schema) or all(each.schema is not None for each in kinds)
    return are_known and (PLACES.isdisjoint(map(str.lower, schema.names)) or not hidden)


def _hidden(
    store: ObjectStore, splits: Sequence[Add], over: UnmergedOverlay | None, verified: VerifiedFiles
) -> Mapping[str, BitMap]:
    """Return the rows that the source excludes, for each split with such rows."""
    if over is None:
        return hidden_rows(store, splits, verified.vectors)
    marked = [add for add in splits if add.path in over.touched or add.deleted_rows is not None]
    found = zip(marked, all_of(over.deleted, marked, PARALLEL_READS), strict=True)
    return {add.path: rows for add, rows in found if rows}


def _index_steps(left: Narrowed, parts: Sequence[_Part]) -> Iterator[PruneStep]:
    """Yield the steps of the indexes.

    Each step counts the row groups that its index excluded in the splits to read.
    """
    numbers = [left.told_by.get(add.path) for add in left.splits]
    for place, step in enumerate(left.steps):
        own = [part for number, part in zip(numbers, parts, strict=True) if number == place]
        size = step.bytes + sum(each.bytes_of_groups_untold for each in own)
        yield replace(step, bytes=size, row_groups=sum(each.groups_untold for each in own))


@dataclass(frozen=True, slots=True)
class _Part:
    """The parts of a split that are read, and the parts that are excluded.

    If the whole split is read, no part is excluded.

    `groups_untold` counts the row groups that an index excluded. `groups_left_out` counts the row groups that
    statistics excluded.
    """

    requests: int
    bytes: int
    is_whole: bool = True
    groups: int = 0
    groups_untold: int = 0
    bytes_of_groups_untold: int = 0
    groups_left_out: int = 0
    bytes_of_groups_left_out: int = 0
    bytes_of_columns_left_out: int = 0


def _part(read: TableRead, add: Add) -> _Part:
    """Return the parts of a split that are read.

    Makes one GET for the footer, unless the footer is cached or the whole split is read.
    """
    store, verified = read.view.store, read.view.verified
    is_local = store.local_path(add.path) is not None
    vectors = requests_for_hidden(add, verified.vectors if is_local else None)
    if add.footerXxh3 is None or (not is_local and read.fetch.is_whole(add)):
        return _Part(vectors if is_local else vectors + 1, add.size)
    footer, footers, footer_bytes = verified.footers.cached_footer(add), 0, 0
    if footer is None:
        with corrupt_on_failure(add):
            footer = read_footer(store, add)
        if not is_local:
            footers, footer_bytes = 1, (add.footerEndOffset or 0) - (add.footerStartOffset or 0)
    # For local files, DuckDB prunes row groups only by their bounds.
    fetch = replace(read.fetch, rows={}) if is_local else read.fetch
    split = fetch.of_split(add, footer.file, footer.file.schema.to_arrow_schema().names)
    found = _chunks(footer.file, split, is_local=is_local)
    return replace(found, requests=found.requests + vectors + footers, bytes=found.bytes + footer_bytes)


def _chunks(footer: pq.FileMetaData, split: SplitPlan, *, is_local: bool) -> _Part:
    """Return the column chunks of a split that a read includes, and the column chunks that it excludes."""
    places = verification.places(footer)
    sizes = places[:, :, 1] - places[:, :, 0]
    named, groups = np.array(split.named, np.int64), np.array(split.groups, np.int64)
    left, wanted = int(sizes[groups].sum()), int(sizes[groups][:, leaves_of(footer, split.columns)].sum())
    most = [_most(places[group], footer, split.columns, split.stages(group)) for group in split.groups]
    return _Part(
        requests=0 if is_local else sum(requests for requests, _ in most),
        bytes=wanted if is_local else sum(size for _, size in most),
        is_whole=False,
        groups=len(groups),
        groups_untold=len(places) - len(named),
        bytes_of_groups_untold=int(sizes.sum() - sizes[named].sum()),
        groups_left_out=len(named) - len(groups),
        bytes_of_groups_left_out=int(sizes[named].sum()) - left,
        bytes_of_columns_left_out=left - wanted,
    )


def _most(
    places: npt.NDArray[np.int64], footer: pq.FileMetaData, columns: Sequence[str], stages: Sequence[Sequence[str]]
) -> tuple[int, int]:
    """Return the maximum number of requests and bytes for reading the columns of a row group.

    The columns may be read in stages or all at once. A read of all columns at once may include more gaps between
    columns.
    """

    def taken(stages: Sequence[Sequence[str]]) -> tuple[int, int]:
        ranges = [each for stage in stages for each in requests_for(places[leaves_of(footer, stage)])]
        return len(ranges), sum(end - start for start, end in ranges)

    (requests, size), (requests_at_once, size_at_once) = taken(stages), taken([columns])
    return max(requests, requests_at_once), max(size, size_at_once)
