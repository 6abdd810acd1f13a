"""Imports of folders of Parquet, Delta tables and queries: every row once, and the source unchanged."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import tidemark as tm
from pipelines.cli import main
from storage_core.change.declaration import load
from storage_core.interop.import_given import source_of
from storage_core.interop.importing import import_rows
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import IfAbsent
from storage_core.store.resolve import open_store
from tests.support.foreign_files import ROWS, expected, file_of, hashes, land
from tests.support.s3_server import S3Server

GOLDEN = Path(__file__).parents[1] / "golden" / "foreign" / "delta-with-vectors.zip"
FILES = 1000


def rows_of(uri: str | Path) -> list[dict[str, object]]:
    found = tm.Table.open(str(uri)).scan().to_arrow().sort_by("n")
    return list(found.select(["n", "at", "share", "host"]).to_pylist())


def test_a_thousand_files_of_small_differences_are_one_table(tmp_path: Path) -> None:
    folder, table = tmp_path / "lake", str(tmp_path / "table")
    land(folder, FILES)
    before = hashes(folder)
    done = tm.Table.import_from(table, folder, time_column="at", window="1h", sort_schema="host|timestamp/V2")
    assert (done.rows, done.files, done.version) == (FILES * ROWS, FILES, 1)
    assert rows_of(table) == expected(FILES)
    made = tm.Table.open(table)
    assert made.schema == pa.schema(
        [("n", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("share", pa.float64()), ("host", pa.string())]
    )
    assert made.history()[0].operation == "IMPORT"
    assert made.config.window_seconds == 3600
    assert done.splits_added == len(made.files()) < 50, "rows of many files share splits"
    assert hashes(folder) == before


def test_an_import_that_is_run_again_does_nothing(tmp_path: Path) -> None:
    land(tmp_path / "lake", 8)
    table = str(tmp_path / "table")
    done = tm.Table.import_from(table, tmp_path / "lake")
    again = tm.Table.import_from(table, tmp_path / "lake")
    assert (again.version, again.commit_id, again.rows) == (done.version, "", 0)
    assert len(rows_of(table)) == 8 * ROWS


def test_of_two_imports_that_both_find_no_table_the_later_one_finds_the_rows_in(tmp_path: Path) -> None:
    land(tmp_path / "lake", 8)
    table = str(tmp_path / "t")

    def make(schema: pa.Schema, _: object) -> Snapshot:
        tm.Table.import_from(table, tmp_path / "lake")  # another process imports the table meanwhile
        return tm.Table.create(table, schema).snapshot

    done = import_rows(TransactionLog(open_store(table)), source_of(tmp_path / "lake", name=None, version=None), make)
    assert (done.rows, done.commit_id) == (0, "")
    assert len(rows_of(table)) == 8 * ROWS


def test_a_folder_that_changed_since_is_not_imported_twice(tmp_path: Path) -> None:
    land(tmp_path / "lake", 3)
    table = str(tmp_path / "table")
    tm.Table.import_from(table, tmp_path / "lake")
    pq.write_table(file_of(3), tmp_path / "lake" / "more.parquet")
    with pytest.raises(tm.errors.InvalidInput, match="imported before with other content"):
        tm.Table.import_from(table, tmp_path / "lake")
    (tmp_path / "new").mkdir()
    pq.write_table(file_of(3), tmp_path / "new" / "more.parquet")
    assert tm.Table.import_from(table, tmp_path / "new").rows == ROWS
    assert rows_of(table) == expected(4)


def test_rows_are_imported_into_a_table_that_exists_and_has_other_rows(tmp_path: Path) -> None:
    land(tmp_path / "lake", 4)
    columns = {"n": pa.int64(), "at": pa.timestamp("us", "UTC"), "share": pa.float64(), "host": pa.string()}
    table = tm.Table.create(str(tmp_path / "table"), pa.schema({**columns, "more": pa.string()}))
    table.append([{"n": -1, "more": "own"}])
    done = tm.Table.import_from(table.uri, tmp_path / "lake")
    assert (done.rows, done.version) == (4 * ROWS, 2)
    assert [row["n"] for row in rows_of(table.uri)] == list(range(-1, 4 * ROWS))


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (pa.array(["x"]), r"b.parquet: column 'n' has the type string, and int64 in .*a.parquet"),
        (pa.array([1.5]), r"b.parquet: column 'n' has the type double, and int64 in .*a.parquet"),
        (
            pa.array([1], pa.time64("us")),
            r"b.parquet: column 'n' has the type time64\[us\], which tables do not support",
        ),
        (pa.array([[{"t": 1}]], pa.list_(pa.struct([("t", pa.duration("s"))]))), "column 'n.element.t' has the type"),
    ],
    ids=["text", "float", "time", "nested"],
)
def test_what_cannot_be_joined_is_refused_before_anything_is_made(tmp_path: Path, column: pa.Array, told: str) -> None:
    folder = tmp_path / "lake"
    folder.mkdir()
    pq.write_table(pa.table({"n": pa.array([1], pa.int64())}), folder / "a.parquet")
    pq.write_table(pa.table({"n": column}), folder / "b.parquet")
    with pytest.raises(tm.errors.InvalidInput, match=told):
        tm.Table.import_from(str(tmp_path / "table"), folder)
    assert not (tmp_path / "table").exists()


def test_two_names_of_one_file_that_differ_in_case_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "N": [2]}), tmp_path / "a.parquet")
    with pytest.raises(tm.errors.InvalidInput, match=r"a\.parquet.*the columns 'n' and 'N' differ at most in case"):
        tm.Table.import_from(str(tmp_path / "x" / "table"), tmp_path)


def test_a_column_without_a_type_anywhere_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "z": pa.nulls(1)}), tmp_path / "a.parquet")
    with pytest.raises(tm.errors.InvalidInput, match="column 'z' has no type in any file"):
        tm.Table.import_from(str(tmp_path / "x" / "table"), tmp_path)


@pytest.mark.parametrize(
    ("nothing", "full"),
    [
        (pa.array([[], None], pa.list_(pa.null())), pa.array([["x"]])),
        (pa.array([{"a": None, "b": 1}, None], pa.struct({"a": pa.null(), "b": pa.int64()})), [{"a": "x", "b": 2}]),
        (
            pa.array([[("k", None)], []], pa.map_(pa.string(), pa.null())),
            pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        ),
        (pa.array([[{"a": []}]], pa.list_(pa.struct({"a": pa.list_(pa.null())}))), [[{"a": [1]}]]),
    ],
)
def test_nested_values_without_a_type_take_that_of_other_files(tmp_path: Path, nothing: pa.Array, full: Any) -> None:
    full = full if isinstance(full, pa.Array) else pa.array(full)
    for order in ((nothing, full), (full, nothing)):
        folder = tmp_path / f"{order[0] is full}"
        folder.mkdir()
        for number, each in enumerate(order):
            pq.write_table(pa.table({"c": each}), folder / f"{number}.parquet")
        tm.Table.import_from(str(tmp_path / f"{folder.name} table"), folder)
        table = tm.Table.open(str(tmp_path / f"{folder.name} table"))
        expected = [*nothing.to_pylist(), *full.to_pylist()]
        assert sorted(map(str, table.scan().to_arrow().column("c").to_pylist())) == sorted(map(str, expected))


def test_a_nested_column_without_a_type_anywhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"c": pa.array([[]], pa.list_(pa.null()))}), tmp_path / "in" / "a.parquet")
    with pytest.raises(tm.errors.InvalidInput, match=r"a\.parquet: column 'c' has no type in any file"):
        tm.Table.import_from(str(tmp_path / "table"), tmp_path / "in")


def test_uuids_and_json_are_imported_from_a_folder_as_from_a_query(tmp_path: Path) -> None:
    query = "select gen_random_uuid() as id, [gen_random_uuid()] as ids, '{\"a\": 1}'::json as document from range(50)"
    (tmp_path / "in").mkdir()
    duckdb.sql(f"copy ({query}) to '{tmp_path}/in/a.parquet'")
    tm.Table.import_from(tmp_path / "table", tmp_path / "in")
    tm.Table.import_from(tmp_path / "asked", duckdb.read_parquet(f"{tmp_path}/in/a.parquet"), name="query")
    table, asked = tm.Table.open(tmp_path / "table"), tm.Table.open(tmp_path / "asked")
    assert table.scan().to_arrow().to_pylist() == asked.scan().to_arrow().to_pylist()


def test_columns_in_the_names_of_folders_are_not_lost_silently(tmp_path: Path) -> None:
    (tmp_path / "lake" / "day=1").mkdir(parents=True)
    pq.write_table(pa.table({"n": [1]}), tmp_path / "lake" / "day=1" / "a.parquet")
    with pytest.raises(tm.errors.InvalidInput, match="the folder is 'day=1', but the file has no column 'day'"):
        tm.Table.import_from(str(tmp_path / "table"), tmp_path / "lake")


def test_a_damaged_file_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    land(tmp_path / "lake", 3)
    file = tmp_path / "lake" / "1" / "00001.parquet"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(tm.errors.Corrupt, match=r"00001\.parquet: the file is not a whole Parquet file") as damage:
        tm.Table.import_from(str(tmp_path / "table"), tmp_path / "lake")
    assert str(damage.value).endswith(". Write the file again, or leave it out"), "fsck knows nothing of it"
    assert not (tmp_path / "table").exists()


def test_a_compressed_file_is_named_with_its_compression(tmp_path: Path) -> None:
    land(tmp_path / "lake", 3)
    file = tmp_path / "lake" / "1" / "00001.parquet"
    file.write_bytes(gzip.compress(file.read_bytes()))
    with pytest.raises(tm.errors.Corrupt, match=r"00001\.parquet: the file is compressed with gzip"):
        tm.Table.import_from(str(tmp_path / "table"), tmp_path / "lake")
    assert not (tmp_path / "table").exists()


def test_files_of_no_rows_are_sound_and_give_none(tmp_path: Path) -> None:
    empty = pa.table({"n": pa.array([], pa.int64()), "host": pa.array([], pa.string())})
    (tmp_path / "lake").mkdir()
    pq.write_table(empty, tmp_path / "lake" / "a.parquet")
    assert tm.Table.import_from(str(tmp_path / "table"), tmp_path / "lake").rows == 0
    with pq.ParquetWriter(tmp_path / "lake" / "b.parquet", empty.schema) as file:
        for rows in (empty, pa.table({"n": [7], "host": ["h"]}), empty):
            file.write_table(rows)
    assert tm.Table.import_from(str(tmp_path / "both"), tmp_path / "lake").rows == 1
    for name in ("a.parquet", "b.parquet"):
        assert main(["append", str(tmp_path / "both"), str(tmp_path / "lake" / name)]) == 0
    assert tm.Table.open(str(tmp_path / "both")).scan().to_arrow().to_pylist() == [{"n": 7, "host": "h"}] * 2


def test_a_value_that_does_not_fit_ends_the_import_before_its_commit(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    pq.write_table(pa.table({"n": pa.array([1, 2**63], pa.uint64())}), tmp_path / "lake" / "a.parquet")
    with pytest.raises(tm.errors.InvalidInput, match=r"a\.parquet: column 'n': a value of type uint64 does not fit"):
        tm.Table.import_from(str(tmp_path / "table"), tmp_path / "lake")
    with pytest.raises(tm.errors.InvalidInput, match="the table is an unfinished import of 'parquet:"):
        tm.Table.open(str(tmp_path / "table"))


def test_options_that_an_existing_table_is_not_are_refused(tmp_path: Path) -> None:
    land(tmp_path / "lake", 2)
    table = str(tmp_path / "table")
    tm.Table.import_from(table, tmp_path / "lake", time_column="at", window="1h")
    with pytest.raises(tm.errors.InvalidInput, match="its window is 3600, not 1800"):
        tm.Table.import_from(table, tmp_path / "lake", window="30m")
    with pytest.raises(tm.errors.InvalidInput, match=r"its primary_key is \(\), not \('n',\)"):
        tm.Table.import_from(table, tmp_path / "lake", primary_key="n")


def test_a_delta_table_that_spark_wrote_comes_without_the_rows_that_its_vectors_hide(tmp_path: Path) -> None:
    place = tmp_path / "delta"
    with zipfile.ZipFile(GOLDEN) as golden:
        golden.extractall(place)
    before = hashes(place)
    done = tm.Table.import_from(str(tmp_path / "table"), place, time_column="at", window="1h")
    found = tm.Table.open(str(tmp_path / "table")).scan().to_arrow()
    left = [n for n in range(1000) if n % 7 != 3]
    assert done.rows == len(left) == found.num_rows
    assert sorted(found.column("n").to_pylist()) == left
    assert {row["part"] for row in found.to_pylist() if row["n"] % 2} == {"odd"}, "partitions are columns"
    assert not found.schema.field("n").nullable
    whole = tm.Table.import_from(str(tmp_path / "before"), place, version=1)
    assert whole.rows == 1000
    assert hashes(place) == before
    assert tm.Table.import_from(str(tmp_path / "table"), place).commit_id == ""


def test_a_folder_is_no_delta_table_and_has_no_versions(tmp_path: Path) -> None:
    land(tmp_path / "lake", 1)
    with pytest.raises(
        tm.errors.InvalidInput, match="version 3 cannot be given, because a folder of Parquet files has no versions"
    ):
        tm.Table.import_from(str(tmp_path / "table"), tmp_path / "lake", version=3)


def test_a_relation_of_duckdb_is_imported_by_name_once(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    with duckdb.connect() as connection:
        query = "SELECT range AS n, 'h' || range % 3 AS host FROM range(100000)"
        with pytest.raises(tm.errors.InvalidInput, match="Give the import a name"):
            tm.Table.import_from(table, connection.sql(query))
        assert tm.Table.import_from(table, connection.sql(query), name="numbers").rows == 100_000
        assert tm.Table.import_from(table, connection.sql(query), name="numbers").commit_id == ""
        assert tm.Table.import_from(table, connection.sql(query), name="once more").rows == 100_000
    assert tm.Table.open(table).scan().to_arrow().num_rows == 200_000


def test_a_query_that_fails_half_way_leaves_no_table_that_opens_before_another_import_succeeds(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    query = "SELECT CASE WHEN range < 5000000 THEN range ELSE error('broken') END AS n FROM range(6000000)"
    with duckdb.connect() as connection, pytest.raises(tm.errors.InvalidInput, match="failed with"):
        tm.Table.import_from(table, connection.sql(query), name="broken")
    for at in (None, 0):
        with pytest.raises(tm.errors.InvalidInput, match=r"unfinished import of 'broken'\. Run the import again\."):
            tm.Table.open(table, at=at)
    assert main(["fsck", table]) == 0
    tm.Table.import_from(table, pa.table({"n": pa.array([1], pa.int64())}), name="corrected")
    assert tm.Table.open(table).scan().to_arrow().to_pylist() == [{"n": 1}]
    assert tm.Table.open(table, at=0).scan().to_arrow().num_rows == 0


def test_an_import_holds_a_few_pieces_of_a_source_that_is_larger(tmp_path: Path) -> None:
    batch_bytes, batches = 8 * 2**20, 60
    schema = pa.schema([("n", pa.int64())])
    held: list[int] = []
    before = pa.total_allocated_bytes()

    def given() -> Iterator[pa.RecordBatch]:
        for _ in range(batches):
            held.append(pa.total_allocated_bytes() - before)
            yield pa.record_batch([pa.array(np.arange(batch_bytes // 8))], schema=schema)

    reader = pa.RecordBatchReader.from_batches(schema, given())
    done = tm.Table.import_from(str(tmp_path / "table"), reader, name="large")
    assert done.rows == batches * batch_bytes // 8
    assert done.splits_added > 5
    assert max(held) < batches * batch_bytes // 2, f"{max(held):,} bytes of {batches * batch_bytes:,}"


def test_rows_of_a_keyed_table_are_put_by_key_and_imported_once(tmp_path: Path) -> None:
    land(tmp_path / "lake", 6)
    table = str(tmp_path / "table")
    done = tm.Table.import_from(table, tmp_path / "lake", primary_key="n")
    assert (done.rows, done.splits_added) == (6 * ROWS, 0)
    assert tm.Table.open(table).scan(consistency="latest").to_arrow().num_rows == 6 * ROWS
    assert tm.Table.import_from(table, tmp_path / "lake").commit_id == ""


def test_a_folder_on_s3_is_imported_into_a_table_there(s3_server: S3Server, tmp_path: Path) -> None:
    land(tmp_path, 20)
    lake, table = s3_server.uri(f"lake/{uuid4()}"), s3_server.uri(f"tables/{uuid4()}")
    store = open_store(lake)
    for path in tmp_path.rglob("*.parquet"):
        store.put(str(path.relative_to(tmp_path)), path.read_bytes(), IfAbsent())
    before = {info.key: info.etag for info in store.list("")}
    assert tm.Table.import_from(table, lake, time_column="at", window="1h").rows == 20 * ROWS
    assert rows_of(table) == expected(20)
    assert {info.key: info.etag for info in store.list("")} == before


def test_a_delta_table_on_s3_is_imported_by_the_same_place_as_everything_else(s3_server: S3Server) -> None:
    lake, table = s3_server.uri(f"lake/{uuid4()}"), s3_server.uri(f"tables/{uuid4()}")
    store = open_store(lake)
    with zipfile.ZipFile(GOLDEN) as golden:
        for name in golden.namelist():
            store.put(name, golden.read(name), IfAbsent())
    before = {info.key: info.etag for info in store.list("")}
    assert tm.Table.import_from(table, lake).rows == 857
    assert tm.Table.open(table).scan().to_arrow().num_rows == 857
    assert {info.key: info.etag for info in store.list("")} == before


def test_a_declared_table_is_made_as_its_file_says(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    land(tmp_path / "lake", 5)
    file = tmp_path / "hosts.yaml"
    columns = "columns: {at: timestamp!, n: long, share: double, host: string}"
    file.write_text(f"name: hosts\nuri: {tmp_path}/hosts\n{columns}\ntime_column: at\nwindow: 1h\n")
    arguments = ["import", f"{tmp_path}/hosts", f"{tmp_path}/lake", "--declaration", str(file), "--json"]
    assert main(arguments) == 0
    about = json.loads(capfd.readouterr().out)
    assert (about["status"], about["rows"], about["files"]) == ("committed", 5 * ROWS, 5)
    assert tm.Table.open(f"{tmp_path}/hosts").schema.names == ["at", "n", "share", "host"]
    assert main(arguments) == 0
    assert json.loads(capfd.readouterr().out)["status"] == "nothing_to_do"
    assert main([*arguments, "--window", "2h"]) == 2
    assert "defines these settings" in capfd.readouterr().err


def test_what_a_declaration_says_is_not_said_again_beside_it(tmp_path: Path) -> None:
    land(tmp_path / "lake", 1)
    (tmp_path / "t.yaml").write_text(f"name: t\nuri: {tmp_path}/t\ncolumns: {{n: long}}\n")
    with pytest.raises(tm.errors.InvalidInput, match="Leave out time_column, window, sort_schema and primary_key"):
        tm.Table.import_from(
            f"{tmp_path}/t", tmp_path / "lake", declaration=load(tmp_path / "t.yaml"), time_column="at", window="1h"
        )
    assert not (tmp_path / "t").exists()


def test_a_query_has_no_version(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["import", f"{tmp_path}/t", "--query", "SELECT 1 AS n", "--version", "3"]) == 2
    assert "has no versions" in capfd.readouterr().err
    assert not (tmp_path / "t").exists()


def test_a_query_on_the_command_line_reads_a_database_and_leaves_it_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "own.db"
    with duckdb.connect(str(database)) as connection:
        connection.execute("CREATE TABLE events AS SELECT range AS n FROM range(1000)")
    before = hashes(tmp_path)
    arguments = ["import", f"{tmp_path}/x/table", "--query", "SELECT n * 2 AS n FROM events WHERE n < 10"]
    assert main([*arguments, "--database", str(database)]) == 0
    assert capfd.readouterr().out == "10 rows imported (version 1, 1 new splits)\n"
    assert main([*arguments, "--database", str(database)]) == 0
    assert capfd.readouterr().out == "imported before, nothing to do (version 1)\n"
    assert {name: found for name, found in hashes(tmp_path).items() if not name.startswith("x/")} == before
    assert main(["import", f"{tmp_path}/x/table", "--query", "SELECT * FROM nothing"]) == 2
    assert "the query cannot be run: unknown table 'nothing'. Correct its name" in capfd.readouterr().err
    assert main(["import", f"{tmp_path}/x/table"]) == 2
    assert "the source is missing" in capfd.readouterr().err


MOMENTS = [
    dt.datetime(1, 1, 1, tzinfo=dt.UTC),
    dt.datetime(1677, 9, 21, tzinfo=dt.UTC),
    dt.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=dt.UTC),
    dt.datetime(2262, 4, 12, tzinfo=dt.UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
]


def int96_rows() -> pa.Table:
    """Return instants across all years that a table supports, as plain values and inside nested values."""
    at = pa.array([*MOMENTS, None], pa.timestamp("us"))
    inner = pa.StructArray.from_arrays([at, pa.array(range(6))], ["at", "n"])
    return pa.table({"n": range(6), "at": at, "s": inner, "l": [[each] for each in at.to_pylist()]})


def write_int96(rows: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, use_deprecated_int96_timestamps=True, store_schema=False)


def delta_of(
    place: Path,
    fields: dict[str, object],
    *,
    features: Sequence[str] = (),
    partition: Mapping[str, str] | None = None,
    path: str = "a.parquet",
    escaped: bool = True,
) -> Path:
    """Turn a folder with a Parquet file into a Delta table with these columns and reader features.

    If `escaped`, the text of the Delta log is ASCII.
    """
    (place / "_delta_log").mkdir()
    schema = [{"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in fields.items()]
    needed = {"readerFeatures": list(features), "writerFeatures": list(features)} if features else {}
    about = {
        "id": str(uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "partitionColumns": [*(partition or {})],
    }
    text = json.dumps({"type": "struct", "fields": schema}, ensure_ascii=False)
    size = (place / path).stat().st_size
    added = {
        "path": path,
        "partitionValues": {**(partition or {})},
        "size": size,
        "modificationTime": 0,
        "dataChange": True,
    }
    actions: list[object] = [
        {"protocol": {"minReaderVersion": 3 if features else 1, "minWriterVersion": 7 if features else 2, **needed}},
        {"metaData": {**about, "schemaString": text, "configuration": {}, "createdTime": 0}},
        {"add": added},
    ]
    (place / "_delta_log" / f"{0:020}.json").write_text(
        "\n".join(json.dumps(each, ensure_ascii=escaped) for each in actions), encoding="utf-8"
    )
    return place


WIDE, AT_HOME = "\U00020bb7", "\U0001f600"
"""Two characters with escapes. delta-rs misreads the first escape and reads the second correctly."""


def one_row(place: Path, path: str = "a.parquet", column: str = "n") -> Path:
    place.mkdir()
    pq.write_table(pa.table({column: pa.array([7], pa.int32())}), place / path)
    return place


def imported(tmp_path: Path, lake: Path) -> list[dict[str, object]]:
    tm.Table.import_from(str(tmp_path / "table"), lake)
    return list(tm.Table.open(str(tmp_path / "table")).scan().to_arrow().to_pylist())


@pytest.mark.parametrize(
    ("value", "escaped"),
    [
        (WIDE, False),
        (AT_HOME, False),
        (AT_HOME, True),
        ("\U00030001", True),
        (f"\\{AT_HOME}", True),
        ("\\ud842\\udfb7", True),
    ],
)
def test_a_value_of_a_partition_in_a_delta_log_keeps_its_characters(tmp_path: Path, value: str, escaped: bool) -> None:
    lake = delta_of(
        one_row(tmp_path / "lake"), {"n": "integer", "q": "string"}, partition={"q": value}, escaped=escaped
    )
    assert imported(tmp_path, lake) == [{"n": 7, "q": value}]


@pytest.mark.parametrize("of", ["value", "backslash before", "last plane", "column", "partition column", "path"])
def test_a_delta_log_with_escapes_that_delta_rs_misreads_is_refused(tmp_path: Path, of: str) -> None:
    values = {"value": WIDE, "backslash before": f"\\{WIDE}", "last plane": "\U0010ffff"}
    path = f"{WIDE}.parquet" if of == "path" else "a.parquet"
    column = f"n{WIDE}" if of == "column" else "n"
    split = f"q{WIDE}" if of == "partition column" else "q"
    lake = one_row(tmp_path / "lake", path, column)
    delta_of(lake, {column: "integer", split: "string"}, partition={split: values.get(of, "v")}, path=path)
    with pytest.raises(tm.errors.InvalidInput, match=r"lake: the Delta log has escaped characters above U\+FFFF"):
        imported(tmp_path, lake)
    assert not (tmp_path / "table").exists()


def test_escapes_of_a_version_that_nobody_asks_for_are_no_reason_to_refuse_a_delta_table(tmp_path: Path) -> None:
    lake = delta_of(one_row(tmp_path / "lake"), {"n": "integer", "q": "string"}, partition={"q": WIDE}, escaped=False)
    later = {"add": {"path": "b.parquet", "partitionValues": {"q": WIDE}, "size": 1, "modificationTime": 0}}
    (lake / "_delta_log" / f"{1:020}.json").write_text(json.dumps(later | {"dataChange": True}))
    tm.Table.import_from(str(tmp_path / "table"), lake, version=0)
    assert tm.Table.open(str(tmp_path / "table")).scan().to_arrow().to_pylist() == [{"n": 7, "q": WIDE}]


@pytest.mark.parametrize("kind", ["folder", "folder of instants", "delta", "query"])
def test_int96_timestamps_of_all_years_keep_their_moment(tmp_path: Path, kind: str) -> None:
    lake, table = tmp_path / "lake", str(tmp_path / "table")
    write_int96(int96_rows(), lake / "a.parquet")
    given: Any = lake
    wanted = int96_rows()
    if kind == "delta":
        inner = [
            {"name": name, "type": type_, "nullable": True, "metadata": {}}
            for name, type_ in (("at", "timestamp"), ("n", "long"))
        ]
        listed = {"type": "array", "elementType": "timestamp", "containsNull": True}
        delta_of(lake, {"n": "long", "at": "timestamp", "s": {"type": "struct", "fields": inner}, "l": listed})
    if kind == "query":
        given = duckdb.sql(f"SELECT * FROM read_parquet('{lake}/a.parquet')")
    if kind in ("delta", "folder of instants"):
        instant = pa.timestamp("us", "UTC")
        inside = pa.struct([("at", instant), ("n", pa.int64())])
        types = {"n": pa.int64(), "at": instant, "s": inside, "l": pa.list_(instant)}
        wanted = wanted.cast(pa.schema(types))
        if kind == "folder of instants":
            tm.Table.create(table, pa.schema(types))
    assert tm.Table.import_from(table, given, name="x").rows == 6
    assert tm.Table.open(table).scan().to_arrow().sort_by("n").to_pylist() == wanted.to_pylist()


@pytest.mark.parametrize(
    ("day", "nanos", "told"),
    [
        (2440588, 1, "column 'at': an INT96 timestamp has digits below the microsecond"),
        (2440588 + 110_000_000, 0, "column 'at': an INT96 timestamp is not between the years 1 and 9999"),
        (5373485, 0, "10000-01-01.* is not between the years 1 and 9999"),
    ],
    ids=["nanoseconds", "beyond microseconds", "year 10000"],
)
def test_an_int96_timestamp_that_no_table_holds_is_refused(tmp_path: Path, day: int, nanos: int, told: str) -> None:
    file = tmp_path / "lake" / "a.parquet"
    write_int96(pa.table({"at": pa.array([dt.datetime(1970, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us"))}), file)
    epoch = struct.pack("<qi", 0, 2440588)
    plain = pq.ParquetFile(file).metadata.row_group(0).column(0)
    assert plain.physical_type == "INT96"
    content = file.read_bytes()
    assert content.count(epoch) == 1
    file.write_bytes(content.replace(epoch, struct.pack("<qi", nanos, day)))
    with pytest.raises(tm.errors.TidemarkError, match=told):
        tm.Table.import_from(str(tmp_path / "table"), file.parent)


@pytest.mark.parametrize("key", [None, "n"], ids=["append", "keyed"])
def test_a_delta_table_whose_file_is_absent_leaves_no_table_that_opens_and_is_imported_when_it_is_back(
    tmp_path: Path, key: str | None
) -> None:
    lake, table = tmp_path / "lake", str(tmp_path / "table")
    lake.mkdir()
    file = lake / "a.parquet"
    pq.write_table(pa.table({"n": pa.array([7], pa.int64())}), file)
    delta_of(lake, {"n": "long"})
    content = file.read_bytes()
    file.unlink()
    told = r"lake: the data file a\.parquet is missing\. Restore the file, or import another version with --version"
    with pytest.raises(tm.errors.NotFound, match=told) as refused:
        tm.Table.import_from(table, lake, primary_key=key)
    assert "error:" not in str(refused.value).lower(), "no text of a library"
    for way in (["sql", table, "SELECT count(*) FROM t"], ["append", table, str(file)], ["describe", table]):
        assert main(way) == 2
    with pytest.raises(tm.errors.InvalidInput, match="unfinished import"):
        tm.Table.open(table)
    if key is not None:
        with pytest.raises(tm.errors.InvalidInput, match="unfinished import"):
            tm.Table.import_from(table, pa.table({"n": pa.array([8], pa.int64())}), name="other")
    file.write_bytes(content)
    assert tm.Table.import_from(table, lake, primary_key=key).rows == 1
    assert tm.Table.open(table).scan(consistency="latest").to_arrow().to_pylist() == [{"n": 7}]


def test_a_missing_file_of_a_partition_is_named_and_another_version_is_imported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lake, table = str(tmp_path / "my lake"), str(tmp_path / "table")
    write_deltalake(lake, pa.table({"p": ["x"], "n": [1]}), partition_by=["p"])
    write_deltalake(lake, pa.table({"p": ["a b%c/ü"], "n": [2]}), mode="append")
    (gone,) = (each for each in Path(lake).rglob("*.parquet") if each.parent.name != "p=x")
    gone.unlink()
    assert main(["import", table, lake, "--json"]) == 2
    said = json.loads(capfd.readouterr().out)
    assert said["error"] == "not_found"
    assert f"lake: the data file {gone.relative_to(lake)} is missing. Restore the file, or" in said["message"]
    assert main(["import", table, lake, "--version", "0"]) == 0
    assert tm.Table.open(table).scan(["n"]).to_arrow().to_pylist() == [{"n": 1}]


def test_a_damaged_delta_table_is_refused_without_the_text_of_delta_rs(tmp_path: Path) -> None:
    lake, table = str(tmp_path / "lake"), str(tmp_path / "table")
    write_deltalake(lake, pa.table({"n": [1]}))
    with pytest.raises(tm.errors.InvalidInput, match=r"the Delta log does not have this version\. Give a version in"):
        tm.Table.import_from(table, lake, version=9)
    (file,) = Path(lake).glob("*.parquet")
    file.write_bytes(b"junk")
    with pytest.raises(tm.errors.Corrupt) as damaged:
        tm.Table.import_from(table, lake)
    assert str(damaged.value).endswith(
        "lake: a data file or a deletion vector of the Delta table is damaged. Restore the file, or import "
        "another version with --version"
    )
    (log,) = Path(lake, "_delta_log").glob("*.json")
    log.write_bytes(b"{")
    with pytest.raises(
        tm.errors.InvalidInput, match=r"a file of the Delta log is missing or damaged\. Restore the log, or"
    ):
        tm.Table.import_from(str(tmp_path / "other"), lake)


@pytest.mark.parametrize("features", [["typeWidening"], ["vacuumProtocolCheck", "deletionVectors"]])
def test_a_delta_table_that_only_spark_reads_is_refused_with_the_declaration_to_write(
    tmp_path: Path, features: list[str]
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    pq.write_table(pa.table({"n": pa.array([7], pa.int32())}), lake / "a.parquet")
    delta_of(lake, {"n": "integer"}, features=features)
    told = (
        rf"reader feature {features[0]}\. Spark can read this table\. Declare .*`landing: "
        rf"\{{uri: .*lake, format: delta\}}`"
    )
    with pytest.raises(tm.errors.InvalidInput, match=told):
        tm.Table.import_from(str(tmp_path / "table"), lake)
    assert not (tmp_path / "table").exists()


def test_files_of_a_folder_are_read_or_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = {"n": pa.array([1], pa.int64())}
    read = ["a.parquet", "b.PARQUET", "c.parq", "d.pq", "e.gz.parquet", "n=1/f.Parquet", "x.parquet/part-0"]
    other = ["g.parquet.snappy", "h.csv", "_i.parquet", ".j.PQ", "_tmp/k.parquet"]
    for name in (*read[:-1], "x.parquet/part-0.parquet", *other, "_SUCCESS", ".h.csv.crc"):
        (tmp_path / "lake" / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(rows), tmp_path / "lake" / name)
    (tmp_path / "lake" / "l.parquet").touch()
    (tmp_path / "lake" / "m.parquet").symlink_to("a.parquet")
    done = tm.Table.import_from(str(tmp_path / "table"), tmp_path / "lake")
    assert (done.files, done.rows) == (len(read), len(read))
    assert sorted(done.not_read_names) == sorted([*other, "l.parquet", "m.parquet"])
    assert done.not_read == len(done.not_read_names)
    assert main(["import", str(tmp_path / "again"), str(tmp_path / "lake")]) == 0
    assert "not read: h.csv (the file name does not end in .parquet, .parq, .pq)\n" in capfd.readouterr().out


@pytest.mark.parametrize("name", ["a\\b.parquet", "a\nb.PARQUET"])
def test_a_parquet_file_whose_name_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "lake").mkdir()
    for each in ("a.parquet", name):
        pq.write_table(pa.table({"n": [1]}), tmp_path / "lake" / each)
    with pytest.raises(tm.errors.InvalidInput, match=r"lake/a\\.*b\..*Rename the file\."):
        tm.Table.import_from(str(tmp_path / "table"), tmp_path / "lake")
    assert not (tmp_path / "table").exists()


def test_the_folder_of_an_iceberg_table_is_not_taken_for_one_of_parquet_files(tmp_path: Path) -> None:
    for name in ("data/a.parquet", "metadata/00000-x.metadata.json"):
        (tmp_path / "lake" / name).parent.mkdir(parents=True)
        pq.write_table(pa.table({"n": [1]}), tmp_path / "lake" / name)
    with pytest.raises(tm.errors.InvalidInput, match="is an Iceberg table"):
        tm.Table.import_from(str(tmp_path / "table"), tmp_path / "lake")


@pytest.mark.parametrize("inside", ["", "deep/table"])
def test_a_folder_with_a_tidemark_table_is_refused_and_deleted_rows_stay_deleted(tmp_path: Path, inside: str) -> None:
    lake = tmp_path / "lake"
    source = tm.Table.create(str(lake / inside), pa.schema([("n", pa.int64())]))
    source.append([{"n": 1}, {"n": 2}])
    source.delete("n = 1")
    with pytest.raises(tm.errors.InvalidInput, match=r"contains a Tidemark table.*tidemark clone --deep"):
        tm.Table.import_from(str(tmp_path / "table"), lake)
    assert not (tmp_path / "table").exists()


def test_int96_that_pyarrow_reads_at_nanoseconds_is_refused_with_how_to_read_it(tmp_path: Path) -> None:
    write_int96(int96_rows(), tmp_path / "a.parquet")
    table = tm.Table.create(str(tmp_path / "t"), pa.schema([("at", pa.timestamp("us"))]))
    with pytest.raises(tm.errors.InvalidInput, match="read the file with coerce_int96_timestamp_unit='us'"):
        table.append(pq.read_table(tmp_path / "a.parquet", columns=["at"]))
    table.append(pq.read_table(tmp_path / "a.parquet", columns=["at"], coerce_int96_timestamp_unit="us"))
    assert table.scan().to_arrow().num_rows == 6
