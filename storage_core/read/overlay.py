"""What is not merged into a snapshot, taken apart for a search (decision 0056).

Of every key only the newest word counts. Where that is a whole row of a generation, or of an entry of the log, the row
is an answer from there, which an index knows by its place. All else, rows that patches make, is folded over the base
into rows of its own. Base rows of a key with any record are hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from storage_core.formats.generation_manifest import Generation
from storage_core.log.actions import Add
from storage_core.log.files.columns import adds_of
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.log_runs import LoggedRows, LogRuns
from storage_core.region import overlap, superseded
from storage_core.region.generation_segments import gives_whole_rows, whole_rows
from storage_core.rows import fold
from storage_core.rows.codes import Mask
from storage_core.rows.keys import key_codes
from storage_core.rows.positions import bitmap_of
from storage_core.split.arrangement import places_in_order
from storage_core.split.context import context_of
from storage_core.split.ranges import Footers
from storage_core.split.vectors import deleted_rows

if TYPE_CHECKING:
    from storage_core.region.unmerged import Unmerged


_ENTRY = "\0entry"  # no column has such a name


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRows:
    """The rows that a generation gives whole; `deleted` are those with newer records elsewhere.

    They ascend by key, or are in the `order` in which segments of the generation count them.
    """

    generation: Generation
    rows: pa.Table
    deleted: BitMap
    order: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """The live rows of all that is not merged: of generations and logs those not deleted, and `rest`, ascending by key.

    `logs` are the runs of entries of each log. `deletes` are records that hide every base row of which there is newer
    word, `touched` the paths of the splits whose bounds leave room for one; of them and of stored vectors nothing is
    fetched that `footers` hold or have cached.
    """

    generations: tuple[WholeRows, ...]
    logs: tuple[LoggedRows, ...]
    rest: pa.Table
    deletes: pa.Table
    touched: frozenset[str]
    footers: Footers

    def deleted(self, store: ObjectStore, snapshot: Snapshot, split: Add) -> BitMap:
        """Return the rows of a base split that are no answer: deleted, or superseded by what is not merged.

        Requests: one GET for a vector that is stored; of a touched split those of `superseded.find`.
        """
        if split.path in self.touched:
            found = _find(store, snapshot, split, self.deletes, footers=self.footers)
            if found is not None:
                return found.deleted
        return deleted_rows(store, split, self.footers.cached)


def take_apart(
    store: ObjectStore,
    snapshot: Snapshot,
    unmerged: Sequence[Unmerged],
    *,
    footers: Footers,
    runs: LogRuns | None = None,
) -> Overlay:
    """Return what the records, of one region in the order of their acknowledgement, do to the snapshot.

    Logs are divided as `runs` did before. Records of one whose entries are not known are among the rest, whole rows or
    not. Requests: for patches ranged GETs of the splits whose bounds leave room for their keys, as a merge makes them.
    Raises `InvalidInput` when a row lacks the value of a required column, `Corrupt` for a damaged split.
    """
    key, schema = snapshot.config.primary_key, snapshot.schema
    if not key:
        return _of_append_table(schema, unmerged, footers)
    empty = fold.record_schema(schema).empty_table() if unmerged else schema.empty_table()
    folded = [_folded(each, empty, key) for each in unmerged]
    records = (each.select(empty.column_names) for each in folded)
    words = fold.fold(pa.concat_tables([empty, *records]), key) if unmerged else empty
    if not words.num_rows:
        nothing = schema.empty_table()
        return Overlay(generations=(), logs=(), rest=nothing, deletes=words, touched=frozenset(), footers=footers)
    # Codes are dense and ascend with the keys, so that of a key is its row in `words`, which has every key once.
    *codes, _ = key_codes([each.select(key) for each in (*folded, words)], key)
    newest = np.zeros(words.num_rows, np.int64)
    at = np.cumsum([0, *map(len, codes)])
    for begin, each in zip(at, codes, strict=False):
        newest[each] = begin + np.arange(len(each))  # of a key that is there twice the last one
    generations: list[WholeRows] = []
    logs: list[LoggedRows] = []
    settled = np.zeros(words.num_rows, np.bool_)
    for begin, own, records, part in zip(at, codes, folded, unmerged, strict=False):
        whole, last = gives_whole_rows(records), newest[own] == begin + np.arange(len(own))
        if part.generation is None and not part.entries:
            continue
        settled[own[whole & last]] = True
        rows = whole_rows(records.select(empty.column_names), schema)
        if part.generation is not None:
            generations.append(_in_order_of_segments(snapshot, part.generation, rows, ~last[whole]))
        else:
            entries = records.column(_ENTRY).to_numpy()[whole]
            gone = bitmap_of(np.flatnonzero(~last[whole]))
            logs.append(LoggedRows(region=part.region, entries=entries, rows=rows, deleted=gone))
    deletes = _deletes(words, key)
    return Overlay(
        generations=tuple(each for each in generations if each.rows.num_rows),
        logs=tuple(run for each in logs for run in (runs or LogRuns()).divided(each)),
        rest=_rows(store, snapshot, words.filter(pa.array(~settled)), footers),
        deletes=deletes,
        touched=frozenset(each.path for each in _holding(snapshot, deletes)),
        footers=footers,
    )


def _of_append_table(schema: pa.Schema, unmerged: Sequence[Unmerged], footers: Footers) -> Overlay:
    """Puts of an append table, which raw logs have: each is a row beside those of the base, and hides none."""
    records = [fold.record_schema(schema).empty_table(), *(part for each in unmerged for part in each.records)]
    rows = whole_rows(pa.concat_tables(records), schema)
    return Overlay(generations=(), logs=(), rest=rows, deletes=rows.slice(0, 0), touched=frozenset(), footers=footers)


def _folded(unmerged: Unmerged, empty: pa.Table, key: Sequence[str]) -> pa.Table:
    """One record per key; of a log per entry and key, ascending by both."""
    records = pa.concat_tables([empty, *unmerged.records])
    if not unmerged.entries:
        return fold.fold(records, key)
    numbers = np.repeat(np.array(unmerged.entries, np.int64), [each.num_rows for each in unmerged.records])
    return fold.fold(records.append_column(_ENTRY, pa.array(numbers)), (_ENTRY, *key))


def _in_order_of_segments(snapshot: Snapshot, generation: Generation, rows: pa.Table, deleted: Mask) -> WholeRows:
    context = context_of(snapshot)
    order = next((each.order for each in generation.segments if each.order == context.arrangement), "")
    if order:
        places = places_in_order(rows, context)
        rows, deleted = rows.take(pa.array(places)), deleted[places]
    return WholeRows(generation=generation, rows=rows, deleted=bitmap_of(np.flatnonzero(deleted)), order=order)


def _rows(store: ObjectStore, snapshot: Snapshot, words: pa.Table, footers: Footers) -> pa.Table:
    """The rows that these folded records make of the base."""
    patches = words.filter(pc.equal(words.column(fold.OPERATION), int(fold.Operation.PATCH)))
    base = [snapshot.schema.empty_table()]
    for split in _holding(snapshot, patches):
        found = _find(store, snapshot, split, patches, footers=footers)
        base += [] if found is None else [found.read]
    return fold.apply(pa.concat_tables(base), words, snapshot.config.primary_key)


def _find(
    store: ObjectStore, snapshot: Snapshot, split: Add, records: pa.Table, *, footers: Footers
) -> superseded.Superseded | None:
    key, schema = snapshot.config.primary_key, snapshot.schema
    return superseded.find(store, split, records, key=key, schema=schema, footers=footers)


def _holding(snapshot: Snapshot, records: pa.Table) -> tuple[Add, ...]:
    """The splits of the base that may hold a key of the records."""
    if not records.num_rows:
        return ()
    files = snapshot.splits.table()
    return adds_of(files.filter(overlap.may_hold(files, records.select(snapshot.config.primary_key))))


def _deletes(words: pa.Table, key: Sequence[str]) -> pa.Table:
    operations = np.full(words.num_rows, int(fold.Operation.DELETE), np.int8)
    return words.select(key).append_column(fold.OPERATION, pa.array(operations))
