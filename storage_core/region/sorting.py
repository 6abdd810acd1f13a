"""Sorting: many unsorted generations of a region become one that is sorted by key (docs/architecture/ingestion.md, "Raw
log").

A reader, and a merger, of a region whose merges lag pays for every generation. So where more than 30 unsorted ones
wait, or more than 30 MB in them, a run of them is folded per key and written as one *sorted* generation, which takes
their place in the region's manifest: it has one record per key, and a lookup in it reads what the key needs. Deletes
and patches stay records, since the row that they speak of may be in the base.

The sorter claims nothing. It keeps the epoch of the live writer and commits the next manifest version like everybody,
by put-if-absent; what others committed meanwhile it carries on. Nothing depends on how far a merger is: see decision
0054, and `generation.unmerged` for the reader's side.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from storage_core.clock import Clock
from storage_core.errors import CommitConflict
from storage_core.formats.generation_manifest import Generation
from storage_core.formats.region_manifest import FlushedGeneration, RegionManifest
from storage_core.ids import Ids
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.region import generation
from storage_core.region.generation_write import write_sorted
from storage_core.region.manifest import advance, read_latest
from storage_core.region.options import SEGMENT_ROWS
from storage_core.region.registry import PARALLEL_REGIONS, known_regions
from storage_core.rows import fold
from storage_core.rows.columns import LAST_COLUMN_ID, column_id
from storage_core.rows.earlier_records import conformed
from storage_core.split.context import SplitContext, context_of

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortingTerms:
    """When a region is due, and how much one run takes: a task holds a run in memory, twice while it folds.

    More unsorted generations than `generations`, or more in them than `size_bytes`, are sorted; a run takes them from
    the oldest on up to about `run_records` records and `run_bytes`, at least one. Bytes are those of records in memory.
    """

    generations: int = 30
    size_bytes: int = 30_000_000
    run_records: int = 1_000_000
    run_bytes: int = 256_000_000


DEFAULT_TERMS = SortingTerms()


@dataclass(frozen=True, slots=True, kw_only=True)
class SortingWork:
    """One sort, planned: consecutive unsorted generations of a region. Travels as JSON.

    `record_bytes`, what the records take in memory, does not.
    """

    region: str
    generations: tuple[FlushedGeneration, ...]
    primary_key: tuple[str, ...]
    context: SplitContext
    record_bytes: float = field(default=math.inf, compare=False)

    @property
    def size_bytes(self) -> int:
        """What the records take in memory; 0 where that is not known."""
        return 0 if math.isinf(self.record_bytes) else int(self.record_bytes)

    def to_json(self) -> str:
        """Return the text from which `from_json` makes equal work."""
        body = {
            "region": self.region,
            "generations": [[each.generation, each.path] for each in self.generations],
            "primaryKey": list(self.primary_key),
            "context": self.context.to_json(),
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> SortingWork:
        """Return the work that `to_json` wrote."""
        body: Mapping[str, Any] = json.loads(text)
        return SortingWork(
            region=body["region"],
            generations=tuple(FlushedGeneration(generation=number, path=path) for number, path in body["generations"]),
            primary_key=tuple(body["primaryKey"]),
            context=SplitContext.from_json(body["context"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SortingResult:
    """What a sort wrote and has to be committed: the directory, records and their bytes in memory. Travels as JSON."""

    path: str
    records_in: int
    records_out: int
    size_bytes: int

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal result."""
        return json.dumps([self.path, self.records_in, self.records_out, self.size_bytes])

    @staticmethod
    def from_json(text: str) -> SortingResult:
        """Return the result that `to_json` wrote."""
        path, records_in, records_out, size_bytes = json.loads(text)
        return SortingResult(path=path, records_in=records_in, records_out=records_out, size_bytes=size_bytes)


def plan(store: ObjectStore, snapshot: Snapshot, *, terms: SortingTerms = DEFAULT_TERMS) -> list[SortingWork]:
    """Return what there is to sort: at most one work per region, none where few unsorted generations wait.

    A work takes the oldest ones; plan again for the rest. About three requests per region, and one GET per unsorted
    generation of regions that have few, or that is taken. Raises what these raise.
    """
    known = known_regions(store, snapshot)
    works = all_of(lambda each: _plan_region(store, snapshot, each.id, terms), known, PARALLEL_REGIONS)
    return [work for work in works if work is not None]


def _plan_region(store: ObjectStore, snapshot: Snapshot, region: str, terms: SortingTerms) -> SortingWork | None:
    manifest = read_latest(store, region)
    if manifest is None:
        return None
    unsorted = _unsorted(manifest, snapshot.merged_generations.get(region, 0))
    opened: Iterator[Generation] = (generation.read(store, region, each) for each in unsorted)
    if len(unsorted) <= terms.generations:
        few = list(opened)
        if sum(each.size_bytes or 0 for each in few) <= terms.size_bytes:
            return None
        opened = iter(few)
    taken = _run(opened, terms)
    return SortingWork(
        region=region,
        generations=tuple(each.flushed for each in taken),
        primary_key=snapshot.config.primary_key,
        context=context_of(snapshot),
        record_bytes=generation.bytes_in_memory(taken),
    )


def _unsorted(manifest: RegionManifest, merged: int) -> list[FlushedGeneration]:
    waiting = [each for each in manifest.flushed_generations if each.generation > merged and not each.sorted_from]
    return sorted(waiting, key=lambda each: each.generation)


def _run(opened: Iterator[Generation], terms: SortingTerms) -> list[Generation]:
    """The oldest ones, without a hole between them, that fit."""
    taken: list[Generation] = []
    records = size_bytes = 0
    for each in opened:
        records, size_bytes = records + each.records, size_bytes + (each.size_bytes or 0)
        if taken and (
            records > terms.run_records or size_bytes > terms.run_bytes or each.generation != taken[-1].generation + 1
        ):
            break
        taken.append(each)
    return taken


def execute(store: ObjectStore, work: SortingWork, *, clock: Clock, ids: Ids) -> SortingResult:
    """Fold the generations of the work and write them as one; durable, and known to nobody, when this returns.

    One GET per manifest, WAL entry and data file of theirs, three PUTs; from `SEGMENT_ROWS` records on one more per
    maintained index of the table. Raises `Corrupt` for a damaged generation, `CommitUnknown`; what was written until
    then are orphans.
    """
    opened = [generation.read(store, work.region, each) for each in work.generations]
    schema = fold.record_schema(work.context.schema)
    parts = (_conformed(records, schema, work) for each in opened for records in generation.read_records(store, each))
    records = pa.concat_tables([schema.empty_table(), *parts])
    folded = fold.fold(records, work.primary_key)
    context = work.context if folded.num_rows >= SEGMENT_ROWS else None
    written = write_sorted(store, folded, work.primary_key, replaces=opened, clock=clock, ids=ids, context=context)
    return SortingResult(
        path=written.path, records_in=records.num_rows, records_out=folded.num_rows, size_bytes=folded.nbytes
    )


def _conformed(records: pa.Table, schema: pa.Schema, work: SortingWork) -> pa.Table:
    """The records as those of the schema of the plan, which nothing of them may be left out of."""
    last = int(work.context.configuration.get(LAST_COLUMN_ID, len(work.context.schema)))
    later = [field.name for field in records.schema if (column_id(field) or 0) > last]
    if later:
        raise CommitConflict(
            f"region {work.region}: has records with the column {later[0]!r}, which the table did not have when this "
            "sort was planned; plan again",
            region=work.region,
            column=later[0],
        )
    return conformed(records, schema)


def finish(store: ObjectStore, work: SortingWork, result: SortingResult, *, clock: Clock, writer_id: str) -> None:
    """Put the sorted generation into the place of those that it was made of, in one put of the region's manifest.

    About six requests; the newest manifest is read again after each lost race. Raises `CommitConflict` when one of
    the generations is not listed any more: another sorter was first. Raises `CommitUnknown` when the store does not
    say: the next plan reads what is there.
    """
    first, last = work.generations[0].generation, work.generations[-1].generation
    flushed = generation.with_copies(
        store, work.region, FlushedGeneration(generation=last, path=result.path, sorted_from=first)
    )

    def replaced() -> RegionManifest:
        latest = _listing(store, work)
        return replace(latest, flushed_generations=_with(latest.flushed_generations, work.generations, flushed))

    advance(store, replaced, clock=clock, writer_id=writer_id)
    _logger.info(
        "region %s: sorted generations %d to %d, %d records to %d",
        work.region,
        first,
        last,
        result.records_in,
        result.records_out,
    )


def _listing(store: ObjectStore, work: SortingWork) -> RegionManifest:
    latest = read_latest(store, work.region)
    listed = () if latest is None else latest.flushed_generations
    missing = [each.path for each in work.generations if each not in listed]
    if latest is None or missing:
        raise CommitConflict(
            f"region {work.region}: this sort was planned over {', '.join(missing)}, which its manifest does not list "
            "any more; plan again",
            region=work.region,
        )
    return latest


def _with(
    listed: Sequence[FlushedGeneration], replaced: Sequence[FlushedGeneration], flushed: FlushedGeneration
) -> tuple[FlushedGeneration, ...]:
    return tuple(flushed if each == replaced[0] else each for each in listed if each not in replaced[1:])
