"""Bytes of a region manifest: the protobuf message `RegionManifest`, which `region_manifest.proto` beside this module
declares with the meaning of each field. Pure: records to bytes and back, no I/O.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import xxhash

from storage_core.errors import Corrupt


@dataclass(frozen=True, slots=True)
class Copies:
    """The bytes of a generation's `_manifest.json` and `bloom_filter.bin`, each empty where it is not carried.

    Nothing has verified them: whoever uses one does so as of the object.
    """

    manifest: bytes = b""
    bloom_filter: bytes = b""

    @property
    def nbytes(self) -> int:
        """What both take."""
        return len(self.manifest) + len(self.bloom_filter)


NO_COPIES = Copies()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushedGeneration:
    """One generation that the region's manifest vouches for. `path` is its directory name below the region.

    A sorted one (`region.sorting`) stands for those from `sorted_from` up to `generation`; 0 where it is not sorted.
    `copies` only save requests: which generation it is they do not say, so they do not count when two are compared.
    """

    generation: int
    path: str
    sorted_from: int = 0
    copies: Copies = field(default=NO_COPIES, compare=False, repr=False)

    @property
    def first(self) -> int:
        """The first generation whose records it has."""
        return self.sorted_from or self.generation


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionManifest:
    """The state of one region at one manifest version: who may write, what is flushed, where replay starts.

    `distributed` is the offset of the raw log: per writer the number of its last chunk whose rows are all in the
    region. `collected_generation` is the last generation that is not listed because it is collected
    (`region.collected`). `idle_epoch` is that of the writer from which a merge took the region (`region.idle`), 0 while
    a writer holds it.
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
    idle_epoch: int = 0


def encode(manifest: RegionManifest) -> bytes:
    """Return the protobuf bytes, the checksum last; equal manifests give equal bytes."""
    from storage_core.formats import region_manifest_pb2

    checksum = region_manifest_pb2.RegionManifest(checksum=xxhash.xxh3_64_intdigest(_body(manifest)))
    return _body(manifest, with_copies=True) + checksum.SerializeToString(deterministic=True)


def _body(manifest: RegionManifest, *, with_copies: bool = False) -> bytes:
    """All fields but the checksum. It is that of the bytes without copies: releases that do not know these go on."""
    from storage_core.formats import region_manifest_pb2

    flushed = [
        {
            "generation": each.generation,
            "path": each.path,
            "sorted_from": each.sorted_from,
            "manifest_copy": each.copies.manifest if with_copies else b"",
            "bloom_filter_copy": each.copies.bloom_filter if with_copies else b"",
        }
        for each in manifest.flushed_generations
    ]
    message = region_manifest_pb2.RegionManifest(
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
        idle_epoch=manifest.idle_epoch,
    )
    return message.SerializeToString(deterministic=True)


def decode(data: bytes, where: str) -> RegionManifest:
    """Return the manifest in `data`; `where` is its key, for the error.

    Raises `Corrupt` when the bytes are no manifest, lack what each has (region id, version, epoch, generation), or
    are not those that their checksum was made of. It is not made of copies.
    """
    from google.protobuf.message import DecodeError

    from storage_core.formats import region_manifest_pb2

    message = region_manifest_pb2.RegionManifest()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise Corrupt(f"{where}: not a region manifest ({len(data)} bytes): {error}", key=where) from error
    region = message.region_id.uuid
    if len(region) != 16:
        raise Corrupt(f"{where}: expected a region id of 16 bytes, found {len(region)}", key=where)
    missing = [name for name in ("version", "writer_epoch", "current_generation") if not getattr(message, name)]
    if missing:
        raise Corrupt(f"{where}: a region manifest without {', '.join(missing)}", key=where)
    found = RegionManifest(
        region_id=str(uuid.UUID(bytes=region)),
        version=message.version,
        writer_epoch=message.writer_epoch,
        current_generation=message.current_generation,
        replay_after_wal_id=message.replay_after_wal_id,
        wal_id_last_seen=message.wal_id_last_seen,
        flushed_generations=tuple(
            FlushedGeneration(
                generation=each.generation,
                path=each.path,
                sorted_from=each.sorted_from,
                copies=Copies(each.manifest_copy, each.bloom_filter_copy),
            )
            for each in message.flushed_generations
        ),
        region_spec_id=message.region_spec_id,
        writer_id=message.writer_id,
        closed_by=message.closed_by,
        distributed={each.writer: each.chunk for each in message.distributed},
        collected_generation=message.collected_generation,
        idle_epoch=message.idle_epoch,
    )
    if message.checksum and message.checksum != xxhash.xxh3_64_intdigest(_body(found)):
        raise Corrupt(f"{where}: damaged region manifest: its content does not match its checksum", key=where)
    return found
