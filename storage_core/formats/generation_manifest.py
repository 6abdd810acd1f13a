"""Bytes of a generation's `_manifest.json`: what a flush, a distributor or a sort wrote ("Memtable and
generations"). Pure: records to bytes and back, no I/O.

One JSON object with sorted keys and the xxh3-64 of all other fields under `xxh3`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from storage_core.errors import Corrupt, Unsupported
from storage_core.foreign_text import quoted, shortened
from storage_core.formats import keys
from storage_core.formats.json_checksum import json_digest
from storage_core.formats.json_fields import number, text
from storage_core.formats.region_manifest import Copies, FlushedGeneration

FORMAT_VERSION = 1
DATA_FORMAT_VERSION = 2
"""With a data file: releases that look for records in WAL entries only must not take the generation for empty."""
SORTED_FORMAT_VERSION = 3
"""Sorted: its data file is in chunks, and it stands for several generations."""

_READABLE = (FORMAT_VERSION, DATA_FORMAT_VERSION, SORTED_FORMAT_VERSION)

MANIFEST_FILE = "_manifest.json"
BLOOM_FILE = "bloom_filter.bin"
INDEX_FILE = "key_index.arrow"
RECORDS_FILE = "records.arrow"

MANIFEST_COPY_BYTES = 2**13
"""The largest manifest of which a region manifest carries a copy: of 1,000 WAL entries, or 30 chunks."""

FILTER_COPY_RECORDS = 2**15
"""The most records in a generation of whose Bloom filter it carries a copy, of 64 KiB then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSegment:
    """A segment of an index over the whole rows of a generation: a bundle of this id, size, footer and xxh3-64.

    `definition` is the fingerprint of what it was built under, `rows` the number of rows it covers, `order` text that
    fixes in which order it counts them.
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
        """Where the object is. Raises `InvalidInput` for names that no segment has."""
        return keys.segment_key(self.index, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A stretch of the records of a sorted generation: where it begins in the data file, how long it is, in bytes.

    `checksum` is its xxh3-64. `min_key` and `max_key` are bounds like those of the generation.
    """

    start: int
    length: int
    checksum: str
    min_key: Mapping[str, str]
    max_key: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One immutable generation: the WAL entries it consists of, in order, and what is known about its keys.

    `records` counts records, not keys. `min_key` and `max_key` are sound bounds per key column in the text form of
    `rows.bound_text`; a missing column is not bounded. `bloom` is the xxh3-64 of the filter's file: a sound filter of
    another generation would deny rows. None where the release that wrote it did not say. `key_index` is that of the key
    index, `data` of `records.arrow` where the records are in that file instead of WAL entries; None where none is.
    `size_bytes` is what the records take in memory; None where early 0.1 wrote it.

    A sorted generation has one record per key, ascending by key, in `chunks`. It stands for the generations from
    `sorted_from` on, which `replaces` names in order; 0 and empty where it is not sorted.
    `segments` are those of the table's indexes, none of an index that came later.

    `filter_bytes` are no part of it: those of the filter's file where they are at hand, not verified; else empty.
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
        """What the region's manifest has to say to vouch for it."""
        return FlushedGeneration(generation=self.generation, path=self.path, sorted_from=self.sorted_from)

    @property
    def copied(self) -> FlushedGeneration:
        """The same, with copies of the manifest and the filter where these are at hand and small."""
        manifest = encode(self)
        if len(manifest) > MANIFEST_COPY_BYTES:
            return self.flushed
        has_filter = self.records <= FILTER_COPY_RECORDS
        return replace(self.flushed, copies=Copies(manifest, self.filter_bytes if has_filter else b""))


def file_key(generation: Generation, name: str) -> str:
    """Return the key of a file of the generation."""
    return keys.generation_file_key(generation.region, generation.path, name)


def encode(generation: Generation) -> bytes:
    """Return the bytes, the checksum among them; equal generations give equal bytes."""
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
        body["chunks"] = [_chunk_body(each) for each in generation.chunks]
        body["replaces"] = [{"generation": each.generation, "path": each.path} for each in generation.replaces]
    if generation.segments:
        body["segments"] = [_segment_object(each) for each in generation.segments]
    return json.dumps({**body, "xxh3": json_digest(body)}, sort_keys=True).encode()


def decode(data: bytes, where: str) -> Generation:
    """Return the generation in `data`; `where` is its key, for the error. Raises `Corrupt`, `Unsupported`."""
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
                f"{SORTED_FORMAT_VERSION}; upgrade",
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
        chunks=tuple(_chunk_of(each) for each in body.get("chunks", ())),
        replaces=tuple(
            FlushedGeneration(generation=number(each["generation"]), path=text(each["path"]))
            for each in body.get("replaces", ())
        ),
        # One without an id lies in the generation's directory: early 0.1 wrote it, and it only saved work.
        segments=tuple(_read_segment(each) for each in body.get("segments", ()) if "id" in each),
    )


def _bounds(found: Mapping[str, Any]) -> Mapping[str, str]:
    return {name: text(bound) for name, bound in found.items()}


def _checksum(body: Mapping[str, Any], name: str) -> str | None:
    found = body.get(name)
    return None if found is None else text(found)


def _segment_object(segment: GenerationSegment) -> dict[str, object]:
    return {
        "index": segment.index,
        "kind": segment.kind,
        "id": segment.id,
        "definition": segment.definition,
        "order": segment.order,
        "rows": segment.rows,
        "size": segment.size,
        "footerOffset": segment.footer_offset,
        "xxh3": segment.xxh3,
    }


def _read_segment(found: Mapping[str, Any]) -> GenerationSegment:
    segment = GenerationSegment(
        index=text(found["index"]),
        kind=text(found["kind"]),
        id=text(found["id"]),
        definition=text(found["definition"]),
        order=text(found["order"]),
        rows=number(found["rows"]),
        size=number(found["size"]),
        footer_offset=number(found["footerOffset"]),
        xxh3=text(found["xxh3"]),
    )
    keys.segment_key(segment.index, segment.id)
    return segment


def _format_of(generation: Generation) -> int:
    if generation.sorted_from:
        return SORTED_FORMAT_VERSION
    return FORMAT_VERSION if generation.data is None else DATA_FORMAT_VERSION


def _chunk_body(chunk: Chunk) -> dict[str, Any]:
    return {
        "start": chunk.start,
        "length": chunk.length,
        "xxh3": chunk.checksum,
        "minKey": dict(chunk.min_key),
        "maxKey": dict(chunk.max_key),
    }


def _chunk_of(body: Mapping[str, Any]) -> Chunk:
    return Chunk(
        start=number(body["start"]),
        length=number(body["length"]),
        checksum=text(body["xxh3"]),
        min_key=_bounds(body["minKey"]),
        max_key=_bounds(body["maxKey"]),
    )
