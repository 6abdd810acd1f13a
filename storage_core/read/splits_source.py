"""Which rows a query reads: splits, and what lies over them, as the source of a view.

What is not merged yet is in memory, and hides the rows of the base that it takes the place of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyroaring import BitMap

from storage_core.engine.sandbox.query import Rows
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.read.deleted_rows import hidden_rows, places_of
from storage_core.read.exact_metrics import exact_metrics
from storage_core.read.fetching import fetched
from storage_core.read.first_rows import First, first_splits
from storage_core.read.narrowed import Narrowed
from storage_core.read.predicate import Predicate
from storage_core.read.pruning import prune
from storage_core.read.query_errors import query_errors
from storage_core.read.source import PLACES, Source
from storage_core.read.verified import UNKNOWN, Columns, Verified
from storage_core.rows.columns import has_changed
from storage_core.split.read import share_of
from storage_core.split.vectors import PARALLEL_READS

_MOST_KINDS = 16


@dataclass(frozen=True, slots=True)
class Over:
    """What lies over splits: newer `rows`, and those of `touched` splits that `deleted` returns as no longer live."""

    rows: pa.Table
    touched: frozenset[str]
    deleted: Callable[[Add], BitMap]


def splits_source(
    store: ObjectStore,
    splits: Sequence[Add],
    schema: pa.Schema,
    *,
    verified: Verified,
    columns: Collection[str] | None = None,
    predicate: Predicate | None = None,
    over: Over | None = None,
    rows: Mapping[str, BitMap] | None = None,
    in_order: bool = False,
) -> Source:
    """Return the splits as a source of rows, in their order where `in_order` or not read from a local disk.

    Of columns other than `columns` the values may be null.

    The rows that lie `over` them are the source's too, and those are not that they or deletion vectors hide; one GET
    per vector that is stored, but for local files those that `verified` has.

    Rows that cannot make `predicate` true may be left out, and row groups without one of the `rows` that are wanted of
    a split, by its path. What is used of a split is verified before: on a local store its file, against its length and
    checksum, and again when it is another than the one that `verified` remembers; elsewhere what `fetched` says, with
    its requests, by each reading of the rows.
    Raises `Corrupt` for a split that is not what was written, `SnapshotExpired` when it is gone; so does a reading.
    """
    newer = schema.empty_table() if over is None else pa.Table.from_arrays(over.rows.columns, schema=schema)
    paths = {add.path: path for add in splits if (path := verified.path(store, add)) is not None}
    is_local = len(paths) == len(splits)
    hidden = _hidden(store, splits, over, verified) if is_local else {}
    kinds = [verified.columns(add) for add in splits] if is_local else []
    if len(set(kinds)) > _MOST_KINDS and not has_changed(schema):
        kinds = [UNKNOWN] * len(kinds)
    if splits and not (is_local and _can_stream(hidden, kinds, schema)):
        wanted = pa.schema([schema.field(name) for name in columns_fetched(schema, columns)])
        deleted = None if over is None else over.deleted

        def read() -> Generator[pa.RecordBatch]:
            found = fetched(
                store,
                splits,
                wanted,
                share=share_of(wanted.names, schema),
                footers=verified.footers,
                deleted=deleted,
                predicate=predicate,
                rows=rows,
            )
            with closing(found):
                for table in found:
                    yield from table.to_batches()
            yield from newer.select(wanted.names).to_batches()

        return Source(schema.empty_table(), fetched=Rows(wanted, read))
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


def source_of(
    store: ObjectStore,
    snapshot: Snapshot,
    predicate: Predicate | None,
    *,
    verified: Verified,
    records: pa.Table | None,
    columns: Collection[str] | None,
    query: str,
    first: First | None = None,
    asked: Collection[str] | None = None,
) -> tuple[Sequence[Add], Source]:
    """Return the splits whose rows a query may need, which errors name, and the rows.

    Of columns other than `columns` the values may be null; where none is read, no split is. With `records`, they are
    folded over the base: they are held in memory, the base is not (`overlay`). Without them, a query that needs the
    `first` rows only reads splits that have them, and one that needs metrics of `asked` columns none, where the log
    tells them. Requests besides those of `splits_source`: those of `take_apart` and `Overlay.deleted`. Raises what they
    raise.
    """
    over = over_of(store, snapshot, records, verified)
    if over is None and is_counted(snapshot, columns):
        return (), Source(snapshot.schema.empty_table(), unread=snapshot.rows)
    if over is None and asked is not None and (told := exact_metrics(snapshot, asked)) is not None:
        return (), Source(snapshot.schema.empty_table(), unread=told.rows, ends=told.ends, values=told.values)
    splits = first_splits(snapshot, first).splits if first is not None and over is None else prune(snapshot, predicate)
    with query_errors(query, splits):
        found = narrowed(store, snapshot, predicate, splits, columns=columns, verified=verified)
        return found.splits, splits_source(
            store,
            found.splits,
            snapshot.schema,
            verified=verified,
            columns=columns,
            predicate=predicate,
            over=over,
            rows=found.rows,
            in_order=first is not None,
        )


def over_of(store: ObjectStore, snapshot: Snapshot, records: pa.Table | None, verified: Verified) -> Over | None:
    """Return what records that are not merged put over the splits; None without one. Requests: see `take_apart`."""
    if records is None or not records.num_rows:
        return None
    from storage_core.read.overlay import take_apart  # which reads of the base alone do not need
    from storage_core.region.unmerged import Unmerged

    unmerged = [Unmerged(generation=None, records=(records,))]
    overlay = take_apart(store, snapshot, unmerged, footers=verified.footers)
    return Over(overlay.rest, overlay.touched, partial(overlay.deleted, store, snapshot))


def narrowed(
    store: ObjectStore,
    snapshot: Snapshot,
    predicate: Predicate | None,
    splits: Sequence[Add],
    *,
    columns: Collection[str] | None,
    verified: Verified,
    is_kept: bool = True,
) -> Narrowed:
    """Return what the table's bitmap indexes leave of splits: see `bitmap_narrowing.narrowed_by`."""
    if predicate is None or not snapshot.segments:
        return Narrowed(tuple(splits))
    from storage_core.read.bitmap_narrowing import narrowed_by  # which tables without indexes do not need
    from storage_core.read.bitmap_pruning import Bitmaps

    names = columns_fetched(snapshot.schema, columns)
    parts = verified.bitmaps
    return narrowed_by(Bitmaps(store, snapshot, predicate, columns=names, parts=parts, is_kept=is_kept), tuple(splits))


def columns_fetched(schema: pa.Schema, columns: Collection[str] | None) -> Sequence[str]:
    """Return the columns that are fetched where `columns` are read: one where none is, for the number of rows."""
    return schema.names if columns is None else [name for name in schema.names if name in columns] or schema.names[:1]


def is_counted(snapshot: Snapshot, columns: Collection[str] | None) -> bool:
    """Return whether the log tells all that is read of the rows: how many they are. Reads every manifest."""
    return columns is not None and not columns and snapshot.has_all_counts


def _can_stream(hidden: Mapping[str, BitMap], kinds: Sequence[Columns], schema: pa.Schema) -> bool:
    """A column called like one of DuckDB's own hides it, and with it the places of rows in their files.

    And columns that cannot be told cannot be made those of a table whose schema has changed.
    """
    are_known = not has_changed(schema) or all(each.schema is not None for each in kinds)
    return are_known and (PLACES.isdisjoint(map(str.lower, schema.names)) or not hidden)


def _hidden(store: ObjectStore, splits: Sequence[Add], over: Over | None, verified: Verified) -> Mapping[str, BitMap]:
    """The rows of each split that are not the source's, where there are any."""
    if over is None:
        return hidden_rows(store, splits, verified.vectors)
    marked = [add for add in splits if add.path in over.touched or add.deleted_rows is not None]
    found = zip(marked, all_of(over.deleted, marked, PARALLEL_READS), strict=True)
    return {add.path: rows for add, rows in found if rows}
