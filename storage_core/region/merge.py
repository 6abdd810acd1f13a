"""Merging: generations of a region into the base table (design page 03, "Merge: generations into the base table").

This release rewrites every split that holds a touched key (copy-on-write). The base never holds two live rows of one
key, so reads of it need no deduplication. Exactly-once is the commit's: the requirement and the progress action say
which generations it carries, and the log refuses it unless they follow the recorded ones (lessons 22 and 25).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import SEE_CORRUPT, Corrupt
from storage_core.formats.region_manifest import FlushedGeneration
from storage_core.ids import Ids
from storage_core.log.action_json import read_action, read_actions, write_actions
from storage_core.log.actions import Action, Add, MergedGenerations, Remove, to_json_object
from storage_core.log.file_columns import adds_of
from storage_core.log.requirements import MergeProgress
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import generation
from storage_core.region.generation import Generation
from storage_core.region.manifest import read_latest
from storage_core.region.overlap import may_overlap
from storage_core.region.tail import known_regions
from storage_core.rows import fold
from storage_core.rows.keys import key_codes
from storage_core.rows.schema import conform
from storage_core.split.lineage import Lineage, MergedRange
from storage_core.split.read import conform_split, read_split
from storage_core.split.write import SplitContext, context_of, sort_and_write

_logger = logging.getLogger(__name__)

MAX_RECORDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeWork:
    """One merge, planned: everything that a task needs without opening the table again. Travels as JSON.

    `generations` are consecutive and start at `after` + 1. `base` are the live splits whose key bounds admit a touched
    key; that they hold one is decided by reading them.
    """

    region: str
    after: int
    generations: tuple[FlushedGeneration, ...]
    primary_key: tuple[str, ...]
    base: tuple[Add, ...]
    context: SplitContext

    @property
    def requirements(self) -> tuple[MergeProgress, ...]:
        """What the commit has to demand: that the region's progress is still where this work starts."""
        return (MergeProgress(self.region, self.after),)

    def to_json(self) -> str:
        """Return the text from which `from_json` makes equal work."""
        body = {
            "region": self.region,
            "after": self.after,
            "generations": [[each.generation, each.path] for each in self.generations],
            "primaryKey": list(self.primary_key),
            "base": write_actions(self.base),
            "context": self.context.to_json(),
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> MergeWork:
        """Return the work that `to_json` wrote."""
        body: Mapping[str, Any] = json.loads(text)
        return MergeWork(
            region=body["region"],
            after=body["after"],
            generations=tuple(FlushedGeneration(generation=number, path=path) for number, path in body["generations"]),
            primary_key=tuple(body["primaryKey"]),
            base=read_actions(body["base"], Add, "merge work"),
            context=SplitContext.from_json(body["context"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What a merge wrote and has to commit. Rows in are records and rows of rewritten splits; bytes are of splits.

    Travels as JSON.
    """

    adds: tuple[Add, ...]
    removes: tuple[Remove, ...]
    merged: MergedGenerations
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int

    @property
    def actions(self) -> list[Action]:
        """The actions of the one commit that carries the rows together with the progress."""
        return [*self.removes, *self.adds, self.merged]

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal result."""
        body = {
            "adds": write_actions(self.adds),
            "removes": write_actions(self.removes),
            "merged": to_json_object(self.merged),
            "figures": [self.rows_in, self.rows_out, self.bytes_in, self.bytes_out],
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> MergeResult:
        """Return the result that `to_json` wrote."""
        body: Mapping[str, Any] = json.loads(text)
        rows_in, rows_out, bytes_in, bytes_out = body["figures"]
        return MergeResult(
            adds=read_actions(body["adds"], Add, "merge result"),
            removes=read_actions(body["removes"], Remove, "merge result"),
            merged=read_action(body["merged"], MergedGenerations, "merge result"),
            rows_in=rows_in,
            rows_out=rows_out,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
        )


def plan(store: ObjectStore, snapshot: Snapshot, *, max_records: int = MAX_RECORDS) -> list[MergeWork]:
    """Return what there is to merge: at most one work per region, and none when the base has everything.

    Works never share a split of the base, so one commit may carry all of them: of two regions that touch the same
    split, the second waits for the next plan.

    A work takes the oldest unmerged generations, at least one, up to about `max_records` records; plan again for
    the rest. About three requests per region, and one GET per generation taken. Raises `Corrupt` when the region's
    manifest skips a generation.
    """
    planned = (_plan_region(store, snapshot, each.id, max_records) for each in known_regions(store, snapshot))
    works: list[MergeWork] = []
    touched: set[str] = set()
    for work in planned:
        if work is not None and touched.isdisjoint(paths := {add.path for add in work.base}):
            works.append(work)
            touched |= paths
    return works


def _plan_region(store: ObjectStore, snapshot: Snapshot, region: str, max_records: int) -> MergeWork | None:
    key = snapshot.config.primary_key
    manifest = read_latest(store, region)
    if manifest is None:
        return None
    after = snapshot.merged_generations.get(manifest.region_id, 0)
    waiting = sorted((each for each in manifest.flushed_generations if each.generation > after), key=_number)
    if not waiting:
        return None
    _require_consecutive(manifest.region_id, after, waiting)
    taken = _take(store, manifest.region_id, waiting, max_records)
    return MergeWork(
        region=manifest.region_id,
        after=after,
        generations=tuple(waiting[: len(taken)]),
        primary_key=key,
        base=_touched(snapshot, taken, key),
        context=context_of(snapshot),
    )


def execute(store: ObjectStore, work: MergeWork, *, ids: Ids, now_ms: int) -> MergeResult:
    """Fold the generations, rewrite the splits that hold a touched key, and write the rows that are new.

    Commits nothing: pass `actions` with `work.requirements` to the log. Each rewritten split is read and written on its
    own, so memory holds the folded records and two splits. A delete of what does not exist writes nothing (lesson 28).
    Raises `Corrupt` for a damaged generation or split; what was written until then are orphans.
    """
    key = work.primary_key
    parts = list(_records(store, work))
    records = pa.concat_tables(parts)
    pending = fold.fold(records, key)
    output = _Output(store, work, ids=ids, now_ms=now_ms)
    removes: list[Remove] = []
    rows_in = records.num_rows
    for split in work.base:
        touched, pending = _partition(pending, read_split(store, split, key), key)
        if not touched.num_rows:
            continue
        # The file does not know which columns are required, the table does.
        base = conform(conform_split(read_split(store, split), work.context.schema), work.context.schema)
        rows_in += base.num_rows
        output.take(fold.apply(base, touched, key), {split.path: base.num_rows})
        removes.append(_remove(split, now_ms))
    output.take(fold.apply(work.context.schema.empty_table(), pending, key), {})
    adds = output.finish()
    result = MergeResult(
        adds=tuple(adds),
        removes=tuple(removes),
        merged=MergedGenerations(region=work.region, generation=work.generations[-1].generation),
        rows_in=rows_in,
        rows_out=sum(add.numRecords or 0 for add in adds),
        bytes_in=sum(each.size or 0 for each in removes),
        bytes_out=sum(add.size for add in adds),
    )
    _logger.info(
        "region %s: merged generations %d to %d: %d rows in, %d splits rewritten, %d written, not committed yet",
        work.region,
        work.after + 1,
        result.merged.generation,
        result.rows_in,
        len(removes),
        len(adds),
    )
    return result


class _Output:
    """What a merge writes, one step behind what it takes.

    A split whose last row was deleted leaves no file that could say that it was replaced. So the rows taken last wait
    for the next ones, and each file names, beside its own base split, those that have vanished since the file before.
    """

    def __init__(self, store: ObjectStore, work: MergeWork, *, ids: Ids, now_ms: int) -> None:
        self._store, self._work, self._ids, self._now_ms = store, work, ids, now_ms
        generation = work.generations[-1].generation
        merged = MergedRange(region=work.region, after=work.after, generation=generation)
        self._lineage = Lineage(operation="merge", operation_id=ids.uuid(), merged=merged)
        self._adds: list[Add] = []
        self._rows: pa.Table | None = None
        self._replaces: dict[str, int] = {}

    def take(self, rows: pa.Table, replaces: Mapping[str, int]) -> None:
        """Take rows that stand in place of the splits that `replaces` names with their rows."""
        if rows.num_rows and self._rows is not None:
            self._write(self._rows)
        self._replaces |= replaces
        if rows.num_rows:
            self._rows = rows

    def finish(self) -> list[Add]:
        """Write what waits and return every split that was written."""
        if self._rows is not None:
            self._write(self._rows)
        return self._adds

    def _write(self, rows: pa.Table) -> None:
        self._adds += sort_and_write(
            self._store,
            rows,
            context=self._work.context,
            ids=self._ids,
            now_ms=self._now_ms,
            lineage=replace(self._lineage, replaces=self._replaces),
        )
        self._replaces = {}


def _number(flushed: FlushedGeneration) -> int:
    return flushed.generation


def _require_consecutive(region: str, after: int, waiting: Sequence[FlushedGeneration]) -> None:
    expected = list(range(after + 1, after + 1 + len(waiting)))
    found = [each.generation for each in waiting]
    if found != expected:
        raise Corrupt(
            f"region {region}: generations up to {after} are merged, expected {expected} next, the region's manifest "
            f"lists {found}; merging over the gap would lose rows, {SEE_CORRUPT}",
            region=region,
        )


def _take(store: ObjectStore, region: str, waiting: Sequence[FlushedGeneration], max_records: int) -> list[Generation]:
    taken: list[Generation] = []
    records = 0
    for each in waiting:
        opened = generation.read(store, region, each)
        records += opened.records
        if taken and records > max_records:
            break
        taken.append(opened)
    return taken


def _touched(snapshot: Snapshot, generations: Sequence[Generation], key: Sequence[str]) -> tuple[Add, ...]:
    """The splits of the base that may hold a key of the generations."""
    files = snapshot.splits.table()
    return adds_of(files.filter(may_overlap(files, generations, key=key, schema=snapshot.schema)))


def _records(store: ObjectStore, work: MergeWork) -> Iterable[pa.Table]:
    yield fold.record_schema(work.context.schema).empty_table()
    for each in work.generations:
        yield from generation.read_records(store, generation.read(store, work.region, each))


def _partition(pending: pa.Table, base_keys: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """The folded records whose key the split holds, and the others; both keep their order."""
    wanted, held = key_codes([pending, base_keys], key)
    in_split = pa.array(np.isin(wanted, held))
    return pending.filter(in_split), pending.filter(pc.invert(in_split))


def _remove(add: Add, now_ms: int) -> Remove:
    return Remove(path=add.path, deletionTimestamp=now_ms, partitionValues=dict(add.partitionValues), size=add.size)
