"""For any bytes of an index segment, a search returns the correct rows and scores or raises a typed error.

Some of the bytes are disk damage, which the checksum in the log reveals. Some segments come from an attacker who may
write segments. The attacker forges the bundle, the checksum of the bundle, and tantivy's checksum.
"""

from __future__ import annotations

import json
import random
import struct
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from storage_core.base.errors import TidemarkError
from storage_core.data.formats.bundle import MAGIC, VERSION, checksum
from storage_core.index import segments
from storage_core.log.actions import IndexSegment
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.hostile_worker import survives, work
from tests.support.scale import scaled
from tests.support.searching import search
from tests.unit.poor_machine import half_indexed

QUERIES = {"words": ("ebb tide", '"ebb tide"', "NOT flood", "text:[a TO f]"), "tags": ("x", "y,x")}
HEAD = MAGIC + VERSION
ODD: tuple[object, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    2**70,
    1.5,
    "",
    "x",
    "../../escape",
    "a/b",
    [],
    {},
    [[]],
    {"a": None},
)
NAMES = ("../escape", "a/b", "..", "", "meta.json", ".hidden", "x" * 5000, "a\0b", "/etc/passwd", "\ud83d")
FOOTER_END = struct.Struct("<II")


class Forged:
    """A table with one segment per index. The methods replace one segment and then search the table."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.store = MemoryStore("hostile-segments")
        self.snapshot = half_indexed(self.store)
        self.parts: dict[str, dict[str, bytes]] = {}
        self.by_index = {each.index: each for each in self.snapshot.segments.values()}
        for name, each in self.by_index.items():
            self.parts[name] = {part: bytes(data) for part, data in segments.load(self.store, each).items()}
        bare = replace(self.snapshot, segments={})
        self.right = {(index, query): self.found(bare, index, query) for index in QUERIES for query in QUERIES[index]}

    def found(self, snapshot: Snapshot, index: str, query: str) -> pa.Table:
        return search(self.store, snapshot, query, index=index, cache_dir=self.cache)

    def judge(self, chance: random.Random) -> str | None:
        index = chance.choice(["words", "words", "tags"])
        segment, kind, data, content = self.case(index, chance)
        self.store.put(segment.path, data, Overwrite())
        snapshot = replace(self.snapshot, segments={segment.path: segment})
        query = chance.choice(QUERIES[index])
        try:
            rows = self.found(snapshot, index, query)
        except TidemarkError as error:
            return None if kind in FORGED_CONTENT else f"{kind}: not read instead: {error!r}"
        right = self.right[index, query]
        if kind in FORGED_CONTENT:  # the index content is wrong, but the search must not invent rows
            ids = rows.column("id").to_pylist()
            return None if len(set(ids)) == len(ids) and set(ids) <= {1, 2, 3, 4} else f"{kind}: {rows} of {content}"
        return None if rows == right else f"{kind}: {rows.to_pylist()} instead of {right.to_pylist()} of {content}"

    def case(self, index: str, chance: random.Random) -> tuple[IndexSegment, str, bytes, object]:
        segment, parts = self.by_index[index], self.parts[index]
        kind = chance.choice(["stored", "directory", "parts", "meta", "meta", "action", *FORGED_CONTENT])
        files = parts
        entries: dict[str, object] = {}
        match kind:
            case "stored":
                whole = bundle(parts, segment, {})
                return segment, kind, damaged(whole, chance), None
            case "directory":
                field, name = chance.choice(["parts", "offset", "length", "xxh3"]), chance.choice(NAMES)
                entries = chance.choice([{field: chance.choice(ODD)}, {"name": name}, {"identity": "x"}, {"deep": 1}])
            case "parts" if index == "words":
                name = chance.choice(sorted(parts))
                files = chance.choice([without(parts, name), {**parts, name: damaged(parts[name], chance)},
                                       {**parts, "more": b"x"}, {}])  # fmt: skip
            case "meta" if index == "words":
                files = {**parts, "meta.json": forged_meta(parts["meta.json"], chance)}
            case "action":
                segment = replace(segment, numRecords=chance.choice([0, 1, 3, 2**40]))
            case "content" if index == "words":
                name = chance.choice(sorted(parts.keys() - {"meta.json"}))
                files = {**parts, name: with_footer(parts[name], chance)}
            case _:
                kind, name = "content", chance.choice(sorted(parts))
                files = {**parts, name: damaged(parts[name], chance)}
        data = bundle(files, segment, entries)
        footer = len(HEAD) + sum(map(len, files.values()))
        return replace(segment, size=len(data), footerOffset=footer, xxh3=checksum(data)), kind, data, (entries, files)


FORGED_CONTENT = ("content",)


def without(parts: Mapping[str, bytes], name: str) -> dict[str, bytes]:
    return {each: data for each, data in parts.items() if each != name}


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return different bytes: some bits flipped, an end cut off, a number overwritten, or bytes inserted."""
    made = bytearray(data)
    at = chance.randrange(len(made)) if made else 0
    match chance.randrange(4) if made else 3:
        case 0:
            for _ in range(chance.choice([1, 1, 5])):
                made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
        case 1:
            del made[at:]
        case 2:
            made[at : at + 8] = bytes([chance.choice([0, 0x7F, 0x80, 0xFF])] * chance.choice([1, 4, 8]))
        case _:
            made[at:at] = chance.randbytes(chance.choice([1, 8]))
    return bytes(made) if made != data else bytes(made) + b"!"


def with_footer(data: bytes, chance: random.Random) -> bytes:
    """Return a damaged file of tantivy with a footer whose checksum is correct."""
    length, magic = FOOTER_END.unpack(data[-FOOTER_END.size :])
    end = len(data) - FOOTER_END.size - length
    content = damaged(data[:end], chance)
    said = {**json.loads(data[end : -FOOTER_END.size]), "crc": zlib.crc32(content)}
    footer = json.dumps(said, separators=(",", ":")).encode()
    return content + footer + FOOTER_END.pack(len(footer), magic)


def forged_meta(meta: bytes, chance: random.Random) -> bytes:
    """Return a `meta.json` that `fulltext.build` never writes for these rows."""
    value: dict[str, Any] = json.loads(meta)
    segment = value["segments"][0]
    field = chance.choice(["max_doc", "segment_id", "deletes"])
    odd = chance.choice([each for each in ODD if each is not segment[field]])
    match chance.randrange(8):
        case 0:
            return damaged_json(chance)
        case 1:
            del value[chance.choice(["segments", "schema", "index_settings"])]
        case 2:
            value[chance.choice(["segments", "schema"])] = chance.choice(ODD)
        case 3:
            segment[field] = odd
        case 4:
            segment["max_doc"] = chance.choice([0, 1, 3, 1000, 2**31 - 1, 2**32 - 1, -2])
        case 5:
            value["segments"] = [segment, segment]
        case 6:
            segment["deletes"] = {"num_deleted_docs": 1, "opstamp": 1}
        case _:
            value["schema"][0]["options"] = chance.choice(ODD)
    return json.dumps(value).encode()


def damaged_json(chance: random.Random) -> bytes:
    deep = [b"[" * 100_000, b'{"a":' * 50_000, b" " * 2**21]
    return chance.choice([b"", b"{", b"null", b"\xff", b'{"segments": NaN}', *deep])


def bundle(files: Mapping[str, bytes], segment: IndexSegment, forged: Mapping[str, Any]) -> bytes:
    """Return a bundle with correct checksums and with `forged` in its directory or in the entry of its first part."""
    parts: list[dict[str, Any]] = []
    offset = len(HEAD)
    for name, data in files.items():
        parts.append({"name": name, "offset": offset, "length": len(data), "xxh3": checksum(data)})
        offset += len(data)
    if parts:
        parts[0] |= {key: value for key, value in forged.items() if key in parts[0]}
    whole = {key: value for key, value in forged.items() if key in {"parts", "identity"}}
    directory = {"identity": segments.segment_id(segment), "properties": {}, "parts": parts, **whole}
    footer = b"[" * 50_000 if "deep" in forged else json.dumps(directory).encode()
    trailer = struct.pack("<IQ8s", len(footer), xxhash.xxh3_64_intdigest(footer + HEAD), HEAD)
    return b"".join([HEAD, *files.values(), footer, trailer])


def test_a_segment_of_any_bytes_gives_right_answers_or_a_typed_error() -> None:
    survives("tests.property.test_hostile_segments", scaled(600))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        work(Forged(Path(place)).judge)
