"""An Avro file of any bytes is read or refused with a typed error, and the reading process survives.

Some files are damaged states, manifests and chunks of the raw log whose checksums were computed again after the damage.
The test generates the other files, with recursive or endless schemas, or with blocks and values whose lengths exceed
the data.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from storage_core.base.errors import TidemarkError
from storage_core.data.formats import raw_chunk
from storage_core.data.formats.avro import (
    CHECKSUM_KEY,
    MAGIC,
    OPEN_CHECKSUM,
    Compression,
    read_columns,
    read_records,
    with_checksum,
)
from storage_core.data.formats.avro_state import (
    ManifestInfo,
    ProgressInfo,
    StateManifest,
    decode_progress,
    decode_state,
    encode_entries,
    encode_progress,
    encode_state,
)
from storage_core.data.formats.keys import ChunkKey
from storage_core.data.formats.raw_chunk import LogRecord, RawChunk
from tests.support.avro_bytes import long_bytes
from tests.support.hostile_worker import survives, work
from tests.support.scale import scaled

SYNC = b"s" * 16
ODD = (0, -1, 1, 2**31, 2**40, 2**62, -(2**63), 5000)
STATE = StateManifest(
    state_version=3,
    created_at=1,
    num_files=2,
    total_bytes=3,
    manifests=(ManifestInfo(path="m.avro", num_entries=2, min_added_at_version=0, max_added_at_version=3),),
    tombstones=("a", "b"),
    schema_registry={"x": "y"},
    actions=("{}",),
)
ENTRY = {
    "path": "a",
    "partitionValues": {"p": "1"},
    "size": 1,
    "modificationTime": 1,
    "dataChange": True,
    "hasFooterOffsets": False,
    "addedAtVersion": 1,
    "addedAtTimestamp": 1,
}
CHUNK = RawChunk(
    key=ChunkKey(segment_ms=1, writer="00112233-4455-6677-8899-aabbccddeeff", number=1),
    first=1,
    records=tuple(LogRecord(timestamp_ms=1, table="t", operation="put", fields="{}") for _ in range(5)),
)
WITH_PROGRESS = replace(
    STATE,
    progress=(ProgressInfo(path="p.avro", num_entries=2, size_bytes=3, in_order=True, kinds={"raw": ("a", "b")}),),
)
READERS: tuple[Callable[[bytes, str], object], ...] = (
    *(decode_state, decode_progress, raw_chunk.decode_chunk, read_records, read_columns),
)


def _sized(data: bytes) -> bytes:
    return long_bytes(len(data)) + data


def _schema(chance: random.Random, depth: int = 0) -> Any:
    """Return a type that may refer to itself or to a missing type, repeat other types, or take no bytes."""
    kind = chance.randrange(10 if depth < 6 else 3)
    if kind < 3:
        return chance.choice(["null", "null", "int", "long", "string", "bytes", "double", "R0", "R1", "R2", "X", 7])
    if kind < 5:
        return {"type": "array", "items": _schema(chance, depth + 1)}
    if kind == 5:
        return {"type": "map", "values": _schema(chance, depth + 1)}
    if kind == 6:
        return ["null", _schema(chance, depth + 1)]
    if kind == 7:
        return {"type": "fixed", "name": f"R{chance.randrange(4)}", "size": chance.choice(ODD)}
    return _record(chance, depth)


def _record(chance: random.Random, depth: int = 0) -> Any:
    fields = [{"name": f"f{each}", "type": _schema(chance, depth + 1)} for each in range(chance.randrange(4))]
    return {"type": "record", "name": f"R{depth}", "fields": fields}


def _deep(chance: random.Random) -> Any:
    made: Any = "long"
    for _ in range(chance.choice([20, 70, 300])):
        made = chance.choice([{"type": "array", "items": made}, {"type": {"type": "map", "values": made}}])
    return {"type": "record", "name": "R", "fields": [{"name": "n", "type": made}]}


def _multiplied(chance: random.Random) -> Any:
    types: list[Any] = [{"type": "record", "name": "T0", "fields": [{"name": "x", "type": "null"}]}]
    for each in range(1, chance.choice([5, 20, 40])):
        fields = [{"name": name, "type": f"T{each - 1}"} for name in "xy"]
        types.append({"type": "record", "name": f"T{each}", "fields": fields})
    fields = [{"name": f"f{number}", "type": each} for number, each in enumerate(types)]
    return {"type": "record", "name": "R", "fields": fields}


def _linked(_: random.Random) -> Any:
    return {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}


def _made_up(chance: random.Random) -> bytes:
    make = chance.choice([_record, _record, _record, _deep, _multiplied, _linked])
    schema = json.dumps(make(chance)).encode()
    values = (long_bytes(chance.choice(ODD)), b"\x02" * chance.choice([1, 9, 300_000]), b"\x00", chance.randbytes(9))
    body = b"".join(chance.choice(values) for _ in range(chance.randrange(6)))
    header = {b"avro.schema": schema, b"avro.codec": b"null", CHECKSUM_KEY.encode(): OPEN_CHECKSUM.encode()}
    pairs = b"".join(_sized(name) + _sized(value) for name, value in header.items())
    count = chance.choice([1, 1, 1, 2, 1000, 20_000_000])
    return with_checksum(
        MAGIC + long_bytes(len(header)) + pairs + long_bytes(0) + SYNC + long_bytes(count) + _sized(body) + SYNC
    )


def _damaged(chance: random.Random) -> bytes:
    compression = chance.choice([*Compression])
    makers: list[Callable[[], bytes]] = [
        lambda: encode_state(chance.choice([STATE, WITH_PROGRESS]), compression),
        lambda: encode_progress([("raw:a", 1, 2), ("raw:b", None, None)] * chance.randrange(9), compression),
        lambda: encode_entries([ENTRY] * chance.randrange(20), compression),
        lambda: raw_chunk.encode_chunk(CHUNK),
    ]
    data = bytearray(chance.choice(makers)())
    for _ in range(chance.choice([0, 1, 1, 3])):
        at = chance.randrange(len(data))
        match chance.randrange(5):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                data[at : at + 1] = long_bytes(chance.choice(ODD))
            case 2:
                data[at:at] = data[at : at + chance.randrange(100)]
            case 3:
                del data[at : at + chance.randrange(30)]
            case _:
                del data[at:]
                data += b"\x00"
    at = data.find(CHECKSUM_KEY.encode()) + len(CHECKSUM_KEY) + 1
    if at > len(CHECKSUM_KEY) and len(data) > at + len(OPEN_CHECKSUM):
        data[at : at + len(OPEN_CHECKSUM)] = OPEN_CHECKSUM.encode()
        return with_checksum(bytes(data))
    return bytes(data)


def judge(chance: random.Random) -> str | None:
    """Read one file in every way."""
    data = (_made_up if chance.random() < 0.5 else _damaged)(chance)
    for read in READERS:
        try:
            read(data, "f.avro")
        except TidemarkError as error:
            if "f.avro" not in str(error):
                return f"{read.__name__}: does not name the file: {error}"
    return None


def test_an_avro_file_is_read_or_refused_by_type_whatever_it_claims() -> None:
    survives("tests.property.test_hostile_avro", scaled(1200))


if __name__ == "__main__":
    work(judge)
