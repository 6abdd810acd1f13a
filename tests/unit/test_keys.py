from __future__ import annotations

from collections.abc import Callable

import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.formats import keys
from storage_core.data.formats.keys import ParsedKey
from storage_core.data.formats.kinds import OF_TABLES, KeyKind

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
ONE = "1" + "0" * 63

SPELLINGS = [
    (keys.version_key(0), "_transaction_log/00000000000000000000.json", KeyKind.VERSION),
    (keys.version_key(2**63 - 1), "_transaction_log/09223372036854775807.json", KeyKind.VERSION),
    (keys.last_checkpoint_key(), "_transaction_log/_last_checkpoint", KeyKind.LAST_CHECKPOINT),
    (keys.progress_key("0" * 16), "_transaction_log/progress/progress-0000000000000000.avro", KeyKind.PROGRESS),
    (keys.manifest_key("0" * 16), "_transaction_log/manifests/manifest-0000000000000000.avro", KeyKind.MANIFEST),
    (keys.state_key(10), "_transaction_log/state-v00000000000000000010/_manifest.avro", KeyKind.STATE),
    (
        keys.json_checkpoint_key(42),
        "_transaction_log/00000000000000000042.checkpoint.json",
        KeyKind.JSON_CHECKPOINT,
    ),
    (
        keys.json_checkpoint_part_key(42, UUID, 7),
        f"_transaction_log/00000000000000000042.checkpoint.{UUID}.00007.json",
        KeyKind.JSON_CHECKPOINT_PART,
    ),
    (
        keys.json_checkpoint_part_key(42, "0a1b2c3d4e5f", 7),
        "_transaction_log/00000000000000000042.checkpoint.0a1b2c3d4e5f.00007.json",
        KeyKind.JSON_CHECKPOINT_PART,
    ),
    (keys.delta_commit_key(12), "_delta_log/00000000000000000012.json", KeyKind.DELTA_COMMIT),
    (keys.delta_checkpoint_key(10), "_delta_log/00000000000000000010.checkpoint.parquet", KeyKind.DELTA_CHECKPOINT),
    (keys.delta_hint_key(), "_delta_log/_last_checkpoint", KeyKind.DELTA_HINT),
    (keys.iceberg_metadata_key(12), "_iceberg/metadata/v12.metadata.json", KeyKind.ICEBERG_METADATA),
    (keys.iceberg_list_key(0, UUID), f"_iceberg/metadata/snap-0-{UUID}.avro", KeyKind.ICEBERG_LIST),
    (keys.iceberg_manifest_key(UUID), f"_iceberg/metadata/{UUID}-m0.avro", KeyKind.ICEBERG_MANIFEST),
    (keys.iceberg_hint_key(), "_iceberg/metadata/version-hint.text", KeyKind.ICEBERG_HINT),
    (keys.split_key(-900, True, UUID), f"splits/-900/{UUID}.parquet", KeyKind.SPLIT),
    (keys.split_key(0, True, UUID), f"splits/0/{UUID}.parquet", KeyKind.SPLIT),
    (keys.split_key(None, True, UUID), f"splits/null/{UUID}.parquet", KeyKind.SPLIT),
    (keys.split_key(None, False, UUID), f"splits/all/{UUID}.parquet", KeyKind.SPLIT),
    (keys.vector_key(-900, True, UUID), f"splits/-900/{UUID}.dv", KeyKind.VECTOR),
    (keys.vector_key(None, False, UUID), f"splits/all/{UUID}.dv", KeyKind.VECTOR),
    (keys.segment_key("message", UUID), f"_indices/message/{UUID}.seg", KeyKind.SEGMENT),
    (keys.translation_key(UUID), f"_indices/_translations/{UUID}.map", KeyKind.TRANSLATION),
    (keys.region_registry_key(), "_mem_wal/_regions.json", KeyKind.REGION_REGISTRY),
    (keys.region_manifest_key(UUID, 1), f"_mem_wal/{UUID}/manifest/{ONE}.binpb", KeyKind.REGION_MANIFEST),
    (keys.region_hint_key(UUID), f"_mem_wal/{UUID}/manifest/version_hint.json", KeyKind.REGION_HINT),
    (keys.wal_entry_key(UUID, 1), f"_mem_wal/{UUID}/wal/{ONE}.arrow", KeyKind.WAL_ENTRY),
    (
        keys.generation_file_key(UUID, "0a1b2c3d_gen_12", "_manifest.json"),
        f"_mem_wal/{UUID}/0a1b2c3d_gen_12/_manifest.json",
        KeyKind.GENERATION_FILE,
    ),
    (keys.gc_candidates_key(), "_gc/candidates.json", KeyKind.GC_CANDIDATES),
    (keys.gc_boundary_key(), "_gc/boundary.json", KeyKind.GC_BOUNDARY),
    (keys.tags_key(), "_tags.json", KeyKind.TAGS),
    (keys.source_key(), "_source.json", KeyKind.SOURCE),
    (keys.probe_key(UUID), f"_probe/{UUID}.json", KeyKind.PROBE),
    (keys.lock_key("compact:1/2"), "_locks/compact%3A1%2F2.json", KeyKind.LOCK),
    (keys.quarantine_key("in/a b.gz", UUID), f"quarantine/in%2Fa%20b.gz/{UUID}.json", KeyKind.QUARANTINE),
]

NOT_OURS = [
    "",
    "/",
    "splits",
    "_transaction_log/",
    "_transaction_log/0.json",
    "_tags",
    "_tags.json/",
    "_tags.json/nightly.json",
    "_transaction_log/00000000000000000000.json.gz",
    "_transaction_log/000000000000000000000.json",
    "_transaction_log/+0000000000000000001.json",
    "_transaction_log/99999999999999999999.json",
    "_transaction_log/0000000000000000000\u0661.json",
    "_transaction_log/state-v1/_manifest.avro",
    "_transaction_log/state-v00000000000000000010/manifest.avro",
    "_transaction_log/manifests/manifest-000000000000000G.avro",
    "_transaction_log/manifests/manifest-ABCDEF0123456789.avro",
    "_transaction_log/../splits/all/x.parquet",
    f"splits/{UUID}.parquet",
    f"splits/007/{UUID}.parquet",
    f"splits/-0/{UUID}.parquet",
    f"splits/+1/{UUID}.parquet",
    f"splits/1.5/{UUID}.parquet",
    f"splits/99999999999999999999/{UUID}.parquet",
    f"splits/All/{UUID}.parquet",
    f"splits/all/{UUID}.parquet/",
    f"splits/all/{UUID}.PARQUET",
    "splits/all/..parquet",
    "splits/all/.parquet",
    "splits/all/a%2Fb.parquet",
    "splits/all/a b.parquet",
    f"splits//{UUID}.parquet",
    f"/splits/all/{UUID}.parquet",
    f"s3://bucket/splits/all/{UUID}.parquet",
    f"./splits/all/{UUID}.parquet",
    f"_indices/../{UUID}.seg",
    f"_indices/a/{UUID.upper()}.seg",
    "_indices/a/b.seg",
    f"_mem_wal/{UUID}/manifest/{'0' * 64}.binpb",
    f"_mem_wal/{UUID}/wal/{ONE}.binpb",
    f"_mem_wal/{UUID}/wal/1.arrow",
    f"_mem_wal/{UUID}/0a1b2c3d_gen_0/_manifest.json",
    f"_mem_wal/{UUID}/0a1b2c3d_gen_1/other.bin",
    f"_mem_wal/{UUID}/0a1b2c3d_gen_1/sub/_manifest.json",
    "_gc/other.json",
    "_probe/a.json",
    f"_probe/{UUID}",
    f"_probe/a/{UUID}.json",
    "_locks/a/b.json",
    "_locks/%2.json",
    "_locks/%2f.json",
    "_locks/..json",
    "_locks/compact",
    f"quarantine/a/b/{UUID}.json",
    f"quarantine/../{UUID}.json",
    f"quarantine/{'a' * 300}/{UUID}.json",
    f"quarantine/a~{'0' * 32}/{UUID}.json",
    "_iceberg/metadata/v0.metadata.json",
    "_iceberg/metadata/v01.metadata.json",
    f"_iceberg/metadata/snap-01-{UUID}.avro",
    f"_iceberg/metadata/{UUID.upper()}-m0.avro",
    f"_iceberg/metadata/{UUID}-m1.avro",
    "_iceberg/v1.metadata.json",
    "data/part-00000.parquet",
    "README.md",
]


@pytest.mark.parametrize(("built", "spelled", "kind"), SPELLINGS)
def test_every_kind_of_key_is_spelled_as_the_specification_says(built: str, spelled: str, kind: KeyKind) -> None:
    assert built == spelled
    parsed = keys.parse(spelled)
    assert parsed is not None
    assert (parsed.kind, parsed.key) == (kind, spelled)


def test_every_kind_of_key_has_a_spelling_in_this_test() -> None:
    assert {kind for _, _, kind in SPELLINGS} == set(OF_TABLES)


@pytest.mark.parametrize("key", NOT_OURS)
def test_a_key_that_no_builder_makes_is_not_ours(key: str) -> None:
    assert keys.parse(key) is None


def test_a_parsed_key_tells_the_parts_it_was_built_from() -> None:
    generation = keys.generation_file_key(UUID, "0a1b2c3d_gen_12", "bloom_filter.bin")
    assert keys.parse(generation) == ParsedKey(
        kind=KeyKind.GENERATION_FILE,
        key=generation,
        region=UUID,
        directory="0a1b2c3d_gen_12",
        generation=12,
        name="bloom_filter.bin",
    )
    null_bucket = keys.parse(keys.split_key(None, True, UUID))
    unwindowed = keys.parse(keys.split_key(None, False, UUID))
    assert null_bucket is not None
    assert unwindowed is not None
    assert (null_bucket.window, null_bucket.windowed) == (None, True)
    assert (unwindowed.window, unwindowed.windowed) == (None, False)


@pytest.mark.parametrize("name", ["a", "access_log", "0-9", "a" * 63])
def test_a_legal_table_name_is_returned(name: str) -> None:
    assert keys.validate_table_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "..", ".", "a/b", "../a", "/a", "a*", "a%2e", "a\n", "a\x00", "A", "ä", "-a", "_a", "a" * 64, "a b", "a.b"],
)
def test_a_table_name_that_could_mean_something_else_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="table name"):
        keys.validate_table_name(name)


def test_builders_refuse_what_their_key_could_not_say() -> None:
    calls: tuple[Callable[[], str], ...] = (
        lambda: keys.version_key(-1),
        lambda: keys.version_key(2**63),
        lambda: keys.state_key(-1),
        lambda: keys.manifest_key("../../x"),
        lambda: keys.split_key(900, False, UUID),
        lambda: keys.split_key(None, True, "../x"),
        lambda: keys.split_key(2**63, True, UUID),
        lambda: keys.segment_key("../x", UUID),
        lambda: keys.segment_key("x", "x"),
        lambda: keys.region_manifest_key(UUID, 0),
        lambda: keys.wal_entry_key("region", 1),
        lambda: keys.generation_file_key(UUID, "gen_1", "_manifest.json"),
        lambda: keys.generation_file_key(UUID, "0a1b2c3d_gen_1", "../x"),
        lambda: keys.quarantine_key("a", "not-a-uuid"),
    )
    for call in calls:
        with pytest.raises(InvalidInput):
            call()


def test_long_sources_stay_within_a_file_name_and_apart() -> None:
    first = keys.quarantine_key("x" * 4000 + "1", UUID)
    second = keys.quarantine_key("x" * 4000 + "2", UUID)
    assert first != second
    assert all(len(segment) <= 200 for segment in first.split("/"))
    parsed = keys.parse(first)
    assert parsed is not None
    assert parsed.kind is KeyKind.QUARANTINE
