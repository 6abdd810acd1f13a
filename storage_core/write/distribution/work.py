"""Work items of distribution, and the offsets of a raw log in a table.

Work items and their results are sent as JSON (docs/architecture/orchestration.md, "Spark"). There are two kinds of work
items:

- A `DivideWork` divides some chunks among all tables. Rows of append tables become splits immediately, in any order.
  Rows of keyed tables become one part per region, in the order of the history. The order matters, because the later
  record of a key must replace an earlier record.
- A `FillWork` writes the parts of a region as one generation.

An offset belongs to one writer of a raw log. The offset is the number of the writer's last chunk in the table
(docs/architecture/ingestion.md, "Raw log", decision 0031). Writer ids are never reused, so an offset does not need the
name of the raw log.

| Where | Key | Meaning |
|---|---|---|
| table's log | transaction `raw:<writer>` | the table or its regions have all rows of the chunks up to this number |
| region's manifest | `distributed` | the region has all its rows from the chunks up to this number |

One commit adds the rows of an append table together with the transaction. The rows of a keyed table are committed
together with the offset of the region. The log's offset is committed when every region has its rows of these chunks. So
a region has the chunks up to its own offset or the log's offset, whichever is higher. A region without rows in a chunk,
or a region that does not exist yet, needs no offset.

A row may belong to a region of an earlier spec. If this region has the chunk of the row, the row is also in the table.
The region of the earlier spec was merged completely before the next spec became current. The merge can happen before
the log's offset is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from storage_core.base.clock import Clock, Ids
from storage_core.base.errors import CommitConflict, NotFound, Unavailable
from storage_core.data.formats import arrow_files, keys
from storage_core.data.formats.region_manifest import RECORDS_FILE
from storage_core.data.rows.windows import LateMetrics
from storage_core.data.settings.layout import BY_HAND_SPEC, WHOLE_TABLE, Region
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add, Txn, read_actions, write_actions
from storage_core.log.conflicts import TxnProgress
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import SplitContext
from storage_core.store.contract import ObjectStore, create_numbered
from storage_core.store.meter import all_of
from storage_core.write.raw_log.history import CLOSED_AFTER_MS, Damage, History, MissingChunks, RawChunkRef
from storage_core.write.region.router import OFFSETS, ChunkRange, RegionClaim, offsets
from storage_core.write.region.spec import PARALLEL_REGIONS, read_registry, whole_table

# A part contains the typed rows of one task for one region. Parts are needed until the generation is written (decision
# 0031). A part is a data file in the directory of a generation, but not in any manifest. The collector treats a part
# like a data file of a distributor that stopped before it wrote the manifest. Only the task that received the name
# reads the part. The collector deletes old parts. The tasks pass parts to each other, so each record is decoded and
# converted only once. The records do not pass through the driver or through shuffles.


@dataclass(frozen=True, slots=True, kw_only=True)
class FillPart:
    """A part: a file with rows of one region, its checksum and its size.

    The rows have `rows.fold.record_schema` and are in the order of the history.
    """

    region: str
    directory: str
    checksum: str
    rows: int
    size_bytes: int

    @property
    def key(self) -> str:
        """The key of the file."""
        return keys.generation_file_key(self.region, self.directory, RECORDS_FILE)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> FillPart:
        """Return the part that `to_json` returned."""
        return cls(**found)


def write_part(store: ObjectStore, records: pa.Table, *, region: str, clock: Clock, ids: Ids) -> FillPart:
    """Write the records. The part is durable when the function returns, but no object refers to the part yet. One PUT.

    Raise `CommitUnknown`.
    """
    data = arrow_files.encode_data_file(records)
    checksum = arrow_files.checksum(data)
    # The number 1 in the name has no meaning. The generation of the rows is known only after the region is claimed.
    directory = f"{ids.uuid()[:8]}_gen_1"
    part = FillPart(region=region, directory=directory, checksum=checksum, rows=records.num_rows, size_bytes=len(data))
    if not create_numbered(store, part.key, data, clock=clock):
        raise CommitConflict(
            f"{part.key}: the object was written by another run and has other content. Distribute again, which "
            "uses a new name",
            key=part.key,
        )
    return part


def read_part(store: ObjectStore, part: FillPart) -> pa.Table:
    """Return the records of a part. One GET.

    Raises `Corrupt` if the content has changed since it was written. Raises `CommitConflict` if the part was collected
    in the meantime.
    """
    try:
        return arrow_files.decode_data_file(store.get(part.key).data, part.checksum, part.key)
    except NotFound as error:
        raise CommitConflict(f"{part.key}: a collector removed it too early. Distribute again", key=part.key) from error


Json = dict[str, Any]

UNIQUE_FOR_MS = 24 * 3_600_000
"""Time for which the id of a record is stored. A raw log may set another value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One table for a task: the location, the context of the rows, and the chunks to distribute into the table.

    `further` maps each region that already has some of these chunks to its offsets (`work.Offsets`). These regions can
    belong to earlier specs.
    """

    name: str
    uri: str
    context: SplitContext
    chunk_ranges: tuple[ChunkRange, ...]
    further: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def config(self) -> TableConfig:
        """The settings of the table in the snapshot of the plan."""
        return TableConfig.from_configuration(self.context.configuration)

    def takes(self, ref: RawChunkRef) -> bool:
        """Return whether the chunk must be distributed into the table."""
        return any(each.writer == ref.writer and each.after < ref.number <= each.last for each in self.chunk_ranges)

    def to_json(self) -> Json:
        """Return plain values for JSON."""
        return {
            "name": self.name,
            "uri": self.uri,
            "context": self.context.to_json(),
            "chunk_ranges": [asdict(each) for each in self.chunk_ranges],
            "further": {region: dict(offsets) for region, offsets in self.further.items()},
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Target:
        """Return the target that `to_json` returned."""
        changed = {
            "context": SplitContext.from_json(found["context"]),
            "chunk_ranges": tuple(ChunkRange(**each) for each in found["chunk_ranges"]),
        }
        return cls(**{**found, **changed})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The raw log: its name, the URIs of its stores (mandatory stores first), and the names of its tables.

    `mandatory` is the number of mandatory stores. None means that all stores are mandatory. A table takes only one of
    several records with the same producer id. The table takes only one of these records if their segments began at most
    `unique_for_ms` apart.
    """

    name: str
    stores: tuple[str, ...]
    tables: tuple[str, ...]
    mandatory: int | None = None
    unique_for_ms: int = UNIQUE_FOR_MS

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Source:
        """Return the source with these fields."""
        return cls(**{**found, "stores": tuple(found["stores"]), "tables": tuple(found["tables"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundIds:
    """The data for finding duplicates: the objects with the record ids of one round, and the offsets of each table.

    `offsets` are the offsets of the table's log at the start of the round, by table and writer.
    """

    keys: tuple[str, ...]
    offsets: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DivideWork:
    """Chunks to read for all targets. If `ids` is None and the records have producer ids, only the ids are stored."""

    source: Source
    chunks: tuple[RawChunkRef, ...]
    targets: tuple[Target, ...]
    ids: RoundIds | None = None

    def to_json(self) -> Json:
        """Return plain values for JSON."""
        targets = [each.to_json() for each in self.targets]
        ids = None if self.ids is None else asdict(self.ids)
        return {"source": asdict(self.source), "chunks": _refs(self.chunks), "targets": targets, "ids": ids}

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> DivideWork:
        """Return the work that `to_json` returned."""
        return DivideWork(
            source=Source.from_json(found["source"]),
            chunks=_read_refs(found["chunks"]),
            targets=tuple(map(Target.from_json, found["targets"])),
            ids=RoundIds(keys=tuple(ids["keys"]), offsets=ids["offsets"]) if (ids := found["ids"]) else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FillWork:
    """A task that writes the records of parts, in their order, into one claimed region of the table at `uri`."""

    uri: str
    key: tuple[str, ...]
    parts: tuple[FillPart, ...]
    claim: RegionClaim
    context: SplitContext

    def to_json(self) -> Json:
        """Return plain values for JSON."""
        parts = [each.to_json() for each in self.parts]
        claim, context = asdict(self.claim), self.context.to_json()
        return {"uri": self.uri, "key": list(self.key), "parts": parts, "claim": claim, "context": context}

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> FillWork:
        """Return the work that `to_json` returned."""
        return FillWork(
            uri=found["uri"],
            key=tuple(found["key"]),
            parts=tuple(map(FillPart.from_json, found["parts"])),
            claim=RegionClaim(**found["claim"]),
            context=SplitContext.from_json(found["context"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """The result of a `DivideWork` for one table.

    - `adds`: the splits of an append table.
    - `parts`: the rows of a keyed table, by region.
    - `rejected`: the number of rejected records by reason. These records are in quarantine.
    - `late`: the late records. Late records are in quarantine, unless the table accepts or drops them.
    - `failure`: the kind and message of the error if the table did not get its rows. If `failure` is set, nothing in
      this object may be committed.
    """

    rows: int = 0
    adds: tuple[Add, ...] = ()
    parts: tuple[tuple[Region, FillPart], ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    late: LateMetrics = field(default_factory=LateMetrics)
    failure: tuple[str, str] | None = None

    def to_json(self) -> Json:
        """Return plain values for JSON."""
        return {
            "rows": self.rows,
            "adds": write_actions(self.adds),
            "parts": [[asdict(region), part.to_json()] for region, part in self.parts],
            "rejected": dict(self.rejected),
            "late": asdict(self.late),
            "failure": self.failure,
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Divided:
        """Return the object that `to_json` returned."""
        return Divided(
            rows=found["rows"],
            adds=read_actions(found["adds"], Add, "distributed rows"),
            parts=tuple((_region(region), FillPart.from_json(part)) for region, part in found["parts"]),
            rejected=found["rejected"],
            late=LateMetrics(**found["late"]),
            failure=tuple(found["failure"]) if found["failure"] else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DivideResult:
    """The result of a `DivideWork`, by table.

    - `unknown`: the number of records of unknown tables. These records are in quarantine.
    - `damaged`: chunks without a valid copy. Later chunks of the same writer were not read.
    - `noted`: the object with the record ids. `noted` is set if the records have ids but `DivideWork.ids` is None. If
      `noted` is set, the work item only stored the record ids.
    - `duplicates`: the number of omitted records, by table.
    """

    tables: Mapping[str, Divided]
    unknown: Mapping[str, int]
    damaged: tuple[Damage, ...]
    records: int
    noted: str | None = None
    duplicates: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> Json:
        """Return plain values for JSON."""
        return {
            "tables": {name: each.to_json() for name, each in self.tables.items()},
            "unknown": dict(self.unknown),
            "damaged": [{"chunk": each.chunk.to_json(), "reasons": list(each.reasons)} for each in self.damaged],
            "records": self.records,
            "noted": self.noted,
            "duplicates": dict(self.duplicates),
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> DivideResult:
        """Return the `DivideResult` from the JSON data that `to_json` returned."""
        return DivideResult(
            tables={name: Divided.from_json(each) for name, each in found["tables"].items()},
            unknown=found["unknown"],
            damaged=tuple(
                Damage(chunk=RawChunkRef.from_json(each["chunk"]), reasons=tuple(each["reasons"]))
                for each in found["damaged"]
            ),
            records=found["records"],
            noted=found["noted"],
            duplicates=found["duplicates"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FillResult:
    """The output of a `FillWork`: the directory of the generation, and the number of its rows."""

    path: str
    rows: int

    def to_json(self) -> Json:
        """Return plain values for JSON."""
        return {"path": self.path, "rows": self.rows}

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> FillResult:
        """Return the `FillResult` from the JSON data that `to_json` returned."""
        return FillResult(**found)


def _region(found: Mapping[str, Any]) -> Region:
    values = found["values"]
    return Region(**{**found, "values": None if values is None else tuple(values)})


def _refs(refs: Sequence[RawChunkRef]) -> list[Json]:
    return [each.to_json() for each in refs]


def _read_refs(found: Sequence[Mapping[str, Any]]) -> tuple[RawChunkRef, ...]:
    return tuple(map(RawChunkRef.from_json, found))


WITH_IDS = "ids"
"""A pseudo writer. The offset of this pseudo writer counts the distributions of records with producer ids."""

_APP = f"{OFFSETS}:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """The offsets of one table by writer. The table's log and each region of its current spec have offsets.

    `further` contains, for each region of any spec, the offsets that are higher than the offsets in the table's log.
    """

    log: Mapping[str, int]
    regions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    further: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def log_offsets(snapshot: Snapshot) -> dict[str, int]:
    """Return the offsets in the table's log by writer. All chunks up to these offsets are distributed.

    The first call makes one GET per object of transactions with offsets.
    """
    return {app.removeprefix(_APP): txn.version for app, txn in snapshot.txns.every(OFFSETS).items()}


def read_offsets(store: ObjectStore, snapshot: Snapshot) -> Offsets:
    """Return the offsets of a table.

    Cost:
        The requests of `log_offsets`. For a keyed table, also about three requests per region, including regions of
        earlier specs. One more request, for the registry, if the table has or had a spec with fields.
    """
    log = log_offsets(snapshot)
    regions = regions_of(store, snapshot)
    found = all_of(lambda each: offsets(store, each.id), regions, PARALLEL_REGIONS)
    current = snapshot.config.region_spec.id
    own: dict[str, Mapping[str, int]] = {}
    further: dict[str, Mapping[str, int]] = {}
    for region, recorded in zip(regions, found, strict=True):
        if region.spec_id == current:
            own[region.id] = recorded
        if more := {writer: last for writer, last in recorded.items() if last > log.get(writer, 0)}:
            further[region.id] = more
    return Offsets(log=log, regions=own, further=further)


def regions_of(store: ObjectStore, snapshot: Snapshot) -> list[Region]:
    """Return the regions that a keyed table has or had, without manual regions.

    A new region may be added at any time.
    """
    config = snapshot.config
    if config.kind != "keyed":
        return []
    whole = [whole_table(snapshot.table_id)] if WHOLE_TABLE in config.region_specs else []
    if config.region_specs == (WHOLE_TABLE,):
        return whole
    return [*whole, *(each for _, each in sorted(read_registry(store).regions.items()) if each.spec_id != BY_HAND_SPEC)]


def txns(stretches: Iterable[ChunkRange], now_ms: int) -> list[Txn]:
    """Return the transactions for a commit with the rows of these chunks."""
    return [Txn(appId=_APP + each.writer, version=each.last, lastUpdated=now_ms) for each in stretches]


def starts(stretches: Iterable[ChunkRange], planned: Snapshot) -> list[TxnProgress]:
    """Return requirements that fail if a writer's offset has changed since the snapshot of the plan."""
    apps = [_APP + each.writer for each in stretches]
    return [TxnProgress(app, planned.txns.get(app, 0)) for app in apps]


# This section finds the chunks that a table lacks (docs/architecture/ingestion.md, "Raw log"). A table's offset for a
# writer is the number of the writer's last distributed chunk. All chunks up to the offset were distributed or given up.
# The chunk numbers of a writer continue from one segment to the next. So a second distribution from the same offsets
# takes the same chunks and possibly newer chunks.


ROUND_BYTES = 256 * 2**20
WORK_BYTES = 32 * 2**20
LEAST_WORK_BYTES = 4 * 2**20
"""Minimum size of a work in bytes.

For a work item below this size, the cost of a task is higher than its benefit. Tables would also get many small splits
and parts.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionPlan:
    """Chunks to distribute, in the order of the history, and the offsets to commit with them.

    `held` lists missing chunks that block later chunks. If a chunk of a writer is in `held`, later chunks of this
    writer wait until the chunk appears or is given up. `given_up` are missing chunks that the plan gives up. Records of
    these chunks are never distributed, even if a copy appears later.
    """

    chunks: tuple[RawChunkRef, ...]
    offsets: Mapping[str, int]
    held: tuple[MissingChunks, ...]
    given_up: tuple[MissingChunks, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms of distribution. All sizes are sizes of stored chunks in bytes.

    - `slots`: the number of concurrent work items. A round has `slots` work items or a multiple of this number, and all
      work items have about the same size. Therefore all slots finish at about the same time, and no slot stays idle. A
      work item has at most `work_bytes` and at least `LEAST_WORK_BYTES`.
    - `give_up_to`: a chunk number for each writer. Missing chunks up to this number are given up.
    - `damaged`: the writer and number of each chunk without a valid copy. These chunks count as missing.
    """

    closed_after_ms: int = CLOSED_AFTER_MS
    round_bytes: int = ROUND_BYTES
    work_bytes: int = WORK_BYTES
    slots: int = 1
    give_up_to: Mapping[str, int] = field(default_factory=dict)
    damaged: frozenset[tuple[str, int]] = frozenset()


def left(history: History, after: Mapping[str, int], terms: Terms, *, now_ms: int) -> DistributionPlan:
    """Return the chunks of closed segments after the offsets `after` (0 for unknown writers). No request.

    The plan omits a writer's chunks after a missing chunk. The reason is that an older record must not follow a newer
    record. Missing chunks up to `give_up_to` are given up. Collected chunks were distributed to every table that
    existed when they were collected. A table that is created after the collection starts after the collected chunks.

    Raises `Unavailable` if chunks would be given up while a store does not answer. This store may have the chunks.
    Remove a permanently lost store from the list of stores.
    """
    if terms.give_up_to and history.unreachable:
        raise Unavailable(
            f"{', '.join(history.unreachable)} may have the missing chunks, and does not answer. Try again later"
        )
    closed = {(each.writer, each.segment_ms) for each in history.closed_segments(now_ms, terms.closed_after_ms)}
    offsets = dict(after)
    planned: list[RawChunkRef] = []
    held: list[MissingChunks] = []
    given_up: list[MissingChunks] = []
    for writer in history.writers:
        for ref in history.chunks_of(writer):
            offset = max(offsets.get(writer, 0), history.collected_up_to(writer))
            if ref.number <= offset:
                continue
            if (writer, ref.segment_ms) not in closed:
                break
            is_sound = (writer, ref.number) not in terms.damaged
            if ref.number > offset + 1 or not is_sound:
                last = ref.number - is_sound
                missing = MissingChunks(writer=writer, first=offset + 1, last=last)
                is_given_up = last <= terms.give_up_to.get(writer, 0)
                (given_up if is_given_up else held).append(missing)
                if not is_given_up:
                    break
            if is_sound:
                planned.append(ref)
            offsets[writer] = ref.number
    planned.sort(key=lambda each: (each.segment_ms, each.writer, each.number))
    return DistributionPlan(chunks=tuple(planned), offsets=offsets, held=tuple(held), given_up=tuple(given_up))


# The size of a raw log, and the chunks that its tables lack. No request.


ByTable = Mapping[str, Mapping[str, int]]
"""The offsets of each table by writer (`write.distribution.work`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The number of chunks and bytes in the stores, and the number of chunks that each table lacks.

    A chunk in several stores counts once.

    `waiting_chunks` is the number of chunks that some table lacks. `oldest_waiting_ms` is the start of the segment with
    the oldest waiting chunk. `collected` contains a number of chunks for each table. These chunks may have been
    collected before the table was added to the raw log.
    """

    chunks: int
    bytes: int
    tables: Mapping[str, int]
    waiting_chunks: int
    oldest_waiting_ms: int | None
    collected: Mapping[str, int]


def backlog(history: History, offsets: ByTable) -> Backlog:
    """Return the size of the history and the number of chunks after the offsets. Chunks in open segments count, too."""
    reached = everywhere(history, offsets)
    chunks = history.chunks
    waiting = [each for each in chunks if each.number > reached[each.writer]]
    behind = {
        name: sum(each.number > max(own.get(each.writer, 0), history.collected_up_to(each.writer)) for each in chunks)
        for name, own in offsets.items()
    }
    return Backlog(
        chunks=len(chunks),
        bytes=sum(each.bytes for each in history.segments()),
        tables={name: count for name, count in behind.items() if count},
        waiting_chunks=len(waiting),
        oldest_waiting_ms=min((each.segment_ms for each in waiting), default=None),
        collected=collected_before(history, offsets),
    )


def collected_before(history: History, offsets: ByTable) -> dict[str, int]:
    """Return for each table how many chunks may have been collected before the table was added to the raw log."""
    before = {
        name: sum(max(0, each.number - own.get(writer, 0)) for writer, each in history.collected.items())
        for name, own in offsets.items()
    }
    return {name: count for name, count in before.items() if count}


def everywhere(history: History, offsets: ByTable) -> dict[str, int]:
    """Return, for each writer, the number of the last chunk up to which every table has all chunks.

    The number is 0 if the raw log has no table. If a table was added after the collector deleted chunks, these chunks
    count as distributed to the table.
    """
    return {
        writer: min((max(own.get(writer, 0), history.collected_up_to(writer)) for own in offsets.values()), default=0)
        for writer in history.writers
    }
