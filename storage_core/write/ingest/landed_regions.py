"""Write landed records of a keyed table, first as parts per region, then as generations.

Tasks read files and write one *part* per region. A part is a file with the records of one region. The records are in
the order in which the task read the landed files. A run then claims each region, and a task writes the parts of the
region as its next generation. One PUT of the region's manifest records the generation and the files in this generation.
A run that ends early may leave some regions with the files and other regions without the files. The next run reads the
files again, and each region takes only the files that it does not have.

The manifest of a region stores one offset per landed file, as it does for each writer of a raw log
(`write.region.router`). The name of an offset is the appId of the file's transaction, `landed:<path>`. The number that
an offset stores is a hash. The hash covers the file content and the way in which the file was read. When the log of the
table contains the transaction, every region has the file, and the offset is removed.

With `order`, a record that is older than its row in the table has no effect (`write.region.record_order`).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash

from storage_core.base.clock import Clock, Ids, SystemClock
from storage_core.base.errors import CommitConflict
from storage_core.data.settings.layout import Region
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add
from storage_core.log.job_run import Answer, Item, JobRun, TaskEnvironment, as_task
from storage_core.split.context import SplitContext, context_of
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import all_of
from storage_core.write.distribution.work import FillPart, read_part, regions_of, write_part
from storage_core.write.late_rows import SharedEntries
from storage_core.write.region import router
from storage_core.write.region.record_order import sort_by_order, without_older
from storage_core.write.region.router import ChunkRange, RegionClaim, groups_of
from storage_core.write.region.spec import PARALLEL_REGIONS, route

ROWS_OF_A_GENERATION: Final = 500_000
"""The number of rows above which a region's records become several generations.

A task holds all rows of a generation.
"""

MOST_COLLECTED_BYTES: Final = 256 * 2**20
"""The maximum bytes of records that a batch collects before it writes parts."""

IsPassed = Callable[[str, int], bool]
"""A function that returns True if an offset with this name and number is not needed any more."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LandedPart:
    """A part of one region.

    `spans` contains for each file, in order, the name of its offset and the number of its records.
    """

    region: Region
    part: FillPart
    spans: tuple[tuple[str, int], ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"region": asdict(self.region), "part": self.part.to_json(), "spans": [*map(list, self.spans)]}

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> LandedPart:
        """Return the part that `to_json` returned."""
        values = found["region"]["values"]
        region = Region(**{**found["region"], "values": None if values is None else tuple(values)})
        spans = tuple((str(name), int(rows)) for name, rows in found["spans"])
        return LandedPart(region, FillPart.from_json(found["part"]), spans)


class CollectedRecords:
    """The records of a batch in memory, by region, and the parts that are already in storage.

    This class has the same interface as `batch.CollectedRows`. `quarantine` collects the rejected lines and late rows
    of the files.
    """

    def __init__(self, store: ObjectStore, context: SplitContext, ids: Ids, now_ms: int) -> None:
        self.store, self.context, self.ids, self.now_ms = store, context, ids, now_ms
        self.adds: list[Add] = []
        self.parts: list[LandedPart] = []
        self.quarantine = SharedEntries(store)
        self.config = TableConfig.from_configuration(context.configuration)
        self._held: dict[Region, list[tuple[str, pa.Table]]] = {}
        self._bytes = 0

    def add(self, records: pa.Table, source: str) -> None:
        """Collect the records of a file, and write parts if the records take too much memory."""
        for region, own in self._by_region(records):
            self._held.setdefault(region, []).append((source, own))
            self._bytes += own.nbytes
        if self._bytes > MOST_COLLECTED_BYTES:
            self.write_all()

    def write(self, records: pa.Table, source: str) -> list[LandedPart]:
        """Write records of a file as parts, and return the parts."""
        return [self._written(region, [(source, own)]) for region, own in self._by_region(records)]

    def write_all(self) -> None:
        """Write the records that are still in memory."""
        self.parts += [self._written(region, held) for region, held in self._held.items()]
        self._held.clear()
        self._bytes = 0

    def _by_region(self, records: pa.Table) -> Iterator[tuple[Region, pa.Table]]:
        if records.num_rows:
            routed = route(self.context.table_id, self.config.region_spec, records)
            for region, places in groups_of(routed):
                yield region, records if len(places) == records.num_rows else records.take(places)

    def _written(self, region: Region, held: Sequence[tuple[str, pa.Table]]) -> LandedPart:
        records = pa.concat_tables([own for _, own in held])
        part = write_part(self.store, records, region=region.id, clock=SystemClock(), ids=self.ids)
        return LandedPart(region, part, tuple((source, own.num_rows) for source, own in held))


def offset_of(*parts: str, bits: int = 63) -> int:
    """Return a hash of these texts as a positive number of at most `bits` bits."""
    return (xxhash.xxh3_64_intdigest("\0".join(parts).encode()) >> (64 - bits)) | 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FillLanded:
    """Slices of parts that become the next generation of a claimed region. Travels as JSON.

    `slices` contains for each slice the number of its part, its first row and its number of rows. The slices are in the
    order of the files. `earlier` maps the number of a slice to regions of earlier region specs. A slice listed in
    `earlier` contains rows of a landed file that these regions have already received.
    """

    parts: tuple[FillPart, ...]
    slices: tuple[tuple[int, int, int], ...]
    earlier: Mapping[int, tuple[str, ...]]
    claim: RegionClaim
    order: str | None
    context: SplitContext

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "parts": [each.to_json() for each in self.parts],
            "slices": [*map(list, self.slices)],
            "earlier": [[number, list(regions)] for number, regions in self.earlier.items()],
            "claim": asdict(self.claim),
            "order": self.order,
            "context": self.context.to_json(),
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> FillLanded:
        """Return the work that `to_json` returned."""
        return FillLanded(
            parts=tuple(map(FillPart.from_json, found["parts"])),
            slices=tuple((part, start, rows) for part, start, rows in found["slices"]),
            earlier={number: tuple(regions) for number, regions in found["earlier"]},
            claim=RegionClaim(**found["claim"]),
            order=found["order"],
            context=SplitContext.from_json(found["context"]),
        )


@as_task
def fill_landed(place: TaskEnvironment, item: Item) -> Answer:
    """Write the landed records of one region as the region's next generation."""
    path, rows, older = fill(place.store, FillLanded.from_json(item["work"]), clock=place.clock, ids=place.ids)
    return {"path": path, "rows": rows, "older": older}


def fill(store: ObjectStore, work: FillLanded, *, clock: Clock, ids: Ids) -> tuple[str | None, int, int]:
    """Write the generation.

    Return the directory of the generation, the number of written records, and the number of records older than their
    rows.

    The directory is None if every record is older than its row in the table.

    Cost:
        One GET per part, the requests of `without_older` if the records have an order, and the PUTs of
        `router.write_distributed`. Memory holds all records.
    """
    parts = [read_part(store, each) for each in work.parts]
    slices = [parts[part].slice(start, rows) for part, start, rows in work.slices]
    for number, regions in work.earlier.items():
        slices[number] = _without_regions(slices[number], work.context, regions)
    records = pa.concat_tables(slices)
    key = TableConfig.from_configuration(work.context.configuration).primary_key
    older = 0
    if work.order is not None:
        count = records.num_rows
        records = without_older(store, sort_by_order(records, work.order), work.claim.region, key=key, order=work.order)
        older = count - records.num_rows
    if not records.num_rows:
        return None, 0, older
    written = router.write_distributed(store, records, key, turn=work.claim, clock=clock, ids=ids, context=work.context)
    return written.path, written.records, older


def _without_regions(records: pa.Table, context: SplitContext, regions: Sequence[str]) -> pa.Table:
    """Return those records that belong to none of these regions. The regions are regions of earlier region specs."""
    for spec in TableConfig.from_configuration(context.configuration).region_specs[:-1]:
        routed = route(context.table_id, spec, records)
        others = np.array([each.id not in regions for each in routed.regions], np.bool_)
        records = records.filter(pa.array(others[routed.positions], pa.bool_()))
    return records


@dataclass(slots=True)
class _Chunk:
    """Slices of the rows of one region, and the names of the offsets of the landed files.

    `ends` contains the offsets of the files that end in these slices.
    """

    slices: list[tuple[int, int, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    rows: int = 0


@dataclass(slots=True)
class _Claim:
    """A claimed region: its parts, the remaining chunks, and the offsets of the region at the claim."""

    claim: RegionClaim
    parts: tuple[FillPart, ...]
    chunks: list[_Chunk]
    offsets: Mapping[str, int]


def fill_regions(
    job: JobRun[Any],
    parts: Sequence[LandedPart],
    offsets: Mapping[str, int],
    *,
    order: str | None,
    check: Callable[[], IsPassed],
) -> tuple[int, int]:
    """Write the records of the parts into their regions.

    Return the number of written records and the number of older records.

    Args:
        offsets: the number of the offset of each file, in the order of the files.
        order: the column that orders the records of a key.
        check: called after the claims. It raises `CommitConflict` if another run has committed some of the files. It
            returns a function that selects the offsets that are not needed any more.

    Raises:
        CommitConflict: another run took one of the files.
        Fenced: another process claimed a region.

    Cost:
        The requests of a claim, of `fill` and of `router.finish` per region.
    """
    claims = [_claim(job, own, offsets) for own in _by_region(parts)]
    is_passed = check()
    earlier = _earlier_regions(job, offsets)
    rows = older = 0
    while waiting := [each for each in claims if each.chunks]:
        context = context_of(job.before)
        works = [_work(each, earlier, order=order, context=context) for each in waiting]
        answers = job.map(
            fill_landed,
            [{"work": each.to_json()} for each in works],
            input_bytes=0 if sum(each.chunks[0].rows for each in waiting) < ROWS_OF_A_GENERATION else float("inf"),
        )
        job.require_held()
        for claim, answer in zip(waiting, answers, strict=True):
            chunk = claim.chunks.pop(0)
            rows, older = rows + answer["rows"], older + answer["older"]
            if answer["path"] is not None:
                ended = [(name, offsets[name]) for name in chunk.ends]
                passed = [name for name, last in claim.offsets.items() if is_passed(name, last)]
                _finish(job, claim, answer["path"], ended, passed=passed)
    return rows, older


def _by_region(parts: Sequence[LandedPart]) -> Iterable[list[LandedPart]]:
    found: dict[str, list[LandedPart]] = defaultdict(list)
    for each in parts:
        found[each.region.id].append(each)
    return (found[region] for region in sorted(found))


def _work(
    claim: _Claim, earlier: Mapping[str, tuple[str, ...]], *, order: str | None, context: SplitContext
) -> FillLanded:
    """Return the work for the first remaining chunk."""
    chunk = claim.chunks[0]
    used = sorted({part for part, _, _ in chunk.slices})
    return FillLanded(
        parts=tuple(claim.parts[part] for part in used),
        slices=tuple((used.index(part), start, rows) for part, start, rows in chunk.slices),
        earlier={number: earlier[name] for number, name in enumerate(chunk.names) if name in earlier},
        claim=claim.claim,
        order=order,
        context=context,
    )


def _earlier_regions(job: JobRun[Any], offsets: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Return, for each offset name, the regions that already have the file. These are regions of earlier region specs.

    A region spec can change between a run that ended early and the next run. No request if the table has had only one
    spec.
    """
    config, store = job.before.config, job.store
    if len(config.region_specs) == 1:
        return {}
    regions = [each.id for each in regions_of(store, job.before) if each.spec_id != config.region_spec.id]
    found: dict[str, tuple[str, ...]] = {}
    for region, held in zip(regions, all_of(partial(router.offsets, store), regions, PARALLEL_REGIONS), strict=True):
        for name in held.keys() & offsets.keys():
            if held[name] == offsets[name]:
                found[name] = (*found.get(name, ()), region)
    return found


def _claim(job: JobRun[Any], parts: Sequence[LandedPart], offsets: Mapping[str, int]) -> _Claim:
    log = job.log
    turn = router.claim_region(log.store, job.before, parts[0].region, clock=log.clock, ids=log.ids)
    held = router.offsets(log.store, turn.region)
    places = {name: place for place, name in enumerate(offsets)}
    slices: list[tuple[int, int, int, int]] = []
    for number, each in enumerate(parts):
        start = 0
        for name, rows in each.spans:
            if held.get(name) != offsets[name]:
                slices.append((places[name], number, start, rows))
            start += rows
    slices.sort(key=lambda each: each[:2])
    names = [*offsets]
    chunks: list[_Chunk] = []
    for index, (place, number, start, rows) in enumerate(slices):
        if not chunks or chunks[-1].rows + rows > ROWS_OF_A_GENERATION:
            chunks.append(_Chunk())
        chunks[-1].slices.append((number, start, rows))
        chunks[-1].names.append(names[place])
        chunks[-1].rows += rows
        if index + 1 == len(slices) or slices[index + 1][0] != place:
            chunks[-1].ends.append(names[place])
    return _Claim(turn, tuple(each.part for each in parts), chunks, held)


def _finish(
    job: JobRun[Any], claim: _Claim, path: str, ended: Sequence[tuple[str, int]], *, passed: Sequence[str]
) -> None:
    log = job.log
    stretches = [ChunkRange(writer=name, after=claim.offsets.get(name, 0), last=last) for name, last in ended]
    router.finish(log.store, claim.claim, path, stretches, clock=log.clock, writer_id=log.ids.uuid(), passed=passed)
    claim.claim = replace(claim.claim, generation=claim.claim.generation + 1)
    _logger.info("region %s: landed records of %d files", claim.claim.region, len(ended))


def require_unlanded(job: JobRun[Any], names: Iterable[str]) -> IsPassed:
    """Raise `CommitConflict` if another run has committed one of these files since the plan.

    Return a function that selects the files whose transactions are in the log. Costs as much as `log.refresh`.
    """
    head = job.log.refresh(job.before)
    for name in names:
        if head.txns.get(name, 0) != job.before.txns.get(name, 0):
            raise CommitConflict(f"{job.uri}: another run ingested the file of {name!r}. Plan again", expected=name)
    return lambda name, _last: name in head.txns
