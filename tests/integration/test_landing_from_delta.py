"""delta-spark and delta-rs change a Delta table. Tidemark's table gets each row once, in version order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from shutil import rmtree

import deltalake
import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.store.local import LocalStore
from storage_core.store.resolve import open_store
from tests.support.copies import copy_into
from tests.support.delta_spark import DeltaSpark, delta_spark
from tests.support.s3_server import S3Server
from tests.support.scale import scaled
from tidemark import Table

pytestmark = pytest.mark.spark

LAKE = "a lake"
CHANGES = scaled(30)
LOOKS = scaled(2)
KILLED = 10
"""The minimum number of kills for each kind of table in a long run."""
KILLS = {"rows": 6, "keyed": 20}
"""The number of requests from one kill point to the next kill point. A long run kills at every request."""
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("price", pa.float64())])
APPEND = """
name: rows
uri: {root}/rows
columns: {{id: long!, name: string, price: double}}
landing: {{uri: {root}/a lake, format: delta, changes: {changes}}}
"""
KEYED = """
name: keyed
uri: {root}/keyed
columns: {{id: long!, name: string, price: double}}
primary_key: id
landing: {{uri: {root}/a lake, format: delta}}
"""


@pytest.fixture(scope="module")
def delta(_s3_server: S3Server) -> Iterator[DeltaSpark]:
    with delta_spark(_s3_server.environment) as running:
        yield running


def declared(root: Path, text: str, changes: str = "refuse") -> Path:
    file = root / f"{text.split()[1]}.yaml"
    file.write_text(text.format(root=root, changes=changes), encoding="utf-8")
    return file


def rows(root: Path, name: str) -> list[tuple[object, ...]]:
    return in_order(Table.open(str(root / name)).scan(consistency="latest").to_arrow())


def in_order(found: pa.Table) -> list[tuple[object, ...]]:
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def at(root: Path) -> str:
    return f"delta.`{root}/{LAKE}`"


def given(*found: tuple[int, str | None, float | None]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, each, strict=True)) for each in found], schema=SCHEMA)


def append(root: Path, *found: tuple[int, str | None, float | None]) -> None:
    deltalake.write_deltalake(str(root / LAKE), given(*found), mode="append")


class Changes:
    """Random changes of a Delta table by either engine, repeatable by a seed. Ids are unique."""

    def __init__(self, root: Path, delta: DeltaSpark) -> None:
        self.root, self.delta, self.random = root, delta, Random(7)
        self.next_id = 1
        self.added: list[str] = []
        self.by_rust = [*(self.append,) * 4, *(self.delete_by_rust, self.update_by_rust, self.merge_by_rust) * 2]
        self.by_spark = [self.merge, self.update, self.delete, self.optimize]

    def change(self, number: int) -> None:
        """Make one change, mostly by delta-rs, because Spark takes a hundred times as long."""
        if number % 10 == 5:
            self.by_spark[number // 10 % len(self.by_spark)]()
        elif number % 40 == 22:
            self.add_column()
        elif number % 20 == 12:
            self.table.optimize.compact()
        else:
            self.random.choice(self.by_rust)()

    def some(self, count: int) -> pa.Table:
        ids = range(self.next_id, self.next_id + count)
        self.next_id += count
        names, prices = ("a/b %", "b", None), (0.0, -0.0, None)
        found = given(*((each, self.random.choice(names), self.random.choice(prices)) for each in ids))
        for name in self.added:
            found = found.append_column(name, pa.array([self.random.choice((1, None)) for _ in ids], pa.int32()))
        return found

    @property
    def remainder(self) -> int:
        return self.random.randrange(5)

    @property
    def table(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(str(self.root / LAKE))

    def append(self) -> None:
        deltalake.write_deltalake(str(self.root / LAKE), self.some(5), mode="append")

    def add_column(self) -> None:
        self.added.append(f"more_{len(self.added)}")
        self.table.alter.add_columns([deltalake.Field(self.added[-1], deltalake.schema.PrimitiveType("integer"))])

    def vacuum(self) -> None:
        """Remove the files that are not part of the newest version."""
        self.table.vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)

    def delete(self) -> None:
        self.delta.sql(f"DELETE FROM {at(self.root)} WHERE id % 7 = {self.remainder}")

    def update(self) -> None:
        self.delta.sql(f"UPDATE {at(self.root)} SET name = 'u', price = -price WHERE id % 5 = {self.remainder}")

    def merge(self) -> None:
        new = self.next_id
        self.next_id += 3
        more = "".join(f", 7 AS {name}" for name in self.added)
        self.delta.sql(
            f"MERGE INTO {at(self.root)} t USING "
            f"(SELECT id, 'm' AS name, 1.5D AS price{more} FROM range({new - 4}, {new + 3})) s "
            "ON t.id = s.id WHEN MATCHED AND s.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT *"
        )

    def optimize(self) -> None:
        self.delta.sql(f"OPTIMIZE {at(self.root)}")

    def delete_by_rust(self) -> None:
        self.table.delete(f"id % 7 = {self.remainder}")

    def update_by_rust(self) -> None:
        self.table.update(new_values={"name": "r"}, predicate=f"id % 5 = {self.remainder}")

    def merge_by_rust(self) -> None:
        merging = self.table.merge(self.some(3), "t.id = s.id + 2", source_alias="s", target_alias="t")
        merging.when_matched_update({"name": "s.name"}).when_not_matched_insert_all().execute()


def test_added_rows_come_once_and_a_version_that_removes_some_is_refused_or_left_out(
    tmp_path: Path, delta: DeltaSpark
) -> None:
    append(tmp_path, (1, "a", 0.5), (2, None, None))
    file = declared(tmp_path, APPEND)
    assert delta.ingest(file)["rows_out"] == 2
    append(tmp_path, (3, "c", None))
    delta.sql(f"INSERT INTO {at(tmp_path)} VALUES (4, 'd', 2.0)")
    deltalake.DeltaTable(str(tmp_path / LAKE)).optimize.compact()
    report = delta.ingest(file)
    assert (report["rows_out"], report["details"]["versions"]) == (2, [1, 3])
    assert delta.ingest(file)["status"] == "nothing_to_do"
    assert [row[0] for row in rows(tmp_path, "rows")] == [1, 2, 3, 4]

    append(tmp_path, (5, "e", None))
    deltalake.DeltaTable(str(tmp_path / LAKE)).delete("id = 1")
    append(tmp_path, (6, "f", None))
    with pytest.raises(InvalidInput, match=r"version 5 .* \(DELETE\) .*`changes: apply`.*`changes: skip`"):
        delta.ingest(file)
    assert [row[0] for row in rows(tmp_path, "rows")] == [1, 2, 3, 4, 5]
    assert delta.ingest(declared(tmp_path, APPEND, "skip"))["details"]["skipped_versions"] == [5]
    assert [row[0] for row in rows(tmp_path, "rows")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("feed", [True, False], ids=["with a change feed", "partitioned, without"])
def test_a_changed_table_arrives_as_append_and_as_keyed_table(tmp_path: Path, delta: DeltaSpark, *, feed: bool) -> None:
    deltalake.DeltaTable.create(
        str(tmp_path / LAKE),
        deltalake.Schema.from_arrow(SCHEMA),
        configuration={"delta.enableChangeDataFeed": "true"} if feed else {},
        partition_by=[] if feed else ["name"],
    )
    changes = Changes(tmp_path, delta)
    files = declared(tmp_path, APPEND, "apply"), declared(tmp_path, KEYED)
    killed = Counter[str]()
    for number in range(CHANGES):
        changes.change(number)
        if number % (CHANGES // LOOKS) == CHANGES // LOOKS - 1:
            for file in files:
                if LOOKS > 2 and number > CHANGES // LOOKS:
                    killed[file.stem] += delta.killed_ingest(file, changes.random.randrange(KILLS[file.stem] * 3))
                report = delta.ingest(file)["details"]
                assert (report["rows_not_found"], report["gaps"]) == (0, []), number
                assert rows(tmp_path, file.stem) == in_order(changes.table.to_pyarrow_table()), number
            changes.vacuum()
    assert LOOKS == 2 or min(killed.values()) >= KILLED, killed


def test_columns_follow_those_of_the_delta_table(tmp_path: Path, delta: DeltaSpark) -> None:
    place, text = at(tmp_path), APPEND.replace("name: string, price: double", "name: string, n: int")
    delta.sql(
        f"CREATE TABLE {place} (id BIGINT, name STRING, n INT) USING delta TBLPROPERTIES ("
        "'delta.columnMapping.mode' = 'name', 'delta.enableTypeWidening' = true, 'delta.enableDeletionVectors' = true)",
        f"INSERT INTO {place} VALUES (1, 'a', 1)",
    )
    file = declared(tmp_path, text, "apply")
    delta.ingest(file)
    delta.sql(
        f"ALTER TABLE {place} ADD COLUMNS (more MAP<STRING, INT>)",
        f"INSERT INTO {place} VALUES (2, 'b', 2, map('x', 1))",
        f"ALTER TABLE {place} ALTER COLUMN n TYPE BIGINT",
        f"INSERT INTO {place} VALUES (3, 'c', 3000000000, NULL)",
        f"INSERT INTO {place} SELECT id, 'd', id, NULL FROM range(10, 14)",
        f"DELETE FROM {place} WHERE id IN (1, 10, 12, 13)",
    )
    assert delta.ingest(file)["details"]["rows_not_found"] == 0
    expected: list[tuple[object, ...]] = [
        (2, "b", 2, [("x", 1)]),
        (3, "c", 3_000_000_000, None),
        (11, "d", 11, None),
    ]
    assert rows(tmp_path, "rows") == sorted(expected, key=repr)

    delta.sql(f"ALTER TABLE {place} RENAME COLUMN name TO title", f"INSERT INTO {place} VALUES (4, 'd', 4, NULL)")
    with pytest.raises(InvalidInput, match=r"'name' of the Delta table was renamed to 'title'. .*-column name title`"):
        delta.ingest(file)
    Table.open(str(tmp_path / "rows")).rename_column("name", "title")
    delta.ingest(declared(tmp_path, text.replace("name: string", "title: string"), "apply"))
    assert rows(tmp_path, "rows") == sorted([*expected, (4, "d", 4, None)], key=repr)


def test_what_was_vacuumed_before_it_was_read_is_a_gap_that_is_named(tmp_path: Path, delta: DeltaSpark) -> None:
    append(tmp_path, (1, "a", None))
    file = declared(tmp_path, APPEND)
    delta.ingest(file)
    append(tmp_path, (2, "lost with its file", None))
    table = deltalake.DeltaTable(str(tmp_path / LAKE))
    table.optimize.compact()
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    append(tmp_path, (3, "c", None))
    report = delta.ingest(file)
    assert (report["details"]["gaps"], report["rows_out"]) == ([[1, 1]], 1)

    append(tmp_path, (4, "lost with the log", None))
    lost = deltalake.DeltaTable(str(tmp_path / LAKE)).version()
    append(tmp_path, (5, "e", None))
    deltalake.DeltaTable(str(tmp_path / LAKE)).create_checkpoint()
    for version in range(lost + 1):
        (tmp_path / LAKE / "_delta_log" / f"{version:020}.json").unlink()
    append(tmp_path, (6, "f", None))
    assert delta.ingest(file)["details"]["gaps"] == [[lost, lost]]
    assert [row[0] for row in rows(tmp_path, "rows")] == [1, 3, 5, 6]
    about = Table.open(str(tmp_path / "rows")).describe()["delta_source"]
    assert about == {"id": table.metadata().id, "next_version": lost + 3, "gaps": [[1, 1], [lost, lost]]}


def test_a_delta_table_on_s3_comes_into_a_table_on_s3(tmp_path: Path, delta: DeltaSpark, s3_server: S3Server) -> None:
    lake, file = s3_server.uri("a lake"), tmp_path / "rows.yaml"
    text = APPEND.replace("{root}/a lake", f'"{lake}"').replace("{root}/rows", s3_server.uri("rows"))
    file.write_text(text.format(changes="apply"), encoding="utf-8")
    delta.sql(
        f"CREATE TABLE {at(tmp_path)} (id BIGINT, name STRING, price DOUBLE) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = true)",
        f"INSERT INTO {at(tmp_path)} SELECT id, 'a', NULL FROM range(8)",
    )
    copy_into(open_store(lake), LocalStore(str(tmp_path / LAKE)))
    assert delta.ingest(file)["rows_out"] == 8
    delta.sql(f"INSERT INTO {at(tmp_path)} VALUES (8, 'b', -0D)", f"DELETE FROM {at(tmp_path)} WHERE id < 6")
    assert list((tmp_path / LAKE).glob("deletion_vector_*")), "files of vectors are read from S3 too"
    there = {info.key for info in open_store(lake).list("")}
    copy_into(open_store(lake), LocalStore(str(tmp_path / LAKE)), wanted=lambda key: key not in there)
    assert delta.ingest(file)["details"]["rows_not_found"] == 0
    found = Table.open(s3_server.uri("rows")).scan(consistency="latest").to_arrow()
    assert in_order(found) == [(6, "a", None), (7, "a", None), (8, "b", -0.0)]


def test_a_delta_table_that_was_replaced_or_set_back_is_refused(tmp_path: Path, delta: DeltaSpark) -> None:
    append(tmp_path, (1, "a", None))
    append(tmp_path, (2, "b", None))
    file = declared(tmp_path, APPEND)
    delta.ingest(file)
    (tmp_path / LAKE / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(
        InvalidInput,
        match=r"below 2 are ingested, but the Delta table now has only versions up to 0. The Delta table was reset",
    ):
        delta.ingest(file)
    rmtree(tmp_path / LAKE)
    for number in range(3):
        append(tmp_path, (number, "new", None))
        with pytest.raises(
            InvalidInput, match=r"this is a different Delta table with the id .*The rows below version 2"
        ):
            delta.ingest(file)
    assert [row[0] for row in rows(tmp_path, "rows")] == [1, 2]


@pytest.mark.parametrize("kind", KILLS)
def test_a_run_that_is_killed_at_any_request_is_run_again(tmp_path: Path, delta: DeltaSpark, kind: str) -> None:
    append(tmp_path, (5000, "a", None))
    file = declared(tmp_path, KEYED if kind == "keyed" else APPEND, "apply")
    delta.ingest(file)
    request, last, killed = 0, 5000, True
    while killed:
        append(tmp_path, (request, "b", 0.5), (request + 1000, "c", None))
        deltalake.DeltaTable(str(tmp_path / LAKE)).delete(f"id = {last} OR id = {request + 1000}")
        killed = delta.killed_ingest(file, request)
        last = request
        request += KILLS[kind] if scaled(1) == 1 else 1
    table = deltalake.DeltaTable(str(tmp_path / LAKE))
    assert rows(tmp_path, file.stem) == in_order(table.to_pyarrow_table())
    assert delta.ingest(file)["status"] == "nothing_to_do"
