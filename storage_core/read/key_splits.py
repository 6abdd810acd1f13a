"""The splits that may contain one of the requested keys, and the rows of these splits.

A lookup uses the primary-key index if the index costs less than a read of the key columns (decision 0021). The index
contains only hashes of keys, so the lookup compares the found rows with the keys. If no usable segment covers a split,
the lookup searches the key columns of the split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from storage_core.base.text import counted
from storage_core.data.formats.key_hashes import Hashes, key_hashes
from storage_core.data.rows import fold, sort_order
from storage_core.data.rows.codes import bound_keys
from storage_core.data.rows.columns import stored_name
from storage_core.data.rows.keys import Positions, Range, map_column, with_room
from storage_core.data.settings.index import IndexDefinition
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.read.predicate import And, Compare, Comparison, Or
from storage_core.read.pruning import PruneStep, manifests_for, prune_of
from storage_core.read.verified_files import VerifiedFiles
from storage_core.store.contract import ObjectStore
from storage_core.store.pieces import KeptValues
from storage_core.write.region.records import matching

if TYPE_CHECKING:
    from storage_core.index.segment_reader import KeyReading
    from storage_core.index.segments import AnsweringOf

_NAME: Final = ("key index",)


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """The ascending positions of those rows of a split that may have one of the keys.

    If the index was not used, `places` is None and `why` is the reason.
    """

    places: Positions | None = None
    why: str = ""
    requests: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Tally:
    """The use of the index in a lookup, counted in splits.

    `splits` is the number of splits that the index excluded. `not_asked` counts the splits without use of the index by
    reason.
    """

    name: str
    splits: int = 0
    left_out_bytes: int = 0
    requests: int = 0
    bytes: int = 0
    not_asked: Counter[str] = field(default_factory=Counter)

    def add(self, add: Add, answer: KeyAnswer) -> bool:
        """Count the result for a split, and return whether the index excludes the split."""
        self.requests += answer.requests
        self.bytes += answer.bytes
        self.not_asked.update([answer.why] if answer.why else [])
        if answer.places is None or len(answer.places):
            return False
        self.splits += 1
        self.left_out_bytes += add.size
        return True

    @property
    def step(self) -> PruneStep:
        """The counts of this tally as a `PruneStep` of a plan."""
        notes = [f"not used for {counted(number, 'split')}: {why}" for why, number in self.not_asked.items()]
        return PruneStep(f"primary-key index {self.name}", self.splits, self.left_out_bytes, note="; ".join(notes))


@dataclass(frozen=True, slots=True, eq=False)
class _Index:
    """The primary-key index of a snapshot.

    `is_sorted` is True if the statistics bound a key column in each row group.
    """

    snapshot: Snapshot
    definition: IndexDefinition
    answering_of: AnsweringOf
    is_sorted: bool


@dataclass(frozen=True, slots=True)
class IndexedKeys:
    """The primary-key index of a snapshot for a lookup of the `wanted` keys.

    `splits` is the expected number of splits.
    """

    store: ObjectStore
    index: _Index
    wanted: pa.Table
    hashes: Hashes
    splits: int
    verified: VerifiedFiles
    kept: KeptValues

    @staticmethod
    def of(
        store: ObjectStore,
        snapshot: Snapshot,
        wanted: pa.Table,
        *,
        splits: int,
        verified: VerifiedFiles,
        kept: KeptValues,
    ) -> IndexedKeys | None:
        """Return the index. Return None if the index has no segment or there is no split to search.

        Makes no request.
        """
        index = _index(snapshot, kept) if snapshot.segments and splits else None
        if index is None:
            return None
        hashes = np.unique(key_hashes(wanted, wanted.column_names))
        return IndexedKeys(store, index, wanted, hashes, splits, verified, kept)

    def tally(self) -> Tally:
        """Return a new `Tally` with all counts at zero."""
        return Tally(self.index.definition.name)

    def of_split(self, add: Add) -> KeyAnswer:
        """Return the result of the index for a split.

        If the index is used, makes the requests of `KeyReading.places`.
        """
        from storage_core.index.segment_reader import (  # needed only for indexed tables
            UNCOVERED,
            KeyReading,
            candidate_rows,
        )

        found = self.index.answering_of(add) if add.numRecords else None
        if found is None:
            return KeyAnswer(why=UNCOVERED)
        reading = KeyReading(self.store, add, found, self.kept)
        places, why = candidate_rows(reading, self.hashes, self._is_dear)
        return KeyAnswer(places, why, reading.requests, reading.read_bytes)

    def _is_dear(self, reading: KeyReading) -> bool:
        from storage_core.split.fetch import REQUEST_COST_BYTES

        requests, size = self._without(reading.add)
        if not requests and not size:
            return True
        asked, bytes_ = reading.cost(self.hashes)
        # A split that contains the key is read in any case. The footer is then the first part to be read.
        has_footer = self.verified.footers.cached_footer(reading.add) is not None
        footers = 0 if has_footer else min(1.0, self.wanted.num_rows / self.splits)
        if self.store.local_path(reading.add.path) is not None:  # a request for a local file takes no waiting time
            return bytes_ + footers * size >= size
        return (asked + footers) * REQUEST_COST_BYTES + bytes_ >= requests * REQUEST_COST_BYTES + size

    def _without(self, add: Add) -> tuple[int, float]:
        """Return the requests and bytes of a lookup that finds the keys in the split without the index.

        The read of rows is not included.
        """
        from storage_core.split import metadata, pages  # both import Parquet
        from storage_core.split.read import is_small

        groups = metadata.groups_about(add.numRecords or 1, add.size)
        missing = pages.missing(add, self.wanted, self.kept)
        if missing is None:
            missing = min(groups, self.wanted.num_rows) if self.index.is_sorted else groups
        if not missing:
            return 0, 0
        if self.store.local_path(add.path) is not None and not self.verified.is_known(add):
            return 1, add.size
        if is_small(add):
            return 1, add.size
        share = len(self.wanted.column_names) / len(self.index.snapshot.schema.names)
        has_footer = self.verified.footers.cached_footer(add) is not None
        return missing + (not has_footer), add.size * share * missing / groups


def _index(snapshot: Snapshot, kept: KeptValues) -> _Index | None:
    found = kept.get(_NAME)
    if isinstance(found, _Index) and found.snapshot is snapshot:
        return found
    from storage_core.index.segment_reader import index_of

    index = index_of(snapshot)
    if index is None:
        return None
    order = sort_order.bind(snapshot.config, snapshot.schema).columns
    made = _Index(snapshot, *index, is_sorted=bool(order) and order[0].name in snapshot.config.primary_key)
    kept.keep(_NAME, made, 64 * len(snapshot.segments))
    return made


_KEYS_AT_ONCE = 64
_BOUNDED = ("bounds of keys",)


@dataclass(frozen=True, slots=True, eq=False)
class _Bounded:
    """A table of splits, and the bounds of each key column in each split."""

    files: pa.Table
    ranges: Sequence[Range]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeyRead:
    """The plan of a lookup in the base. `rows` executes it split by split, and `explain_get` prints it.

    `newer` contains the unmerged records of the keys, merged to one record per key. `wanted` contains the keys for
    which the row of the base is still needed. `splits` are the splits that may contain one of the wanted keys. The
    lookup uses `index` for each split, if it is not None.
    """

    store: ObjectStore
    snapshot: Snapshot
    newer: pa.Table | None
    wanted: pa.Table
    splits: Sequence[Add]
    index: IndexedKeys | None
    verified: VerifiedFiles
    kept: KeptValues


def plan(
    store: ObjectStore,
    snapshot: Snapshot,
    wanted: pa.Table,
    *,
    records: pa.Table | None,
    verified: VerifiedFiles,
    kept: KeptValues,
) -> KeyRead:
    """Return the plan to find the rows of these keys in the base. The plan includes the unmerged `records` of the keys.

    Requests: see `candidate_splits`.
    """
    newer = fold.fold(records, wanted.column_names) if records is not None and records.num_rows else None
    left = wanted if newer is None else fold.left_open([newer], wanted)
    splits = candidate_splits(snapshot, left, kept) if left.num_rows else ()
    index = None
    if snapshot.segments:
        index = IndexedKeys.of(store, snapshot, left, splits=len(splits), verified=verified, kept=kept)
    return KeyRead(
        store=store,
        snapshot=snapshot,
        newer=newer,
        wanted=left,
        splits=splits,
        index=index,
        verified=verified,
        kept=kept,
    )


def candidate_splits(snapshot: Snapshot, wanted: pa.Table, kept: KeptValues) -> Sequence[Add]:
    """Return the live splits that may contain one of the keys, by path. There must be at least one key.

    The bounds of the key columns select the splits. If `kept` has no cached keys of a split, the function also uses all
    other statistics that the log contains for the split. Makes one GET for each manifest that was not read yet, if its
    bounds may include one of the keys.
    """
    from storage_core.split import pages  # it imports Parquet

    files = _files(snapshot, wanted)
    bounded = kept.get(_BOUNDED)
    if not isinstance(bounded, _Bounded) or bounded.files is not files:
        bounded = _Bounded(files, bounds_of_keys(files, wanted.schema))
        kept.keep(_BOUNDED, bounded, sum(each.nbytes for both in bounded.ranges for each in both))
    found = snapshot.splits.records_at(files, np.flatnonzero(with_room(bounded.ranges, wanted)))
    unknown = {add.path for add in found if not pages.are_kept(add, kept)}
    if unknown:
        unread = files.filter(pc.is_in(files["path"], pa.array(sorted(unknown))))
        unknown -= _admitting(snapshot, unread, wanted)
    return sorted((add for add in found if add.path not in unknown), key=lambda add: add.path)


def rows(read: KeyRead, add: Add) -> Iterator[pa.Table]:
    """Yield the live rows of a split that have one of the keys. The rows have the columns of the table.

    If the index covers the split, only the rows that the index returns are read. If the index returns no row, nothing
    is read. Raises the errors of `open_split`.

    Cost:
        Cached or verified data takes no request. A local file is read whole once, to verify it. A small split
        (`split.read.SMALL_SPLIT_BYTES`) takes one GET. A large split takes one GET for the footer. Each row group that
        may contain a key takes one or more GETs for the key columns. Each row group that contains a key takes one more
        GET for all columns. If the split contains a key, a stored deletion vector that is not cached takes one more
        GET.
    """
    from storage_core.split import pages  # it imports Parquet
    from storage_core.split.read import conform_split, open_split

    store, wanted, verified, kept = read.store, read.wanted, read.verified, read.kept
    named = None if read.index is None else read.index.of_split(add).places
    if named is not None and not len(named):
        return
    path = verified.path(store, add)
    opened = cache(lambda: open_split(store, add.as_written, whole=False, file_path=path, footers=verified.footers))
    places = pages.find_keys(add, opened, wanted, kept) if named is None else named
    if len(places) and add.deletionVector is not None:
        places = places[~np.isin(places, _deleted(store, add, kept))]
    if not len(places):
        return
    # Another program wrote a split without a checksum, and the pages of this split may have any layout.
    if path is not None and add.xxh3 is not None:
        found = pages.take(store, add.as_written, path, places, kept=kept)
    else:
        found = opened().take(places)
    verified.recheck(store, [(add, path)] if path is not None else [])
    yield matching(conform_split(found, read.snapshot.schema), wanted, wanted.column_names)


def _files(snapshot: Snapshot, wanted: pa.Table) -> pa.Table:
    """Return a table of the live splits that may contain a key.

    The table contains the splits in manifests that may contain a key. The table also contains all splits that are
    available without a request.
    """
    splits, config = snapshot.splits, snapshot.config
    partitions = {each.column for each in config.partition_fields}
    bounded = {*snapshot.metadata.partitionColumns, *partitions, config.time_column}
    if splits.is_read or bounded.isdisjoint(wanted.column_names):
        return splits.table()
    return splits.table(manifests_for(snapshot, _equal(wanted)))


def bounds_of_keys(files: pa.Table, key: pa.Schema) -> Sequence[Range]:
    """Return the bounds of each key column. The bounds have one entry per split of the table."""
    parts = [
        [map_column(chunk) for chunk in files.column(name).chunks if len(chunk)] for name in ("minValues", "maxValues")
    ]
    lows, highs = (
        [bound_keys(_joined([each.lookup(stored_name(field)) for each in part]), field.type) for field in key]
        for part in parts
    )
    return tuple(zip(lows, highs, strict=True))


def _joined(texts: Sequence[pa.Array]) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.string()), *texts])


def _admitting(snapshot: Snapshot, files: pa.Table, wanted: pa.Table) -> set[str]:
    """Return the paths of the splits that may contain one of the keys. The function uses all statistics of the log."""
    keep = np.zeros(files.num_rows, np.bool_)
    for start in range(0, wanted.num_rows, _KEYS_AT_ONCE):
        equal = _equal(wanted.slice(start, _KEYS_AT_ONCE))
        pruned = prune_of(snapshot, files, equal)
        keep |= pruned.keep.to_numpy(zero_copy_only=False)
    return set(files["path"].filter(pa.array(keep)).to_pylist())


def _equal(wanted: pa.Table) -> Or:
    return Or(tuple(And(tuple(Compare(name, Comparison.EQ, row[name]) for name in row)) for row in wanted.to_pylist()))


def _deleted(store: ObjectStore, add: Add, kept: KeptValues) -> Positions:
    from storage_core.data.rows.keys import positions
    from storage_core.split.deletion_vectors import deleted_rows

    name = (add.path, add.deleted_rows)
    return positions(kept.made(name, BitMap, lambda: deleted_rows(store, add, kept.cached), lambda rows: 2 * len(rows)))
