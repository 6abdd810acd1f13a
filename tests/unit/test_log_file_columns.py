"""Columns of live splits have the schema of the Avro entry, and actions survive a round trip."""

from __future__ import annotations

from pathlib import Path

import datafusion
import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt
from storage_core.data.formats.avro_state import ENTRY_SCHEMA, encode_entries
from storage_core.log.actions import Add
from storage_core.log.split_columns import FILES_SCHEMA, adds_of, table_of
from tests.support.log_tables import full_split

BARE = Add(path="a.parquet", size=1, modificationTime=2)
FULL = full_split()


def test_the_columns_are_the_fields_of_an_entry_in_their_order() -> None:
    assert isinstance(ENTRY_SCHEMA, dict)
    assert FILES_SCHEMA.names == [each["name"] for each in ENTRY_SCHEMA["fields"]]
    assert all(each.nullable for each in FILES_SCHEMA)


def test_a_manifest_read_as_columns_casts_to_the_files_schema_and_gives_its_splits(tmp_path: Path) -> None:
    entry = table_of([FULL], [(7, 700)]).to_pylist(maps_as_pydicts="strict")[0]
    (tmp_path / "manifest.avro").write_bytes(encode_entries([entry]))
    read = datafusion.SessionContext().read_avro(str(tmp_path / "manifest.avro")).to_arrow_table()
    assert [(each.name, each.type) for each in read.cast(FILES_SCHEMA).schema] == [
        (each.name, each.type) for each in FILES_SCHEMA
    ]
    assert adds_of(read) == adds_of(read.cast(FILES_SCHEMA)) == (FULL,)


@pytest.mark.parametrize("adds", [[], [BARE], [FULL], [FULL, BARE, FULL]], ids=["none", "bare", "full", "mixed"])
def test_actions_come_back_equal_from_their_columns(adds: list[Add]) -> None:
    files = table_of(adds)
    assert files.schema.equals(FILES_SCHEMA)
    assert adds_of(files) == tuple(adds)


def test_chosen_rows_of_several_chunks_and_slices_give_their_own_actions() -> None:
    files = pa.concat_tables([table_of([BARE, FULL]), table_of([FULL, BARE, FULL]).slice(1, 2)])
    assert adds_of(files) == (BARE, FULL, BARE, FULL)
    assert adds_of(files.slice(3)) == (FULL,)
    assert adds_of(files.take([2, 1])) == (BARE, FULL)


def test_versions_and_times_of_addition_become_columns_and_are_null_when_unknown() -> None:
    files = table_of([BARE, FULL], [(1, 10), (2, 20)])
    assert files["addedAtVersion"].to_pylist() == [1, 2]
    assert files["addedAtTimestamp"].to_pylist() == [10, 20]
    assert table_of([BARE])["addedAtVersion"].to_pylist() == [None]


def test_a_missing_column_counts_as_null_and_takes_the_default_of_the_action() -> None:
    assert adds_of(table_of([BARE]).select(["path", "size", "modificationTime"])) == (BARE,)


@pytest.mark.parametrize("name", ["path", "size", "modificationTime"])
def test_an_entry_without_a_required_field_is_corrupt_and_named(name: str) -> None:
    files = table_of([BARE])
    at = files.schema.get_field_index(name)
    emptied = files.set_column(at, files.schema.field(name), pa.nulls(1, files.schema.field(name).type))
    for damaged in (emptied, files.drop_columns([name])):
        with pytest.raises(Corrupt, match=name):
            adds_of(damaged)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000], ids=["torn", "list", "deep"])
def test_a_deletion_vector_that_is_no_json_object_is_corrupt(text: str) -> None:
    files = table_of([BARE])
    at = files.schema.get_field_index("deletionVector")
    damaged = files.set_column(at, files.schema.field("deletionVector"), pa.array([text]))
    with pytest.raises(Corrupt, match=r"a\.parquet.*deletion vector"):
        adds_of(damaged)


@pytest.mark.parametrize(
    "wrong",
    [
        {"minValues": {"n": 5}},
        {"nullCounts": {"n": 2**63}},
        {"maxValues": ["n"]},
        {"numRecords": "many"},
        {"numMergeOps": 2**31},
        {"sourceId": "\ud800"},
    ],
    ids=str,
)
def test_an_action_that_does_not_fit_its_column_is_corrupt_and_names_the_split(wrong: dict[str, object]) -> None:
    misfit = Add(**({"path": "odd.parquet", "size": 1, "modificationTime": 2} | wrong))  # type: ignore[arg-type]
    with pytest.raises(Corrupt, match=r"odd\.parquet.*" + next(iter(wrong))):
        table_of([BARE, misfit])
