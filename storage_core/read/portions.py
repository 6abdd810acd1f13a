"""A scan in portions: each is read by a task of its own, in another process or on another machine (decision 0156).

They are planned once, on one snapshot, and every row of the scan is in one of them: splits in groups of bounded bytes,
and what is not merged yet as rows. Which rows of a split newer records hide is found when they are planned, and told by
an inline vector, so that a task reads its splits and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from storage_core.log.actions import Add, Metadata, Protocol
from storage_core.log.deletion_vector import inline
from storage_core.log.encoding.action_json import read_action, read_actions, write_actions
from storage_core.log.files.live import Added, LiveFiles
from storage_core.log.sharing import open_table_store
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.prefetch import all_of
from storage_core.read.fetching import fetched
from storage_core.read.predicate import Filter
from storage_core.read.pruning import prune
from storage_core.read.query_errors import query_errors
from storage_core.read.scan import Scan
from storage_core.read.source import Source
from storage_core.read.splits_source import Over, narrowed, over_of
from storage_core.split.read import share_of
from storage_core.split.vectors import PARALLEL_READS

MOST_BYTES = 128 * 2**20
"""How much of its splits a portion reads, about; one split may be more."""
LEAST_BYTES = 4 * 2**20
"""Splits are not divided further than this, however few bytes there are in all."""
_MANY = 64
_NEWER_BYTES = 16 * 2**20
_WHERE = "a portion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Some rows of a table at a version: those of splits, or rows that are not merged. Plain data, for any process."""

    uri: str
    version: int
    metadata: str
    splits: str = "[]"
    newer: bytes | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The table as if it had these splits only, and nothing that a read of rows does not need."""
        found = read_actions(json.loads(self.splits), Add, _WHERE)
        return Snapshot(
            version=self.version,
            timestamp=0,
            protocol=Protocol(),
            metadata=read_action(json.loads(self.metadata), Metadata, _WHERE),
            splits=LiveFiles(added={each.path: Added(each, self.version, 0) for each in found}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a task takes of the rows of a portion: see the fields of `Scan`."""

    columns: tuple[str, ...] | None = None
    filter: Filter | None = None


def portions(scan: Scan) -> list[Portion]:
    """Return the portions of a scan, in the order of windows; none where no row can be wanted.

    Requests: those of `splits_source.over_of` and `narrowed`, and for each split that newer records touch those of
    finding them in it.
    """
    store, snapshot = scan.store, scan.snapshot
    over = over_of(store, snapshot, scan.records, scan.verified)
    pruned = prune(snapshot, scan.predicate)
    with query_errors("scan", pruned):
        left = narrowed(
            store, snapshot, scan.predicate, pruned, columns=scan.columns_read, verified=scan.verified
        ).splits
        splits = list(left) if over is None else _without_superseded(left, over)
    of_table = Portion(
        uri=store.uri, version=snapshot.version, metadata=json.dumps(write_actions([snapshot.metadata])[0])
    )
    share = 1.0 if scan.columns_read is None else share_of(scan.columns_read, snapshot.schema)
    found = [of_splits(of_table, each) for each in groups(splits, share)]
    return found if over is None else [*found, *(replace(of_table, newer=each) for each in _serialized(over.rows))]


def of_splits(of_table: Portion, splits: Sequence[Add]) -> Portion:
    """Return the portion of these splits, of the same table and version."""
    return replace(of_table, splits=json.dumps(write_actions(splits)))


def groups(splits: Sequence[Add], share: float = 1.0) -> list[list[Add]]:
    """Return the splits in groups, by window; of their bytes so large a share is read.

    A group is about a 64th of all, within `LEAST_BYTES` and `MOST_BYTES`: several cores have work, and a task is worth
    its start.
    """
    most = min(MOST_BYTES, max(LEAST_BYTES, sum(each.size for each in splits) * share / _MANY))
    found: list[list[Add]] = []
    size = 0.0
    for each in in_order(splits):
        size += each.size * share
        if not found or size > most:
            found.append([])
            size = each.size * share
        found[-1].append(each)
    return found


def in_order(splits: Iterable[Add]) -> list[Add]:
    """Return the splits in the order in which tasks take them: by window."""
    return sorted(splits, key=lambda add: (add.windowStart is not None, add.windowStart or 0, add.path))


def rows_of(portion: Portion, wanted: Wanted, *, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of a portion as batches of at most so many; memory stays bounded.

    Without a filter they come as they are decoded, which takes half of what DuckDB needs, and each part of a file is
    verified as it is used. Requests and errors: those of `fetching.fetched`, or of `Scan.to_reader`.
    """
    store, snapshot = open_table_store(portion.uri), portion.snapshot
    scan = Scan(store, snapshot, wanted.columns, wanted.filter)
    if portion.newer is not None:
        rows = pa.ipc.open_stream(portion.newer).read_all()
        source = Source(pa.Table.from_arrays(rows.columns, schema=snapshot.schema))
        yield from scan.read_from((), source, batch_rows=batch_rows)
    elif wanted.filter is not None:
        yield from scan.to_reader(batch_rows)
    else:
        names = snapshot.schema.names if wanted.columns is None else wanted.columns
        schema = pa.schema([snapshot.schema.field(name) for name in names])
        splits, share = tuple(snapshot.splits.values()), share_of(names, snapshot.schema)
        with query_errors("scan", splits):
            near = any(store.local_path(each.path) is not None for each in splits[:1])
            # A task has one core, and files do not keep it waiting.
            for table in fetched(store, splits, schema, share=share, footers=scan.verified.footers, one_by_one=near):
                yield from table.to_batches(max_chunksize=batch_rows)


def _without_superseded(splits: Sequence[Add], over: Over) -> list[Add]:
    """The splits that have a row which nothing newer hides, with a vector of those that are hidden."""
    touched = [each for each in splits if each.path in over.touched]
    hidden = dict(zip((each.path for each in touched), all_of(over.deleted, touched, PARALLEL_READS), strict=True))
    current = (
        replace(each, deletionVector=inline(hidden[each.path])) if hidden.get(each.path) else each for each in splits
    )
    return [each for each in current if each.numRecords is None or each.visible_rows]


def _serialized(rows: pa.Table) -> Iterator[bytes]:
    """The rows as Arrow streams of bounded size."""
    if not rows.num_rows:
        return
    step = max(1, rows.num_rows * _NEWER_BYTES // max(rows.nbytes, _NEWER_BYTES))
    for first in range(0, rows.num_rows, step):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows.slice(first, step))
        yield sink.getvalue().to_pybytes()
