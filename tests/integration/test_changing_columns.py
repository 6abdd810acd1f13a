"""Columns are added, widened, renamed, dropped and made nullable without a rewrite, for readers and for writers."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.cli import main
from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import CommitConflict, InvalidInput
from storage_core.change.declaration import TableDeclaration
from storage_core.compact.execute import execute
from storage_core.compact.work import OPERATION
from storage_core.log.actions import CHANGED_COLUMNS_FEATURE
from storage_core.maintain.audit import audit
from storage_core.maintain.check import fsck
from storage_core.maintain.repair import repair
from storage_core.split.context import context_of
from storage_core.store.resolve import open_store
from storage_core.write.ingest import batch
from storage_core.write.ingest.landing import LandingSpec, discover
from storage_core.write.region import merge as merging
from tests.support import upkeep
from tests.support.keyed_table import commit_merges
from tests.support.merge_plan import plan
from tidemark import Table, col

SCHEMA = pa.schema(
    [pa.field("id", pa.int32(), nullable=False), ("n", pa.int16()), ("day", pa.date32()), ("text", pa.string())]
)
DAY = dt.date(2026, 1, 2)
MIDNIGHT = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


@pytest.fixture(params=["memory", "local"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid4()}" if request.param == "memory" else str(tmp_path / "table")


def rows(table: Table, **reading: Any) -> list[dict[str, Any]]:
    found = table.scan(**reading).to_arrow()
    return sorted(found.to_pylist(), key=lambda row: row["id"])


def compacted(table: Table) -> None:
    """Merge all splits into one."""
    snapshot = table.log.snapshot()
    now_ms = SystemClock().now_ms()
    done = [execute(table.store, each, ids=SystemIds(), now_ms=now_ms) for each in plan(snapshot)]
    assert done
    table.log.commit(snapshot, [action for each in done for action in each.actions], operation=OPERATION)
    table.refresh()


def files(table: Table) -> list[pq.ParquetFile]:
    return [pq.ParquetFile(pa.BufferReader(table.store.get(path).data)) for path in sorted(table.snapshot.splits)]


def test_an_added_column_has_its_default_in_rows_from_before_and_null_where_a_later_row_gives_none(uri: str) -> None:
    table = Table.create(uri, SCHEMA)
    table.append([{"id": 1}])
    table.add_column("plain", "string").add_column("filled", pa.int64(), default=7)
    table.append([{"id": 2}, {"id": 3, "plain": "a", "filled": 8}])

    found = [(row["plain"], row["filled"]) for row in rows(table)]

    assert found == [(None, 7), (None, None), ("a", 8)]
    assert [row["id"] for row in rows(table, filter=col("filled") == 7)] == [1]
    assert [row["id"] for row in rows(table, filter="filled is null")] == [2]
    query = "select count(filled) as n, min(filled) as low from t where plain is null"
    assert table.sql(query).to_arrow().to_pylist() == [{"n": 1, "low": 7}]
    compacted(table)
    assert [(row["plain"], row["filled"]) for row in rows(table)] == found


@pytest.mark.parametrize(
    ("type_", "default", "shown"),
    [
        ("boolean", False, False),
        ("boolean", "true", True),
        ("tinyint", -3, -3),
        ("float", 0.1, 0.10000000149011612),
        ("double", float("inf"), float("inf")),
        ("decimal(9,2)", "1.50", None),
        ("string", "it's \n \\ ü", "it's \n \\ ü"),
        ("date", DAY, DAY),
        ("timestamp", "2026-01-02T03:04:05Z", dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
        ("timestamp_ntz", dt.datetime(2026, 1, 2, 3, 4, 5), dt.datetime(2026, 1, 2, 3, 4, 5)),  # noqa: DTZ001
    ],
)
def test_a_default_of_every_type_is_what_was_given(tmp_path: Path, type_: str, default: object, shown: object) -> None:
    uri = str(tmp_path / "t")
    table = Table.create(uri, SCHEMA)
    table.append([{"id": 1}])
    table.add_column("c", type_, default=default)

    (row,) = rows(table)

    assert (str(row["c"]) if shown is None else row["c"]) == (default if shown is None else shown)
    assert rows(table, filter="c is not null") == [row]
    assert Table.open(uri).sql("select c from t").to_arrow().to_pylist() == [{"c": row["c"]}]


def test_widened_columns_keep_their_values_their_order_and_what_prunes_by_them(uri: str) -> None:
    table = Table.create(uri, SCHEMA)
    table.append([{"id": 1, "n": 300, "day": DAY}, {"id": 2, "n": -1}])
    table.widen_column("id", "bigint").widen_column("n", "int").widen_column("n", "long").widen_column(
        "day", "timestamp"
    )
    table.append([{"id": 2**40, "n": 2**41, "day": MIDNIGHT + dt.timedelta(hours=1)}])

    assert [(row["id"], row["n"], row["day"]) for row in rows(table)] == [
        (1, 300, MIDNIGHT),
        (2, -1, None),
        (2**40, 2**41, MIDNIGHT + dt.timedelta(hours=1)),
    ]
    assert [row["id"] for row in rows(table, filter=col("n") > 2**40)] == [2**40]
    assert [row["id"] for row in rows(table, filter=col("day") <= MIDNIGHT)] == [1]
    assert len(table.explain("select id from t where n > 1099511627776").tables[0].splits) == 1
    compacted(table)
    assert [row["n"] for row in rows(table)] == [300, -1, 2**41]


def test_a_name_that_comes_back_is_another_column(uri: str) -> None:
    table = Table.create(uri, SCHEMA)
    table.append([{"id": 1, "n": 5, "text": "old"}])
    table.rename_column("n", "number").add_column("n", "string")
    table.drop_column("text").add_column("text", "double", default=0.5)
    table.append([{"id": 2, "number": 6, "n": "new", "text": 1.5}])
    expected = [
        {"id": 1, "number": 5, "day": None, "n": None, "text": 0.5},
        {"id": 2, "number": 6, "day": None, "n": "new", "text": 1.5},
    ]

    assert rows(table) == expected
    assert rows(table, filter=col("text") < 1) == expected[:1]
    assert rows(table, filter=col("n") == "new") == expected[1:]
    assert rows(table, filter=col("number") == 5) == expected[:1]
    assert rows(table, at=1) == [{"id": 1, "n": 5, "day": None, "text": "old"}]
    compacted(table)
    assert rows(table) == expected
    assert rows(table, at=1) == [{"id": 1, "n": 5, "day": None, "text": "old"}]
    (file,) = files(table)
    assert "text" not in file.schema_arrow.names  # the compaction removed the dropped column
    table.rename_column("n", "other").rename_column("number", "n")
    assert [(row["n"], row["other"]) for row in rows(table)] == [(5, None), (6, "new")]


def test_what_is_known_of_a_column_never_prunes_by_another_that_had_its_name(uri: str) -> None:
    table = Table.create(uri, SCHEMA)
    table.append([{"id": 1, "n": 5, "text": "old"}])
    table.rename_column("n", "m").add_column("n", "short", default=100)
    table.drop_column("text").add_column("text", "string", default="new")
    table.append([{"id": 2, "n": 5, "m": 100, "text": "old"}])

    for condition, expected in (
        (col("n") == 100, [1]),
        (col("n") == 5, [2]),
        (col("m") == 5, [1]),
        (col("m") > 50, [2]),
        (col("text") == "new", [1]),
        (col("text") < "new", []),
        (col("text") > "new", [2]),
    ):
        assert [row["id"] for row in rows(table, filter=condition)] == expected
    ends = "select min(n) as low, max(n) as high, min(m) as m from t"
    assert table.sql(ends).to_arrow().to_pylist() == [{"low": 5, "high": 100, "m": 5}]
    first = "select id from t order by n desc limit 1"
    assert table.sql(first).to_arrow().to_pylist() == [{"id": 1}]


def in_files(table: Table) -> list[dict[str, Any]]:
    """Read the rows from the files with DuckDB, using only the rules for columns in the specification."""
    found: list[dict[str, Any]] = []
    for path in table.snapshot.splits:
        file = f"read_parquet('{table.store.local_path(path)}')"
        there = [name for name, *_ in duckdb.execute(f"describe from {file}").fetchall()]
        chosen = []
        for field in schema_of(table):
            name, about = field["name"], field["metadata"]
            stored, default = about.get("tidemark.storedName", name), about.get("tidemark.default")
            value = f'"{stored}"' if stored in there else "null" if default is None else f"'{default}'"
            chosen.append(f'({value})::{field["type"]} as "{name}"')
        query = f"select {', '.join(chosen)} from {file}"  # the test itself chooses the names
        found += duckdb.connect().from_query(query).to_arrow_table().to_pylist()
    return sorted(found, key=lambda row: row["id"])


Step = tuple[Callable[[Table], object], Callable[[dict[str, Any]], dict[str, Any]], dict[str, Any]]
STEPS: list[Step] = [
    (lambda _: None, lambda row: row, {"text": "first"}),
    (lambda table: table.add_column("a", "int", default=1), lambda row: row | {"a": 1}, {"a": 10}),
    (lambda table: table.widen_column("a", "long"), lambda row: row, {"a": 2**40}),
    (lambda table: table.rename_column("a", "b"), lambda row: _renamed(row, a="b"), {"b": 30}),
    (lambda table: table.add_column("a", "string", default="x"), lambda row: row | {"a": "x"}, {"a": "b", "b": 40}),
    (lambda table: table.drop_column("b"), lambda row: _renamed(row, b=None), {"a": "only"}),
    (lambda table: table.relax_column("id"), lambda row: row, {"a": "relaxed"}),
    (lambda table: table.widen_column("n", "int"), lambda row: row, {"n": 2**30}),
    (lambda table: table.rename_column("text", "words"), lambda row: _renamed(row, text="words"), {"words": "many"}),
    (lambda table: table.add_column("text", "boolean"), lambda row: row | {"text": None}, {"text": True}),
]
"""Each change of columns, with its effect on earlier rows and the additional values of later rows."""


def _renamed(row: dict[str, Any], **names: str | None) -> dict[str, Any]:
    found = ((names.get(name, name), value) for name, value in row.items())
    return {name: value for name, value in found if name is not None}


def test_ten_schemas_are_readable_as_they_were_in_files_and_by_changes_across_them(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = Table.create(uri, SCHEMA)
    versions: dict[int, list[dict[str, Any]]] = {0: []}
    for number, (change, shown, given) in enumerate(STEPS):
        change(table)
        row = dict.fromkeys(table.schema.names) | {"id": number, "n": number} | given
        before = [shown(each) for each in versions[max(versions)]]
        table.append([row])
        versions[table.version] = [*before, row]

    for version, expected in versions.items():
        older = Table.open(uri, at=version)
        assert rows(older) == in_files(older) == expected
        for start in (each for each in versions if each <= version):
            found = table.changes(start, version).read_all().drop_columns(["_commit_version", "_commit_timestamp"])
            kinds, added = found.column("_change_type"), found.drop_columns(["_change_type"]).to_pylist()
            assert {*kinds.to_pylist()} <= {"insert"}
            assert added == [row for row in expected if row["id"] >= len(versions[start])]
    compacted(table)
    assert rows(table) == in_files(table) == versions[max(versions)]


def test_duckdb_finds_the_columns_in_the_files_by_their_ids(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA)
    table.add_column("a", "int").rename_column("a", "b").add_column("a", "string")
    table.append([{"id": 1, "b": 2, "a": "x"}])
    (path,) = table.snapshot.splits
    fields = {field["metadata"]["tidemark.id"]: field["name"] for field in schema_of(table)}
    named = (f"{number}: {{name: '{name}', type: 'VARCHAR', default_value: NULL}}" for number, name in fields.items())

    file = table.store.local_path(path)
    query = f"from read_parquet('{file}', schema = MAP {{{', '.join(named)}}})"
    found = duckdb.execute(query).fetchall()

    assert dict(zip(fields.values(), found[0], strict=True)) == {
        "id": "1", "n": None, "day": None, "text": None, "b": "2", "a": "x"
    }  # fmt: skip


def schema_of(table: Table) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(table.refresh().snapshot.metadata.schemaString)["fields"]
    return fields


def test_a_table_whose_columns_never_changed_says_nothing_of_ids_and_one_that_did_keeps_older_releases_away(
    uri: str,
) -> None:
    table = Table.create(uri, SCHEMA)
    table.append([{"id": 1}])
    assert CHANGED_COLUMNS_FEATURE not in (table.snapshot.protocol.readerFeatures or ())
    assert {str(field["metadata"]) for field in schema_of(table)} == {"{}"}
    assert not any(name.startswith("tidemark.") for name in table.snapshot.metadata.configuration)
    assert not any(field.metadata for field in files(table)[0].schema_arrow)

    table.relax_column("id")

    for features in (table.snapshot.protocol.readerFeatures, table.snapshot.protocol.writerFeatures):
        assert CHANGED_COLUMNS_FEATURE in (features or ())
    assert [field["metadata"] for field in schema_of(table)] == [{"tidemark.id": number} for number in range(1, 5)]


def test_a_writer_goes_on_with_its_columns_until_it_flushes_and_nothing_of_it_is_refused(uri: str) -> None:
    table = Table.create(uri, SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": 1, "n": 1}, {"id": 2, "n": 2, "text": "two"}])
        table.rename_column("n", "number").add_column("n", "string", default="none").widen_column("id", "long")
        table.drop_column("text")
        writer.put({"id": 3, "n": 3, "text": "three"})
        writer.patch({"id": 2, "n": 22})
        expected = [
            {"id": 1, "number": 1, "day": None, "n": "none"},
            {"id": 2, "number": 22, "day": None, "n": "none"},
            {"id": 3, "number": 3, "day": None, "n": "none"},
        ]
        assert rows(table, consistency="latest") == expected
        assert [table.get(row["id"]) for row in expected] == expected

        writer.flush()
        writer.patch({"id": 2**40, "n": "now", "number": 4})

        expected += [{"id": 2**40, "number": 4, "day": None, "n": "now"}]
        assert rows(table, consistency="latest") == expected
        writer.flush()
    assert upkeep.sort(table) == 1
    assert rows(table, consistency="latest") == expected
    upkeep.merge(table)
    assert rows(table.refresh()) == expected
    assert [table.get(row["id"], consistency="snapshot") for row in expected] == expected


def test_a_writer_of_many_regions_takes_new_columns_in_all_of_them(uri: str) -> None:
    table = Table.create(uri, SCHEMA, primary_key="id", regions=[{"source": "id", "transform": "bucket", "n": 4}])
    with table.writer() as writer:
        writer.put([{"id": number, "n": number} for number in range(20)])
        table.rename_column("n", "number").widen_column("id", "long")
        writer.put([{"id": number, "n": -number} for number in range(10)])
        writer.flush()
        writer.put([{"id": number, "number": 2 * number} for number in range(5)])

        found = {row["id"]: row["number"] for row in rows(table, consistency="latest")}

        assert found == {
            number: 2 * number if number < 5 else -number if number < 10 else number for number in range(20)
        }


def test_history_shows_records_of_older_columns_under_those_of_now(uri: str) -> None:
    table = Table.create(uri, SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put({"id": 1, "n": 1})
        writer.patch({"id": 1, "n": 2, "text": "x"})
    table.rename_column("n", "number").drop_column("text").add_column("c", "int", default=5)

    found = table.read_history().records.to_pylist()

    assert [(row["_op"], row["_fields"], row["number"], row["c"]) for row in found] == [
        (0, None, 1, 5),
        (1, ["number"], 2, None),
    ]


def test_indexes_over_added_and_widened_columns_answer_as_scans_do(uri: str) -> None:
    declared = {
        "name": "t",
        "uri": uri,
        "columns": {"id": "int!", "n": "short", "day": "date", "text": "string"},
        "indexes": [{"name": "numbers", "kind": "bitmap", "columns": ["n", "day"]}],
    }
    table = Table.declare(TableDeclaration.model_validate(declared))
    table.append([{"id": 1, "n": 1, "day": DAY, "text": "old words"}])
    upkeep.catch_up(table)
    more = {
        **declared,
        "columns": {"note": "string", "id": "int!", "n": "long", "day": "timestamp", "text": "string"},
        "indexes": [*declared["indexes"], {"name": "notes", "kind": "fulltext", "columns": ["note", "text"]}],
    }
    table = Table.declare(TableDeclaration.model_validate(more))
    assert Table.declare(TableDeclaration.model_validate(more)).version == table.version
    table.append([{"id": 2, "n": 2**40, "day": MIDNIGHT, "note": "new words"}])
    upkeep.catch_up(table.refresh())
    table.refresh()

    assert [row["id"] for row in rows(table, filter=col("n") == 1)] == [1]
    assert [row["id"] for row in rows(table, filter=col("day") == MIDNIGHT)] == [1, 2]
    assert sorted(table.search("words", index="notes").to_arrow().column("id").to_pylist()) == [1, 2]
    assert table.search("note:new", index="notes").to_arrow().column("id").to_pylist() == [2]


@pytest.mark.parametrize(
    ("before", "after", "values"),
    [
        ("byte", "short", [1, 2, None, 2]),
        ("short", "long", [-1, 2, None, 2]),
        ("decimal(4,2)", "decimal(20,2)", [Decimal("1.50"), None, Decimal("-2.25"), Decimal("1.50")]),
        ("date", "timestamp", [DAY, None, dt.date(1969, 7, 20), DAY]),
    ],
)
def test_a_bitmap_answers_for_a_column_that_was_widened_since(
    before: str, after: str, values: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    uri = f"memory://{uuid4()}"
    declared = {
        "name": "t",
        "uri": uri,
        "columns": {"id": "int!", "n": before},
        "indexes": [{"name": "numbers", "kind": "bitmap", "columns": ["n"]}],
    }
    table = Table.declare(TableDeclaration.model_validate(declared))
    table.append([{"id": number, "n": value} for number, value in enumerate(values * 20)])
    upkeep.catch_up(table)
    table = Table.open(uri).widen_column("n", after)

    with caplog.at_level("WARNING"):
        every = table.scan(columns=["n"]).to_arrow().column("n").to_pylist()
        some = next(each for each in every if each is not None)
        asked = some.isoformat() if isinstance(some, dt.datetime) else str(some)
        facets = table.search_facets({"n": [asked]}, "n", index="numbers").to_pylist()
        assert table.search_count({"n": [asked]}, index="numbers") == every.count(some)
        assert table.scan(filter=col("n") == some).to_arrow().num_rows == every.count(some)

    assert facets == [{"value": some, "count": every.count(some)}]
    assert [each.message for each in caplog.records] == []


def test_an_index_over_a_name_that_another_column_had_is_refused() -> None:
    uri = f"memory://{uuid4()}"
    declared = {"name": "t", "uri": uri, "columns": {"id": "int!", "text": "string", "words": "string"}}
    table = Table.declare(TableDeclaration.model_validate(declared))
    table.rename_column("text", "other").add_column("text", "string").drop_column("other").rename_column("words", "w")
    index = {"name": "texts", "kind": "fulltext"}
    columns = {"id": "int!", "w": "string", "text": "string"}

    with pytest.raises(
        InvalidInput, match=r"index 'texts' cannot use the column 'text', because an earlier column had this name. Give"
    ):
        Table.declare(
            TableDeclaration.model_validate(
                {**declared, "columns": columns, "indexes": [{**index, "columns": ["text"]}]}
            )
        )
    table.append([{"id": 1, "w": "found"}])
    renamed = {**declared, "columns": columns, "indexes": [{**index, "columns": ["w"]}]}
    found = Table.declare(TableDeclaration.model_validate(renamed)).search("found").to_arrow()
    assert found.column("id").to_pylist() == [1]


def test_work_that_was_planned_before_a_change_lands_after_it(uri: str) -> None:
    table = Table.create(uri, SCHEMA)
    table.append([{"id": 1, "n": 1}])
    table.append([{"id": 2, "n": 2}])
    older = Table.open(uri)
    planned = table.log.snapshot()
    (task,) = plan(planned)
    done = execute(table.store, task, ids=SystemIds(), now_ms=SystemClock().now_ms())
    table.rename_column("n", "number").add_column("n", "int", default=9).widen_column("number", "long")

    older.append([{"id": 3, "n": 3}])
    table.log.commit(planned, done.actions, operation=OPERATION)

    assert [(row["number"], row["n"]) for row in rows(table.refresh())] == [(1, 9), (2, 9), (3, 9)]


def test_a_merge_that_was_planned_before_a_change_is_planned_again(uri: str) -> None:
    table = Table.create(uri, SCHEMA, primary_key="id")
    table.append([{"id": 1, "n": 1}])
    planned = table.log.snapshot()
    works = merging.plan(table.store, planned)
    done = [merging.execute(table.store, each, ids=SystemIds(), now_ms=0) for each in works]
    table.add_column("c", "int", default=3)

    with pytest.raises(CommitConflict, match=r"[Pp]lan again"):
        commit_merges(table.log, planned, works, done)

    upkeep.merge(table)
    assert [row["c"] for row in rows(table.refresh())] == [3]


def ingest(table: Table, spec: LandingSpec, meanwhile: Callable[[], object] = list) -> None:
    """Ingest the landed files. `meanwhile` runs between the plan and the commit."""
    planned = table.log.snapshot()
    works = batch.plan(planned, spec, discover(spec), None)
    done = [batch.execute(table.store, each, context=context_of(planned), ids=SystemIds(), now_ms=1) for each in works]
    meanwhile()
    table.log.commit(planned, [action for each in done for action in each.actions], operation="INGEST")
    table.refresh()


@pytest.mark.parametrize("format_", ["ndjson", "parquet"])
def test_landed_files_of_old_and_new_columns_are_ingested(
    tmp_path: Path, format_: Literal["ndjson", "parquet"]
) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA)
    spec = LandingSpec(uri=str(tmp_path / "landing"), format=format_)
    (tmp_path / "landing").mkdir()

    def land(number: int, schema: pa.Schema, **values: object) -> None:
        file = tmp_path / "landing" / f"{number}.{format_}"
        if format_ == "ndjson":
            file.write_text(json.dumps({"id": number, **values}, default=str) + "\n")
        else:
            pq.write_table(pa.Table.from_pylist([{"id": number, **values}], schema=schema), file)

    land(1, SCHEMA, n=1, day=DAY)
    ingest(table, spec, lambda: table.add_column("c", "int", default=5).widen_column("n", "long"))
    land(2, SCHEMA, n=2, day=DAY)
    ingest(table, spec)
    table.drop_column("text").widen_column("day", "timestamp_ntz")
    midnight = dt.datetime(2026, 1, 2)  # noqa: DTZ001  # a time without zone
    land(3, pa.schema([("id", pa.int32()), ("n", pa.int64()), ("c", pa.int8())]), n=2**40, c=6)
    land(4, SCHEMA.remove(3), n=4, day=midnight.date() if format_ == "parquet" else midnight)
    ingest(table, spec)

    assert [(row["n"], row["c"], row["day"]) for row in rows(table)] == [
        (1, 5, midnight),
        (2, None, midnight),
        (2**40, 6, None),
        (4, None, midnight),
    ]


def test_older_versions_are_read_by_their_own_names_and_keys(uri: str) -> None:
    table = Table.create(uri, SCHEMA, primary_key="id")
    table.append([{"id": 1, "n": 1}])
    upkeep.merge(table)
    merged = table.refresh().version
    table.rename_column("n", "number").widen_column("id", "long")

    assert rows(table, columns=["id", "n"], at=merged) == [{"id": 1, "n": 1}]
    assert rows(table, filter=col("n") == 1, at=merged) == rows(table, at=merged)
    assert table.get(1, at=merged) == {"id": 1, "n": 1, "day": None, "text": None}
    assert table.explain_get(1, at=merged).to_dict()["base"]["version"] == merged
    assert table.sql("select n from t", at=merged).to_arrow().to_pylist() == [{"n": 1}]
    with pytest.raises(InvalidInput, match="'number'"):
        rows(table, columns=["number"], at=merged)


def test_a_repair_without_a_log_keeps_rows_whose_key_was_widened(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    table.append([{"id": 1, "n": 1}, {"id": 2, "n": 2}])
    upkeep.merge(table)
    table.refresh().widen_column("id", "long")
    table.append([{"id": 1, "n": 11}, {"id": 2**40, "n": 3}])
    upkeep.merge(table)
    expected = rows(table.refresh())
    for path in (tmp_path / "t" / "_transaction_log").iterdir():
        if path.is_file():
            path.unlink()

    repair(table.store, open_store(str(tmp_path / "new")), clock=SystemClock(), ids=SystemIds())

    assert rows(Table.open(str(tmp_path / "new")), consistency="latest") == expected


def test_two_changes_at_once_are_both_made(uri: str) -> None:
    table, other = Table.create(uri, SCHEMA), Table.open(uri)
    table.add_column("a", "int")
    other.add_column("b", "int")

    assert other.schema.names[-2:] == ["a", "b"]
    assert [field["metadata"]["tidemark.id"] for field in schema_of(other)] == [1, 2, 3, 4, 5, 6]


def test_a_restore_brings_columns_back_as_wide_as_they_are_and_never_an_id(uri: str) -> None:
    table = Table.create(uri, SCHEMA)
    table.append([{"id": 1, "n": 1, "text": "one"}])
    table.widen_column("n", "long").drop_column("text").add_column("c", "int", default=1)
    table.append([{"id": 2, "n": 2**40}])

    table.restore(1)

    assert rows(table) == [{"id": 1, "n": 1, "day": None, "text": "one"}]
    assert table.schema.field("n").type == pa.int64()
    table.add_column("c", "string")
    assert schema_of(table)[-1]["metadata"] == {"tidemark.id": 6, "tidemark.storedName": "c~6"}
    assert rows(table) == [{"id": 1, "n": 1, "day": None, "text": "one", "c": None}]


def test_restores_across_a_column_that_was_widened_and_dropped_can_be_read_and_compared() -> None:
    table = Table.create(f"memory://{uuid4()}", pa.schema([("id", pa.int64()), ("a", pa.int32())]))
    table.append([{"id": 1, "a": 1}])
    table.widen_column("a", "long")
    table.append([{"id": 2, "a": 2**40}])
    table.drop_column("a")
    wide = table.version - 1

    table.restore(1)

    assert table.schema.field("a").type == pa.int64()
    assert rows(table) == [{"id": 1, "a": 1}]
    for since in range(table.version):
        table.changes(since).read_all()
    table.restore(wide)
    assert rows(table) == [{"id": 1, "a": 1}, {"id": 2, "a": 2**40}]
    assert "tidemark.droppedColumns" not in table.snapshot.metadata.configuration
    table.drop_column("a").restore(0)
    assert table.schema.field("a").type == pa.int64()
    for since in range(table.version):
        table.changes(since).read_all()


def test_a_required_column_that_a_restore_brings_back_is_nullable_where_records_were_written_without_it(
    uri: str,
) -> None:
    schema = SCHEMA.append(pa.field("must", pa.int32(), nullable=False))
    table = Table.create(uri, schema, primary_key="id")
    table.append([{"id": 1, "must": 1}])
    upkeep.merge(table)
    merged = table.refresh().version
    table.drop_column("must").append([{"id": 2}])

    table.restore(merged)

    expected = [(1, 1), (2, None)]
    assert [(row["id"], row["must"]) for row in rows(table, consistency="latest")] == expected
    upkeep.merge(table)
    assert [(row["id"], row["must"]) for row in rows(table.refresh())] == expected
    assert table.schema.field("must").nullable


def test_a_table_of_many_schemas_is_sound_and_can_be_repaired(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA)
    table.append([{"id": 1, "n": 1, "text": "one"}])
    table.rename_column("n", "m").widen_column("m", "long").drop_column("text").add_column("c", "int", default=4)
    table.append([{"id": 2, "m": 2}])
    compacted(table)
    table.append([{"id": 3, "m": 3}])
    table.add_column("n", "int")
    table.append([{"id": 4, "n": 4}])
    expected = rows(table)

    assert [fault.message for fault in audit(table.store, table.log.snapshot()).violations] == []
    assert fsck(table.store, clock=SystemClock(), deep=True).clean
    for path in (tmp_path / "t" / "_transaction_log").iterdir():
        if path.is_file():
            path.unlink()
    repair(table.store, open_store(str(tmp_path / "new")), clock=SystemClock(), ids=SystemIds())
    assert rows(Table.open(str(tmp_path / "new"))) == expected


def test_the_command_makes_each_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, SCHEMA)

    def alter(*words: str) -> dict[str, Any]:
        assert main(["alter", uri, *words, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    assert alter("add-column", "c", "bigint", "--default", "5")["version"] == 1
    assert alter("widen-column", "n", "int")["status"] == "changed"
    assert alter("widen-column", "n", "int") | {"columns": []} == {
        "status": "unchanged",
        "version": 2,
        "columns": [],
    }
    alter("rename-column", "n", "number")
    alter("relax-column", "id")
    found = alter("drop-column", "text")
    assert found["columns"][1] == {"name": "number", "type": "int32", "nullable": True}
    assert [each["name"] for each in found["columns"]] == ["id", "number", "day", "c"]
    assert [entry.operation for entry in Table.open(uri).history(5)] == [
        "DROP COLUMN",
        "RELAX COLUMN",
        "RENAME COLUMN",
        "WIDEN COLUMN",
        "ADD COLUMN",
    ]
    assert main(["describe", uri, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["columns"][3] == {
        "name": "c", "type": "int64", "nullable": True, "default": "5"
    }  # fmt: skip
    for words in (["add-column", "x"], ["drop-column", "c", "d"], ["drop-column", "c", "--default", "1"]):
        assert main(["alter", uri, *words]) == 2
