"""The tests check the size of splits with packed metadata. Readers of splits notice no difference."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.log import actions, snapshot
from storage_core.maintain.audit import audit
from storage_core.maintain.check import fsck
from storage_core.split import verification
from storage_core.split.read import open_split
from storage_core.split.verification import PACKED, entries_of, packed
from storage_core.store.local import LocalStore
from storage_core.table import Table
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds
from tests.support.upkeep import compact

SCHEMA = pa.schema([pa.field(name, pa.string()) for name in "abcdefgh"] + [pa.field("n", pa.int64())])
PACKED_SPLITS = {"splits.metadata": "packed"}


def footer(metadata: dict[str, str]) -> pq.FileMetaData:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, pa.schema([]), store_schema=False) as writer:
        writer.add_key_value_metadata(metadata)
    return pq.read_metadata(io.BytesIO(sink.getvalue()))


def rows(*numbers: int) -> pa.Table:
    return pa.table([*([f"value {n}" for n in numbers] for _ in "abcdefgh"), list(numbers)], SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Make a table of a plain split and two packed splits."""
    table = Table.create(str(tmp_path / "t"), SCHEMA)
    table.append(rows(1, 2))
    table.alter(PACKED_SPLITS)
    table.append(rows(3))
    table.append(rows(4, 5))
    return table


def test_the_dictionary_is_part_of_the_format_and_never_changes() -> None:
    words = verification._WORDS  # a name that no other module may use
    assert (len(words), xxhash.xxh3_64_hexdigest(words)) == (1534, "9fa17beb15a8b744")


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=200), max_size=12))
def test_what_is_packed_is_unpacked(entries: dict[str, str]) -> None:
    given_entries = {f"tidemark.{key}": value for key, value in entries.items() if "\0" not in key + value}
    given_entries["tidemark.format"] = "1"
    assert entries_of(footer(packed(given_entries)), "here") == given_entries


def test_what_is_not_packed_is_left_as_it_is_and_others_stay() -> None:
    assert entries_of(footer({"owner": "me", "tidemark.format": "1"}), "here")["owner"] == "me"
    both = footer({"owner": "me", **packed({"tidemark.format": "1", "tidemark.path": "p"})})
    assert entries_of(both, "here") == {"owner": "me", "tidemark.format": "1", "tidemark.path": "p"}


@pytest.mark.parametrize(
    "text", ["", "~~~~~", base64.b85encode(b"nothing").decode(), packed({"a": "b"})[PACKED][:-5]], ids=range(4)
)
def test_what_cannot_be_unpacked_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt, match=r"splits/all/x\.parquet: the metadata of the file"):
        entries_of(footer({"tidemark.format": "2", PACKED: text}), "splits/all/x.parquet")


def test_a_split_of_one_row_costs_little_beside_a_file_of_parquet_that_says_nothing_of_itself(tmp_path: Path) -> None:
    def overhead(settings: Mapping[str, object]) -> int:
        table = Table.create(str(tmp_path / str(len(settings))), SCHEMA, settings=settings)
        table.append(rows(1))
        own = io.BytesIO()
        pq.write_table(rows(1), own, compression="zstd", store_schema=False)
        return table.snapshot.bytes - len(own.getvalue())

    assert overhead(PACKED_SPLITS) <= 256
    assert overhead({}) <= 1536


def test_every_reader_finds_the_same_in_packed_splits(table: Table) -> None:
    numbers = [1, 2, 3, 4, 5]
    assert sorted(table.scan().to_arrow().column("n").to_pylist()) == numbers
    assert sorted(table.scan(columns=["n"], filter="a = 'value 4'").to_arrow().column("n").to_pylist()) == [4]
    assert audit(table.store, table.snapshot).violations == ()
    assert fsck(table.store, clock=table.log.clock, deep=True).clean
    paths = [f"{table.uri}/{add.path}" for add in table.snapshot.splits.values()]
    found = duckdb.execute("select n from read_parquet($files) order by n", {"files": paths}).fetchall()
    assert [each[0] for each in found] == numbers
    for add in table.snapshot.splits.values():
        assert add.footerXxh3 is not None
        whole, parts = (open_split(table.store, add, whole=each).metadata for each in (True, False))
        assert whole == parts
        assert whole["tidemark.format"] == "1"


def test_a_compaction_of_plain_and_packed_splits_writes_what_the_table_says(table: Table) -> None:
    compact(table)
    (add,) = table.refresh().snapshot.splits.values()
    assert set(pq.read_metadata(f"{table.uri}/{add.path}").metadata) == {b"tidemark.format", b"tidemark.packed"}
    assert audit(table.store, table.snapshot).violations == ()
    table.alter({"splits.metadata": "plain"})
    table.append(rows(6))
    compact(table)
    (add,) = table.refresh().snapshot.splits.values()
    assert b"tidemark.packed" not in pq.read_metadata(f"{table.uri}/{add.path}").metadata
    assert sorted(table.scan().to_arrow().column("n").to_pylist()) == [1, 2, 3, 4, 5, 6]


def test_a_table_whose_log_is_lost_is_made_again_from_packed_splits(table: Table, tmp_path: Path) -> None:
    from storage_core.maintain.repair import repair

    for file in (tmp_path / "t" / "_transaction_log").rglob("*"):
        if file.is_file():
            file.unlink()
    repair(table.store, LocalStore(tmp_path / "again"), clock=ManualClock(), ids=SeededIds(1))
    found = Table.open(str(tmp_path / "again"))
    assert sorted(found.scan().to_arrow().column("n").to_pylist()) == [1, 2, 3, 4, 5]
    assert found.config.split_metadata == "packed"


def test_a_release_that_cannot_unpack_refuses_table_and_file(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    assert actions.PACKED_METADATA_FEATURE in (table.snapshot.protocol.readerFeatures or ())
    packed_one = next(add for add in table.snapshot.splits.values() if add.numRecords == 1)
    monkeypatch.setattr("storage_core.split.verification.PACKED", "tidemark.unknown")
    with pytest.raises(Unsupported, match="split format '2', this release reads 1"):
        open_split(table.store, replace(packed_one, footerXxh3=None))
    monkeypatch.setattr(snapshot, "FEATURES", actions.FEATURES - {actions.PACKED_METADATA_FEATURE})
    with pytest.raises(Unsupported, match="packedSplitMetadata"):
        Table.open(table.uri)
