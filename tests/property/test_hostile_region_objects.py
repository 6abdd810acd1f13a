"""Hostile objects below `_mem_wal/`: each object is read or refused with a typed error.

The test changes valid objects at random, depending on a seed. Most changed objects have a correct checksum. A process
with limited memory reads the objects.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from storage_core.data.formats import arrow_files, documents, key_hashes, region_manifest
from storage_core.data.formats.arrow_files import WalEntry
from storage_core.data.formats.documents import Registry
from storage_core.data.formats.json_document import json_digest
from storage_core.data.formats.region_manifest import (
    Chunk,
    FlushedGeneration,
    Generation,
    GenerationSegment,
    RegionManifest,
)
from storage_core.data.settings.layout import Region
from tests.support.hostile_worker import survives, work
from tests.support.scale import scaled

REGION = "00112233-4455-6677-8899-aabbccddeeff"

Made = tuple[bytes, Callable[[bytes], object]]


def _records(random: Random) -> pa.Table:
    rows = random.randrange(0, 40)
    return pa.table(
        {
            "_op": pa.array([0] * rows, pa.int8()),
            "k": pa.array([f"k{number}" for number in range(rows)], pa.string()),
            "d": pa.array(["x", "y"] * (rows // 2) + ["x"] * (rows % 2)).dictionary_encode(),
            "l": pa.array([[1, 2]] * rows, pa.list_(pa.int64())),
        }
    )


def _odd_records(random: Random) -> pa.Table:
    """Return a table that no writer makes, with very deep types, unusual types, or far more data than its size."""
    kind = random.randrange(5)
    if kind == 0:
        deep = pa.int64()
        for _ in range(random.choice([3, 20, 50])):
            deep = random.choice([pa.list_(deep), pa.struct([("s", deep)])])
        return pa.schema([("deep", deep)]).empty_table()
    if kind == 1:
        metadata = {"ARROW:extension:name": "arrow.json", "ARROW:extension:metadata": "x" * random.randrange(5000)}
        schema = pa.schema([pa.field("e", random.choice([pa.string(), pa.int64()]), metadata=metadata)])
        return schema.empty_table()
    if kind == 2:
        return pa.table({"zeros": pa.array(np.zeros(random.choice([10, 1_000_000]), np.int64))})
    if kind == 3:
        return pa.table({f"c{number}": [number] for number in range(random.randrange(1, 300))})
    return pa.table({"k": pa.array([1, 2], pa.uint8()), "m": pa.array([[("a", 1)], None], pa.map_("string", "int8"))})


def _stream(random: Random, records: pa.Table, metadata: Mapping[str, str]) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=random.choice([None, "lz4", "zstd"]))
    with pa.ipc.new_stream(sink, records.schema.with_metadata(metadata), options=options) as writer:
        writer.write_table(records)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _damaged(random: Random, data: bytes) -> bytes:
    """Return the bytes with some bytes changed, cut or repeated, or with a wrong length."""
    found = bytearray(data)
    for _ in range(random.choice([0, 1, 1, 2, 5])):
        at = random.randrange(len(found)) if found else 0
        match random.randrange(6):
            case 0:
                found[at : at + 1] = bytes([random.randrange(256)])
            case 1:
                del found[at:]
            case 2:
                found[at:at] = found[at : at + random.randrange(200)]
            case 3:
                lie = random.choice([2**31 - 1, 2**32, 2**40, 2**63 - 1, -1, -(2**63)])
                found[at - at % 8 : at - at % 8 + 8] = struct.pack("<q", lie)
            case 4:
                found[at : at + 4] = struct.pack("<i", random.choice([2**31 - 1, -1, -(2**31), 2**24]))
            case _:
                del found[at : at + random.randrange(64)]
    return bytes(found)


def _wal(random: Random) -> Made:
    numbers = ["1", "0", "-1", "x", "9" * 5000, "", "1.5"]
    names = ("writer_epoch", "generation", "writer_id", "seq", "number", "nonce")
    metadata = {name: random.choice(numbers) if random.random() < 0.1 else "1" for name in names}
    records = _records(random) if random.random() < 0.8 else _odd_records(random)
    body = _damaged(random, _stream(random, records, metadata))
    sound = WalEntry(writer_epoch=1, generation=1, writer_id="w", seq=1, records=records)
    magic = arrow_files.encode_wal_entry(sound)[-8:]
    data = body + struct.pack("<QQ8s", len(body), xxhash.xxh3_64_intdigest(body), magic)
    return data, lambda given: arrow_files.decode_wal_entry(given, "x.arrow").records.to_pylist()


def _data_file(random: Random) -> Made:
    records = _records(random) if random.random() < 0.8 else _odd_records(random)
    data = _damaged(random, _stream(random, records, {}))
    return data, lambda given: arrow_files.decode_data_file(given, arrow_files.checksum(given), "x.arrow").to_pylist()


def _key_index(random: Random) -> Made:
    hashes = np.array([random.getrandbits(64) for _ in range(20)], np.uint64)
    data = _damaged(random, key_hashes.build_key_index(hashes, [1, 2], [10, 10]))
    return data, lambda given: key_hashes.decode_key_index(given, "x.arrow").find(hashes)


def _bloom(random: Random) -> Made:
    hashes = np.array([random.getrandbits(64) for _ in range(random.randrange(100))], np.uint64)
    body = _damaged(random, key_hashes.build_bloom(hashes).to_bytes()[24:])
    head = struct.pack("<8sQQ", b"TMBLOOM\x01", random.getrandbits(64), xxhash.xxh3_64_intdigest(body))
    return head + body, lambda given: key_hashes.from_bytes(given, "x.bin").may_contain(hashes)


def _region_manifest(random: Random) -> Made:
    flushed = tuple(FlushedGeneration(generation=each, path=f"0a1b2c3d_gen_{each}") for each in range(1, 5))
    manifest = RegionManifest(
        region_id=REGION, version=3, writer_epoch=2, flushed_generations=flushed, distributed={"w": 1}, writer_id="w"
    )
    sound = region_manifest.encode_region(manifest)
    hostile = random.choice(
        [
            sound,
            sound[:-10],  # early releases wrote manifests without a checksum
            b"\x42\xff\xff\xff\xff\x07" + sound,  # a generation of 2 GB
            sound[:-10] + b"\x42\x00" * random.choice([10, 200_000]),  # very many empty generations
            b"\x5b" * random.choice([10, 100_000]),  # nested groups
            sound[:-10] + b"\xfa\x06\x04\x0a\x02\xff\xfe",  # text that is not valid UTF-8
        ]
    )
    return _damaged(random, hostile), lambda given: region_manifest.decode_region(given, "x.binpb")


def _json(random: Random, body: dict[str, Any]) -> bytes:
    """Return the object with some values replaced, and a correct checksum."""
    odd: list[Any] = [None, -1, 0, 2**70, 1e300, "", "x" * 1000, [], [1], {}, {"a": []}, True, [[[]]], "../..", "\x00"]

    def changed(value: Any) -> Any:
        if random.random() < 0.06:
            return random.choice(odd)
        if isinstance(value, dict):
            return {name: changed(each) for name, each in value.items() if random.random() > 0.03}
        return [changed(each) for each in value] if isinstance(value, list) else value

    made = changed({name: value for name, value in body.items() if name != "xxh3"})
    if not isinstance(made, dict):
        return json.dumps(made).encode()
    text = json.dumps({**made, "xxh3": json_digest(made)}).encode()
    bombs = [text] * 8 + [_damaged(random, text), b"[" * 100_000, b'{"xxh3":' + b"9" * 5000 + b"}"]
    return random.choice(bombs)


def _generation_manifest(random: Random) -> Made:
    sound = Generation(
        region=REGION,
        generation=4,
        path="0a1b2c3d_gen_4",
        entries=(1, 2),
        records=2,
        min_key={"k": "a"},
        max_key={"k": "b"},
        bloom="0" * 16,
        key_index="0" * 16,
        data="0" * 16,
        size_bytes=10,
        sorted_from=3,
        chunks=(Chunk(start=0, length=9, checksum="0", min_key={"k": "a"}, max_key={"k": "b"}),),
        replaces=(FlushedGeneration(generation=3, path="0a1b2c3d_gen_3"),),
        segments=(
            GenerationSegment(
                index="i",
                kind="bitmap",
                id=REGION,
                definition="d",
                order="o",
                rows=1,
                size=1,
                footer_offset=1,
                xxh3="0",
            ),
        ),
    )
    body = json.loads(region_manifest.encode_generation(sound))
    return _json(random, body), lambda given: region_manifest.decode_generation(given, "x.json")


def _registry(random: Random) -> Made:
    regions = {REGION: Region(id=REGION, spec_id=2, values=(1, "a", None, True))}
    body = json.loads(documents.encode_region_registry(Registry(regions=regions, closed={2: 3}), nonce="n"))
    return _json(random, body), documents.decode_region_registry


MAKERS = (_wal, _wal, _wal, _data_file, _key_index, _bloom, _region_manifest, _generation_manifest, _registry)


def judge(chance: Random) -> str | None:
    """Read one object. A typed refusal is a correct outcome, too."""
    data, read = chance.choice(MAKERS)(chance)
    read(data)
    return None


def test_whatever_stands_below_a_region_is_read_or_refused_by_type_in_bounded_memory() -> None:
    count = scaled(2500)
    assert survives("tests.property.test_hostile_region_objects", count) > count // 4


if __name__ == "__main__":
    pa.array([1]).to_pylist()  # load modules before the first case, so that no case needs memory for modules
    work(judge, room_bytes=2**30)
