"""Each kind of forged bytes (lengths of 10 GB, false footers, bombs) causes a typed error, in bounded memory.

Separate tests cover the JSON of version files and the Avro states. The formats here are Parquet, WAL entries, bundles,
generations, filters, region manifests, and the small JSON objects. One process reads the objects of all formats. The
test measures the peak memory of that process. The measured memory includes memory that Python does not count.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from storage_core.base.errors import Corrupt, TidemarkError
from storage_core.data.formats import arrow_files, bundle, documents, key_hashes, keys, region_manifest
from storage_core.data.formats.arrow_files import WalEntry
from storage_core.data.formats.bundle import Expected
from storage_core.data.formats.region_manifest import FlushedGeneration
from storage_core.log.actions import Add
from storage_core.log.listing import first_version
from storage_core.log.log import read_tags
from storage_core.split.metadata import read_origin
from storage_core.split.read import open_split
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.write.late_rows import read_object
from storage_core.write.region import generation
from tests.support.events import context, events
from tests.support.ids import SeededIds
from tests.support.memory import grown_bytes

ROOT = Path(__file__).resolve().parents[2]
TEN_GB = 10 * 2**30
ROOM_BYTES = 400 * 2**20
REGION = "00112233-4455-6677-8899-aabbccddeeff"
DEEP = b"[" * 100_000

Case = Callable[[], object]


def _wal(records: int = 3) -> bytes:
    table = pa.table({"_op": pa.array([0] * records, pa.int8()), "k": pa.array(["a"] * records)})
    return arrow_files.encode_wal_entry(WalEntry(writer_epoch=1, generation=1, writer_id="w", seq=1, records=table))


def _signed_wal(body: bytes, length: int | None = None) -> bytes:
    """Return a WAL entry with this body and a matching checksum."""
    trailer = struct.pack("<QQ8s", len(body) if length is None else length, xxhash.xxh3_64_intdigest(body), _wal()[-8:])
    return body + trailer


def _claims_of_buffers(body: bytes) -> bytes:
    """Return the stream, changed so that each LZ4 buffer has a length field of 10 GB.

    Arrow writes this length field before each buffer.
    """
    lz4_frame = struct.pack("<I", 0x184D2204)
    found, at = bytearray(body), body.find(lz4_frame)
    assert at >= 0
    while at >= 0:
        found[at - 8 : at] = struct.pack("<q", TEN_GB)
        at = body.find(lz4_frame, at + 1)
    return bytes(found)


def _bundle(footer_length: int) -> tuple[bytes, Expected]:
    packed = bundle.pack_bundle({"a": b"content"}, identity="id", properties={})
    data = packed.data[:-20] + struct.pack("<I", footer_length) + packed.data[-16:]
    return data, Expected("x.seg", "id", len(data), packed.footer_offset, bundle.checksum(data))


def _lying_bundle() -> tuple[bytes, Expected]:
    """Return a bundle whose directory has a valid checksum and one part with a size of 10 GB."""
    directory = {
        "identity": "id",
        "properties": {},
        "parts": [{"name": "a", "offset": 8, "length": TEN_GB, "xxh3": "0"}],
    }
    footer = json.dumps(directory).encode()
    head = bundle.MAGIC + bundle.VERSION
    trailer = struct.pack("<IQ8s", len(footer), xxhash.xxh3_64_intdigest(footer + head), head)
    data = head + footer + trailer
    return data, Expected("x.seg", "id", len(data), 8, bundle.checksum(data))


def _split() -> tuple[MemoryStore, Add]:
    store = MemoryStore("hostile")
    row = {"service": "s", "host": "h", "value": 0.5}
    rows = events(row | {"at": 7200 + each / 10, "count": each} for each in range(5000))
    (add,) = sort_and_write(store, rows, context=context(), ids=SeededIds(1), now_ms=1)
    return store, add


def _read_split(data: bytes, add: Add, *, whole: bool) -> object:
    """Read forged bytes that match the checksum in the log, because an attacker may also write the log's objects."""
    store = MemoryStore("lies")
    store.put(add.path, data, Overwrite())
    named = Add(
        path=add.path, size=len(data), modificationTime=1, numRecords=add.numRecords, xxh3=bundle.checksum(data)
    )
    return open_split(store, named, whole=whole).read(["count"])


def _parquet_lies() -> dict[str, bytes]:
    store, add = _split()
    data = store.get(add.path).data
    many = pa.BufferOutputStream()
    pq.write_table(pa.table({"count": pa.array([7] * 1_000_000)}), many, compression="zstd", store_schema=False)
    bomb: bytes = many.getvalue().to_pybytes()
    return {
        "a footer of 4 GB": data[:-8] + struct.pack("<I", 2**32 - 1) + b"PAR1",
        "a footer longer than the file": data[:-8] + struct.pack("<I", len(data)) + b"PAR1",
        "a footer of zero bytes": data[:-8] + struct.pack("<I", 0) + b"PAR1",
        "the footer only": data[-8:],
        "zeros for pages": bytes(len(data) - 4000) + data[-4000:],
        "other rows than the log says": bomb,
        "deep nesting for a footer": data[:-8] + b"\x1c" * 60_000 + struct.pack("<I", 60_000) + b"PAR1",
    }


def _generation(data: bytes) -> object:
    store = MemoryStore("generation")
    flushed = FlushedGeneration(generation=1, path="0a1b2c3d_gen_1")
    store.put(keys.generation_file_key(REGION, flushed.path, "_manifest.json"), data, Overwrite())
    return generation.read(store, REGION, flushed)


def _stored(key: str, data: bytes, read: Callable[[MemoryStore], object]) -> object:
    store = MemoryStore("json")
    store.put(key, data, Overwrite())
    return read(store)


def _quarantine(data: bytes) -> object:
    key = keys.quarantine_key("file", REGION)
    return _stored(key, data, lambda store: read_object(store, key))


def cases() -> Mapping[str, Case]:
    _, add = _split()
    sound, stream = _wal(), _wal(5000)[:-24]
    filter_header = struct.pack("<8sQQ", b"TMBLOOM\x01", 2**63, 0)
    manifest_of_10_gb = b"\x42" + b"\x80\x80\x80\x80\x28" + b"x" * 50
    found: dict[str, Case] = {
        "WAL entry that claims 10 GB": lambda: arrow_files.decode_wal_entry(
            _signed_wal(sound[:-24], TEN_GB), "x.arrow"
        ),
        "WAL entry of one byte": lambda: arrow_files.decode_wal_entry(_signed_wal(b"x"), "x.arrow"),
        "WAL entry of zeros": lambda: arrow_files.decode_wal_entry(_signed_wal(bytes(4096)), "x.arrow"),
        "WAL buffers that claim 10 GB": lambda: arrow_files.decode_wal_entry(
            _signed_wal(_claims_of_buffers(stream)), "x.arrow"
        ),
        "WAL message of 2 GB": lambda: arrow_files.decode_wal_entry(
            _signed_wal(struct.pack("<iI", -1, 2**31 - 1) + sound[8:-24]), "x.arrow"
        ),
        "bundle with a directory of 4 GB": lambda: bundle.unpack_bundle(*_bundle(2**32 - 1)),
        "bundle with a part of 10 GB": lambda: bundle.unpack_bundle(*_lying_bundle()),
        "bloom filter of 2^63 keys": lambda: key_hashes.from_bytes(filter_header, "x.bin"),
        "region manifest with a field of 10 GB": lambda: region_manifest.decode_region(manifest_of_10_gb, "x.binpb"),
        "generation manifest, deep": partial(_generation, DEEP),
        "generation manifest, a list": partial(_generation, b"[]"),
        "generation manifest, a number of 10,000 digits": partial(_generation, b'{"xxh3":' + b"9" * 10_000 + b"}"),
        "quarantine entry, deep": partial(_quarantine, DEEP),
        "quarantine entry of others": partial(_quarantine, b'{"formatVersion":1,"rejected":[1],"source":1,"size":1}'),
        "collector's plan, deep": lambda: documents.decode_gc_plan(DEEP),
        "collector's boundary, deep": lambda: _stored(keys.gc_boundary_key(), DEEP, first_version),
        "tags, deep": lambda: _stored(keys.tags_key(), DEEP, read_tags),
        "origin of a split, deep": lambda: read_origin(
            {"tidemark.table_schema": "{}", "tidemark.table_id": "x", "tidemark.configuration": DEEP.decode()},
            "x.parquet",
        ),
    }
    for name, data in _parquet_lies().items():
        found[f"split with {name}, whole"] = partial(_read_split, data, add, whole=True)
        found[f"split with {name}, in ranges"] = partial(_read_split, data, add, whole=False)
    return found


def measure() -> None:
    """Run every case in this process. For each case, print the error and the growth of the peak memory."""
    prepared = cases()
    raised = {}

    def run() -> None:
        for name, case in prepared.items():
            try:
                case()
            except TidemarkError as error:
                raised[name] = error.kind
            except Exception as error:  # noqa: BLE001  # the test says which case lacks a type
                raised[name] = f"untyped {type(error).__name__}: {error}"
            else:
                raised[name] = "nothing"

    grown = grown_bytes(run)
    sys.stdout.write(json.dumps({"raised": raised, "grown": grown}))


@pytest.fixture(scope="module")
def measured() -> dict[str, object]:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_hostile_bytes as t; t.measure()"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: dict[str, object] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("name", sorted(cases()))
def test_made_up_bytes_are_a_typed_error(measured: dict[str, object], name: str) -> None:
    raised = measured["raised"]
    assert isinstance(raised, dict)
    assert raised[name] == Corrupt.kind


def test_no_claim_of_a_length_is_believed(measured: dict[str, object]) -> None:
    grown = measured["grown"]
    assert isinstance(grown, int)
    assert grown < ROOM_BYTES, f"made-up bytes took {grown:,} bytes"
