"""Work items of distribution and what comes back; both travel as JSON (docs/architecture/orchestration.md, "Spark").

Two kinds. A `DivideWork` divides some chunks among all tables: rows of append tables become splits at once, in whatever
order; of keyed tables a part for each region, in the order of the history, because of two records of a key the later
one must win. A `FillWork` makes one generation of the parts of a region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from storage_core.distribution.parts import Part
from storage_core.log.actions import Add
from storage_core.log.encoding.action_json import read_actions, write_actions
from storage_core.raw_log.chunks import Damage, RawChunkRef
from storage_core.region.distributor import Stretch, Turn
from storage_core.rows.late import LateMetrics
from storage_core.settings.region_fields import Region
from storage_core.settings.table import TableConfig
from storage_core.split.context import SplitContext

Json = dict[str, Any]

UNIQUE_FOR_MS = 24 * 3_600_000
"""How long a record with an id is known, unless the raw log says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One table as a task sees it: where it is, what its rows are, and the chunks that are to be distributed into it.

    `further` are regions that have some of these chunks, of earlier specs too, with their offsets (`offsets.Offsets`).
    """

    name: str
    uri: str
    context: SplitContext
    stretches: tuple[Stretch, ...]
    further: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def config(self) -> TableConfig:
        """The table's settings, as of the snapshot that the work was planned on."""
        return TableConfig.from_configuration(self.context.configuration)

    def takes(self, ref: RawChunkRef) -> bool:
        """Return whether the chunk is to be distributed into the table."""
        return any(each.writer == ref.writer and each.after < ref.number <= each.last for each in self.stretches)

    def to_json(self) -> Json:
        """Return plain values for JSON."""
        return {
            "name": self.name,
            "uri": self.uri,
            "context": self.context.to_json(),
            "stretches": [asdict(each) for each in self.stretches],
            "further": {region: dict(offsets) for region, offsets in self.further.items()},
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Target:
        """Return the target that `to_json` gave."""
        changed = {
            "context": SplitContext.from_json(found["context"]),
            "stretches": tuple(Stretch(**each) for each in found["stretches"]),
        }
        return cls(**{**found, **changed})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The raw log: its name, the URIs of its stores, mandatory ones first, and the tables that its records may name.

    `mandatory` is how many stores are, None for all. A record whose producer gave it an id is taken once, as long as
    the segments of both began at most `unique_for_ms` apart.
    """

    name: str
    stores: tuple[str, ...]
    tables: tuple[str, ...]
    mandatory: int | None = None
    unique_for_ms: int = UNIQUE_FOR_MS

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Source:
        """Return the source whose fields these are."""
        return cls(**{**found, "stores": tuple(found["stores"]), "tables": tuple(found["tables"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundIds:
    """What tells duplicates apart: the objects of record ids of the works of one round, and what each table has.

    `offsets` are by table and writer those of the table's log where the round begins.
    """

    keys: tuple[str, ...]
    offsets: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DivideWork:
    """Chunks to read for all targets. Without `ids` a work that meets records with ids only notes these."""

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
        """Return the work that `to_json` gave."""
        return DivideWork(
            source=Source.from_json(found["source"]),
            chunks=_read_refs(found["chunks"]),
            targets=tuple(map(Target.from_json, found["targets"])),
            ids=RoundIds(keys=tuple(ids["keys"]), offsets=ids["offsets"]) if (ids := found["ids"]) else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FillWork:
    """Parts to read, in this order, for one region of the table at `uri`, whose turn the distributor has."""

    uri: str
    key: tuple[str, ...]
    parts: tuple[Part, ...]
    turn: Turn
    context: SplitContext

    def to_json(self) -> Json:
        """Return plain values for JSON."""
        parts = [each.to_json() for each in self.parts]
        turn, context = asdict(self.turn), self.context.to_json()
        return {"uri": self.uri, "key": list(self.key), "parts": parts, "turn": turn, "context": context}

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> FillWork:
        """Return the work that `to_json` gave."""
        return FillWork(
            uri=found["uri"],
            key=tuple(found["key"]),
            parts=tuple(map(Part.from_json, found["parts"])),
            turn=Turn(**found["turn"]),
            context=SplitContext.from_json(found["context"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """What became of the records of some chunks for one table.

    `adds` are the splits of an append table; `parts` the rows of a keyed one by region. `rejected` counts records by
    reason, `late` those that came too late; quarantine has them unless they are dropped. `failure` is the kind and
    message of what kept this table from its rows: then nothing here is to be committed.
    """

    rows: int = 0
    adds: tuple[Add, ...] = ()
    parts: tuple[tuple[Region, Part], ...] = ()
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
        """Return what `to_json` gave."""
        return Divided(
            rows=found["rows"],
            adds=read_actions(found["adds"], Add, "distributed rows"),
            parts=tuple((_region(region), Part.from_json(part)) for region, part in found["parts"]),
            rejected=found["rejected"],
            late=LateMetrics(**found["late"]),
            failure=tuple(found["failure"]) if found["failure"] else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DivideResult:
    """What a `DivideWork` did, by table. `unknown` counts records of tables that are none; they are in quarantine.

    `damaged` are chunks without a sound copy. What lies behind one of the same writer was left alone. `noted` is the
    object of the ids of the records, where there are some and the work could not tell duplicates: then nothing else was
    done. `duplicates` counts records that were left out, by table.
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
        """Return the result that `to_json` gave."""
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
    """What a `FillWork` wrote: the directory of the generation, and how many rows are in it."""

    path: str
    rows: int

    def to_json(self) -> Json:
        """Return plain values for JSON."""
        return {"path": self.path, "rows": self.rows}

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> FillResult:
        """Return the result that `to_json` gave."""
        return FillResult(**found)


def _region(found: Mapping[str, Any]) -> Region:
    values = found["values"]
    return Region(**{**found, "values": None if values is None else tuple(values)})


def _refs(refs: Sequence[RawChunkRef]) -> list[Json]:
    return [each.to_json() for each in refs]


def _read_refs(found: Sequence[Mapping[str, Any]]) -> tuple[RawChunkRef, ...]:
    return tuple(map(RawChunkRef.from_json, found))
