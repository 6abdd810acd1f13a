"""Every read and write path stores, returns and refuses the same values of embedding columns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import InvalidInput
from storage_core.change.declaration import load
from storage_core.compact import execute as compaction
from storage_core.data.formats.raw_chunk import RECORD_COLUMNS
from storage_core.data.formats.raw_fields import encode_fields
from storage_core.data.rows import statistics
from storage_core.data.rows.conform import conform
from storage_core.data.rows.schema import from_schema_string, to_schema_string
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.maintain.audit import audit
from storage_core.maintain.check import fsck
from storage_core.read.history import row_bytes
from storage_core.store.memory import MemoryStore
from storage_core.table import Table, exists
from storage_core.write.ingest.batch import parse_file
from storage_core.write.ingest.convert import Parsed, RowFormat
from storage_core.write.ingest.landing import LandedFile, LandingSpec
from storage_core.write.raw_log.read import FEW, typed_records
from tests.support import merge_plan
from tests.support.deleted_rows import delete_where
from tests.support.keyed_table import KeyedTable

VECTOR = pa.list_(pa.float32(), 3)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("embedding", VECTOR), ("text", pa.string())])
BY_ANGLE = IndexDefinition("near", "vector", ("embedding",), {"metric": "cosine"})
Rows = Sequence[Mapping[str, Any]]
ROWS: Rows = [
    {"id": 1, "embedding": [1.0, 2.0, 3.0], "text": "a"},
    {"id": 2, "embedding": None, "text": "b"},
    {"id": 3, "embedding": [0.5, -0.25, 0.0], "text": None},
    {"id": 4, "embedding": [0.0, 0.0, 0.0], "text": "d"},
]


@pytest.fixture(params=["local", "memory"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "t") if request.param == "local" else f"memory://vectors-{tmp_path.name}"


def by_id(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: row["id"])


# The type.


def test_a_schema_says_array_of_float_to_spark_and_keeps_the_dimensions_beside_it() -> None:
    text = to_schema_string(SCHEMA)
    field = json.loads(text)["fields"][1]
    assert field["type"] == {"type": "array", "elementType": "float", "containsNull": True}
    assert field["metadata"] == {"tidemark.vector": 3}
    assert from_schema_string(text).equals(SCHEMA)


@pytest.mark.parametrize("dimensions", [0, -1, 16_385, "3", None, 2.5, True])
def test_a_schema_string_whose_vectors_have_impossible_dimensions_is_refused(dimensions: object) -> None:
    body = json.loads(to_schema_string(SCHEMA))
    body["fields"][1]["metadata"]["tidemark.vector"] = dimensions
    with pytest.raises(InvalidInput, match="'embedding' is a vector"):
        from_schema_string(json.dumps(body))


def test_a_schema_string_whose_vectors_are_no_floats_is_refused() -> None:
    body = json.loads(to_schema_string(SCHEMA))
    body["fields"][1]["type"]["elementType"] = "double"
    with pytest.raises(InvalidInput, match="Declare the type array<float>"):
        from_schema_string(json.dumps(body))


@pytest.mark.parametrize(
    "type_",
    [
        pa.list_(pa.float64(), 3),
        pa.list_(pa.float32(), 16_385),
        pa.struct([("v", VECTOR)]),
        pa.list_(VECTOR),
        pa.map_(pa.string(), VECTOR),
    ],
)
def test_no_other_list_of_a_fixed_size_is_a_column_and_no_vector_is_inside_of_one(type_: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match="tables do not support"):
        to_schema_string(pa.schema([("v", type_)]))


@pytest.mark.parametrize(
    "role",
    ["primary_key", "key with time", "sort_schema", "time_column", "bloom_filters", "bitmap", "map_columns", "regions"],
)
def test_a_vector_orders_and_divides_nothing(tmp_path: Path, role: str) -> None:
    at = pa.field("at", pa.timestamp("us", "UTC"))
    schema = pa.schema([pa.field(each.name, each.type, nullable=False) for each in [*SCHEMA, at]])
    every: dict[str, dict[str, Any]] = {
        "primary_key": {"primary_key": ["embedding"]},
        "key with time": {"primary_key": ["embedding", "at"], "time_column": "at"},
        "sort_schema": {"time_column": "at", "sort_schema": "embedding|timestamp/V2"},
        "time_column": {"time_column": "embedding"},
        "bloom_filters": {"bloom_filters": ["embedding"]},
        "bitmap": {"indexes": [{"name": "b", "kind": "bitmap", "columns": ["embedding"]}]},
        "map_columns": {"primary_key": ["id"], "map_columns": {"embedding": "merge"}},
        "regions": {"primary_key": ["id"], "regions": [{"column": "embedding"}]},
    }
    with pytest.raises(InvalidInput) as caught:
        Table.create(str(tmp_path / "t"), schema, **every[role])
    assert "fixed_size_list" not in str(caught.value)


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ({"kind": "vector", "columns": ["nope"]}, "unknown column 'nope'. The table has id, embedding, text"),
        ({"kind": "vector", "columns": ["text"]}, "column 'text' does not contain embeddings, its type is string"),
        ({"kind": "vector", "columns": ["embedding", "text"]}, "a vector index has one column"),
        (
            {"kind": "vector", "columns": ["embedding"], "metric": "euclid"},
            "metric is 'euclid'. Give l2, cosine or dot",
        ),
        (
            {"kind": "fulltext", "columns": ["embedding"]},
            "full text needs string columns, but 'embedding' has type vector",
        ),
    ],
)
def test_an_index_on_a_column_that_is_none_is_refused_when_it_is_defined(
    tmp_path: Path, definition: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidInput, match=why):
        Table.create(str(tmp_path / "t"), SCHEMA, indexes=[{"name": "near", **definition}])
    assert not exists(str(tmp_path / "t"))


def test_a_fingerprint_tells_vectors_apart_and_not_where_they_stand() -> None:
    column = pa.array([[1, 2, 3], None, [3, 2, 1], [0.0, 0, 0], [-0.0, 0, 0]], VECTOR)
    hashes = statistics.cells(column)
    assert hashes[1] == 0
    assert hashes[3] == hashes[4]
    assert len({*hashes.tolist()}) == 4
    assert statistics.cells(column.slice(2)).tolist() == hashes[2:].tolist()
    assert statistics.cells(column.take(pa.array([2, 0]))).tolist() == hashes[[2, 0]].tolist()


def test_a_row_is_charged_for_every_number_of_its_vector() -> None:
    rows = pa.table({"v": pa.array([[1, 2, 3], None], VECTOR)})
    assert row_bytes(rows).tolist() == [16, 16]
    assert row_bytes(rows.slice(1)).tolist() == [16]


def test_a_table_with_vectors_keeps_releases_away_that_know_none(tmp_path: Path) -> None:
    with_vectors = Table.create(str(tmp_path / "a"), SCHEMA).snapshot.protocol
    without = Table.create(str(tmp_path / "b"), pa.schema([("id", pa.int64())])).snapshot.protocol
    for features in (with_vectors.readerFeatures, with_vectors.writerFeatures):
        assert "vectorColumns" in (features or ())
    assert "vectorColumns" not in (without.writerFeatures or ())


DECLARED = """
name: pages
uri: {uri}
columns: {{id: long!, embedding: vector(3), text: string}}
indexes: [{{name: near, kind: vector, columns: [embedding], metric: {metric}, nprobe: 8}}]
"""


def test_a_declaration_has_vectors_and_the_options_of_their_index(tmp_path: Path) -> None:
    (tmp_path / "pages.yaml").write_text(DECLARED.format(uri=tmp_path / "t", metric="cosine"))
    table = Table.declare(load(tmp_path / "pages.yaml"))
    assert table.schema.equals(SCHEMA)
    assert table.config.index("near") == IndexDefinition(
        "near", "vector", ("embedding",), {"metric": "cosine", "nprobe": "8"}
    )
    beside = {"name": "near", "kind": "vector", "columns": ["embedding"], "metric": "cosine", "nprobe": 8}
    created = Table.create(str(tmp_path / "other"), SCHEMA, indexes=[beside])
    assert created.config.indexes == table.config.indexes
    with pytest.raises(InvalidInput, match="given twice"):
        Table.create(str(tmp_path / "third"), SCHEMA, indexes=[{**beside, "options": {"metric": "l2"}}])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("metric: l2", "metric: euclid"), "metric is 'euclid'. Give l2, cosine or dot"),
        (("nprobe: 8", "nprobe: none"), "nprobe is 'none'"),
        (("nprobe: 8", "probes: 8"), "probes"),
        (("vector(3)", "vector(0)"), "is not a column type"),
        (("vector(3)", "vector(99999)"), "is not a column type"),
        (("kind: vector", "kind: bitmap"), "metric"),
    ],
)
def test_a_declaration_that_means_no_vectors_is_refused_with_its_line(
    tmp_path: Path, change: tuple[str, str], why: str
) -> None:
    (tmp_path / "pages.yaml").write_text(DECLARED.format(uri=tmp_path / "t", metric="l2").replace(*change))
    with pytest.raises(InvalidInput, match=why) as caught:
        load(tmp_path / "pages.yaml")
    assert "pages.yaml" in str(caught.value)


# Writes and reads of embedding columns.


def test_what_is_appended_is_read_by_every_way_to_read(uri: str) -> None:
    table = Table.create(uri, SCHEMA)
    table.append(ROWS)
    table.append(pa.table({"id": [5], "embedding": pa.array([[1, 2, 4]], pa.list_(pa.float32()))}))
    table.append([{"id": 6}, {"id": 7, "embedding": np.array([7, 8, 9], np.float32)}])
    expected = [
        *ROWS,
        *({"id": n, "embedding": v, "text": None} for n, v in ((5, [1, 2, 4]), (6, None), (7, [7, 8, 9]))),
    ]
    scanned = table.scan().to_arrow()
    assert scanned.schema.equals(SCHEMA)
    assert by_id(scanned) == expected
    assert by_id(table.scan(filter="id >= 3", columns=["id", "embedding"]).to_arrow()) == [
        {name: row[name] for name in ("id", "embedding")} for row in expected if int(str(row["id"])) >= 3
    ]
    reached = table.sql(
        "SELECT id, typeof(embedding) kind, array_distance(embedding, [1, 2, 3]::FLOAT[3]) away FROM t ORDER BY id"
    ).to_arrow()
    assert {*reached.column("kind").to_pylist()} == {"FLOAT[3]"}
    assert reached.column("away").to_pylist()[:2] == [0.0, None]
    assert reached.column("away").to_pylist()[4] == 1.0
    changed = pa.Table.from_batches(table.changes(0, table.version))
    assert by_id(changed.select(SCHEMA.names)) == expected
    assert fsck(table.store, clock=SystemClock(), deep=True).findings == ()


def test_a_condition_may_be_about_vectors(uri: str) -> None:
    table = Table.create(uri, SCHEMA)
    table.append(ROWS)
    found = {
        "embedding IS NULL": [2],
        "NOT (embedding IS NULL)": [1, 3, 4],
        "embedding = [1, 2, 3]": [1],
        "embedding IN ([1, 2, 3]::FLOAT[3])": [1],
        "embedding[1] > 0.2": [1, 3],
        "array_distance(embedding, [0, 0, 0]::FLOAT[3]) < 1": [3, 4],
    }
    for condition, ids in found.items():
        assert sorted(table.scan(filter=condition).to_arrow().column("id").to_pylist()) == ids, condition


def test_rows_of_a_file_whose_columns_are_others_are_read_beside_them(uri: str) -> None:
    table = Table.create(uri, SCHEMA)
    table.append(pa.table({"id": [1], "text": ["without"]}))
    table.append(ROWS[2:])
    found = table.sql("SELECT id, embedding, typeof(embedding) kind FROM t ORDER BY id").to_arrow().to_pylist()
    assert [row["kind"] for row in found] == ["FLOAT[3]"] * 3
    assert [row["embedding"] for row in found] == [None, [0.5, -0.25, 0.0], [0.0, 0.0, 0.0]]


def test_a_file_holds_a_list_of_floats_and_says_of_which_size(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA)
    table.append(ROWS)
    (path,) = table.snapshot.splits
    read = pq.read_table(tmp_path / "t" / path)
    assert read.schema.field("embedding").type == pa.list_(pa.float32())
    assert sorted(read.column("embedding").to_pylist(), key=str) == sorted((row["embedding"] for row in ROWS), key=str)
    with duckdb.connect() as connection:
        described = connection.execute(f"SELECT typeof(embedding) FROM '{tmp_path / 't' / path}' LIMIT 1")
        assert described.fetchall() == [("FLOAT[]",)]
    add = table.snapshot.splits[path]
    assert "embedding" not in (add.minValues or {})
    assert (add.nullCounts or {})["embedding"] == 1


def test_a_compaction_keeps_every_vector_with_its_row_and_an_audit_finds_it_so(uri: str) -> None:
    random = np.random.default_rng(5)
    table = Table.create(uri, pa.schema([*SCHEMA, ("n", pa.int64())]))
    expected = []
    for part in range(3):
        vectors = random.standard_normal((500, 3)).astype(np.float32)
        rows = [
            {"id": part * 500 + n, "embedding": None if n % 7 == 0 else v.tolist(), "text": f"{n % 3}", "n": n}
            for n, v in enumerate(vectors)
        ]
        table.append(rows)
        expected += rows
    delete_where(table.log, lambda row: int(row["id"]) % 5 == 0)
    table.refresh()
    compact(table)
    assert by_id(table.scan().to_arrow()) == [row for row in expected if int(str(row["id"])) % 5]
    assert len(table.snapshot.splits) == 1
    assert audit(table.store, table.snapshot).violations == ()
    assert fsck(table.store, clock=SystemClock(), deep=True).findings == ()


def compact(table: Table) -> None:
    for task in merge_plan.plan(table.snapshot):
        done = compaction.execute(table.store, task, ids=SystemIds(), now_ms=0)
        table.log.commit(table.snapshot, done.actions, operation="COMPACT")
    table.refresh()


# Refusals on write.

BAD: Mapping[str, tuple[object, str]] = {
    "short": ([1.0, 2.0], "has the wrong length. Give 3 numbers"),
    "long": ([1.0, 2.0, 3.0, 4.0], "has the wrong length. Give 3 numbers"),
    "text": ("1,2,3", "vector\\(3\\)"),
    "text inside": ([1.0, "2", 3.0], "vector\\(3\\)"),
    "truth inside": ([1.0, True, 3.0], "would become"),
    "null inside": ([1.0, None, 3.0], "a number of the vector is null"),
    "NaN": ([1.0, math.nan, 3.0], "NaN or infinite"),
    "infinity": ([1.0, math.inf, 3.0], "NaN or infinite"),
    "too large": ([1.0, 1e300, 3.0], "would become inf"),
    "number": (5.0, "vector\\(3\\)"),
    "zero": ([0.0, -0.0, 0.0], "the vector is zero"),
    "bytes": (b"abc", ": a vector has the type bytes. Give a list or an array of numbers"),
    "bytes that change": (bytearray(b"abc"), "a vector has the type bytearray"),
    "a view of bytes": (memoryview(b"abc"), "a vector has the type memoryview"),
    "a set": ({1.0, 2.0, 3.0}, "a vector has the type set"),
    "a set that stays": (frozenset({1.0, 2.0, 3.0}), "a vector has the type frozenset"),
    "a range": (range(3), "a vector has the type range"),
}
GOOD: Mapping[str, object] = {
    "a list": [1, 2, 3],
    "a tuple": (1.0, 2, 3),
    "an array": np.array([1, 2, 3]),
    "an array of floats": np.array([1, 2, 3], np.float32),
}


@pytest.mark.parametrize("case", BAD)
def test_an_append_refuses_what_is_no_vector_with_its_row_and_column(tmp_path: Path, case: str) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, indexes=[BY_ANGLE])
    value, why = BAD[case]
    with pytest.raises(InvalidInput, match=why) as caught:
        table.append([{"id": 1, "embedding": [1, 2, 3]}, {"id": 2, "embedding": value}])
    assert (caught.value.context["column"], caught.value.context["row"]) == ("embedding", 1)
    assert table.refresh().version == 0


@pytest.mark.parametrize("case", GOOD)
def test_lists_tuples_and_arrays_of_numbers_are_vectors(tmp_path: Path, case: str) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, indexes=[BY_ANGLE])
    table.append({"id": 1, "embedding": GOOD[case]})
    assert table.scan(["embedding"]).to_arrow().to_pylist() == [{"embedding": [1, 2, 3]}]


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (pa.array([[1, 2, 3], [1, 2]], pa.list_(pa.float32())), "row 1: the vector has 2 numbers"),
        (pa.array([[1, 2, 3], None, [1, 2, 3, 4]], pa.large_list(pa.float32())), "row 2: the vector has 4 numbers"),
        (pa.array([None, [1, 2]], pa.list_(pa.float32(), 2)), "row 1: the vector has 2 numbers"),
        (pa.array([None, [1, None, 2]], VECTOR), "row 1: a number of the vector is null"),
        (pa.array([[1, 2, 3], [1, 2, math.nan]], VECTOR), "row 1: a number of the vector is NaN"),
        (pa.array(["[1,2,3]"]), "has type string, but the table has vector\\(3\\)"),
        (pa.array([[0.1, 2, 3]], pa.list_(pa.float64())), "Convert the values before writing"),
        (pa.array([[2**24 + 1, 2, 3]], pa.list_(pa.int64())), "does not fit vector\\(3\\) exactly"),
    ],
)
def test_arrow_data_that_is_no_vector_is_refused(tmp_path: Path, column: pa.Array, why: str) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA)
    with pytest.raises(InvalidInput, match=why) as caught:
        table.append(pa.table({"id": range(len(column)), "embedding": column}))
    assert caught.value.context["column"] == "embedding"


def test_whole_numbers_and_lists_of_any_layout_become_vectors() -> None:
    for kind in (pa.list_(pa.int64()), pa.large_list(pa.float32()), pa.list_(pa.int8(), 3), pa.list_(pa.float16())):
        given = pa.table({"id": [1, 2], "embedding": pa.array([[1, 2, 3], None], kind)})
        found = conform(given, SCHEMA)
        assert found.column("embedding").type == VECTOR
        assert found.column("embedding").to_pylist() == [[1, 2, 3], None]


def test_a_zero_vector_is_one_where_no_index_compares_angles(uri: str) -> None:
    table = Table.create(uri, SCHEMA, indexes=[{"name": "near", "kind": "vector", "columns": ["embedding"]}])
    table.append(ROWS)
    assert by_id(table.scan().to_arrow()) == [*ROWS]


# Keyed tables.


def test_vectors_live_through_wal_memtable_generation_merge_and_lookups(uri: str) -> None:
    table = Table.create(uri, SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put(ROWS)
        writer.patch([{"id": 1, "text": "patched"}, {"id": 3, "embedding": [9, 9, 9]}])
        latest = {row["id"]: row["embedding"] for row in table.scan(consistency="latest").to_arrow().to_pylist()}
        assert latest == {1: [1, 2, 3], 2: None, 3: [9, 9, 9], 4: [0, 0, 0]}
        writer.flush()
        writer.delete([4])
        writer.patch([{"id": 2, "embedding": [2, 2, 2]}, {"id": 1, "embedding": None}])
    with table.writer() as writer:  # replays the log
        writer.put([{"id": 5, "embedding": [5, 5, 5]}])
    expected = {1: None, 2: [2, 2, 2], 3: [9, 9, 9], 5: [5, 5, 5]}
    assert {row["id"]: row["embedding"] for row in table.scan(consistency="latest").to_arrow().to_pylist()} == expected
    assert table.get(2)["embedding"] == [2, 2, 2]  # type: ignore[index]
    assert table.get(1) == {"id": 1, "embedding": None, "text": "patched"}
    answer = table.sql("SELECT id, typeof(embedding) kind FROM t ORDER BY id", consistency="latest").to_arrow()
    assert {*answer.column("kind").to_pylist()} == {"FLOAT[3]"}


def test_a_merge_puts_the_vectors_of_generations_into_the_base_and_what_it_gives_can_be_audited() -> None:
    keyed = KeyedTable(MemoryStore("vectors")).create(SCHEMA, TableConfig(primary_key=("id",)))
    for part in range(3):
        with keyed.writer() as writer:
            writer.put([{"id": n, "embedding": [part, n, 1.5], "text": "x"} for n in range(part, 40, part + 1)])
            writer.flush()
        keyed.merge_all()
    expected = {n: [max(part for part in range(3) if n in range(part, 40, part + 1)), n, 1.5] for n in range(40)}
    assert {row["id"]: row["embedding"] for row in keyed.base_rows()} == expected
    assert audit(keyed.store, keyed.snapshot).violations == ()


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("verb", ["put", "patch"])
def test_a_writer_refuses_what_is_no_vector_and_writes_nothing(tmp_path: Path, verb: str, case: str) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, primary_key="id", indexes=[BY_ANGLE])
    value, why = BAD[case]
    with table.writer() as writer:
        with pytest.raises(InvalidInput, match=why) as caught:
            getattr(writer, verb)([{"id": 1, "embedding": [1, 2, 3]}, {"id": 2, "embedding": value}])
        assert (caught.value.context["column"], caught.value.context["row"]) == ("embedding", 1)
    assert table.refresh().scan(consistency="latest").to_arrow().num_rows == 0


# The raw log.


@pytest.mark.parametrize("count", [1, FEW])
def test_records_of_a_raw_log_are_rejected_with_the_reason_and_the_others_are_kept(count: int) -> None:
    given: list[object] = [
        [1, 2.5, 3],
        None,
        [1, 2],
        "abc",
        [1, None, 3],
        [1, 1e39, 3],
        [0, 0, 0],
        [math.nan, 0, 0],
        b"abc",
    ]
    fields = [encode_fields({"id": n, "embedding": value}) for n, value in enumerate(given)] * count
    records = pa.table(
        {
            "record_id": [f"w:{n}" for n in range(len(fields))],
            "timestamp_ms": range(len(fields)),
            "table": ["t"] * len(fields),
            "key": [None] * len(fields),
            "operation": ["put"] * len(fields),
            "fields": fields,
        },
        RECORD_COLUMNS,
    )
    found = typed_records(records, SCHEMA, key=("id",), nonzero=("embedding",))
    assert found.records.column("embedding").type == VECTOR
    assert found.records.column("embedding").to_pylist() == [[1, 2.5, 3], None] * count
    whys = [each.reason.removeprefix("column 'embedding': ") for each in found.rejected[:7]]
    assert [why.split(":")[0] for why in whys] == [
        *["a value does not fit the type vector(3)"] * 2,
        REASONS[5],
        "a value does not fit the type vector(3)",
        REASONS[7],
        REASONS[6],
        "a value does not fit the type vector(3)",
    ]
    assert len(found.rejected) == 7 * count


# Landed files.


def landed(folder: Path, name: str, data: bytes, form: Any, nonzero: Sequence[str] = ("embedding",)) -> Parsed:
    (folder / name).write_bytes(data)
    file = LandedFile(name, len(data), folder.resolve().as_uri())
    return parse_file(file, LandingSpec(uri=file.uri, format=form), SCHEMA, None, nonzero=nonzero)


def reasons(parsed: Parsed) -> dict[int | None, str]:
    return {each.line: each.reason.removeprefix("column embedding: ") for each in parsed.rejected}


LINES = {
    1: '{"id": 1, "embedding": [1, 2.5, -3e1]}',
    2: '{"id": 2, "embedding": [1, 2]}',
    3: '{"id": 3, "embedding": null}',
    4: '{"id": 4, "embedding": "abc"}',
    5: '{"id": 5, "embedding": [1, null, 3]}',
    6: '{"id": 6, "embedding": [1, 1e300, 3]}',
    7: '{"id": 7, "embedding": [0, 0.0, -0]}',
    8: '{"id": 8, "embedding": [1, "2", 3]}',
    9: '{"id": 9, "embedding": {"a": 1}}',
    10: '{"id": 10, "embedding": [[1, 2, 3]]}',
    11: '{"id": 11, "embedding": []}',
    12: '{"id": 12}',
    13: '{"id": 13, "embedding": [1, true, 3]}',
    14: '{"id": 14, "embedding": "[1,2,3]"}',
    15: '{"id": 15, "embedding": " [1, 2e0, 3.5] ", "text": "[1,2,3]"}',
    16: '{"id": 16, "embedding": ""}',
}
REASONS = {
    2: "the vector has 2 numbers, but the column has the type vector(3)",
    4: "not a valid vector(3)",
    5: "a number of the vector is null",
    6: "a number of the vector is NaN or infinite",
    7: "the vector is zero, which has no direction, and an index of the column compares by cosine",
    8: "not a valid vector(3)",
    9: "not a valid vector(3)",
    10: "not a valid vector(3)",
    11: "the vector has 0 numbers, but the column has the type vector(3)",
    13: "not a valid vector(3)",
    14: "not a valid vector(3)",
    15: "not a valid vector(3)",
}


def test_bad_lines_of_json_are_rejected_with_their_number_and_reason(tmp_path: Path) -> None:
    parsed = landed(tmp_path, "a.ndjson", "\n".join(LINES.values()).encode(), "ndjson")
    assert parsed.rows.schema.equals(SCHEMA)
    kept = {row["id"]: row["embedding"] for row in parsed.rows.to_pylist()}
    assert kept == {1: [1, 2.5, -30], 3: None, 12: None, 16: None}
    assert reasons(parsed) == REASONS
    assert [each.text for each in parsed.rejected] == [LINES[number] for number in REASONS]


def test_bad_records_of_csv_are_rejected_with_their_number_and_reason(tmp_path: Path) -> None:
    texts = [
        "[1, 2.5, -3e1]",
        "[1, 2]",
        "",
        "abc",
        "[1, null, 3]",
        "[1, inf, NaN]",
        "[0,0,0]",
        " [ 1,2 ,3 ] ",
        "[1;2;3]",
    ]
    data = "id,embedding\n" + "".join(f'{number},"{text}"\n' for number, text in enumerate(texts))
    parsed = landed(tmp_path, "a.csv", data.encode(), "csv")
    kept = {row["id"]: row["embedding"] for row in parsed.rows.to_pylist()}
    assert kept == {0: [1, 2.5, -30], 2: None, 7: [1, 2, 3]}
    assert reasons(parsed) == {
        3: REASONS[2],
        5: REASONS[4],
        6: REASONS[5],
        7: REASONS[6],
        8: REASONS[7],
        10: REASONS[4],
    }


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32())])
def test_bad_records_of_parquet_are_rejected_with_their_number_and_their_values(tmp_path: Path, kind: Any) -> None:
    vectors = [[1, 2, 3], [1, 2], None, [1, None, 3], [1, math.inf, 3], [0, 0, 0], [4, 5, 6]]
    rows = pa.table({"id": range(len(vectors)), "embedding": pa.array(vectors, kind)})
    pq.write_table(rows, tmp_path / "source")
    parsed = landed(tmp_path, "a.parquet", (tmp_path / "source").read_bytes(), "parquet")
    assert parsed.rows.schema.equals(SCHEMA)
    assert {row["id"]: row["embedding"] for row in parsed.rows.to_pylist()} == {0: [1, 2, 3], 2: None, 6: [4, 5, 6]}
    assert reasons(parsed) == {2: "not a valid vector(3)", 4: REASONS[5], 5: REASONS[6], 6: REASONS[7]}
    assert json.loads(parsed.rejected[0].text) == {"id": 1, "embedding": [1, 2], "text": None}


def test_a_parquet_file_with_text_for_vectors_is_rejected_as_a_whole(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "embedding": ["[1,2,3]"]}), tmp_path / "source")
    parsed = landed(tmp_path, "a.parquet", (tmp_path / "source").read_bytes(), "parquet")
    assert parsed.unreadable
    assert "has type string, but the table has vector(3)" in parsed.rejected[0].reason


def test_zeros_that_land_are_vectors_where_no_index_compares_angles(tmp_path: Path) -> None:
    parsed = landed(tmp_path, "a.ndjson", LINES[7].encode(), "ndjson", nonzero=())
    assert parsed.rows.column("embedding").to_pylist() == [[0, 0, 0]]


def test_vectors_of_a_row_format_are_nonzero_only_where_it_says_so() -> None:
    assert RowFormat(SCHEMA).nonzero == frozenset()
