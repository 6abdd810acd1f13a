"""Bytes of a region manifest: the protobuf message `RegionManifest` (Lance MemWAL, "Region
Manifest"). Pure: records to bytes and back, no I/O.

| Field | Number | Type | Meaning |
|---|---|---|---|
| version | 1 | uint64 | version of this manifest, equal to the number in its key |
| writer_epoch | 2 | uint64 | fencing token of the writer that owns the region |
| replay_after_wal_id | 3 | uint64 | last WAL entry that is in a flushed generation; replay starts behind it |
| wal_id_last_seen | 4 | uint64 | a WAL entry known to exist; only seeds the search for the tail |
| current_generation | 6 | uint64 | the generation that the next flush writes |
| flushed_generations | 8 | repeated | generation (1), directory name below the region (2), sorted_from (100, ours) |
| region_spec_id | 10 | uint32 | region spec of the region; 0 when no spec governs it |
| region_id | 11 | message | the 16 bytes of the region's UUID (1) |
| writer_id | 100 | string | ours: who wrote this version, so that a lost reply is told from a lost race |
| checksum | 101 | fixed64 | ours: xxh3-64 of the message with all fields but this one; absent in early 0.1 |
| closed_by | 102 | uint32 | ours: the region spec that follows the region's own; then it takes no more rows |
| distributed | 103 | repeated | ours: raw log writer (1, string) and its last chunk that is in the region (2, uint64) |
| collected_generation | 104 | uint64 | ours: generations up to this one are collected and not listed any more |

Protobuf finds little wrong with damaged bytes, and a replay point that is off by a bit hides acknowledged rows: hence
the checksum.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import xxhash

from storage_core.errors import Corrupt

if TYPE_CHECKING:
    from google.protobuf.message import Message

_PACKAGE = "tidemark.region"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushedGeneration:
    """One generation that the region's manifest vouches for. `path` is its directory name below the region.

    A sorted one (`region.sorting`) stands for those from `sorted_from` up to `generation`; 0 where it is not sorted.
    """

    generation: int
    path: str
    sorted_from: int = 0

    @property
    def first(self) -> int:
        """The first generation whose records it has."""
        return self.sorted_from or self.generation


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionManifest:
    """The state of one region at one manifest version: who may write, what is flushed, where replay starts.

    `distributed` is the offset of the raw log: per writer the number of its last chunk whose rows are all in the
    region. `collected_generation` is the last generation that is not listed because it is collected
    (`region.collected`).
    """

    region_id: str
    version: int
    writer_epoch: int
    current_generation: int = 1
    replay_after_wal_id: int = 0
    wal_id_last_seen: int = 0
    flushed_generations: tuple[FlushedGeneration, ...] = ()
    region_spec_id: int = 0
    writer_id: str = ""
    closed_by: int = 0
    distributed: Mapping[str, int] = field(default_factory=dict)
    collected_generation: int = 0


# Per message the number and type of each field; `repeated` before the type of a list.
_MESSAGES: Final[Mapping[str, Mapping[str, tuple[int, str]]]] = {
    "UUID": {"uuid": (1, "bytes")},
    "FlushedGeneration": {"generation": (1, "uint64"), "path": (2, "string"), "sorted_from": (100, "uint64")},
    "Distributed": {"writer": (1, "string"), "chunk": (2, "uint64")},
    "RegionManifest": {
        "version": (1, "uint64"),
        "writer_epoch": (2, "uint64"),
        "replay_after_wal_id": (3, "uint64"),
        "wal_id_last_seen": (4, "uint64"),
        "current_generation": (6, "uint64"),
        "flushed_generations": (8, "repeated FlushedGeneration"),
        "region_spec_id": (10, "uint32"),
        "region_id": (11, "UUID"),
        "writer_id": (100, "string"),
        "checksum": (101, "fixed64"),
        "closed_by": (102, "uint32"),
        "distributed": (103, "repeated Distributed"),
        "collected_generation": (104, "uint64"),
    },
}


@functools.cache
def _manifest_class() -> type[Message]:
    from google.protobuf import descriptor_pool, message_factory
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

    file = FileDescriptorProto(name="tidemark/region.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, declared) in fields.items():
            kind = declared.removeprefix("repeated ")
            message.field.add(
                name=field_name,
                number=number,
                type=FieldDescriptorProto.Type.Value("TYPE_MESSAGE" if kind in _MESSAGES else f"TYPE_{kind.upper()}"),
                label=FieldDescriptorProto.Label.Value("LABEL_OPTIONAL" if kind == declared else "LABEL_REPEATED"),
                type_name=f".{_PACKAGE}.{kind}" if kind in _MESSAGES else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.RegionManifest"))


def encode(manifest: RegionManifest) -> bytes:
    """Return the protobuf bytes, the checksum last; equal manifests give equal bytes."""
    body = _body(manifest)
    return body + _manifest_class()(checksum=xxhash.xxh3_64_intdigest(body)).SerializeToString(deterministic=True)


def _body(manifest: RegionManifest) -> bytes:
    flushed = [
        {"generation": each.generation, "path": each.path, "sorted_from": each.sorted_from}
        for each in manifest.flushed_generations
    ]
    message = _manifest_class()(
        version=manifest.version,
        writer_epoch=manifest.writer_epoch,
        replay_after_wal_id=manifest.replay_after_wal_id,
        wal_id_last_seen=manifest.wal_id_last_seen,
        current_generation=manifest.current_generation,
        flushed_generations=flushed,
        region_spec_id=manifest.region_spec_id,
        region_id={"uuid": uuid.UUID(manifest.region_id).bytes},
        writer_id=manifest.writer_id,
        closed_by=manifest.closed_by,
        distributed=[
            {"writer": writer, "chunk": manifest.distributed[writer]} for writer in sorted(manifest.distributed)
        ],
        collected_generation=manifest.collected_generation,
    )
    return message.SerializeToString(deterministic=True)


def decode(data: bytes, where: str) -> RegionManifest:
    """Return the manifest in `data`; `where` is its key, for the error.

    Raises `Corrupt` when the bytes are no manifest, lack what each has (region id, version, epoch, generation), or
    are not those that their checksum was made of.
    """
    from google.protobuf.message import DecodeError

    message = _manifest_class()()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise Corrupt(f"{where}: not a region manifest ({len(data)} bytes): {error}", key=where) from error
    present = {field.name: value for field, value in message.ListFields()}
    region = present["region_id"].uuid if "region_id" in present else b""
    if len(region) != 16:
        raise Corrupt(f"{where}: expected a region id of 16 bytes, found {len(region)}", key=where)
    missing = [name for name in ("version", "writer_epoch", "current_generation") if name not in present]
    if missing:
        raise Corrupt(f"{where}: a region manifest without {', '.join(missing)}", key=where)
    flushed = present.get("flushed_generations", ())
    found = RegionManifest(
        region_id=str(uuid.UUID(bytes=region)),
        version=present["version"],
        writer_epoch=present["writer_epoch"],
        current_generation=present["current_generation"],
        replay_after_wal_id=present.get("replay_after_wal_id", 0),
        wal_id_last_seen=present.get("wal_id_last_seen", 0),
        flushed_generations=tuple(
            FlushedGeneration(generation=each.generation, path=each.path, sorted_from=each.sorted_from)
            for each in flushed
        ),
        region_spec_id=present.get("region_spec_id", 0),
        writer_id=present.get("writer_id", ""),
        closed_by=present.get("closed_by", 0),
        distributed={each.writer: each.chunk for each in present.get("distributed", ())},
        collected_generation=present.get("collected_generation", 0),
    )
    if present.get("checksum", digest := xxhash.xxh3_64_intdigest(_body(found))) != digest:
        raise Corrupt(f"{where}: damaged region manifest: its content does not match its checksum", key=where)
    return found
