"""Write generations from a memtable or from distributed records, or sort several generations into one.

Each generation is written to a new directory. A generation counts only after the region's manifest contains this
directory.

Sorting replaces many unsorted generations of a region by one generation that is sorted by key
(docs/architecture/ingestion.md, "Raw log"). If the merges of a region are late, every reader and every merge must read
each generation. A sort is needed if more than 30 unsorted generations, or more than 30 MB in unsorted generations, are
pending. The sort takes consecutive generations and combines their records per key. The result is one *sorted*
generation. In the region's manifest, the sorted generation replaces these generations. The sorted generation has one
record per key, and a lookup reads only the chunks that may contain the key. Deletes and patches remain as records,
because the changed rows may be in the base.

The sorter claims no region. Like every writer, the sorter commits the next manifest version by put-if-absent. The
sorter keeps the epoch of the live writer and all concurrent changes of other processes. A sort does not depend on the
progress of a merge (docs/architecture/ingestion.md). `generation.unmerged` describes how readers use sorted
generations.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from storage_core.base.clock import Clock, Ids
from storage_core.base.errors import CommitConflict, Corrupt, InvalidInput, NotFound, Unavailable
from storage_core.data.formats import arrow_files, keys
from storage_core.data.formats.key_hashes import build_bloom, build_key_index, key_hashes
from storage_core.data.formats.region_manifest import (
    BLOOM_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    RECORDS_FILE,
    FlushedGeneration,
    Generation,
    GenerationSegment,
    RegionManifest,
    encode_generation,
    file_key,
)
from storage_core.data.rows import fold, statistics
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.columns import LAST_COLUMN_ID, column_id
from storage_core.data.rows.conform import conform
from storage_core.data.rows.fold import conformed
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import segments
from storage_core.log.actions import IndexSegment
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import SplitContext, context_of, places_in_order
from storage_core.store.contract import ObjectStore, create_numbered
from storage_core.store.meter import all_of
from storage_core.write.region import generation
from storage_core.write.region.generation import encode_sorted
from storage_core.write.region.manifest import advance, read_latest
from storage_core.write.region.records import SEGMENT_ROWS, Memtable
from storage_core.write.region.spec import PARALLEL_REGIONS, known_regions

# Index segments of a generation. A search uses a segment instead of indexing the rows of the generation. Segments of a
# generation have the format of the base's segments. A merge adds these segments to the base. A segment covers the whole
# rows of the generation. Whole rows are rows whose folded record is a put or a reset. The rows are in the order in
# which a merge writes them to the base. The manifest of the generation contains this order and the index definition. A
# segment makes searches cheaper, but no search depends on a segment. Without a usable segment, a reader builds the same
# index from the records.


_logger = logging.getLogger(__name__)


def gives_whole_rows(folded: pa.Table) -> Mask:
    """Return for each folded record whether it contains the whole row. Puts and resets contain the whole row."""
    operations = folded.column(fold.OPERATION).to_numpy()
    mask: Mask = np.isin(operations, [int(fold.Operation.PUT), int(fold.Operation.RESET)])
    return mask


def whole_rows(folded: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the whole rows of puts and resets, in the order of the records, with the schema of the table."""
    rows = folded.filter(pa.array(gives_whole_rows(folded)))
    return conform(rows.drop_columns([fold.OPERATION, fold.FIELDS]), schema)


def with_segments(
    store: ObjectStore,
    generation: Generation,
    records: pa.Table,
    key: Sequence[str],
    *,
    context: SplitContext,
    ids: Ids,
) -> Generation:
    """Return the generation with a segment per maintained index.

    The segments are durable, but no object refers to the segments yet. If a column or disk space for scratch files is
    missing, the segment is omitted with a warning. A segment only saves work, so a flush must not fail because of it.
    One PUT per segment.

    Args:
        records: the records of the generation, in order.
    """
    indexes = TableConfig.from_configuration(context.configuration).maintained
    if not indexes:
        return generation
    folded = fold.fold(records, key)
    rows = folded.filter(pa.array(gives_whole_rows(folded)))
    rows = rows.take(pa.array(places_in_order(rows, context)))
    found: list[GenerationSegment] = []
    for definition in indexes if rows.num_rows else ():
        try:
            segments.validate(definition, rows.schema)
            files = segments.build_rows(rows.select(definition.columns), definition)
        except (InvalidInput, Unavailable) as error:
            _logger.warning("generation %s gets no segment of index %s: %s", generation.path, definition.name, error)
            continue
        written = segments.write(
            store, files, definition=definition, covers=covered_name(generation), rows=rows.num_rows, ids=ids
        )
        found.append(_named(written, context))
    return replace(generation, segments=tuple(found))


def covered_name(generation: Generation) -> str:
    """Return the name of a generation that segments and translations use for the rows of the generation."""
    return f"{keys.REGIONS_PREFIX}{generation.region}/{generation.path}"


def segment_for(generation: Generation, definition: IndexDefinition, rows: int, order: str) -> IndexSegment | None:
    """Return the segment for `definition` over this number of rows in this order.

    Return None if there is no such segment.
    """
    wanted = (definition.name, segments.fingerprint_of(definition), rows, order)
    for each in generation.segments:
        if (each.index, each.definition, each.rows, each.order) == wanted:
            return of_base(generation, each)
    return None


def files(
    store: ObjectStore, segment: IndexSegment | None, definition: IndexDefinition, rows: pa.Table
) -> Mapping[str, bytes | memoryview]:
    """Return the index files of a generation's puts and resets. Uses the segment (one GET) or builds the files."""
    if segment is not None:
        try:
            return segments.load(store, segment)
        except (Corrupt, NotFound) as error:
            _logger.warning("a segment of %s is not usable, indexing it: %s", segment.covers[0], error)
    return segments.build_rows(rows.select(definition.columns), definition)


def of_base(generation: Generation, segment: GenerationSegment) -> IndexSegment:
    """Return the action that adds a segment of the generation to the base."""
    return IndexSegment(
        index=segment.index,
        kind=segment.kind,
        path=segment.key,
        covers=(covered_name(generation),),
        size=segment.size,
        xxh3=segment.xxh3,
        footerOffset=segment.footer_offset,
        numRecords=segment.rows,
        details={segments.DEFINITION: segment.definition},
    )


def _named(written: IndexSegment, context: SplitContext) -> GenerationSegment:
    return GenerationSegment(
        index=written.index,
        kind=written.kind,
        id=segments.segment_id(written),
        definition=str(written.details[segments.DEFINITION]),
        order=context.arrangement,
        rows=written.numRecords,
        size=written.size,
        footer_offset=written.footerOffset,
        xxh3=written.xxh3,
    )


def write(
    store: ObjectStore,
    memtable: Memtable,
    *,
    region: str,
    generation: int,
    clock: Clock,
    ids: Ids,
    context: SplitContext | None = None,
) -> Generation:
    """Write the memtable as a generation to a new directory. The generation is durable on return. Three PUTs.

    `context` is the context of the table. If `context` is given, each maintained index adds one PUT for its segment
    (`with_segments`). The generation counts only after the region's manifest contains the generation. Raises
    `CommitUnknown` if the store does not report the outcome.
    """
    records = memtable.records()
    hashes = key_hashes(records, memtable.key)
    places = build_key_index(hashes, memtable.entries, [part.num_rows for part in memtable.parts()])
    guard = build_bloom(hashes).to_bytes()
    written = replace(
        _described(records, memtable.key, guard, region=region, generation=generation, ids=ids),
        entries=memtable.entries,
        key_index=xxhash.xxh3_64_hexdigest(places),
    )
    if context is not None:
        written = with_segments(store, written, records, memtable.key, context=context, ids=ids)
    return _stored(store, written, {BLOOM_FILE: guard, INDEX_FILE: places}, clock)


def write_records(
    store: ObjectStore,
    records: pa.Table,
    key: Sequence[str],
    *,
    region: str,
    generation: int,
    clock: Clock,
    ids: Ids,
    context: SplitContext | None = None,
) -> Generation:
    """Write records that are not in the WAL to a new directory, as a generation.

    Requests and errors: see `write`. The records are in a separate file, without a key index.
    """
    data = arrow_files.encode_data_file(records)
    guard = build_bloom(key_hashes(records, key)).to_bytes()
    written = replace(
        _described(records, key, guard, region=region, generation=generation, ids=ids), data=arrow_files.checksum(data)
    )
    if context is not None:
        written = with_segments(store, written, records, key, context=context, ids=ids)
    return _stored(store, written, {RECORDS_FILE: data, BLOOM_FILE: guard}, clock)


def write_sorted(
    store: ObjectStore,
    folded: pa.Table,
    key: Sequence[str],
    *,
    replaces: Sequence[Generation],
    clock: Clock,
    ids: Ids,
    context: SplitContext | None = None,
) -> Generation:
    """Write the folded records of consecutive generations to a new directory.

    The records ascend by key, with one record per key.

    The new generation gets the number of the last replaced generation. Requests and errors: see `write`.
    """
    chunks, data = encode_sorted(folded, key)
    guard = build_bloom(key_hashes(folded, key)).to_bytes()
    last = replaces[-1]
    written = replace(
        _described(folded, key, guard, region=last.region, generation=last.generation, ids=ids),
        data=arrow_files.checksum(data),
        sorted_from=replaces[0].generation,
        chunks=chunks,
        replaces=tuple(each.flushed for each in replaces),
    )
    if context is not None:
        written = with_segments(store, written, folded, key, context=context, ids=ids)
    return _stored(store, written, {RECORDS_FILE: data, BLOOM_FILE: guard}, clock)


def _described(
    records: pa.Table, key: Sequence[str], guard: bytes, *, region: str, generation: int, ids: Ids
) -> Generation:
    """Return the generation of records that are not written yet.

    The returned generation contains no WAL entries yet.
    """
    bounds = statistics.compute(records.select(key))
    return Generation(
        region=region,
        generation=generation,
        path=f"{ids.uuid()[:8]}_gen_{generation}",
        entries=(),
        records=records.num_rows,
        min_key=bounds.min_values,
        max_key=bounds.max_values,
        bloom=xxhash.xxh3_64_hexdigest(guard),
        size_bytes=records.nbytes,
        filter_bytes=guard,
    )


def _stored(store: ObjectStore, written: Generation, files: Mapping[str, bytes], clock: Clock) -> Generation:
    for name, data in files.items():
        _create(store, file_key(written, name), data, clock)
    _create(store, file_key(written, MANIFEST_FILE), encode_generation(written), clock)
    return written


def _create(store: ObjectStore, key: str, data: bytes, clock: Clock) -> None:
    if not create_numbered(store, key, data, clock=clock):
        raise CommitConflict(
            f"{key}: another flush uses this directory. Flush again, which uses a new directory", key=key
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SortingTerms:
    """The thresholds for sorting a region, and the maximum size of one sort.

    A region needs a sort if it has more than `generations` unsorted generations. A region also needs a sort if its
    unsorted generations have more than `size_bytes`. A sort merges the oldest generations, up to about `run_records`
    records and `run_bytes`. A sort merges at least one generation. Sizes in bytes are sizes of records in memory. A
    task holds the records of one sort in memory, or two copies during the fold.
    """

    generations: int = 30
    size_bytes: int = 30_000_000
    run_records: int = 1_000_000
    run_bytes: int = 256_000_000


DEFAULT_TERMS = SortingTerms()


@dataclass(frozen=True, slots=True, kw_only=True)
class SortingWork:
    """One planned sort: consecutive unsorted generations of a region. The JSON form of the plan omits `record_bytes`.

    `record_bytes` is the size of the records in memory.
    """

    region: str
    generations: tuple[FlushedGeneration, ...]
    primary_key: tuple[str, ...]
    context: SplitContext
    record_bytes: float = field(default=math.inf, compare=False)

    @property
    def size_bytes(self) -> int:
        """The bytes that the records take in memory. 0 if unknown."""
        return 0 if math.isinf(self.record_bytes) else int(self.record_bytes)

    def to_json(self) -> str:
        """Return this work as JSON text for `from_json`."""
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
    """The uncommitted output of a sort.

    The output is described by the directory, the number of records, and the bytes of the records in memory.

    The result is sent as JSON.
    """

    path: str
    records_in: int
    records_out: int
    size_bytes: int

    def to_json(self) -> str:
        """Return this result as JSON text for `from_json`."""
        return json.dumps([self.path, self.records_in, self.records_out, self.size_bytes])

    @staticmethod
    def from_json(text: str) -> SortingResult:
        """Return the result that `to_json` wrote."""
        path, records_in, records_out, size_bytes = json.loads(text)
        return SortingResult(path=path, records_in=records_in, records_out=records_out, size_bytes=size_bytes)


def plan_sort(store: ObjectStore, snapshot: Snapshot, *, terms: SortingTerms = DEFAULT_TERMS) -> list[SortingWork]:
    """Return the sorts that are needed, at most one per region.

    A region with few unsorted generations needs no sort.

    A sort merges the oldest generations of the region. Call the function again to plan a sort of the generations that
    remain. Raises the errors of the requests.

    Cost:
        About three requests per region. If a region has few unsorted generations, one GET for each of them. Otherwise
        one GET for each generation that a sort takes.
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
    """Return the oldest generations that have no gap and fit into one sort."""
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


def execute_sort(store: ObjectStore, work: SortingWork, *, clock: Clock, ids: Ids) -> SortingResult:
    """Fold the records of the generations in `work`, and write the result as one generation.

    The new generation is durable when the function returns, but no object refers to this generation yet. Raises
    `Corrupt` for a damaged generation, or `CommitUnknown`. Files that were written before an error are orphans.

    Cost:
        One GET per manifest, WAL entry and data file of the generations, and three PUTs. From `SEGMENT_ROWS` records
        on, each maintained index of the table costs another PUT.
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
    """Return the records with the schema of the plan.

    Raise `CommitConflict` if the plan lacks a column of the records.
    """
    last = int(work.context.configuration.get(LAST_COLUMN_ID, len(work.context.schema)))
    later = [field.name for field in records.schema if (column_id(field) or 0) > last]
    if later:
        raise CommitConflict(
            f"region {work.region}: contains records with the column {later[0]!r}, which the table did not have when "
            "this sort was planned. Plan again",
            region=work.region,
            column=later[0],
        )
    return conformed(records, schema)


def finish(store: ObjectStore, work: SortingWork, result: SortingResult, *, clock: Clock, writer_id: str) -> None:
    """Replace the source generations by the sorted generation, in one PUT of the region's manifest.

    Raises `CommitConflict` if the manifest no longer contains a source, because another sorter was first. Raises
    `CommitUnknown` if the store does not report the outcome. The next plan then reads the stored state.

    Cost:
        About six requests. The newest manifest is read again after each lost race.
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
            f"region {work.region}: this sort was planned with {', '.join(missing)}, which its manifest does not list "
            "any more. Plan again",
            region=work.region,
        )
    return latest


def _with(
    listed: Sequence[FlushedGeneration], replaced: Sequence[FlushedGeneration], flushed: FlushedGeneration
) -> tuple[FlushedGeneration, ...]:
    return tuple(flushed if each == replaced[0] else each for each in listed if each not in replaced[1:])
