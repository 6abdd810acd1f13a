"""Manifests of regions and of generations, as records and as bytes. No I/O.

A **region manifest** is the protobuf message `RegionManifest`. `region_manifest.proto` in this folder declares its
fields and their meaning.

A **generation manifest** is the generation's `_manifest.json`, which a flush, a distributor or a sort writes ("Memtable
and generations"). The manifest is one JSON object with sorted keys. The field `xxh3` of the manifest contains the
xxh3-64 of all other fields.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import xxhash

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.base.text import quoted, shortened
from storage_core.data.formats import keys
from storage_core.data.formats.json_document import JsonRecord, json_digest, number, text

# Region manifests.


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of a generation's `_manifest.json` and `bloom_filter.bin`. If there is no copy, the field is empty.

    The copies are not verified. A reader must verify a copy in the same way as the original object.
    """

    manifest: bytes = b""
    bloom_filter: bytes = b""

    @property
    def nbytes(self) -> int:
        """The size of both copies, in bytes."""
        return len(self.manifest) + len(self.bloom_filter)


NO_COPIES = Copies()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushedGeneration:
    """One generation that the region's manifest lists.

    Attributes:
        generation: The number of the generation.
        path: The name of its directory below the region.
        sorted_from: The first of the generations that a sorted generation (`write.region.generation_write`) replaces.
            The last one is `generation`. 0 if the generation is not sorted.
        copies: Copies of the files of the generation, which save requests. Comparisons of generations ignore the
            copies.
    """

    generation: int
    path: str
    sorted_from: int = 0
    copies: Copies = field(default=NO_COPIES, compare=False, repr=False)

    @property
    def first(self) -> int:
        """The number of the first generation whose records this generation contains."""
        return self.sorted_from or self.generation


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionManifest:
    """The state of one region at one manifest version: the current writer, the flushed records, and the start of the
    replay.

    Attributes:
        distributed: The offset in the raw log. For each writer, this is the number of the last chunk with all its rows
            in the region.
        collected_generation: The last collected generation. Collected generations are not listed (`region.manifest`).
        idle_epoch: The epoch of the writer from which a merge took the region (`region.idle`). 0 while a writer holds
            the region.
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


def encode_region(manifest: RegionManifest) -> bytes:
    """Return the protobuf bytes, with the checksum last. Equal manifests give equal bytes."""
    from storage_core.data.formats import region_manifest_pb2

    checksum = region_manifest_pb2.RegionManifest(checksum=xxhash.xxh3_64_intdigest(_body(manifest)))
    return _body(manifest, with_copies=True) + checksum.SerializeToString(deterministic=True)


def _body(manifest: RegionManifest, *, with_copies: bool = False) -> bytes:
    """Return all fields except the checksum.

    The checksum covers all fields of the manifest except the copies of generation files. So releases without support
    for copies can verify the checksum.
    """
    from storage_core.data.formats import region_manifest_pb2

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


def decode_region(data: bytes, where: str) -> RegionManifest:
    """Return the manifest in `data`. `where` is the key of the manifest, for error messages.

    Raises:
        Corrupt: The bytes are not a manifest, lack a required field (region id, version, epoch, generation), or do not
            match their checksum, which does not cover copies.
    """
    from google.protobuf.message import DecodeError

    from storage_core.data.formats import region_manifest_pb2

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


# Generation manifests.

FORMAT_VERSION = 1
DATA_FORMAT_VERSION = 2
"""The format version of a generation whose records are in a data file.

Older releases read records from WAL entries only. Older releases refuse this format, so they do not treat such a
generation as empty.
"""
SORTED_FORMAT_VERSION = 3
"""The format of a sorted generation, which replaces several generations and whose data file consists of chunks."""

_READABLE = (FORMAT_VERSION, DATA_FORMAT_VERSION, SORTED_FORMAT_VERSION)

MANIFEST_FILE = "_manifest.json"
BLOOM_FILE = "bloom_filter.bin"
INDEX_FILE = "key_index.arrow"
RECORDS_FILE = "records.arrow"

MANIFEST_COPY_BYTES = 2**13
"""The maximum size of a manifest that is copied, in bytes. This size is enough for 1,000 WAL entries or 30 chunks."""

FILTER_COPY_RECORDS = 2**15
"""The maximum number of records in a generation for which the region manifest copies the Bloom filter.

A filter for this number of records has 64 KiB.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSegment:
    """A segment of an index over the rows of a generation.

    The segment is stored as a bundle. The fields contain the id, the size, the footer offset and the xxh3-64 of this
    bundle.

    `definition` is the fingerprint of the index definition with which the segment was built. `rows` is the number of
    rows that the segment covers. `order` is a text that identifies the order of these rows.
    """

    index: str
    kind: str
    id: str
    definition: str
    order: str
    rows: int
    size: int
    footer_offset: int
    xxh3: str

    @property
    def key(self) -> str:
        """The key of the object. Raises `InvalidInput` for names that a segment cannot have."""
        return keys.segment_key(self.index, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A range of the records of a sorted generation: its start in the data file and its length, in bytes.

    `checksum` is the xxh3-64 of the range. `min_key` and `max_key` are bounds in the same form as the bounds of the
    generation.
    """

    start: int
    length: int
    checksum: str
    min_key: Mapping[str, str]
    max_key: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One immutable generation, with its WAL entries in order and the properties of its keys.

    A sorted generation has one record per key, ascending by key, in `chunks`.

    Attributes:
        region: The id of its region.
        generation: Its number.
        path: The name of its directory below the region.
        entries: The numbers of its WAL entries.
        records: The number of records, not of keys.
        min_key: A lower bound of each key column in the text form of `data.rows.bound_text`. A missing column has no
            bound.
        max_key: An upper bound of each key column, in the same form.
        bloom: The xxh3-64 of the Bloom filter's file. Without this checksum, the valid filter of another generation
            would not be detected, and would hide existing rows. None if the release that wrote the generation did not
            store it.
        key_index: The xxh3-64 of the key index. None if there is no key index.
        data: The xxh3-64 of `records.arrow`, if the records are in this file instead of WAL entries. Else None.
        size_bytes: The size of the records in memory. None if early 0.1 wrote the generation.
        sorted_from: The first generation that it replaces. 0 if it is not sorted.
        chunks: The chunks of a sorted generation.
        replaces: The generations that a sorted generation replaces, in order.
        segments: The segments of the table's indexes. An index that was created later has no segment.
        filter_bytes: The unverified bytes of the filter's file if they were read, else empty. They are not stored.
    """

    region: str
    generation: int
    path: str
    entries: tuple[int, ...]
    records: int
    min_key: Mapping[str, str]
    max_key: Mapping[str, str]
    bloom: str | None = None
    key_index: str | None = None
    data: str | None = None
    size_bytes: int | None = None
    sorted_from: int = 0
    chunks: tuple[Chunk, ...] = ()
    replaces: tuple[FlushedGeneration, ...] = ()
    segments: tuple[GenerationSegment, ...] = ()
    filter_bytes: bytes = field(default=b"", compare=False, repr=False)

    @property
    def flushed(self) -> FlushedGeneration:
        """The entry of the generation in the region's manifest."""
        return FlushedGeneration(generation=self.generation, path=self.path, sorted_from=self.sorted_from)

    @property
    def copied(self) -> FlushedGeneration:
        """The entry in the region's manifest, with copies of the manifest and the filter if they are small."""
        manifest = encode_generation(self)
        if len(manifest) > MANIFEST_COPY_BYTES:
            return self.flushed
        has_filter = self.records <= FILTER_COPY_RECORDS
        return replace(self.flushed, copies=Copies(manifest, self.filter_bytes if has_filter else b""))


_SEGMENT = JsonRecord(GenerationSegment)
_CHUNK = JsonRecord(Chunk, keys={"checksum": "xxh3"})


def file_key(generation: Generation, name: str) -> str:
    """Return the key of a file of the generation."""
    return keys.generation_file_key(generation.region, generation.path, name)


def encode_generation(generation: Generation) -> bytes:
    """Return the bytes, including the checksum. Equal generations give equal bytes."""
    body: dict[str, Any] = {
        "format": _format_of(generation),
        "region": generation.region,
        "generation": generation.generation,
        "path": generation.path,
        "entries": list(generation.entries),
        "records": generation.records,
        "minKey": dict(generation.min_key),
        "maxKey": dict(generation.max_key),
    }
    optional = {
        "bloom": generation.bloom,
        "keyIndex": generation.key_index,
        "data": generation.data,
        "sizeBytes": generation.size_bytes,
    }
    body |= {name: value for name, value in optional.items() if value is not None}
    if generation.sorted_from:
        body["sortedFrom"] = generation.sorted_from
        body["chunks"] = [_CHUNK.write(each) for each in generation.chunks]
        body["replaces"] = [{"generation": each.generation, "path": each.path} for each in generation.replaces]
    if generation.segments:
        body["segments"] = [_SEGMENT.write(each) for each in generation.segments]
    return json.dumps({**body, "xxh3": json_digest(body)}, sort_keys=True).encode()


def decode_generation(data: bytes, where: str) -> Generation:
    """Return the generation in `data`.

    `where` is the key of the manifest, for error messages. Raises `Corrupt` and `Unsupported`.
    """
    try:
        body: dict[str, Any] = json.loads(data)
        digest = body.pop("xxh3")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise Corrupt(f"{where}: not a generation manifest: {error}", key=where) from error
    if digest != json_digest(body):
        raise Corrupt(
            f"{where}: damaged generation manifest: expected xxh3 {digest}, found {json_digest(body)}", key=where
        )
    try:
        if body["format"] not in _READABLE:
            raise Unsupported(
                f"{where}: generation of format {quoted(body['format'])}, this release reads {FORMAT_VERSION} to "
                f"{SORTED_FORMAT_VERSION}. Upgrade Tidemark",
                key=where,
            )
        return _generation_of(body)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise Corrupt(f"{where}: not a generation manifest: {shortened(str(error))}", key=where) from error


def _generation_of(body: Mapping[str, Any]) -> Generation:
    size_bytes = body.get("sizeBytes")
    return Generation(
        region=text(body["region"]),
        generation=number(body["generation"]),
        path=text(body["path"]),
        entries=tuple(map(number, body["entries"])),
        records=number(body["records"]),
        min_key=_bounds(body["minKey"]),
        max_key=_bounds(body["maxKey"]),
        bloom=_checksum(body, "bloom"),
        key_index=_checksum(body, "keyIndex"),
        data=_checksum(body, "data"),
        size_bytes=None if size_bytes is None else number(size_bytes),
        sorted_from=number(body.get("sortedFrom", 0)),
        chunks=tuple(_CHUNK.read(each) for each in body.get("chunks", ())),
        replaces=tuple(
            FlushedGeneration(generation=number(each["generation"]), path=text(each["path"]))
            for each in body.get("replaces", ())
        ),
        # Early 0.1 wrote segments without an id into the generation's directory. Readers ignore a segment without an
        # id, because no result depends on the segment.
        segments=tuple(_read_segment(each) for each in body.get("segments", ()) if "id" in each),
    )


def _bounds(found: Mapping[str, Any]) -> Mapping[str, str]:
    return {name: text(bound) for name, bound in found.items()}


def _checksum(body: Mapping[str, Any], name: str) -> str | None:
    found = body.get(name)
    return None if found is None else text(found)


def _read_segment(found: Mapping[str, Any]) -> GenerationSegment:
    segment = _SEGMENT.read(found)
    keys.segment_key(segment.index, segment.id)
    return segment


def _format_of(generation: Generation) -> int:
    if generation.sorted_from:
        return SORTED_FORMAT_VERSION
    return FORMAT_VERSION if generation.data is None else DATA_FORMAT_VERSION
