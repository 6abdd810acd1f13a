"""Region manifests have exactly the expected bytes, and damaged WAL entries are refused."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.data.formats import arrow_files, region_manifest, region_manifest_pb2
from storage_core.data.formats.arrow_files import WalEntry
from storage_core.data.formats.region_manifest import Copies, FlushedGeneration, Generation, RegionManifest

ROOT = Path(__file__).resolve().parents[2]
REGION = "00112233-4455-6677-8899-aabbccddeeff"
ENTRY = WalEntry(
    writer_epoch=3,
    generation=2,
    writer_id="writer-a",
    seq=7,
    records=pa.table({"_op": pa.array([0, 2], pa.int8()), "k": ["a", "b"]}),
)
GENERATION = Generation(
    region=REGION, generation=3, path="g", entries=(1,), records=1, min_key={"k": "a"}, max_key={"k": "b"}
)


def _checksum(body: bytes) -> bytes:
    """Return the bytes of field 101, a fixed64."""
    return bytes.fromhex("a906") + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))


def test_a_fresh_claim_has_the_golden_bytes() -> None:
    manifest = RegionManifest(region_id=REGION, version=1, writer_epoch=1, current_generation=1, region_spec_id=1)
    expected = bytes.fromhex("0801 1001 3001 5001 5a12 0a10") + bytes.fromhex(REGION.replace("-", ""))
    assert region_manifest.encode_region(manifest) == expected + _checksum(expected)


def test_a_manifest_with_every_field_has_the_golden_bytes() -> None:
    manifest = RegionManifest(
        region_id=REGION,
        version=300,
        writer_epoch=2,
        current_generation=4,
        replay_after_wal_id=5,
        wal_id_last_seen=6,
        flushed_generations=(FlushedGeneration(generation=3, path="a1b2c3d4_gen_3"),),
        region_spec_id=0,
        writer_id="w",
    )
    expected = (
        bytes.fromhex("08ac02 1002 1805 2006 3004 4212 0803 120e")
        + b"a1b2c3d4_gen_3"
        + bytes.fromhex("5a12 0a10" + REGION.replace("-", "") + "a20601")
        + b"w"
    )
    assert region_manifest.encode_region(manifest) == expected + _checksum(expected)
    assert region_manifest.decode_region(expected, "here") == manifest  # early 0.1 wrote manifests without a checksum


def test_fields_from_100_on_have_the_golden_bytes() -> None:
    manifest = RegionManifest(
        region_id=REGION,
        version=1,
        writer_epoch=1,
        flushed_generations=(FlushedGeneration(generation=3, path="g", sorted_from=2),),
        writer_id="w",
        closed_by=7,
        distributed={"r": 5},
        collected_generation=1,
    )
    expected = bytes.fromhex(
        "0801 1001 3001 4208 0803 120167 a00602"  # field 8 is a generation with `sorted_from` (field 100)
        f"5a12 0a10 {REGION.replace('-', '')}"
        "a20601 77 b00607 ba0605 0a0172 1005 c00601"
    )
    assert region_manifest.encode_region(manifest) == expected + _checksum(expected)
    assert region_manifest.decode_region(expected + _checksum(expected), "here") == manifest


def test_the_generated_module_is_that_of_the_proto_file(tmp_path: Path) -> None:
    made = "storage_core/data/formats/region_manifest"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*command, f"{made}.proto"], cwd=ROOT, check=True)
    for kind in ("_pb2.py", "_pb2.pyi"):
        assert (ROOT / f"{made}{kind}").read_text() == (tmp_path / f"{made}{kind}").read_text(), "run `make proto`"


def test_the_tide_mark_of_the_raw_log_is_field_103_and_under_the_checksum() -> None:
    bare = RegionManifest(region_id=REGION, version=1, writer_epoch=1)
    distributed = replace(bare, distributed={"w2": 300, "w1": 7})
    data = region_manifest.encode_region(distributed)
    field = bytes.fromhex("ba0606 0a027731 1007") + bytes.fromhex("ba0607 0a027732 10ac02")
    body = region_manifest.encode_region(bare)[:-10] + field
    assert data == body + _checksum(body)
    assert region_manifest.decode_region(data, "here") == distributed
    assert region_manifest.decode_region(region_manifest.encode_region(bare), "here").distributed == {}
    with pytest.raises(Corrupt, match="checksum"):  # like a release that does not know the field and skips it
        region_manifest.decode_region(data.replace(field, b""), "here")


def test_the_mark_of_collected_generations_is_field_104_and_under_the_checksum() -> None:
    bare = RegionManifest(region_id=REGION, version=1, writer_epoch=1)
    marked = replace(bare, collected_generation=300)
    body = region_manifest.encode_region(bare)[:-10] + bytes.fromhex("c006 ac02")
    assert region_manifest.encode_region(marked) == body + _checksum(body)
    assert region_manifest.decode_region(region_manifest.encode_region(marked), "here") == marked


def test_the_epoch_that_a_merge_took_the_region_from_is_field_105_and_under_the_checksum() -> None:
    bare = RegionManifest(region_id=REGION, version=1, writer_epoch=2)
    taken = replace(bare, idle_epoch=1)
    body = region_manifest.encode_region(bare)[:-10] + bytes.fromhex("c806 01")
    assert region_manifest.encode_region(taken) == body + _checksum(body)
    assert region_manifest.decode_region(region_manifest.encode_region(taken), "here") == taken


def test_copies_are_fields_101_and_102_and_not_under_the_checksum() -> None:
    bare = RegionManifest(
        region_id=REGION, version=1, writer_epoch=1, flushed_generations=(FlushedGeneration(generation=3, path="g"),)
    )
    listed = (FlushedGeneration(generation=3, path="g", copies=Copies(b"{}", b"TMB")),)
    copied = replace(bare, flushed_generations=listed)
    data = region_manifest.encode_region(copied)
    without = region_manifest.encode_region(bare)
    assert data == without.replace(
        bytes.fromhex("4205 0803 120167"), bytes.fromhex("4210 0803 120167 aa0602 7b7d b20603 544d42")
    )
    found = region_manifest.decode_region(data, "here")
    assert found == copied == bare, "copies say nothing of which generation it is"
    assert found.flushed_generations[0].copies == Copies(b"{}", b"TMB")
    assert region_manifest.decode_region(without, "here").flushed_generations[0].copies == Copies()


def test_a_release_that_knows_no_copies_finds_its_checksum_and_passes_them_over() -> None:
    """An old release computes the checksum over all fields except 101 and 102, which it does not know."""
    listed = (FlushedGeneration(generation=3, path="g", sorted_from=2, copies=Copies(b"{}", bytes(99))),)
    manifest = RegionManifest(
        region_id=REGION, version=1, writer_epoch=1, flushed_generations=listed, distributed={"w": 3}
    )
    message = region_manifest_pb2.RegionManifest.FromString(region_manifest.encode_region(manifest))
    message.flushed_generations[0].ClearField("manifest_copy")
    message.flushed_generations[0].ClearField("bloom_filter_copy")
    checksum = message.checksum
    message.ClearField("checksum")
    assert checksum == xxhash.xxh3_64_intdigest(message.SerializeToString(deterministic=True))


def test_a_generation_is_listed_with_copies_of_what_is_stored_where_that_is_small() -> None:
    small = replace(GENERATION, records=2**15, bloom="0" * 16, filter_bytes=b"filter")
    assert small.copied.copies == Copies(region_manifest.encode_generation(small), b"filter")
    assert small.copied == small.flushed
    assert replace(small, filter_bytes=b"").copied.copies == Copies(region_manifest.encode_generation(small))
    large = replace(small, records=2**15 + 1)
    assert large.copied.copies == Copies(region_manifest.encode_generation(large))
    assert replace(small, entries=tuple(range(10**7, 10**7 + 1000))).copied.copies == Copies()


def test_every_flipped_bit_of_a_region_manifest_is_noticed_or_changes_nothing() -> None:
    flushed = (FlushedGeneration(generation=3, path="a1b2c3d4_gen_3", copies=Copies(b'{"a": 1}', b"TMBLOOM")),)
    manifest = RegionManifest(
        region_id=REGION,
        version=9,
        writer_epoch=2,
        replay_after_wal_id=5,
        flushed_generations=flushed,
        writer_id="w",
        distributed={"r": 3},
    )
    data = region_manifest.encode_region(manifest)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        found = None
        with suppress(Corrupt):
            found = region_manifest.decode_region(bytes(damaged), "here")
        assert found in (None, manifest)


def test_fields_of_a_newer_release_are_kept_out_of_the_way() -> None:
    manifest = RegionManifest(region_id=REGION, version=1, writer_epoch=1)
    newer_field_199 = bytes.fromhex("b80c01")
    assert region_manifest.decode_region(region_manifest.encode_region(manifest) + newer_field_199, "here") == manifest


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff",
        region_manifest.encode_region(RegionManifest(region_id=REGION, version=1, writer_epoch=1))[:-3],
        bytes.fromhex("0801 1001 3001 5a03 0a01 00"),
        bytes.fromhex("5a12 0a10" + "00" * 16),
    ],
    ids=["empty", "no protobuf", "cut short", "short region id", "no version"],
)
def test_bytes_that_are_no_manifest_are_corrupt_and_named(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"_mem_wal/x\.binpb"):
        region_manifest.decode_region(data, "_mem_wal/x.binpb")


def test_a_wal_entry_comes_back_as_it_was_written() -> None:
    found = arrow_files.decode_wal_entry(arrow_files.encode_wal_entry(ENTRY), "here")
    assert found == ENTRY
    assert found.records.schema.metadata is None
    assert not found.is_sentinel


def test_an_entry_without_rows_is_a_sentinel() -> None:
    empty = WalEntry(writer_epoch=1, generation=1, writer_id="w", seq=1, records=ENTRY.records.slice(0, 0))
    found = arrow_files.decode_wal_entry(arrow_files.encode_wal_entry(empty), "here")
    assert found.is_sentinel
    assert found.records.schema == ENTRY.records.schema


def test_any_arrow_reader_opens_a_wal_entry_and_sees_who_wrote_it() -> None:
    with pa.ipc.open_stream(io.BytesIO(arrow_files.encode_wal_entry(ENTRY))) as reader:
        rows = reader.read_all()
    assert rows.to_pydict() == {"_op": [0, 2], "k": ["a", "b"]}
    assert rows.schema.metadata == {
        b"writer_epoch": b"3",
        b"generation": b"2",
        b"writer_id": b"writer-a",
        b"seq": b"7",
    }


def test_every_truncation_of_a_wal_entry_is_corrupt_and_names_the_entry() -> None:
    data = arrow_files.encode_wal_entry(ENTRY)
    for length in range(len(data)):
        with pytest.raises(Corrupt, match="the-entry"):
            arrow_files.decode_wal_entry(data[:length], "the-entry")


def test_every_flipped_bit_of_a_wal_entry_is_noticed() -> None:
    data = arrow_files.encode_wal_entry(ENTRY)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises((Corrupt, Unsupported), match="the-entry"):
            arrow_files.decode_wal_entry(bytes(damaged), "the-entry")


def test_a_wal_entry_of_a_newer_format_is_unsupported() -> None:
    data = bytearray(arrow_files.encode_wal_entry(ENTRY))
    data[-1] = 2
    with pytest.raises(Unsupported, match="format 2"):
        arrow_files.decode_wal_entry(bytes(data), "here")
