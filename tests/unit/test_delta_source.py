"""Landing from a Delta table without Spark. The tests check the Delta log, the files of each group, and the rows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from jobs.spark import delta
from storage_core.base.errors import Corrupt, InvalidInput, NotFound, Unavailable
from storage_core.change.declaration import load
from storage_core.interop.delta_columns import hide_equal_rows
from storage_core.interop.delta_import import log_actions
from storage_core.interop.delta_source import DeltaGroup, DeltaLog, DeltaSchema, data_file, excerpt, next_group
from storage_core.log.transactions import Transactions
from storage_core.store.resolve import open_store
from storage_core.write.ingest.landing import DeltaChanges
from storage_core.write.ingest.progress import DeltaGap, DeltaProgress, delta_progress, progress_txns
from tidemark import Table

ROOT = "s3a://bucket/lake"


def changed(place: Path, *ids: int) -> deltalake.DeltaTable:
    """Add a version with these rows."""
    deltalake.write_deltalake(str(place), pa.table({"id": pa.array(ids, pa.int64())}), mode="append")
    return deltalake.DeltaTable(str(place))


def group_after(place: Path, version: int, changes: DeltaChanges = "apply", lost: tuple[int, ...] = ()) -> DeltaGroup:
    log = DeltaLog.list_versions(str(place), version)
    table_id = str(deltalake.DeltaTable(str(place)).metadata().id)
    found = next_group(log, DeltaProgress(table_id=table_id, next_version=version), changes, lost=lost)
    assert found is not None
    return found


def test_an_excerpt_names_files_and_vectors_where_they_lie() -> None:
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40}
    action = {"path": "year=2024/a%20b.parquet", "partitionValues": {"year": "2024"}, "deletionVector": vector}
    schema = DeltaSchema(text='{"type": "struct", "fields": []}', partition_columns=("year",), reader_version=3)
    add = json.loads(excerpt(schema, [data_file(ROOT, action)]).splitlines()[2])["add"]
    assert add["path"] == f"{ROOT}/year=2024/a%20b.parquet"
    # the example of Delta's protocol, "Derived Fields"
    expected = f"{ROOT}/ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert (add["deletionVector"]["storageType"], add["deletionVector"]["pathOrInlineDv"]) == ("p", expected)
    with pytest.raises(InvalidInput, match="without its partition"):
        excerpt(schema, [data_file(ROOT, {"path": "a.parquet"})])


def test_names_of_columns_are_those_of_the_log_however_they_are_escaped(tmp_path: Path) -> None:
    wide = "n\U00020bb7"
    deltalake.write_deltalake(str(tmp_path), pa.table({wide: [1]}))
    [file] = (tmp_path / "_delta_log").glob("*.json")
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    file.write_text("\n".join(map(json.dumps, lines)))
    assert wide not in deltalake.DeltaTable(str(tmp_path)).schema().to_json(), "delta-rs misreads it"
    found = next_group(DeltaLog.list_versions(str(tmp_path)), None, "apply")
    assert found is not None
    assert list(found.table.schema.physical_names().values()) == [wide]


@pytest.mark.parametrize(
    ("names", "left"),
    [
        (["{1}.checkpoint.parquet"], [2]),
        (["{1}.checkpoint.{a}.{b}.parquet"], [2, 1, 0]),
        (["{1}.checkpoint.{a}.{b}.parquet", "{1}.checkpoint.{b}.{b}.parquet"], [2]),
        (["{1}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet"], [2]),
        (["{1}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"], [2, 1]),
        (["{3}.checkpoint.parquet", "{2}.{3}.compacted.json", "{0}.crc"], [2, 1, 0]),
        (["{1}.{2}.compacted.json"], [2, 2, 1, 0]),
    ],
)
def test_the_json_of_a_delta_log_is_read_from_the_newest_checkpoint_on(
    tmp_path: Path, names: list[str], left: list[int]
) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    for number in range(4):
        (log / f"{number:020}.json").write_text(str(number))
    digits = [f"{number:020}" for number in range(4)]
    for name in names:
        text = name.format(*digits, a=f"{1:010}", b=f"{2:010}")
        (log / text).write_text("1" if ".checkpoint" in text else "2")
    found = [int(line) for lines in log_actions(open_store(str(tmp_path)), 2) for line in lines]
    assert found == left


def test_a_file_that_came_and_went_and_what_a_compaction_rewrote_are_not_read(tmp_path: Path) -> None:
    changed(tmp_path, 1)
    table = changed(tmp_path, 2)
    table.delete("id = 2")
    changed(tmp_path, 3).optimize.compact()
    group = group_after(tmp_path, 1)
    assert (group.first, group.last, len(group.added), len(group.removed)) == (1, 4, 1, 0)
    assert not group.lost(DeltaLog.list_versions(str(tmp_path)))


def test_a_group_ends_before_a_version_that_is_refused_and_skips_or_follows_it(tmp_path: Path) -> None:
    changed(tmp_path, 1, 2)
    changed(tmp_path, 3).delete("id = 1")
    changed(tmp_path, 4)
    assert group_after(tmp_path, 1, "refuse").last == 1
    with pytest.raises(InvalidInput, match=r"version 2 .*\(DELETE\)"):
        group_after(tmp_path, 2, "refuse")
    skipping, following = group_after(tmp_path, 1, "skip"), group_after(tmp_path, 1)
    assert (skipping.skipped, len(skipping.added), len(skipping.removed)) == ((2,), 2, 0)
    assert (following.skipped, len(following.added), len(following.removed)) == ((), 3, 1)


@pytest.mark.parametrize("line", ["5", "{", '{"add": {}}', '{"add": {"path": "a", "deletionVector": {}}}', "[" * 9_999])
def test_a_version_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    changed(tmp_path, 1)
    table = changed(tmp_path, 2)
    log = DeltaLog.list_versions(table.table_uri)
    before = log.table_at(0)
    (tmp_path / "_delta_log" / "00000000000000000001.json").write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(Corrupt, match=r"00000000000000000001\.json: not a version of a Delta log"):
        log.commit(1, before)


def test_a_lost_version_is_a_gap_of_its_group(tmp_path: Path) -> None:
    changed(tmp_path, 1)
    changed(tmp_path, 2)
    changed(tmp_path, 3)
    group = group_after(tmp_path, 1)
    for file in group.commits[0].added:
        Path(file.uri.removeprefix("file://")).unlink()
    assert group.lost(DeltaLog.list_versions(str(tmp_path))) == {1}
    found = group_after(tmp_path, 1, lost=(1,))
    assert (found.gaps, found.added) == ((DeltaGap(1, 1),), group.commits[1].added)
    (tmp_path / "_delta_log" / f"{1:020}.json").unlink()
    begun = DeltaProgress(table_id=group.table.id, next_version=1)
    without = next_group(DeltaLog.list_versions(str(tmp_path), 1), begun, "refuse")
    assert without is not None
    assert (without.last, without.has_rows, without.reached.gaps) == (1, False, (DeltaGap(1, 1),))


def test_progress_is_read_as_it_was_recorded() -> None:
    reached = DeltaProgress(table_id="7d-1", next_version=9, gaps=(DeltaGap(2, 2), DeltaGap(4, 6)))
    recorded = Transactions()
    assert delta_progress(recorded) is None
    for txn in progress_txns(reached, 1):
        recorded.record(txn)
    assert delta_progress(recorded) == reached


def test_no_delta_table_is_no_landing_place(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="a Delta table does not exist here"):
        next_group(DeltaLog.list_versions(str(tmp_path)), None, "refuse")


def test_as_many_equal_rows_are_deleted_as_are_given(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("tags", pa.map_(pa.string(), pa.int32())), ("x", pa.float64())])
    table = Table.create(str(tmp_path / "t"), schema)
    row: dict[str, Any] = {"id": None, "tags": {"a": 1}, "x": None}
    table.append([row, row, {**row, "x": 1.5}])
    table.append([row, {**row, "tags": {"a": 2}}])

    def delete(*rows: dict[str, Any]) -> int:
        given = pa.Table.from_pylist([{**each, "tags": list(each["tags"].items())} for each in rows], schema=schema)
        found = hide_equal_rows(table.log, table.snapshot, given)
        if found.actions:
            table.log.commit(table.snapshot, found.actions, operation="DELETE")
        table.refresh()
        return found.rows

    assert delete(row, row) == 2
    assert delete(row, row, {**row, "x": 1.5}) == 2
    assert table.scan().to_arrow().to_pylist() == [{**row, "tags": [("a", 2)]}]
    assert delete(row) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("landing: {uri: lake, format: delta, suffix: .x}", "suffix do not apply"),
        ("landing: {uri: lake, format: csv, changes: skip}", "`changes` is only for a Delta table"),
        (
            "primary_key: id\nlanding: {uri: lake, format: delta, changes: skip}",
            "a keyed table does not support `changes: ",
        ),
        ("primary_key: id\nlanding: {uri: lake, format: delta, op: _op}", "op and order_by do not apply"),
    ],
)
def test_a_landing_that_means_nothing_is_refused(tmp_path: Path, more: str, message: str) -> None:
    (tmp_path / "t.yaml").write_text(f"name: t\nuri: t\ncolumns: {{id: long!}}\n{more}\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match=message):
        load(tmp_path / "t.yaml")


def test_a_folder_without_jars_is_named_and_without_one_spark_fetches_them(tmp_path: Path) -> None:
    assert delta.settings({})["spark.jars.packages"] == delta.PACKAGE
    assert delta.settings({}, on_s3=True)["spark.jars.packages"].split(",") == [delta.PACKAGE, *delta.S3_PACKAGES]
    with pytest.raises(Unavailable, match=f"{delta.JARS}={tmp_path} is not a folder with the JARs of {delta.PACKAGE}"):
        delta.settings({delta.JARS: str(tmp_path)})
    (tmp_path / "delta.jar").touch()
    assert delta.settings({delta.JARS: str(tmp_path)})["spark.jars"] == str(tmp_path / "delta.jar")


def test_spark_reaches_a_table_on_s3_where_its_store_does(tmp_path: Path) -> None:
    uri = "s3://bucket/a lake?endpoint=http://127.0.0.1:9&path_style=true&region=eu-central-1"
    log = DeltaLog(open_store(uri))
    assert log.root == "s3a://bucket/a%20lake", "encoded, as paths in Delta's log are"
    assert {name.removeprefix("fs.s3a."): value for name, value in log.options.items()} == {
        "endpoint": "http://127.0.0.1:9",
        "endpoint.region": "eu-central-1",
        "path.style.access": "true",
        "aws.credentials.provider": "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
    }
    assert DeltaLog(open_store(str(tmp_path))).options == {}


def test_a_spark_that_runs_without_delta_lake_says_how_to_start_one_that_has_it() -> None:
    without: Any = SimpleNamespace(conf={})
    with pytest.raises(
        Unavailable, match=rf"sc://host:1 was started without Delta Lake\. .*--packages {delta.PACKAGE}"
    ):
        delta.require_delta(without, "sc://host:1")
    delta.require_delta(SimpleNamespace(conf=delta.settings({})), "local[2]")  # type: ignore[arg-type]


def test_versions_that_are_not_in_are_due_and_land_whole_whatever_their_windows(tmp_path: Path) -> None:
    from assets.steps import steps_of
    from jobs.due_runs import TableInputs, due_run  # imports Dagster, which takes a second or two

    changed(tmp_path / "lake", 1)
    group = changed(tmp_path / "lake", 2)
    text = "name: t\nuri: {0}/t\ncolumns: {{id: long!, at: timestamp!}}\ntime_column: at\nwindow: 1h\n"
    text += "primary_key: [id, at]\nlanding: {{uri: {0}/lake, format: delta}}\n"
    (tmp_path / "t.yaml").write_text(text.format(tmp_path), encoding="utf-8")
    declaration = load(tmp_path / "t.yaml")
    steps = {step.name: step for step in steps_of(declaration)}
    assert (steps["ingested"].windowed, steps["compacted"].windowed) == (False, True)
    assert steps["merged"].after == ("ingested",)
    due = due_run("ingest", TableInputs.of(declaration))
    assert due is not None
    assert (due.reason, due.items) == ("2 versions of the Delta table", 2)
    table = Table.declare(declaration)
    reached = DeltaProgress(table_id=str(group.metadata().id), next_version=2)
    table.log.commit(table.snapshot, progress_txns(reached, 1), operation="INGEST")
    assert due_run("ingest", TableInputs.of(declaration)) is None
