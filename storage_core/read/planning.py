"""What a read of a table will fetch: the splits that pruning leaves, and of those what their footers tell."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import prefetch
from storage_core.read import pruning
from storage_core.read.deleted_rows import requests_for_hidden
from storage_core.read.exact_metrics import exact_metrics
from storage_core.read.fetching import SPLITS_AT_ONCE
from storage_core.read.first_rows import First, first_splits
from storage_core.read.late_materialization import first_and_rest
from storage_core.read.narrowed import Narrowed
from storage_core.read.plan import RawPart, TablePlan
from storage_core.read.predicate import Predicate, renamed
from storage_core.read.pruning import PruneStep
from storage_core.read.row_group_pruning import groups_left, groups_with
from storage_core.read.splits_source import columns_fetched, is_counted, narrowed
from storage_core.read.verified import Verified
from storage_core.rows.columns import stored_names, stored_schema
from storage_core.split import chunk_checksums
from storage_core.split.failures import corrupt_on_failure
from storage_core.split.leaves import leaves_of
from storage_core.split.ranges import read_footer, requests_for
from storage_core.split.read import is_small, share_of


def table_plan(
    store: ObjectStore,
    snapshot: Snapshot,
    predicate: Predicate | None,
    *,
    name: str,
    columns: Collection[str] | None,
    verified: Verified,
    records: pa.Table | None = None,
    raw: tuple[RawPart, ...] = (),
    first: First | None = None,
    asked: Collection[str] | None = None,
) -> TablePlan:
    """Return what `splits_source.source_of` would read of a table.

    Requests: one GET per manifest not read yet, those of `narrowed`, and one per footer that `verified` does not hold,
    of the splits that are left and read by ranges, or are local files. None of it is kept. Raises `Corrupt` for a
    footer that is not what was written, `SnapshotExpired` for a split that is gone.
    """
    newer = 0 if records is None else records.num_rows
    names, splits, parts, left = tuple[str, ...](), tuple[Add, ...](), list[_Part](), Narrowed(())
    if not newer and is_counted(snapshot, columns):
        steps = [PruneStep("count", len(snapshot.splits), snapshot.bytes)]
    elif not newer and asked is not None and exact_metrics(snapshot, asked) is not None:
        steps = [PruneStep("metrics", len(snapshot.splits), snapshot.bytes)]
    else:
        pruned = pruning.explain(snapshot, predicate) if first is None or newer else first_splits(snapshot, first)
        left = narrowed(store, snapshot, predicate, pruned.splits, columns=columns, verified=verified, is_kept=False)
        splits, names = left.splits, tuple(columns_fetched(snapshot.schema, columns))
        parts = list(prefetch(_Splits(store, snapshot, predicate, names, verified, left).part, splits, SPLITS_AT_ONCE))
        steps = [*pruned.steps, *_index_steps(left, parts)]
    if predicate is not None and not all(each.is_whole for each in parts):
        out = (sum(each.bytes_of_groups_left_out for each in parts), sum(each.groups_left_out for each in parts))
        steps.append(PruneStep("row groups", 0, *out))
    if not all(each.is_whole for each in parts):
        steps.append(PruneStep("columns", 0, sum(each.bytes_of_columns_left_out for each in parts)))
    return TablePlan(
        name=name,
        version=snapshot.version,
        live_splits=len(snapshot.splits),
        live_bytes=snapshot.bytes,
        columns=names,
        steps=tuple(steps),
        splits=splits,
        whole_splits=sum(each.is_whole for each in parts),
        row_groups=sum(each.groups for each in parts),
        read_bytes=left.bytes + sum(each.bytes for each in parts),
        requests=left.requests + sum(each.requests for each in parts),
        newer_records=newer,
        raw_logs=raw,
    )


def _index_steps(left: Narrowed, parts: Sequence[_Part]) -> Iterator[PruneStep]:
    """The steps of the indexes, with the row groups that each left out of splits that are read."""
    numbers = [left.told_by.get(add.path) for add in left.splits]
    for place, step in enumerate(left.steps):
        own = [part for number, part in zip(numbers, parts, strict=True) if number == place]
        size = step.bytes + sum(each.bytes_of_groups_untold for each in own)
        yield replace(step, bytes=size, row_groups=sum(each.groups_untold for each in own))


@dataclass(frozen=True, slots=True)
class _Part:
    """What is read of a split, and what is not of one that is not read whole: of row groups those `untold` first."""

    requests: int
    bytes: int
    is_whole: bool = True
    groups: int = 0
    groups_untold: int = 0
    bytes_of_groups_untold: int = 0
    groups_left_out: int = 0
    bytes_of_groups_left_out: int = 0
    bytes_of_columns_left_out: int = 0


@dataclass(frozen=True, slots=True)
class _Splits:
    """The splits of a table of which rows are wanted that meet a condition, with some columns."""

    store: ObjectStore
    snapshot: Snapshot
    predicate: Predicate | None
    names: Collection[str]
    verified: Verified
    left: Narrowed

    @property
    def _share(self) -> float:
        return share_of(self.names, self.snapshot.schema)

    def part(self, add: Add) -> _Part:
        """What is read of a split. One GET for its footer, unless it is held or the split is read whole."""
        is_local = self.store.local_path(add.path) is not None
        vectors = requests_for_hidden(add, self.verified.vectors if is_local else None)
        if add.footerXxh3 is None or (is_small(add, self._share) and not is_local):
            return _Part(vectors if is_local else vectors + 1, add.size)
        footer = self.verified.footers.held(add)
        if footer is not None or is_local:
            footers = footer_bytes = 0
        else:
            footers, footer_bytes = 1, (add.footerEndOffset or 0) - (add.footerStartOffset or 0)
        if footer is None:
            with corrupt_on_failure(add):
                footer = read_footer(self.store, add)
        rows = None if is_local else self.left.rows.get(add.path)  # DuckDB skips row groups of files by bounds alone
        found = self._chunks(footer.file, rows, is_local=is_local)
        return replace(found, requests=found.requests + vectors + footers, bytes=found.bytes + footer_bytes)

    def _chunks(self, footer: pq.FileMetaData, rows: BitMap | None, *, is_local: bool) -> _Part:
        """The column chunks that are read of a split, and those that are not."""
        places = chunk_checksums.places(footer)
        sizes = places[:, :, 1] - places[:, :, 0]
        every = range(len(places))
        told = [*every] if rows is None else [*groups_with(rows, footer, every)]
        schema = self.snapshot.schema
        condition = None if self.predicate is None else renamed(self.predicate, schema)
        groups = [each for each in groups_left(footer, condition, stored_schema(schema)) if each in {*told}]
        present, read = footer.schema.to_arrow_schema().names, {*stored_names(schema, self.names)}
        names = [each for each in present if each in read] or present[:1]
        leaves = leaves_of(footer, names)
        wanted, left = int(sizes[groups][:, leaves].sum()), int(sizes[groups].sum())
        turns = ((group, turn) for group in groups for turn in first_and_rest(footer, group, names, condition))
        ranges = [each for group, turn in turns for each in requests_for(places[group, leaves_of(footer, turn)])]
        return _Part(
            requests=0 if is_local else len(ranges),
            bytes=wanted if is_local else sum(end - start for start, end in ranges),
            is_whole=False,
            groups=len(groups),
            groups_untold=len(places) - len(told),
            bytes_of_groups_untold=int(sizes.sum() - sizes[told].sum()),
            groups_left_out=len(told) - len(groups),
            bytes_of_groups_left_out=int(sizes[told].sum()) - left,
            bytes_of_columns_left_out=left - wanted,
        )
